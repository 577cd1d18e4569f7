"""Runs a soak: baseline, load, questions asked again; stops cleanly and loses no reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_canary.soak.client import Client
from dsv4_canary.soak.journal import Journal
from dsv4_canary.soak.metrics import SoakMetrics
from dsv4_canary.soak.record import Failure, Phase, Record, Verdict
from dsv4_canary.soak.script import Request, Script
from dsv4_canary.soak.settings import SoakSettings
from dsv4_canary.soak.tally import Tally

_GIVE_UP_ALONE = 3
"""Requests in a row without a reply after which a sequential phase is given up."""
_NO_CONNECTION = frozenset((Failure.REFUSED, Failure.UNREACHABLE, Failure.LOST))

Key = tuple[Phase, int, int]


class EndpointLost(Exception):
    """Too many requests in a row brought no reply."""


@dataclass(slots=True)
class Outcome:
    """How a run ended."""

    interrupted: bool = False
    lost: bool = False
    """The endpoint was given up."""
    in_flight: int = 0
    """Requests that were running when the run was stopped; they have no record and are asked again on resume."""


def chosen_again(records: Iterable[Record], most: int) -> list[Record]:
    """Corrupted replies of the load that are asked again: one per session first, in the order of their sessions."""
    corrupted = sorted(
        (item for item in records if item.phase is Phase.LOAD and item.verdict is Verdict.CORRUPTED),
        key=lambda item: (item.session, item.round),
    )
    seen: set[int] = set()
    first: list[Record] = []
    rest: list[Record] = []
    for item in corrupted:
        (rest if item.session in seen else first).append(item)
        seen.add(item.session)
    return (first + rest)[:most]


class Runner:
    """One run. ``records`` holds what earlier runs of the same journal recorded and gets what this one records."""

    def __init__(
        self,
        settings: SoakSettings,
        client: Client,
        journal: Journal,
        records: dict[Key, Record],
        tally: Tally,
        metrics: SoakMetrics,
        *,
        pause: float = 1.0,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """``pause``: seconds that a session waits after a connection that failed. ``ending`` is called
        before the counts of a new phase replace those of the last."""
        self._settings = settings
        self._client = client
        self._journal = journal
        self.records = records
        self._tally = tally
        self._metrics = metrics
        self._pause = pause
        self._ending = ending
        self._in_a_row = 0

    async def run(self, stop: asyncio.Event) -> Outcome:
        """Run all phases until done, stopped or the endpoint is lost. Raises OSError when the journal cannot be
        written."""
        outcome = Outcome()
        work = asyncio.create_task(self._phases())
        writer = asyncio.create_task(self._journal.write_groups())
        stopped = asyncio.create_task(stop.wait())
        tasks: tuple[asyncio.Task[Any], ...] = (work, writer, stopped)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            outcome.interrupted = not work.done()
            outcome.in_flight = self._tally.running
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._journal.close()
        if not writer.cancelled() and (failed := writer.exception()) is not None:
            raise failed
        if not work.cancelled():
            try:
                work.result()
            except EndpointLost:
                outcome.lost = True
        return outcome

    async def _phases(self) -> None:
        settings = self._settings
        if settings.baseline:
            script = Script(settings, "baseline", settings.baseline)
            self._begin(Phase.BASELINE, dict.fromkeys(range(settings.baseline), settings.rounds))
            for session in range(settings.baseline):
                await self._session(script, session, Phase.BASELINE, _GIVE_UP_ALONE)
        script = Script(settings, "load", settings.sessions)
        self._begin(Phase.LOAD, dict.fromkeys(range(settings.sessions), settings.rounds))
        slots = asyncio.Semaphore(settings.concurrency)

        async def one(session: int) -> None:
            async with slots:
                await self._session(script, session, Phase.LOAD, settings.give_up)

        await _all(one(session) for session in range(settings.sessions))
        await self._ask_again(script)

    async def _ask_again(self, script: Script) -> None:
        chosen = chosen_again(self.records.values(), self._settings.reask)
        plan: dict[int, int] = {}
        for item in chosen:
            plan[item.session] = plan.get(item.session, 0) + 1
        if not chosen:
            return
        self._begin(Phase.REASK, plan)
        for item in chosen:
            if (Phase.REASK, item.session, item.round) not in self.records:
                request = script.request(item.session, item.round, salt=f"-again-{item.session}-{item.round}")
                await self._ask(request, Phase.REASK, _GIVE_UP_ALONE)

    def _begin(self, phase: Phase, plan: Mapping[int, int]) -> None:
        self._in_a_row = 0
        self._ending()
        self._tally.begin(phase, dict(plan))
        for record in self.records.values():
            if record.phase is phase:
                self._tally.add(record, live=False)
        self._metrics.sessions(self._tally)

    async def _session(self, script: Script, session: int, phase: Phase, give_up: int) -> None:
        for number in range(1, self._settings.rounds + 1):
            if (phase, session, number) not in self.records:
                await self._ask(script.request(session, number), phase, give_up)

    async def _ask(self, request: Request, phase: Phase, give_up: int) -> None:
        self._tally.running += 1
        self._metrics.sessions(self._tally)
        try:
            record = await self._client.ask(request, phase)
        finally:
            self._tally.running -= 1
        # No await between here and the journal: a reply that came is never lost to a stop.
        self.records[record.key] = record
        self._journal.add(record)
        self._tally.add(record)
        self._metrics.record(record)
        self._metrics.sessions(self._tally)
        self._in_a_row = self._in_a_row + 1 if record.failure is not None else 0
        if give_up and self._in_a_row >= give_up:
            raise EndpointLost
        if record.failure in _NO_CONNECTION:
            await asyncio.sleep(self._pause)


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all; the first exception cancels the others and is raised as it is."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
