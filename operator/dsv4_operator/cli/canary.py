"""`dsv4ctl canary`: one set of the canary's probes against a pair or an endpoint, on any cluster or none."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, EXIT_UNREADABLE, UnreadableError
from dsv4_operator.cli.output import COLOURS, is_terminal, print_json, print_line

EMPTY: Final[dict[str, Any]] = {"verdict": None, "message": "", "probes": []}
KEY_VARIABLE: Final = "DSV4CTL_API_KEY"
_CODES: Final = {"pass": EXIT_FINE, "fail": EXIT_REFUSED, "nothing": EXIT_UNREADABLE}
_HEADERS: Final = ("PROBE", "CACHE", "SECONDS", "OUTCOME", "FOUND")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 all right, 1 some probe failed, 2 nobody to ask, nothing proved, or wrong usage."""
    checkup = _library()
    plan = _plan(args, checkup)
    screen = _Json() if args.output == "json" else _Live() if is_terminal(sys.stdout) else _Lines()
    try:
        with screen:
            report = asyncio.run(checkup.run(plan, checkup.Watcher(screen.met, screen.result)))
    except checkup.CheckupError as error:
        raise UnreadableError(str(error)) from None
    screen.end(report)
    return _CODES[report.verdict.conclusion.value]


def _library() -> Any:
    """The part that talks to engines. Loaded by name: dsv4ctl's other commands do without its libraries."""
    try:
        return importlib.import_module("dsv4_canary.checkup")
    except ModuleNotFoundError as error:
        raise UnreadableError(f"canary: needs {error.name}; in the checkout: pip install '.[cli,canary]'") from None


def _plan(args: argparse.Namespace, checkup: Any) -> Any:
    if (args.endpoint is None) == (args.prefill is None and args.decode is None):
        raise UnreadableError("give either --endpoint, or --prefill and --decode")
    if args.endpoint is None and (args.prefill is None or args.decode is None):
        raise UnreadableError("a pair has two sides: give --prefill and --decode")
    if args.endpoint is not None:
        target = checkup.Target(_url("--endpoint", args.endpoint))
    else:
        prefill = _url("--prefill", args.prefill)
        host = args.bootstrap_host or urlsplit(prefill).hostname
        target = checkup.Target(_url("--decode", args.decode), prefill, host, args.bootstrap_port)
    try:
        probes = checkup.probe_names(args.probes) if args.probes is not None else tuple(checkup.ProbeName)
    except ValueError as error:
        raise UnreadableError(f"--probes: {error}") from None
    settings = checkup.SetSettings(
        args.model or "", prompt_tokens=args.prompt_tokens, seconds=args.timeout, probes=probes, ranks=args.ranks
    )
    return checkup.Plan(target, settings, args.rounds, _key(args.api_key_env))


def _url(option: str, text: str) -> str:
    """Base URL of an engine. A path of the API at its end is taken off, since people paste it along."""
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise UnreadableError(f"{option}: {error}; give a URL such as http://10.1.0.5:30000") from None
    if parts.username or parts.password:
        raise UnreadableError(f"{option}: holds a user name or password; give an API key by its variable instead")
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise UnreadableError(f"{option} {text!r}: is no URL of a server; give one such as http://10.1.0.5:30000")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(variable: str | None) -> str | None:
    key = os.environ.get(variable or KEY_VARIABLE)
    if not key:
        if variable is not None:
            raise UnreadableError(f"--api-key-env {variable}: is not set; export it, or leave the option out")
        return None
    if not key.isascii() or not key.isprintable():
        raise UnreadableError(f"${variable or KEY_VARIABLE}: holds characters that no header can carry")
    return key


class _Screen:
    """Shows what becomes known."""

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Nothing to tidy up."""

    def met(self, report: Any) -> None:
        """The engines have introduced themselves."""

    def result(self, result: Any) -> None:
        """One more request has ended."""

    def end(self, report: Any) -> None:
        """All is known."""


class _Json(_Screen):
    def end(self, report: Any) -> None:
        verdict = report.verdict
        print_json(
            {
                "verdict": verdict.conclusion.value,
                "message": verdict.message,
                "notes": list(verdict.notes),
                "model": report.model,
                "engines": [engine.to_json() for engine in report.engines],
                "tiers": {tier: {"probes": n, "failures": k} for tier, (n, k) in verdict.tiers.items()},
                "probes": [result.to_json() for result in report.results],
            }
        )


class _Lines(_Screen):
    """Plain lines as they come, for pipes and logs."""

    def met(self, report: Any) -> None:
        for line in _introduction(report):
            print_line(line)
        sys.stdout.flush()

    def result(self, result: Any) -> None:
        probe, cache, seconds, outcome, found = row(result)
        print_line(f"{outcome}: {probe}, {cache}, {seconds} s{f': {found}' if found else ''}")
        sys.stdout.flush()

    def end(self, report: Any) -> None:
        for line in _closing(report):
            print_line(line)


class _Live(_Lines):
    """A table that grows, for people."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - slow to import

        self._console = Console(file=sys.stdout)
        self._rows: list[tuple[str, ...]] = []
        self._live: Any = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()
            self._live = None

    def met(self, report: Any) -> None:
        from rich.live import Live  # noqa: PLC0415 - slow to import

        super().met(report)
        self._live = Live(self._working(), console=self._console, vertical_overflow="visible", refresh_per_second=8)
        self._live.start()

    def result(self, result: Any) -> None:
        self._rows.append(row(result))
        self._live.update(self._working())

    def _working(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - slow to import
        from rich.spinner import Spinner  # noqa: PLC0415 - slow to import

        spinner = Spinner("dots", "probing")
        return Group(self._table(), spinner) if self._rows else spinner

    def _table(self) -> Any:
        from rich import box  # noqa: PLC0415 - slow to import
        from rich.table import Table  # noqa: PLC0415 - slow to import
        from rich.text import Text  # noqa: PLC0415 - slow to import

        table = Table(*_HEADERS, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for cells in self._rows:
            table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
        return table

    def end(self, report: Any) -> None:
        from rich.text import Text  # noqa: PLC0415 - slow to import

        first, *rest = _closing(report)
        self._console.print(Text(first, style=f"bold {COLOURS[report.verdict.conclusion.value]}"))
        for line in rest:
            self._console.print(Text(line))


def row(result: Any) -> tuple[str, str, str, str, str]:
    """Cells of one request: probe, cache, seconds, outcome, what was found."""
    name = result.probe.value if result.probe.value == "drift" else f"{result.probe.value}, {_MODES[result.mode.value]}"
    judgement = result.judgement
    found = judgement.what
    warned = [name for name in judgement.signatures if f"({name})" not in found]
    if warned:
        found += f" [{', '.join(warned)}]" if found else ", ".join(warned)
    if result.deviation is not None:
        deviation = result.deviation
        apart = f"{deviation.nats:.2f} nats apart, {deviation.common} of {deviation.top} tokens in common"
        found = f"{found}: {apart}" if found else apart
    if judgement.excerpt:
        found += f" | {judgement.excerpt}"
    return name, result.cache.value, f"{result.seconds:.1f}", result.outcome, found


_MODES: Final = {"functional": "whole", "streamed": "streamed"}


def _introduction(report: Any) -> list[str]:
    lines = []
    for engine in report.engines:
        facts = [
            f"SGLang {engine.release}" if engine.release else "release unknown",
            "healthy" if engine.healthy else "/health does not answer 200",
        ]
        if engine.hicache:
            facts.append("HiCache")
        if engine.guard:
            facts.append(f"guarded index-K in {engine.guard}")
        lines.append(f"{engine.role} {engine.url}: {', '.join(facts)}")
    return [*lines, f"model {report.model}"]


def _closing(report: Any) -> list[str]:
    verdict = report.verdict
    word = verdict.conclusion.value
    lines = [verdict.message if word == "nothing" else f"{word}: {verdict.message}"]
    if verdict.tiers:
        parts = [f"{tier} {n - k} of {n}" for tier, (n, k) in verdict.tiers.items()]
        lines.append(f"right answers by cache: {', '.join(parts)}")
    return lines + [f"note: {note}" for note in verdict.notes]
