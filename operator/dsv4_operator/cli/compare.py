"""`dsv4ctl compare`: two soaks against each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from dsv4_canary.soak.compare import ReportError, compare, comparison_text, exit_of_comparison, read_report
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.output import print_json

EMPTY: Final[dict[str, Any]] = {"kind": "dsv4-soak-comparison"}


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 no difference proved, 1 they differ, 3 a run without replies."""
    try:
        result = compare(read_report(Path(args.a)), read_report(Path(args.b)))
    except ReportError as error:
        raise UnreadableError(str(error)) from None
    if args.output == "json":
        print_json(result)
    else:
        sys.stdout.write(comparison_text(result))
    return exit_of_comparison(result)
