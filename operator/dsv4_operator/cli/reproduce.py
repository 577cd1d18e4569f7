"""Options of the commands that reproduce a fault: soak, compare, bisect. What they do is in modules of their own."""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from dsv4_canary.soak.options import EXITS, add_run

COMMANDS: Final = {"soak": "soak", "compare": "compare", "bisect": "bisect.command"}
"""Command to module."""

_SOAK_EXITS: Final = EXITS.split("\nexit status of compare")[0].replace("exit status of run and report", "exit status")
_COMPARE_EXITS: Final = (
    "Exit codes: 0 no difference proved, 1 they differ, 2 unreadable input or wrong usage,\n"
    "3 nothing to compare: a run without replies."
)
_BISECT_EXITS: Final = """exit status:
  0    the setting as given is clean, or --dry-run
  1    the fault is there, and a factor is named
  2    bad usage, unreadable or refused object
  3    it could not be run or decided: no arm started, too few sessions, budget used up
  4    the fault is there, and no factor of these is the cause, or several that were not told apart
  130  interrupted; arms are torn down, what was done is kept, --resume goes on
"""


def register(commands: Any) -> None:
    """Add the commands to the parser of dsv4ctl."""
    _soak(_command(commands, "soak", "Run many agent sessions against an endpoint and check every reply.", _SOAK_EXITS))
    compare = _command(commands, "compare", "Compare two soaks: do they differ, and by how much?", _COMPARE_EXITS)
    compare.add_argument("a", metavar="A.json", help="report of a soak")
    compare.add_argument("b", metavar="B.json", help="report of another")
    _output(compare)
    _bisect(_command(commands, "bisect", "Find the factor of a DSV4Deployment that corrupts replies.", _BISECT_EXITS))


def _command(commands: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def _output(parser: Any) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets (text)")


def _soak(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    inside = parser.add_argument_group("in the cluster")
    inside.add_argument(
        "--in-cluster", action="store_true", help="run as a Job, follow it, bring the results back, clean up"
    )
    inside.add_argument("--image", metavar="IMAGE", help="the canary image ($DSV4CTL_CANARY_IMAGE)")
    inside.add_argument("--api-key-secret", metavar="NAME/KEY", help="Secret that holds the endpoint's API key")
    inside.add_argument("--volume-claim", metavar="PVC", help="keep the files on this PersistentVolumeClaim as well")
    inside.add_argument("--keep", action="store_true", help="leave Job and results in the cluster")
    _connection(inside)


def _bisect(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("-f", "--filename", required=True, metavar="CR", help="the DSV4Deployment; it is never touched")
    what.add_argument("--factor", action="append", metavar="NAME", dest="factors",
                      help="only this one; may be given several times (all)")  # fmt: skip
    what.add_argument(
        "--safe-image", metavar="IMAGE", help="engine image known to be good; without it image is no factor"
    )
    what.add_argument("--test-deployment", metavar="NAME", help="edit this test object instead of making new ones")
    what.add_argument("--dry-run", action="store_true", help="print the plan and its GPU-hours, and end")
    load = parser.add_argument_group("load")
    for name, default, text in (
        ("sessions", 80, "agent sessions of one batch"),
        ("rounds", 4, "tool calls per session"),
        ("ctx", 300, "words of new context per round"),
        ("shared-ctx", 2600, "words of the shared prefix"),
        ("share", 8, "sessions per shared prefix"),
        ("max-tokens", 2500, "limit of a reply"),
    ):
        load.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} ({default})")
    load.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS", help="limit of a request (180)")
    load.add_argument(
        "--seed", type=int, metavar="N", help="all arms get the same requests (random; the report has it)"
    )
    load.add_argument("--batches", type=int, default=3, metavar="N", help="batches of an arm at most (3)")
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument(
        "--max-gpu-hours", type=float, metavar="H", help="begin nothing that would go beyond (no limit)"
    )
    bounds.add_argument("--stop-at-cure", action="store_true", help="end at the first setting that cures")
    bounds.add_argument("--no-recheck", action="store_true", help="do not run the given setting again at the end")
    bounds.add_argument("--startup-minutes", type=float, default=20.0, metavar="M",
                        help="estimate of a start, for the GPU-hours (20)")  # fmt: skip
    bounds.add_argument("--batch-minutes", type=float, default=10.0, metavar="M",
                        help="estimate of a batch, for the GPU-hours (10)")  # fmt: skip
    bounds.add_argument("--start-timeout", type=float, default=5400.0, metavar="SECONDS",
                        help="longest wait for an arm to become Ready (5400)")  # fmt: skip
    out = parser.add_argument_group("output")
    out.add_argument("--out", default="bisect", metavar="DIR", help="folder of the files (bisect)")
    out.add_argument("--resume", action="store_true", help="go on with what this folder holds")
    out.add_argument("--quiet", action="store_true", help="no progress")
    _output(out)
    cluster = parser.add_argument_group("cluster and images")
    _connection(cluster)
    for name in ("engine", "canary", "router"):
        variable = f"DSV4CTL_{name.upper()}_IMAGE"
        cluster.add_argument(
            f"--{name}-image",
            metavar="IMAGE",
            default=os.environ.get(variable),
            help=f"for objects without spec.{name}.image (${variable})",
        )


def _connection(group: Any) -> None:
    """Options that say which cluster and namespace."""
    group.add_argument("-n", "--namespace", metavar="NS", help="namespace [default that of the context]")
    group.add_argument("--kubeconfig", metavar="FILE", help="as kubectl takes it [default $KUBECONFIG]")
    group.add_argument("--context", metavar="NAME", help="as kubectl takes it")
