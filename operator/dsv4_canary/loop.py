"""The sidecar: watches its engine, probes in turns, keeps the verdict, answers from memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

import aiohttp

from dsv4_canary import discovery, pair
from dsv4_canary.engine_watch import ALIVE, EngineWatch
from dsv4_canary.evidence import Level
from dsv4_canary.judge import Kind
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import EngineState, Reason, Role
from dsv4_canary.peer_book import PeerBook
from dsv4_canary.recorder import Recorder
from dsv4_canary.rotation import STARTUP_RETRY
from dsv4_canary.settings import Environment, Settings
from dsv4_canary.turn import Prober
from dsv4_canary.verdict import Verdict, VerdictMachine
from dsv4_canary.watch import SettingsFile

log = logging.getLogger("dsv4_canary")

_ENGINE_POLL = 5.0
_SETTINGS_POLL = 2.0
_LEAST_POLL = 0.5
_POLLS_PER_WEDGE = 4


class Canary:
    """One sidecar. ``run`` works until cancelled; the other members answer at once from what is known."""

    def __init__(
        self,
        env: Environment,
        settings_file: SettingsFile,
        metrics: Metrics,
        resolve: Callable[[str], Awaitable[list[str]]] = discovery.resolve,
    ) -> None:
        """``resolve``: from the peers' host name to their addresses; OSError when the lookup itself fails."""
        self.env = env
        self.metrics = metrics
        self._file = settings_file
        settings = settings_file.settings
        registry = (env.pod_ip, env.bootstrap_port)
        self._engine = EngineWatch(env.role, env.engine_url, registry, settings.wedge, env.require_guard)
        self._machine = VerdictMachine(env.role, env.peer_host, settings.failure_threshold, settings.absence)
        self._recorder = Recorder(metrics, shared_cache=env.role is Role.PREFILL)
        self._book = PeerBook(env.role, env.peer_host, resolve, self._machine, metrics)
        self._prober = Prober(env, self._engine, self._machine, self._recorder, settings, self._book)
        self._alive_since: float | None = None
        self._wake = asyncio.Event()
        self._shown: Verdict | None = None
        self._blind: list[str] = []
        metrics.guard_required.set(env.require_guard is not None)

    # What the HTTP server asks.

    @property
    def verdict(self) -> Verdict:
        """Current readiness and why."""
        return self._machine.verdict

    @property
    def live(self) -> bool:
        """False when the engine served once and has refused connections, or was wedged, for longer than configured."""
        now = time.monotonic()
        return max(self._machine.refused_for(now), self._engine.wedged_for(now)) <= self.env.engine_dead

    @property
    def message(self) -> str:
        """Message of ``/status``: the verdict's, and what is wrong with the settings file, if anything."""
        if self._file.error is None:
            return self.verdict.message
        return f"{self.verdict.message}; settings file refused, the last good settings hold: {self._file.error}"

    def status(self) -> dict[str, object]:
        """The ``/status`` document, version 1."""
        verdict, recorder, peers = self.verdict, self._recorder, self._book.states
        last = recorder.last_success
        return {
            "version": 1,
            "role": self.env.role.value,
            "pod": self.env.pod_name,
            "podUID": self.env.pod_uid,
            "fingerprint": self.env.fingerprint,
            "ready": verdict.ready,
            "live": self.live,
            "reason": verdict.reason.value,
            "message": self.message,
            "engine": {"healthy": self._engine.state is EngineState.HEALTHY},
            "peers": [peers[address].to_json() for address in sorted(peers)],
            "lastSuccessTime": None if last is None else round(last, 3),
            "consecutiveFailures": self._machine.consecutive_failures,
            "wedge": self._engine.wedge.to_json(),
            "corruption": recorder.corruption_json(),
            "guard": self._engine.guard.to_json(),
            "probes": recorder.probes_json(),
            "blind": self._blind,
            "history": [entry.to_json() for entry in recorder.history],
        }

    # Work.

    async def run(self) -> None:
        """Work until cancelled. Raises what a part of it raises: a sidecar that cannot work must not look alive."""
        # A new connection for every request: an engine closes idle ones, and a request that meets the closing
        # is lost.
        connector = aiohttp.TCPConnector(force_close=True, limit=16)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
            group.create_task(self._watch_settings())
            group.create_task(self._watch_engine(session))
            group.create_task(self._watch_metrics(session))
            group.create_task(self._probe_for_ever(session))

    async def _watch_settings(self) -> None:
        while True:
            await asyncio.sleep(_SETTINGS_POLL)
            if self._file.poll():
                if self._file.error is not None:
                    self.metrics.settings_errors.inc()
                self.metrics.settings_valid.set(0 if self._file.error is not None else 1)
                self._configure(self._file.settings)
                self._wake.set()

    def _configure(self, settings: Settings) -> None:
        self._machine.configure(settings.failure_threshold, settings.absence)
        self._engine.detector.configure(settings.wedge)
        self._prober.configure(settings)

    async def _watch_engine(self, session: aiohttp.ClientSession) -> None:
        while True:
            self._saw_engine(await pair.health(session, self.env.engine_url))
            await asyncio.sleep(_ENGINE_POLL if self._engine.state in ALIVE else STARTUP_RETRY)

    async def _watch_metrics(self, session: aiohttp.ClientSession) -> None:
        """Apart from the health check, which takes long on an engine that is at work."""
        while True:
            if self._engine.state in ALIVE:
                await self._engine.observe(session)
                self._settle()
            poll = self._file.settings.wedge / _POLLS_PER_WEDGE
            await asyncio.sleep(max(_LEAST_POLL, min(_ENGINE_POLL, poll)))

    def _saw_engine(self, seen: int | pair.LegKind) -> None:
        before = self._engine.state
        state = self._engine.saw(seen)
        self._machine.engine(state, time.monotonic())
        self.metrics.engine_healthy.set(1 if state is EngineState.HEALTHY else 0)
        if state not in ALIVE:
            self._alive_since = None
            if before in ALIVE:
                self._prober.engine_gone()
        elif self._alive_since is None:
            self._alive_since = time.monotonic()
            self._prober.engine_alive()
        if state is not before:
            log.info("engine: %s", state.value)
            self._wake.set()
        self._settle()

    async def _probe_for_ever(self, session: aiohttp.ClientSession) -> None:
        rotation = self._prober.rotation
        await self._pause(rotation.first_delay())
        while True:
            was_ready = self.verdict.ready
            conclusive = False
            if self._engine.state in ALIVE:
                kind = await self._prober.turn(session)
                conclusive = kind not in (None, Kind.ENGINE_GONE)
                if kind is Kind.ENGINE_GONE:
                    self._saw_engine(pair.LegKind.REFUSED)
            self._settle()
            ready = self.verdict.ready
            delay = rotation.delay(
                ready=ready,
                became_ready=ready and not was_ready,
                hurried=self._prober.hurried,
                proving=self._prober.proving,
                conclusive=conclusive,
                interval=self._file.settings.interval,
            )
            await self._pause(max(delay, self._prober.wait_for_budget()))

    async def _pause(self, seconds: float) -> None:
        """Wait; a change of engine state or settings ends the wait."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _settle(self) -> None:
        """Bring what is known of the engine beside its probes into the verdict; publish and log what changed."""
        engine, opinion = self._engine, self._recorder.opinion
        reason, message = None, ""
        if engine.unguarded:
            reason, message = Reason.GUARD_MISSING, engine.guard.message
        elif engine.wedge.wedged:
            reason, message = Reason.ENGINE_WEDGED, engine.wedge.message
        elif opinion.level is Level.CONFIRMED and self._prober.corrupts:
            reason, message = Reason.CORRUPTION, f"{opinion.message}, and this {self.env.role.value} is the cause"
        self._machine.own_fault(reason, message)
        self.metrics.wedge(engine.wedge)
        self.metrics.guard_present.set(engine.guard.present)
        self._blind = self._recorder.blind(
            metrics_unreadable=engine.blind,
            hicache=engine.sample is not None and engine.sample.hicache,
            alive_since=self._alive_since,
            interval=self._file.settings.interval,
        )
        verdict = self.verdict
        if verdict != self._shown:
            self.metrics.ready.set(1 if verdict.ready else 0)
            log.info("%s: %s: %s", "ready" if verdict.ready else "not ready", verdict.reason.value, verdict.message)
            self._shown = verdict
