"""Verdict: from probe results to readiness, with a reason a person can act on. Pure; time is passed in.

Rules
- First readiness, and readiness after it was lost, needs one passing functional and one passing streamed
  probe.
- Failures count per mode, across peers, since the last pass of that mode with any peer. Readiness is withdrawn
  after ``failure_threshold`` of them when they came with every peer that can be tested (with ``MANY_PEERS`` of them
  where there are more). So an engine that fails with one bad peer and passes with others keeps it.
- An engine that passes now and then is caught by a window: half of the latest probes failed with each testable peer.
  It comes back only after a row of passes.
- A peer that is absent, unreachable, loading, busy or wedged is no failure of this engine, and proves nothing
  either. A ready pod that has had no usable peer for longer than ``absence`` seconds is not ready.
- An engine that refuses connections, is wedged, is the culprit of confirmed corruption, or lacks a guard that it needs
  is not ready at once and has to prove itself anew.
Messages hold no times, counts or reply text, so that an unchanged state gives an unchanged message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from dsv4_canary.model import EngineState, Mode, Reason, Role

MANY_PEERS = 5
"""Different failing peers that are as good as all."""
WINDOW = 10
"""Latest results of each peer that the window rule looks at."""
_LEAST = 4
"""Fewest of them for a judgement on a peer."""
_ROW = 2
"""After the window rule: passes in a row until readiness, times ``failure_threshold``."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``/readyz`` and ``/status`` say. ``message`` is one sentence."""

    ready: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A conclusive probe failure. ``what`` completes "tool call through X to Y ..."."""

    reason: Reason
    peer: str
    what: str


@dataclass(slots=True)
class _Streak:
    """Failures of one mode since its last pass."""

    count: int = 0
    peers: set[str] = field(default_factory=set)


class VerdictMachine:
    """State behind one engine's readiness."""

    def __init__(self, role: Role, peer_host: str, failure_threshold: int, absence: float) -> None:
        self._role = role
        self._peer_host = peer_host
        self._threshold = failure_threshold
        self._absence = absence
        self._ready = False
        self._proven: set[Mode] = set()
        self._streaks = {mode: _Streak() for mode in Mode}
        self._windows: dict[str, deque[bool]] = {}
        self._testable: frozenset[str] = frozenset()
        self._owed = 0
        self._failure: Failure | None = None
        self._stale_failure = False
        self._engine = EngineState.LOADING
        self._own: tuple[Reason, str] | None = None
        self._absent: tuple[Reason, str] | None = None
        self._absent_since: float | None = None
        self._refused_since: float | None = None
        self._ever_alive = False

    def configure(self, failure_threshold: int, absence: float) -> None:
        """Take changed settings."""
        self._threshold, self._absence = failure_threshold, absence

    @property
    def consecutive_failures(self) -> int:
        """Failures in a row of the mode that fails most."""
        return max(streak.count for streak in self._streaks.values())

    @property
    def next_mode(self) -> Mode | None:
        """Mode that must be probed next: the one that fails, else one not proved yet. None: free choice."""
        failing = max(Mode, key=lambda mode: self._streaks[mode].count)
        if self._streaks[failing].count:
            return failing
        return next((mode for mode in Mode if mode not in self._proven), None) if not self._ready else None

    def engine(self, state: EngineState, now: float) -> None:
        """The engine of this pod was looked at."""
        if state in (EngineState.LOADING, EngineState.UNREACHABLE):
            self._withdraw()
            self._forgive()
            self._owed = 0
            self._own = None
            self._absent, self._absent_since = None, None
        else:
            self._ever_alive = True
        if state is EngineState.UNREACHABLE and self._ever_alive:
            self._refused_since = now if self._refused_since is None else self._refused_since
        else:
            self._refused_since = None
        self._engine = state

    def own_fault(self, reason: Reason | None, message: str = "") -> None:
        """What is known of this engine beside its probes: wedged, corrupt, or without its guard; None: nothing."""
        if reason is None:
            self._own = None
            return
        if self._own is None or self._own[0] is not reason:
            self._withdraw()
        self._own = (reason, message)

    def tested(self) -> None:
        """A probe that proves nothing by itself was answered: there is a peer."""
        self._absent, self._absent_since = None, None

    def passed(self, mode: Mode, peer: str) -> None:
        """A probe came back exactly right."""
        if self._gone:
            return
        self._absent, self._absent_since = None, None
        self._windows.setdefault(peer, deque(maxlen=WINDOW)).append(True)
        self._streaks[mode] = _Streak()
        self._proven.add(mode)
        self._owed = max(0, self._owed - 1)
        proved = len(self._proven) == len(Mode) and not self.consecutive_failures and not self._owed
        if proved and self._own is None:
            self._ready = True
            self._failure = None

    def failed(self, mode: Mode, failure: Failure) -> None:
        """A probe failed and the engine or its path to the peer may be to blame."""
        if self._gone:
            return
        self._absent, self._absent_since = None, None
        self._windows.setdefault(failure.peer, deque(maxlen=WINDOW)).append(False)
        self._proven.discard(mode)
        if self._owed:
            self._owed = _ROW * self._threshold
        streak = self._streaks[mode]
        streak.count += 1
        streak.peers.add(failure.peer)
        # The first failure of a kind keeps its message: peers rotate, and a message that followed them would
        # change all the time.
        if self._failure is None or self._stale_failure or self._failure.reason is not failure.reason:
            self._failure, self._stale_failure = failure, False
        if streak.count >= self._threshold and self._everywhere(streak.peers):
            self._withdraw()
        elif self._ready and self._half_failed():
            self._withdraw()
            self._owed = _ROW * self._threshold

    def no_usable_peer(self, reason: Reason, now: float, message: str = "") -> None:
        """No peer could be probed. ``reason``: NO_PEER or PEER_LOADING; ``message``: one sentence, if there is more to
        say than the reason does."""
        self._absent = (reason, message)
        self._absent_since = now if self._absent_since is None else self._absent_since
        if self._ready and now - self._absent_since > self._absence:
            self._withdraw()
            self._forgive()

    def peers(self, addresses: Collection[str], absent: Collection[str] = ()) -> None:
        """Current peer addresses, and those of them that could not be tested when last tried.

        A message about a peer that is gone gives way to the next failure's.
        """
        self._testable = frozenset(addresses) - frozenset(absent)
        for gone in self._windows.keys() - set(addresses):
            del self._windows[gone]
        self._stale_failure = self._failure is not None and self._failure.peer not in addresses

    def refused_for(self, now: float) -> float:
        """Seconds for which the once living engine has refused connections, 0 when it does not."""
        return 0.0 if self._refused_since is None else now - self._refused_since

    @property
    def _gone(self) -> bool:
        """The engine does not serve: a late result of a probe that started before says nothing about the next one."""
        return self._engine in (EngineState.LOADING, EngineState.UNREACHABLE)

    def _everywhere(self, failed: set[str]) -> bool:
        return self._testable <= failed or len(failed & self._testable) >= max(self._threshold, MANY_PEERS)

    def _half_failed(self) -> bool:
        """Half of the latest results failed, with each peer that can be tested, and they are more than a few."""
        windows = [self._windows.get(peer, deque()) for peer in self._testable] or list(self._windows.values())
        failures = sum(list(window).count(False) for window in windows)
        return failures >= _ROW * self._threshold and all(
            len(window) >= _LEAST and list(window).count(False) * 2 >= len(window) for window in windows
        )

    def _forgive(self) -> None:
        self._streaks = {mode: _Streak() for mode in Mode}
        self._windows.clear()
        self._failure = None

    def _withdraw(self) -> None:
        self._ready = False
        self._proven.clear()

    @property
    def verdict(self) -> Verdict:
        """The verdict as of the last event."""
        reason, message = self._explain()
        return Verdict(self._ready, reason, message)

    def _explain(self) -> tuple[Reason, str]:
        own, other = self._role.value, self._role.other.value
        # The first that holds: what is nearest to this engine comes first.
        if self._engine is EngineState.LOADING:
            return Reason.ENGINE_LOADING, "the engine in this pod does not serve yet, its model is loading"
        if self._engine is EngineState.UNREACHABLE:
            return Reason.ENGINE_UNREACHABLE, "the engine in this pod served before and now refuses connections"
        if self._own is not None:
            return self._own
        if self._ready:
            return Reason.PASSING, f"tool calls through this {own} come back exactly right"
        if self._failure is not None:
            return self._failure.reason, f"{self._path(self._failure.peer)} {self._failure.what}"
        if self._absent is not None:
            reason, message = self._absent
            usual = {
                Reason.PEER_LOADING: f"every {other} found under {self._peer_host} is still loading its model",
                Reason.NO_PEER: f"no {other} can be reached under {self._peer_host}, so nothing can be proved",
            }
            return reason, message or usual.get(reason, "")
        return Reason.PROBING, f"whole and streamed tool calls have yet to pass through this {own}"

    def _path(self, peer: str) -> str:
        if self._role is Role.PREFILL:
            return f"tool call through this prefill to decode {peer}"
        return f"tool call through prefill {peer} to this decode"
