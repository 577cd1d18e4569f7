"""The sidecar's work: watch the own engine, find peers, probe in rotation, keep the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from dsv4_canary import discovery, pair
from dsv4_canary.judge import Judgement, Kind, cache_label, judge
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Cache, EngineState, HistoryEntry, PeerState, Reason, Role
from dsv4_canary.probes import ECHO, echo_probe, fresh_nonce
from dsv4_canary.rotation import STARTUP_RETRY, Rotation
from dsv4_canary.settings import Environment
from dsv4_canary.verdict import Failure, Verdict, VerdictMachine
from dsv4_canary.watch import SettingsFile

log = logging.getLogger("dsv4_canary")

_HISTORY = 20
_NONCES = 64
_PEERS_PER_TURN = 8
_ENGINE_POLL = 5.0
_SETTINGS_POLL = 2.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """What one turn of the loop did."""

    conclusive: bool


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
        self._resolve = resolve
        self.env = env
        self.metrics = metrics
        self._file = settings_file
        settings = settings_file.settings
        self._machine = VerdictMachine(env.role, env.peer_host, settings.failure_threshold, settings.absence)
        # Unique per process, so that a "new" prefix is one that no cache has seen.
        self._rotation = Rotation(f"{env.pod_name}-{fresh_nonce()}")
        self._peers: dict[str, PeerState] = {}
        self._history: deque[HistoryEntry] = deque(maxlen=_HISTORY)
        self._nonces: deque[str] = deque(maxlen=_NONCES)
        self._engine = EngineState.LOADING
        self._ever_alive = False
        self._cache_reported = False
        self._last_success: float | None = None
        self._wake = asyncio.Event()
        self._shown: Verdict | None = None

    # What the HTTP server asks.

    @property
    def verdict(self) -> Verdict:
        """Current readiness and why."""
        return self._machine.verdict

    @property
    def live(self) -> bool:
        """False when the engine served once and has refused connections for longer than the configured time."""
        return self._machine.refused_for(time.monotonic()) <= self.env.engine_dead

    @property
    def message(self) -> str:
        """Message of ``/status``: the verdict's, and what is wrong with the settings file, if anything."""
        if self._file.error is None:
            return self.verdict.message
        return f"{self.verdict.message}; settings file refused, the last good settings hold: {self._file.error}"

    def status(self) -> dict[str, object]:
        """The ``/status`` document, version 1."""
        verdict = self.verdict
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
            "engine": {"healthy": self._engine is EngineState.HEALTHY},
            "peers": [self._peers[address].to_json() for address in sorted(self._peers)],
            "lastSuccessTime": None if self._last_success is None else round(self._last_success, 3),
            "consecutiveFailures": self._machine.consecutive_failures,
            "history": [entry.to_json() for entry in self._history],
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
            group.create_task(self._probe_for_ever(session))

    async def _watch_settings(self) -> None:
        while True:
            await asyncio.sleep(_SETTINGS_POLL)
            if self._file.poll():
                if self._file.error is not None:
                    self.metrics.settings_errors.inc()
                self.metrics.settings_valid.set(0 if self._file.error is not None else 1)
                settings = self._file.settings
                self._machine.configure(settings.failure_threshold, settings.absence)
                self._wake.set()

    async def _watch_engine(self, session: aiohttp.ClientSession) -> None:
        while True:
            seen = await pair.health(session, self.env.engine_url)
            self._saw_engine(seen)
            alive = self._engine in (EngineState.HEALTHY, EngineState.UNHEALTHY)
            await asyncio.sleep(_ENGINE_POLL if alive else STARTUP_RETRY)

    def _saw_engine(self, seen: int | pair.LegKind) -> None:
        before = self._engine
        gone = (pair.LegKind.REFUSED, pair.LegKind.UNREACHABLE)
        if seen == 200:
            state = EngineState.HEALTHY
            self._ever_alive = True
        elif seen in gone:
            state = EngineState.UNREACHABLE if self._ever_alive else EngineState.LOADING
        elif before in (EngineState.HEALTHY, EngineState.UNHEALTHY):
            state = EngineState.UNHEALTHY  # busy, wedged or shutting down: the probes decide
        else:
            state = EngineState.LOADING  # listens and warms up, for the first time or after a restart
        self._engine = state
        self._machine.engine(state, time.monotonic())
        self.metrics.engine_healthy.set(1 if state is EngineState.HEALTHY else 0)
        if state is not before:
            log.info("engine: %s", state.value)
            self._wake.set()
        self._show()

    async def _probe_for_ever(self, session: aiohttp.ClientSession) -> None:
        await self._pause(self._rotation.first_delay())
        while True:
            was_ready = self.verdict.ready
            turn = await self._turn(session)
            self._show()
            verdict = self.verdict
            await self._pause(
                self._rotation.delay(
                    ready=verdict.ready,
                    became_ready=verdict.ready and not was_ready,
                    failing=self._machine.consecutive_failures > 0,
                    conclusive=turn.conclusive,
                    interval=self._file.settings.interval,
                )
            )

    async def _pause(self, seconds: float) -> None:
        """Wait; a change of engine state or settings ends the wait."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _turn(self, session: aiohttp.ClientSession) -> _Turn:
        """One attempt: the first due peer that serves is probed."""
        if self._engine in (EngineState.LOADING, EngineState.UNREACHABLE):
            return _Turn(conclusive=False)
        await self._find_peers()
        loading = False
        for address in self._rotation.order(self._peers)[:_PEERS_PER_TURN]:
            self._rotation.tried(address, time.monotonic())
            judgement = await self._probe_peer(session, self._peers[address])
            if judgement.kind in (Kind.PASS, Kind.FAIL):
                return _Turn(conclusive=True)
            if judgement.kind is Kind.ENGINE_GONE:
                self._saw_engine(pair.LegKind.REFUSED)
                return _Turn(conclusive=False)
            loading |= judgement.kind is Kind.PEER_LOADING
        self._machine.no_usable_peer(Reason.PEER_LOADING if loading else Reason.NO_PEER, time.monotonic())
        return _Turn(conclusive=False)

    async def _find_peers(self) -> None:
        try:
            addresses = await self._resolve(self.env.peer_host)
        except OSError as error:
            # The name server's trouble says nothing about peers: those known stay.
            self.metrics.lookup_errors.inc()
            log.warning("%s", error)
            return
        if addresses != sorted(self._peers):
            log.info("peers: %s", ", ".join(addresses) or "none")
        self._peers = {address: self._peers.get(address) or PeerState(address) for address in addresses}
        self._machine.peers(addresses)
        self.metrics.keep_peers(addresses)

    async def _probe_peer(self, session: aiohttp.ClientSession, peer: PeerState) -> Judgement:
        """Probe one peer, after a look at its health when that is not known, and record the result."""
        url = discovery.base_url(peer.address, self.env.peer_port)
        if not peer.answered_health:
            seen = await pair.health(session, url)
            if seen != 200:
                absent = seen in (pair.LegKind.UNREACHABLE, pair.LegKind.LOST)
                judgement = Judgement(Kind.PEER_UNREACHABLE if absent else Kind.PEER_LOADING)
                self._record_absence(peer, judgement)
                return judgement
            peer.answered_health = True
        settings = self._file.settings
        plan = self._rotation.plan(peer.address, self._machine.next_mode)
        probe = echo_probe(
            settings.model, plan.mode, plan.seed, settings.prompt_tokens, other_nonces=tuple(self._nonces)
        )
        self._nonces.append(probe.nonce)
        prefill, decode = (self.env.engine_url, url) if self.env.role is Role.PREFILL else (url, self.env.engine_url)
        result = await pair.drive(
            session,
            probe.body,
            prefill,
            decode,
            bootstrap_host=self.env.pod_ip if self.env.role is Role.PREFILL else peer.address,
            bootstrap_port=self.env.bootstrap_port,
            seconds=settings.timeout,
        )
        judgement = judge(result, self.env.role, probe.expectation)
        if judgement.kind not in (Kind.PASS, Kind.FAIL):
            self._record_absence(peer, judgement)
            return judgement
        cache = cache_label(result.cached_tokens, self._cache_reported) if result.reply else Cache.UNKNOWN
        self._cache_reported |= result.cached_tokens is not None
        if result.reply is not None and result.reply.prompt_tokens is not None:
            self.metrics.prompt_tokens.set(result.reply.prompt_tokens)
        self._record(peer, judgement, cache, result.seconds)
        if judgement.kind is Kind.PASS:
            self._machine.passed(plan.mode)
        else:
            reason = judgement.reason or Reason.PROBE_FAILED
            self._machine.failed(plan.mode, Failure(reason, peer.address, judgement.what))
            self._rotation.fresh_prefix(peer.address)
            log.warning("%s probe with %s failed: %s", plan.mode.value, peer.address, judgement.what)
        return judgement

    def _record_absence(self, peer: PeerState, judgement: Judgement) -> None:
        peer.answered_health = False
        if peer.outcome is not judgement.peer_outcome:
            log.info("peer %s: %s", peer.address, judgement.peer_outcome.value)
        peer.outcome, peer.signatures = judgement.peer_outcome, ()
        self.metrics.attempt(ECHO, judgement.kind.value, Cache.UNKNOWN)
        self.metrics.peer(peer.address, peer.outcome)

    def _record(self, peer: PeerState, judgement: Judgement, cache: Cache, seconds: float) -> None:
        now = time.time()
        passed = judgement.kind is Kind.PASS
        if passed:
            self._last_success = now
            self.metrics.last_success.set(now)
        # After a failure the peer's health is asked first: it may have been restarted.
        peer.answered_health = passed
        peer.outcome, peer.last_probe_time = judgement.peer_outcome, now
        peer.signatures = judgement.signatures
        self._history.append(
            HistoryEntry(now, ECHO, peer.address, peer.outcome, cache, judgement.signatures, seconds, judgement.excerpt)
        )
        self.metrics.attempt(ECHO, judgement.kind.value, cache)
        self.metrics.findings(judgement.failures, cache)
        self.metrics.conclusive(ECHO, seconds)
        self.metrics.peer(peer.address, peer.outcome)

    def _show(self) -> None:
        """Publish the verdict and log it when it changed."""
        verdict = self.verdict
        if verdict == self._shown:
            return
        self.metrics.ready.set(1 if verdict.ready else 0)
        log.info("%s: %s: %s", "ready" if verdict.ready else "not ready", verdict.reason.value, verdict.message)
        self._shown = verdict
