"""`dsv4ctl lint`: every finding of schema and policy, for each file."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any, Final

from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, EXIT_UNREADABLE, UnreadableError
from dsv4_operator.cli.files import shown_name
from dsv4_operator.cli.judge import Judgement, finding_json, finding_line, image_defaults, judge
from dsv4_operator.cli.output import print_json, print_line, print_table
from dsv4_operator.policy import Action, Finding

EMPTY: Final[dict[str, Any]] = {"findings": []}
UNREADABLE_RULE: Final = "unreadable"


def run(args: argparse.Namespace) -> int:
    """Exit code: the worst of all files; 0 fine, 1 refused, 2 unreadable."""
    paths = [path for group in args.filename for path in group]
    if paths.count("-") > 1:
        raise UnreadableError("stdin: can be read once; give - once")
    judgements = [_judge(path, args) for path in paths]
    if args.output == "json":
        print_json({"findings": [_as_json(f, j, len(paths) > 1) for j in judgements for f in j.findings]})
    for judgement in judgements:
        for line in judgement.unreadable:
            print_line(f"error: {line}", sys.stderr)
        if args.output != "json" and not judgement.unreadable:
            _show(judgement)
    return max(_code(judgement) for judgement in judgements)


def _judge(path: str, args: argparse.Namespace) -> Judgement:
    try:
        return judge(path, image_defaults(args), assume=args.assume_images)
    except UnreadableError as error:
        # One bad file does not hide what the others say.
        line = str(error)
        where, _, message = line.partition(": ")
        finding = Finding(UNREADABLE_RULE, Action.REFUSE, where, message, "", allowable=False)
        return Judgement(shown_name(path), {}, findings=[finding], unreadable=[line])


def _code(judgement: Judgement) -> int:
    if judgement.unreadable:
        return EXIT_UNREADABLE
    return EXIT_REFUSED if judgement.refused else EXIT_FINE


def _as_json(finding: Finding, judgement: Judgement, several: bool) -> dict[str, str]:
    return finding_json(finding) | ({"file": judgement.file} if several else {})


def _show(judgement: Judgement) -> None:
    findings = judgement.findings
    if findings:
        print_table(
            ("ACTION", "RULE", "FIELD", "WHAT"),
            [
                (f.action.value, f.rule, f.path, f"{f.message} [{f.source}]" if f.source else f.message)
                for f in findings
            ],
            [finding_line(finding, f"{judgement.file}: ") for finding in findings],
        )
    counts = Counter(finding.action for finding in findings)
    told = ", ".join(f"{counts[action]} {action.value}" for action in Action if counts[action])
    verdict = "refused" if judgement.refused else "fine"
    print_line(f"{judgement.file}: {verdict}{f' ({told})' if told else ''}")
