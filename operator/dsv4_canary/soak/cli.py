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
from dsv4_canary.soak.compare import ReportError, compare, comparison_text, exit_of_comparison, read_report
from dsv4_canary.soak.job import Job, JobError, remake, run_job
from dsv4_canary.soak.journal import JournalError
from dsv4_canary.soak.options import EXITS, add_run
from dsv4_canary.soak.publish import PublishError, content, own_account, publish
from dsv4_canary.soak.settings import SettingsError, Stream, Thinking, parse_endpoint
from dsv4_canary.soak.stats import sessions_needed
from dsv4_canary.soak.verdict import EXIT_CLEAN, EXIT_INTERRUPTED, EXIT_USAGE


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
        epilog=EXITS,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"dsv4_canary {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    add_run(commands.add_parser("run", help="run a soak", epilog=EXITS, formatter_class=form))
    again = commands.add_parser(
        "report", help="make the reports anew from a journal", epilog=EXITS, formatter_class=form
    )
    again.add_argument("journal", type=Path, metavar="JOURNAL", help="TAG.jsonl of a soak")
    again.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets")
    versus = commands.add_parser("compare", help="compare two reports", epilog=EXITS, formatter_class=form)
    versus.add_argument("a", type=Path, metavar="A.json")
    versus.add_argument("b", type=Path, metavar="B.json")
    versus.add_argument("-o", "--output", choices=("text", "json"), default="text", help="what stdout gets")
    needed = commands.add_parser("needed", help="sessions needed to see damage of a given rate")
    needed.add_argument("--percent", type=float, required=True, metavar="X", help="share of damaged sessions, percent")
    needed.add_argument("--confidence", type=float, default=95.0, metavar="Y", help="percent, default 95")
    return parser


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = build_parser().parse_args(argv)
    return execute(args.command, args, os.environ if environ is None else environ)


def execute(command: str, args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Do what parsed options say; returns the exit status. Bad input is one line on stderr."""
    try:
        if command == "run":
            return asyncio.run(_run(args, environ))
        if command == "report":
            return remake(args.journal, as_json=args.output == "json")
        if command == "compare":
            return _compare(args)
        return _needed(args)
    except (SettingsError, JournalError, ReportError) as error:
        return _fail(str(error), EXIT_USAGE)
    except PublishError as error:
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


async def _run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    job = _job(args, environ)
    if args.publish is None:
        return await run_job(job)
    account = own_account(environ)  # before the load, which would be for nothing
    try:
        status = await run_job(job)
    except JobError as error:
        status = _fail(str(error), error.status)
    try:
        await publish(account, args.publish, content(job.folder, args.tag, status))
    except PublishError as error:
        sys.stderr.write(f"soak: {error}\n")
    return status


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
    return exit_of_comparison(result)


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
