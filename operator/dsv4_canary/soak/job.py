"""One run from start to reports: files, endpoint, signals, exit status."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_canary.soak.client import Client
from dsv4_canary.soak.journal import Contents, Journal, read_journal
from dsv4_canary.soak.markdown import markdown, summary_rows
from dsv4_canary.soak.metrics import SoakMetrics, served
from dsv4_canary.soak.page import page
from dsv4_canary.soak.progress import Progress
from dsv4_canary.soak.record import Phase
from dsv4_canary.soak.report import Ending, build
from dsv4_canary.soak.runner import Key, Outcome, Runner
from dsv4_canary.soak.script import Script
from dsv4_canary.soak.settings import SettingsError, SoakSettings, check, option, settings_from_header
from dsv4_canary.soak.tally import Tally
from dsv4_canary.soak.verdict import EXIT_UNUSABLE, EXIT_USAGE, RunVerdict, exit_status

_SPARE_FILES = 64
"""Open files beside the connections."""


class JobError(Exception):
    """The run cannot start; ``status`` is the exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Job:
    """A run as it was asked for. ``values``: fields of the settings but model and seed."""

    values: Mapping[str, Any]
    model: str | None
    seed: int | None
    folder: Path
    resume: bool = False
    api_key: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    quiet: bool = False
    as_json: bool = False
    pause: float = 1.0
    """Seconds that a session waits after a connection that failed."""

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.folder / f"{self.values['tag']}.jsonl"


async def run_job(job: Job) -> int:
    """Run and write the reports; returns the exit status. Raises SettingsError, JournalError, JobError, OSError."""
    check(SoakSettings(model="", **job.values))  # names a bad option before anything is touched
    old = _old_journal(job)
    _raise_file_limit(int(job.values["concurrency"]))
    client = Client(job.values["endpoint"], timeout=job.values["timeout"], api_key=job.api_key)
    async with client:
        settings = await _settled(job, old, client)
        records: dict[Key, Any] = dict(old.records) if old else {}
        started = time.time()
        tally, metrics = Tally(time.monotonic), SoakMetrics(settings.tag)
        progress = Progress(tally, sys.stderr, quiet=job.quiet)
        with _stop_signals() as stop:
            async with _metrics_server(job, metrics):
                job.folder.mkdir(parents=True, exist_ok=True)
                resume_at = old.length if old else None
                journal = Journal(job.journal, settings.header(), started, resume_at=resume_at)
                if not job.quiet:
                    sys.stderr.write(_opening(settings, job, len(records)))
                shown = asyncio.create_task(progress.show())
                runner = Runner(
                    settings,
                    client,
                    journal,
                    records,
                    tally,
                    metrics,
                    pause=job.pause,
                    ending=progress.end_phase,
                )
                try:
                    outcome = await runner.run(stop)
                finally:
                    shown.cancel()
                    await asyncio.gather(shown, return_exceptions=True)
                    progress.close()
    starts = (*(old.starts if old else ()), started)
    return _conclude(job.journal, settings, records, outcome, starts, as_json=job.as_json)


def remake(journal: Path, *, as_json: bool) -> int:
    """Make the reports of a journal anew; returns the exit status a finished run would have.

    Raises JournalError, SettingsError, OSError.
    """
    held = read_journal(journal)
    settings = settings_from_header(held.header)
    whole = _whole(settings, held)
    outcome = Outcome(interrupted=not whole)
    return _conclude(journal, settings, held.records, outcome, held.starts, as_json=as_json)


def _whole(settings: SoakSettings, held: Contents) -> bool:
    load = sum(phase is Phase.LOAD for phase, _, _ in held.records)
    return load >= settings.sessions * settings.rounds


def _conclude(
    journal: Path,
    settings: SoakSettings,
    records: Mapping[Key, Any],
    outcome: Outcome,
    starts: tuple[float, ...],
    *,
    as_json: bool,
) -> int:
    ending = Ending(outcome.interrupted, outcome.lost, outcome.in_flight, starts, time.time())
    report = build(settings, records.values(), ending)
    text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
    paths = {kind: journal.with_name(f"{settings.tag}.{kind}") for kind in ("json", "md", "html")}
    for kind, content in (("json", text), ("md", markdown(report)), ("html", page(report))):
        _replace(paths[kind], content)
    sys.stdout.write(text if as_json else _closing(report, [*paths.values(), journal]))
    sys.stdout.flush()
    return exit_status(RunVerdict(report["verdict"]), interrupted=outcome.interrupted)


def _replace(path: Path, content: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(content, encoding="utf-8", errors="backslashreplace")
    part.replace(path)


def _old_journal(job: Job) -> Contents | None:
    exists = job.journal.exists()
    if exists and not job.resume:
        raise SettingsError(
            f"--tag = {job.values['tag']!r}: {job.journal} exists; go on with --resume, or give another tag"
        )
    return read_journal(job.journal) if exists else None


async def _settled(job: Job, old: Contents | None, client: Client) -> SoakSettings:
    """Settings with model and seed filled in: given, else as the journal has them, else the endpoint's, and random."""
    was = settings_from_header(old.header) if old else None
    seed = job.seed if job.seed is not None else was.seed if was else secrets.randbelow(2**31)
    model = job.model or (was.model if was else await _only_model(client, job))
    settings = check(SoakSettings(model=model, seed=seed, **job.values))
    changed = settings.differs(old.header) if old else None
    if changed is not None:
        name, held, now = changed
        raise SettingsError(
            f"{option(name)} = {now!r}: the journal to resume has {held!r}; give the same, or another --tag"
        )
    return settings


async def _only_model(client: Client, job: Job) -> str:
    names = await client.models()
    if isinstance(names, str):
        raise JobError(f"--endpoint = {job.values['endpoint']!r}: {names}; check the URL and the key, or give --model",
                       EXIT_UNUSABLE)  # fmt: skip
    if len(names) > 1:
        listed = ", ".join(names[:8])
        raise JobError(f"--model: the endpoint serves {len(names)} models ({listed}); name one", EXIT_USAGE)
    return names[0]


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set. A second one has its usual effect, so that nothing can hang for good."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def begin_stop() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, begin_stop)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _metrics_server(job: Job, metrics: SoakMetrics) -> Any:
    entered = False
    try:
        async with served(metrics, job.metrics_host, job.metrics_port):
            entered = True
            yield
    except OSError as error:
        if entered:
            raise
        raise SettingsError(
            f"--metrics-port = {job.metrics_port}: cannot be listened on at {job.metrics_host} ({error.strerror}); "
            "free the port or give another one"
        ) from None


def _raise_file_limit(connections: int) -> None:
    """Let the process open a file per connection. Raises SettingsError where the system does not."""
    import resource  # noqa: PLC0415 - POSIX only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        raise SettingsError(
            f"--concurrency = {connections}: the system allows {hard} open files; raise ulimit -n or give fewer"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _opening(settings: SoakSettings, job: Job, done: int) -> str:
    words = Script(settings, "load", settings.sessions).footprint_words()
    resumed = f", {done} replies are there already" if done else ""
    return (
        f"soak {settings.tag}: {settings.sessions} sessions x {settings.rounds} rounds against {settings.endpoint}, "
        f"model {settings.model}, seed {settings.seed}{resumed}\n"
        f"about {words} words of distinct prompts, each at least one token: prefixes are evicted where prefill's cache "
        f"holds less\njournal {job.journal}; Ctrl-C stops and keeps it\n"
    )


def _closing(report: Mapping[str, Any], paths: list[Path]) -> str:
    lines = ["", f"{report['verdict'].upper()}: {report['sentence']}"]
    lines += [f"  {name:44}{value}" for name, value in summary_rows(report)]
    lines += [f"  note: {note}" for note in report["notes"]]
    lines += ["", "files: " + ", ".join(os.fspath(path) for path in paths), ""]
    return "\n".join(lines)
