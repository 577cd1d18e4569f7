"""Options of a soak, for every command line that takes them. Imports nothing that is not of the standard library."""

from __future__ import annotations

import argparse
from pathlib import Path

from dsv4_canary.soak.settings import Stream, Thinking

EXITS = """
exit status of run and report:
  0    no corruption found (slips of the model alone count as none)
  1    corruption found
  2    bad usage, or a file that cannot be read or written
  3    endpoint unusable: no reply, lost on the way, or too many requests without a reply
  130  interrupted; what was done is kept, --resume goes on
A run whose results could not be published says so and keeps its status.

exit status of compare: 0 no difference proved, 1 they differ, 2 as above, 3 nothing to compare
"""


def add_run(run: argparse.ArgumentParser) -> None:
    """Add all options of a run."""
    need = run.add_argument_group("what")
    need.add_argument("--endpoint", required=True, metavar="URL", help="base URL, with or without /v1")
    need.add_argument("--tag", required=True, metavar="T", help="name of the run and of its files")
    need.add_argument("--model", metavar="NAME", help="default: the only model that /v1/models lists")
    need.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    load = run.add_argument_group("load")
    load.add_argument("--sessions", type=int, default=80, metavar="N", help="agent sessions (80)")
    load.add_argument("--rounds", type=int, default=4, metavar="N", help="tool calls per session, in order (4)")
    load.add_argument("--ctx", type=int, default=300, metavar="WORDS", help="words of new context per round (300)")
    load.add_argument(
        "--shared-ctx", type=int, default=2600, metavar="WORDS", help="words of the prefix that a group shares (2600)"
    )
    load.add_argument(
        "--share", type=int, default=8, metavar="N", help="sessions per shared prefix (8); every 4th group shares none"
    )
    load.add_argument("--max-tokens", type=int, default=2500, metavar="N", help="limit of a reply (2500)")
    load.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS", help="limit of a request (180)")
    load.add_argument("--stream", choices=[item.value for item in Stream], default="mix", help="mix: every other (mix)")
    load.add_argument("--concurrency", type=int, metavar="N", help="sessions at the same time (all)")
    load.add_argument(
        "--thinking",
        choices=[item.value for item in Thinking],
        default="server",
        help="tell the chat template to reason or not; server: say nothing (server)",
    )
    load.add_argument("--seed", type=int, metavar="N", help="same seed, same requests (random; the report has it)")
    apart = run.add_argument_group("telling engine from model")
    apart.add_argument(
        "--baseline", type=int, default=8, metavar="N", help="sessions one at a time before the load (8)"
    )
    apart.add_argument("--reask", type=int, default=20, metavar="N", help="corrupted replies asked again alone (20)")
    ends = run.add_argument_group("when the endpoint fails")
    ends.add_argument(
        "--give-up",
        type=int,
        metavar="N",
        help="requests in a row without a reply that end the run (twice the sessions at a time; 0 never)",
    )
    ends.add_argument(
        "--max-failed",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="requests without a reply, above which exit 3 (10)",
    )
    out = run.add_argument_group("output")
    out.add_argument("--out", type=Path, default=Path("soak"), metavar="DIR", help="folder of the files (soak)")
    out.add_argument("--resume", action="store_true", help="go on with the journal of this tag")
    out.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics meanwhile")
    out.add_argument("--metrics-host", default="127.0.0.1", metavar="ADDRESS", help="where (127.0.0.1)")
    out.add_argument(
        "--publish", metavar="CONFIGMAP", help="in a pod: also write the results into this ConfigMap, which must exist"
    )
    out.add_argument("--quiet", action="store_true", help="no progress")
    out.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets (text)")
