"""The engine in this pod, and what is known of a peer's: health, metrics, wedge, guard, data-parallel ranks."""

from __future__ import annotations

import time

import aiohttp

from dsv4_canary import guard, pair
from dsv4_canary.engine_view import EngineSample, read_engine, registry_answers, restarted
from dsv4_canary.guard import GuardState
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.model import EngineState, Role
from dsv4_canary.pair import LegKind, PairResult
from dsv4_canary.wedge import WedgeDetector, WedgeState

ALIVE = (EngineState.HEALTHY, EngineState.UNHEALTHY)
_UNREADABLE = 3
"""Failed looks at the metrics in a row until they count as unreadable."""


class PeerWatch:
    """One engine as probes see it: its metrics are read around each probe. Own and peer alike."""

    def __init__(self, wedge_seconds: float) -> None:
        self.detector = WedgeDetector(wedge_seconds)
        self.sample: EngineSample | None = None
        self.unreadable = 0
        self.ranks: int | None = None
        """Data-parallel ranks; None until asked."""

    async def look(self, session: aiohttp.ClientSession, url: str) -> EngineSample | None:
        """Read its metrics now. None when they cannot be read."""
        sample = await read_engine(session, url)
        if sample is None:
            self.unreadable += 1
        else:
            self.unreadable = 0
            self.sample = sample
        self.detector.observe(sample, time.monotonic())
        return sample

    async def count_ranks(self, session: aiohttp.ClientSession, url: str) -> int:
        """Data-parallel ranks of the engine, 1 when it does not say."""
        if self.ranks is None:
            self.ranks = await pair.dp_size(session, url)
        return self.ranks or 1

    def probed(self, judgement: Judgement, result: PairResult | None, role: Role, other: str) -> None:
        """A probe through this engine, which plays ``role``, ended. ``other``: the engine at the other end."""
        timed_out = result is not None and result.timed_out and judgement.kind is Kind.FAIL
        outcome = "timeout" if timed_out else judgement.kind.value
        self.detector.probe(
            outcome,
            time.monotonic(),
            peer=other,
            peer_done=result is not None and result.leg(role.other).good,
            own_done=result is not None and result.leg(role).good,
        )


class EngineWatch(PeerWatch):
    """The engine in this pod."""

    def __init__(self, role: Role, url: str, registry: tuple[str, int], wedge_seconds: float, required: str | None):
        """``registry``: address of the bootstrap registry of a prefill. ``required``: index-K format that the engine's
        guard must show, None when none is required."""
        super().__init__(wedge_seconds)
        self.role, self.url = role, url
        self.state = EngineState.LOADING
        self._registry = registry
        self._required = required
        self._ever_alive = False
        self._wedged_since: float | None = None
        self._guard: GuardState | None = None

    @property
    def guard(self) -> GuardState:
        """Marker of the gated image, as last seen."""
        return self._guard or guard.check(self._required, None, readable=False)

    @property
    def unguarded(self) -> bool:
        """The engine was looked at, and lacks a guard that it needs."""
        return self._guard is not None and self._guard.missing

    def saw(self, seen: int | LegKind) -> EngineState:
        """Take an answer of ``/health``, or how the connection failed."""
        before = self.state
        if seen == 200:
            self.state = EngineState.HEALTHY
            self._ever_alive = True
        elif seen in (LegKind.REFUSED, LegKind.UNREACHABLE):
            self.state = EngineState.UNREACHABLE if self._ever_alive else EngineState.LOADING
        elif before in ALIVE:
            self.state = EngineState.UNHEALTHY  # busy, wedged or shutting down: the probes decide
        else:
            self.state = EngineState.LOADING  # listens and warms up, for the first time or after a restart
        now = time.monotonic()
        if self.state in ALIVE:
            self.detector.health(self.state is EngineState.HEALTHY, now)
        elif before in ALIVE:
            # What answers next is another process.
            self.detector.probe(Kind.ENGINE_GONE.value, now)
            self.sample, self.ranks, self._guard = None, None, None
        self._note_wedge(now)
        return self.state

    async def look(self, session: aiohttp.ClientSession, url: str) -> EngineSample | None:
        """Read metrics; renew guard and wedge."""
        before = self.sample
        sample = await super().look(session, url)
        if sample is not None:
            self._guard = guard.check(self._required, sample.guard)
            if before is not None and restarted(before, sample):
                self.ranks = None
        elif self._guard is None or not self._guard.present:
            self._guard = guard.check(self._required, None, readable=False)
        self._note_wedge(time.monotonic())
        return sample

    async def observe(self, session: aiohttp.ClientSession) -> None:
        """The regular look: metrics and, on prefill, the bootstrap registry."""
        sample = await self.look(session, self.url)
        if self.role is Role.PREFILL and sample is not None:
            answers = await registry_answers(session, *self._registry)
            self.detector.registry(answers, time.monotonic())
            self._note_wedge(time.monotonic())

    def _note_wedge(self, now: float) -> None:
        if not self.detector.state.wedged:
            self._wedged_since = None
        elif self._wedged_since is None:
            self._wedged_since = now

    @property
    def wedge(self) -> WedgeState:
        """What the wedge detector says."""
        return self.detector.state

    def wedged_for(self, now: float) -> float:
        """Seconds since the engine was found wedged, 0 when it is not."""
        return 0.0 if self._wedged_since is None else now - self._wedged_since

    @property
    def blind(self) -> bool:
        """The engine serves and its metrics cannot be read."""
        return self.state in ALIVE and self.unreadable >= _UNREADABLE
