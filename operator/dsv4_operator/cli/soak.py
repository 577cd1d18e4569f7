"""`dsv4ctl soak`: many agent sessions against one endpoint, from here or from a Job in the cluster."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.extras import load

EMPTY: Final[dict[str, Any]] = {"kind": "dsv4-soak"}
_ONLY_INSIDE: Final = ("image", "api_key_secret", "volume_claim", "keep", "namespace", "context", "kubeconfig")
_ONLY_OUTSIDE: Final = ("api_key_env", "resume", "metrics_port", "publish")
"""Options that mean this machine; a Job has its own."""


def run(args: argparse.Namespace) -> int:
    """Exit status of the soak."""
    if not args.in_cluster:
        _refuse(args, _ONLY_INSIDE, "works with --in-cluster alone")
        status: int = load("dsv4_canary.soak.cli", "canary").execute("run", args, os.environ)
        return status
    _refuse(args, _ONLY_OUTSIDE, "has no meaning with --in-cluster")
    from dsv4_operator.cli import soak_cluster  # noqa: PLC0415 - beside the use

    report = soak_cluster.run_here(args)
    if args.output == "text" and report.text:
        sys.stdout.write(report.text)
    return report.status


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(args, name) not in (None, False):
            raise UnreadableError(f"--{name.replace('_', '-')}: {why}; leave it out")
