"""Command line of the soak harness: run, report, compare, needed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dsv4_canary import __version__
from dsv4_canary.soak.compare import ReportError, compare, comparison_text, read_report
from dsv4_canary.soak.job import Job, JobError, remake, run_job
from dsv4_canary.soak.journal import JournalError
from dsv4_canary.soak.settings import SettingsError, Stream, Thinking, parse_endpoint
from dsv4_canary.soak.stats import sessions_needed
from dsv4_canary.soak.verdict import EXIT_CLEAN, EXIT_CORRUPTED, EXIT_INTERRUPTED, EXIT_USAGE

_EXITS = """
exit status of run and report:
  0    no corruption found (slips of the model alone count as none)
  1    corruption found
  2    bad usage, or a file that cannot be read or written
  3    endpoint unusable: no reply, lost on the way, or too many requests without a reply
  130  interrupted; what was done is kept, --resume goes on

exit status of compare: 0 no difference proved, 1 they differ, 2 as above
"""


class _Parser(argparse.ArgumentParser):
    """Reports a bad command line in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"soak: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The command line parser."""
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="python -m dsv4_canary.soak",
        description="Many concurrent agent sessions against one OpenAI-compatible endpoint; every reply is checked.",
        epilog=_EXITS,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"dsv4_canary {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    _add_run(commands.add_parser("run", help="run a soak", epilog=_EXITS, formatter_class=form))
    again = commands.add_parser(
        "report", help="make the reports anew from a journal", epilog=_EXITS, formatter_class=form
    )
    again.add_argument("journal", type=Path, metavar="JOURNAL", help="TAG.jsonl of a soak")
    again.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets")
    versus = commands.add_parser("compare", help="compare two reports", epilog=_EXITS, formatter_class=form)
    versus.add_argument("a", type=Path, metavar="A.json")
    versus.add_argument("b", type=Path, metavar="B.json")
    versus.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets")
    needed = commands.add_parser("needed", help="sessions needed to see damage of a given rate")
    needed.add_argument("--percent", type=float, required=True, metavar="X", help="share of damaged sessions, percent")
    needed.add_argument("--confidence", type=float, default=95.0, metavar="Y", help="percent, default 95")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
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
    out.add_argument("--quiet", action="store_true", help="no progress")
    out.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets (text)")


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    try:
        if args.command == "run":
            return asyncio.run(run_job(_job(args, os.environ if environ is None else environ)))
        if args.command == "report":
            return remake(args.journal, as_json=args.output == "json")
        if args.command == "compare":
            return _compare(args)
        return _needed(args)
    except (SettingsError, JournalError, ReportError) as error:
        return _fail(str(error), EXIT_USAGE)
    except JobError as error:
        return _fail(str(error), error.status)
    except BrokenPipeError:
        # The reader of stdout is gone. Keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USAGE
    except OSError as error:
        return _fail(
            f"{error.filename or 'output'}: cannot be used ({error.strerror or error}); choose another place",
            EXIT_USAGE,
        )
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"soak: {text}\n")
    return status


def _job(args: argparse.Namespace, environ: Mapping[str, str]) -> Job:
    """Job of the arguments. Raises SettingsError."""
    key = None
    if args.api_key_env is not None:
        key = environ.get(args.api_key_env)
        if not key:
            raise SettingsError(f"--api-key-env = {args.api_key_env!r}: is not set; export it, or leave the option out")
        if not key.isascii() or not key.isprintable():
            raise SettingsError(
                f"--api-key-env = {args.api_key_env!r}: holds characters that no header can carry; export the bare key"
            )
    if args.metrics_port is not None and not 0 < args.metrics_port < 65536:
        raise SettingsError(f"--metrics-port = {args.metrics_port}: is no port; give 1 to 65535")
    concurrency = args.sessions if args.concurrency is None else args.concurrency
    values = {
        "endpoint": parse_endpoint(args.endpoint),
        "concurrency": concurrency,
        "give_up": max(20, 2 * concurrency) if args.give_up is None else args.give_up,
        "stream": Stream(args.stream),
        "thinking": Thinking(args.thinking),
    }
    for name in ("tag", "sessions", "rounds", "ctx", "shared_ctx", "share", "max_tokens", "timeout"):
        values[name] = getattr(args, name)
    for name in ("baseline", "reask", "max_failed"):
        values[name] = getattr(args, name)
    return Job(
        values=values,
        model=args.model,
        seed=args.seed,
        folder=args.out,
        resume=args.resume,
        api_key=key,
        metrics_host=args.metrics_host,
        metrics_port=args.metrics_port,
        quiet=args.quiet,
        as_json=args.output == "json",
    )


def _compare(args: argparse.Namespace) -> int:
    result = compare(read_report(args.a), read_report(args.b))
    if args.output == "json":
        sys.stdout.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    else:
        sys.stdout.write(comparison_text(result))
    return EXIT_CORRUPTED if result["differ"] else EXIT_CLEAN


def _needed(args: argparse.Namespace) -> int:
    for name, value in (("percent", args.percent), ("confidence", args.confidence)):
        if not 0 < value < 100:
            raise SettingsError(f"--{name} = {value:g}: out of range; give a number between 0 and 100")
    count = sessions_needed(args.percent / 100, args.confidence / 100)
    sys.stdout.write(
        f"{count} sessions: damage of {args.percent:g} % of sessions shows at least once with {args.confidence:g} % "
        "probability.\n"
    )
    return EXIT_CLEAN
