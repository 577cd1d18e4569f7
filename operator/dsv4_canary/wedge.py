"""Wedge detector: is this engine stuck although it looks alive? Pure; the caller passes the time in.

Stuck means that work waits, nothing moves, and this engine is the cause:

| kind | evidence | counts as movement |
|---|---|---|
| ``generation`` | running requests | any token, a health check's included: none runs beside stuck requests |
| ``pool`` | requests wait, no free KV, much of it evictable | any token |
| ``prealloc`` | decode: requests wait for KV memory, and the pool is full | a token generated |
| ``inflight`` | prefill: computed requests whose transfer does not end | a transfer that ended well |
| ``transfer`` | decode: requests wait for KV | a token generated |
| ``bootstrap`` | prefill: requests wait for a decode's addresses | tokens beyond those of health checks |
| ``canary`` | probes time out, ``/health`` is green, no queue shows anything | tokens beyond those of health checks |

The peer explains ``transfer``, ``bootstrap`` and a ``prealloc`` queue with room in the pool just as well: it is gone,
or stuck itself. So those are called a wedge only with evidence against this engine: the peer ended its side of a probe
that timed out here, or probes to two different peers in a row timed out, or (``bootstrap``) the own registry does not
answer. While no peer can be reached, no queue that waits for one accuses anybody.

Busy is not stuck: a prefill that computes for minutes moves. Idle is not stuck: nothing waits. An engine that compiles
kernels in the midst of its first requests for longer than ``wedgeSeconds`` cannot be told from a stuck one.

Gauges of a real engine can be 30 s old where ``/v1/loads`` does not help (see ``engine_view``): on metrics alone a
stall must last ``gauge_age``, however short ``wedgeSeconds`` is; a probe that timed out meanwhile makes
``wedgeSeconds`` enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.engine_view import EngineSample, answered, progressed, restarted, ticked


class WedgeKind(StrEnum):
    """What is stuck. Part of the ``/status`` contract: never rename a value."""

    GENERATION = "generation"
    TRANSFER = "transfer"
    BOOTSTRAP = "bootstrap"
    PREALLOC = "prealloc"
    INFLIGHT = "inflight"
    POOL = "pool"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class WedgeState:
    """Verdict of the detector. ``message``: one sentence, the same as long as the kind is; empty when not wedged."""

    wedged: bool = False
    kind: WedgeKind | None = None
    message: str = ""
    stalled_seconds: float = 0.0
    """How long work has been waiting without movement; rises before the verdict, too."""

    def to_json(self) -> dict[str, object]:
        """Form of the ``/status`` contract."""
        return {"wedged": self.wedged, "kind": self.kind.value if self.kind else None, "message": self.message}


_MESSAGES = {
    WedgeKind.POOL: "requests wait although most of the KV pool is evictable; the engine evicts nothing",
    WedgeKind.GENERATION: "requests run, but the engine computes and generates no token",
    WedgeKind.PREALLOC: "requests wait for KV memory and no request makes progress",
    WedgeKind.INFLIGHT: "computed prefills wait for their KV transfer and no transfer ends",
    WedgeKind.TRANSFER: "requests wait for KV and none arrives, although the prefill side is not to blame",
    WedgeKind.BOOTSTRAP: "requests wait for a decode engine and none comes through, although decode is not to blame",
    WedgeKind.CANARY: "probes time out while /health is green and the engine computes and generates nothing",
}
_ORDER = tuple(_MESSAGES)
"""The most specific explanation first."""
_PEER_QUEUES = frozenset((WedgeKind.TRANSFER, WedgeKind.BOOTSTRAP, WedgeKind.PREALLOC))

_LOW, _HIGH, _FULL = 0.01, 0.2, 0.05
"""Shares of the KV pool: nearly nothing free; much evictable; nearly nothing free or evictable."""
_TIMEOUTS = 2
"""Probes that must time out in a row before they are evidence on their own."""
_GAP = 30.0
"""A longer pause between two looks (the sidecar itself stood still) counts as this long."""
_CALM = 10.0
"""Movement must go on so long before a wedge is over, or a quarter of ``wedgeSeconds`` if that is less."""


@dataclass(slots=True)
class _Probes:
    """Time-outs in a row."""

    timeouts: int = 0
    first: float = 0.0
    peers: set[str] = field(default_factory=set)
    peer_done: bool = False

    @property
    def repeated(self) -> bool:
        return self.timeouts >= _TIMEOUTS

    @property
    def accuse(self) -> bool:
        """They speak against this engine, not only against the pair."""
        return self.repeated and (self.peer_done or len(self.peers) > 1)


@dataclass(slots=True)
class _Stalls:
    """Seconds of work that waited without movement."""

    seconds: dict[WedgeKind, float] = field(default_factory=dict)
    quiet: dict[WedgeKind, float] = field(default_factory=dict)
    unmoved: float = 0.0
    """Since the last tokens, whether or not work was seen."""

    def count(self, kinds: tuple[set[WedgeKind], set[WedgeKind]], move: _Movement, step: float, limit: float) -> None:
        """Account the time between two looks; ``kinds``: what waited before and after."""
        before, after = kinds
        self.unmoved = 0.0 if move.tokens else self.unmoved + step
        for kind in WedgeKind:
            if move.ends(kind):
                self._drop(kind)
            elif kind in after:
                if kind in before:
                    self.seconds[kind] = self.seconds.get(kind, 0.0) + step
                self.quiet.pop(kind, None)
            elif kind in self.seconds:
                # Clients that give up empty a queue for a moment; that does not end a stall, a long quiet does.
                self.quiet[kind] = self.quiet.get(kind, 0.0) + step
                if self.quiet[kind] > limit:
                    self._drop(kind)

    def _drop(self, kind: WedgeKind) -> None:
        self.seconds.pop(kind, None)
        self.quiet.pop(kind, None)


@dataclass(frozen=True, slots=True)
class _Movement:
    """What two samples show, from weak to strong."""

    ticks: bool
    tokens: bool
    answers: bool

    def ends(self, kind: WedgeKind) -> bool:
        """It ends a stall of that kind."""
        if kind in (WedgeKind.INFLIGHT, WedgeKind.TRANSFER, WedgeKind.PREALLOC):
            return self.answers
        return self.ticks if kind is WedgeKind.GENERATION else self.tokens


class WedgeDetector:
    """Feed it every sample, probe and look at ``/health``; ask ``state``."""

    def __init__(self, wedge_seconds: float = 60.0, *, gauge_age: float = 35.0) -> None:
        """``wedge_seconds``: how long work may wait without movement. ``gauge_age``: how old a gauge can be."""
        self._limit = wedge_seconds
        self._gauge_age = gauge_age
        self._state = WedgeState()
        self._sample: EngineSample | None = None
        self._seen = 0.0
        self._green = True
        self._absent = False
        self._registry_down: float | None = None
        self._moving_since: float | None = None
        self._probes = _Probes()
        self._stalls = _Stalls()

    def configure(self, wedge_seconds: float) -> None:
        """New limit, from the next event on."""
        self._limit = wedge_seconds

    @property
    def state(self) -> WedgeState:
        """Verdict as of the last event."""
        return self._state

    def observe(self, sample: EngineSample | None, now: float) -> WedgeState:
        """Take a look at the engine's metrics; None when they could not be read, which proves nothing."""
        before, since = self._sample, self._seen
        self._sample, self._seen = sample, now
        if sample is None or before is None:
            return self._state
        if restarted(before, sample):
            self._well()
            return self._state
        move = _Movement(ticked(before, sample), progressed(before, sample), answered(before, sample))
        step = min(max(now - since, 0.0), _GAP)
        self._stalls.count((_waiting(before), _waiting(sample)), move, step, self._limit)
        self._recover(move, now)
        return self._judge(now)

    def probe(
        self, outcome: str, now: float, *, peer: str = "", peer_done: bool = False, own_done: bool = False
    ) -> WedgeState:
        """Take the end of a canary probe through this engine.

        ``outcome``: ``pass``; ``timeout``; ``loading`` or ``unreachable`` (the peer); ``engine`` (this engine is gone
        or loading); ``unusable`` (says nothing); anything else (``fail``, ``busy``, ``transfer`` ...) is an answer of
        some kind. For a timeout: ``peer_done``, ``own_done`` tell whose request had ended well by then.
        """
        if outcome == "unusable" or (outcome == "timeout" and own_done and not peer_done):
            return self._state  # this engine did its part
        if outcome == "timeout":
            self._absent = False
            if not self._probes.timeouts:
                self._probes.first = now
            self._probes.timeouts += 1
            self._probes.peers.add(peer)
            self._probes.peer_done |= peer_done
            return self._judge(now)
        self._probes = _Probes()
        self._absent = outcome in ("loading", "unreachable")
        if outcome in ("pass", "engine"):
            self._well()
        return self._judge(now)

    def health(self, green: bool, now: float) -> WedgeState:
        """Take the latest answer of ``/health``; green until told otherwise."""
        self._green = green
        return self._judge(now)

    def registry(self, answers: bool, now: float) -> WedgeState:
        """Prefill: does the own bootstrap registry answer? Assumed until told otherwise."""
        if answers:
            self._registry_down = None
        elif self._registry_down is None:
            self._registry_down = now
        return self._judge(now)

    # Bookkeeping.

    def _well(self) -> None:
        """Proof of life, or another process: start anew."""
        self._stalls, self._probes = _Stalls(), _Probes()
        self._moving_since = None
        self._state = WedgeState()

    def _recover(self, move: _Movement, now: float) -> None:
        """A wedge ends when movement has gone on for a while; one token is not enough."""
        kind = self._state.kind
        if kind is None or not move.ends(kind):
            self._moving_since = None
        elif self._moving_since is None:
            self._moving_since = now
        elif now - self._moving_since >= min(_CALM, self._limit / 4):
            self._well()

    def _judge(self, now: float) -> WedgeState:
        longest = max(self._stalls.seconds.values(), default=0.0)
        if self._state.wedged:
            longest = max(longest, self._state.stalled_seconds)
            self._state = WedgeState(True, self._state.kind, self._state.message, longest)
            return self._state
        kind = next((kind for kind in _ORDER if self._proved(kind, now)), None)
        if kind is None:
            self._state = WedgeState(stalled_seconds=longest)
        else:
            stalled = self._stalls.seconds.get(kind, self._stalls.unmoved)
            self._state = WedgeState(True, kind, _MESSAGES[kind], stalled)
        return self._state

    def _proved(self, kind: WedgeKind, now: float) -> bool:
        if kind is WedgeKind.CANARY:
            return self._canary_proves(now)
        if kind is WedgeKind.BOOTSTRAP and self._registry_proves(now):
            return True
        enough = self._limit if self._probes.timeouts else max(self._limit, self._gauge_age)
        if self._stalls.seconds.get(kind, 0.0) < enough:
            return False
        if kind in (WedgeKind.GENERATION, WedgeKind.POOL):
            return True
        if self._absent:
            return False
        if kind is WedgeKind.INFLIGHT:
            # While new prefills are computed it is alive, and perhaps only busy: then probes decide.
            return self._stalls.unmoved >= self._limit or (self._probes.repeated and self._green)
        if kind is WedgeKind.PREALLOC and self._sample is not None and _full(self._sample):
            return True
        return self._probes.accuse

    def _canary_proves(self, now: float) -> bool:
        """Nothing waits visibly, and still nothing comes back."""
        probes, stalls = self._probes, self._stalls
        if not (probes.repeated and self._green and self._sample is not None):
            return False
        if min(stalls.unmoved, now - probes.first) < self._limit:
            return False
        waits_for_peer = (_waiting(self._sample) | stalls.seconds.keys()) & _PEER_QUEUES
        return probes.accuse or not waits_for_peer

    def _registry_proves(self, now: float) -> bool:
        down = self._registry_down
        waits = self._probes.timeouts or (self._sample is not None and self._sample.prefill_bootstrap)
        return down is not None and now - down >= self._limit and bool(waits)


def _waiting(sample: EngineSample) -> set[WedgeKind]:
    """Kinds for which the sample shows work that waits."""
    counts = {
        WedgeKind.GENERATION: sample.running,
        WedgeKind.PREALLOC: sample.decode_prealloc,
        WedgeKind.INFLIGHT: sample.prefill_inflight,
        WedgeKind.TRANSFER: sample.decode_transfer,
        WedgeKind.BOOTSTRAP: sample.prefill_bootstrap,
        WedgeKind.POOL: (sample.queued or sample.decode_prealloc) if _unevicted(sample) else None,
    }
    return {kind for kind, count in counts.items() if count}


def _unevicted(sample: EngineSample) -> bool:
    """Nothing is free, much could be."""
    if sample.kv_available is None or sample.kv_evictable is None:
        return False
    total = sample.kv_total or sample.kv_available + sample.kv_evictable
    return total > 0 and sample.kv_available <= _LOW * total and sample.kv_evictable >= _HIGH * total


def _full(sample: EngineSample) -> bool:
    """Nothing is free and nothing could be."""
    if sample.kv_available is None or not sample.kv_total:
        return False
    return sample.kv_available + (sample.kv_evictable or 0.0) <= _FULL * sample.kv_total
