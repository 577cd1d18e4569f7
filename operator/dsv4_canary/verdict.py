"""Verdict: from probe results to readiness, with a reason a person can act on. Pure; time is passed in.

Rules
- First readiness, and readiness after it was lost, needs one passing functional and one passing streamed
  probe.
- Failures count per mode, across peers: a mode that fails ``failure_threshold`` times in a row takes
  readiness away. A pod that fails with one bad peer but passes with others keeps it, since peers rotate.
- A peer that is absent, unreachable or loading is no failure of this engine, and proves nothing either. A
  ready pod that has had no usable peer for longer than ``absence`` seconds is not ready.
- An engine that refuses connections is not ready at once and has to prove itself anew.
Messages hold no times, counts or reply text, so that an unchanged state gives an unchanged message.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dsv4_canary.model import EngineState, Mode, Reason, Role


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


class VerdictMachine:
    """State behind one engine's readiness."""

    def __init__(self, role: Role, peer_host: str, failure_threshold: int, absence: float) -> None:
        self._role = role
        self._peer_host = peer_host
        self._threshold = failure_threshold
        self._absence = absence
        self._ready = False
        self._proven: set[Mode] = set()
        self._failures: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self._failure: Failure | None = None
        self._stale_failure = False
        self._engine = EngineState.LOADING
        self._absent: Reason | None = None
        self._absent_since: float | None = None
        self._refused_since: float | None = None
        self._ever_alive = False

    def configure(self, failure_threshold: int, absence: float) -> None:
        """Take changed settings."""
        self._threshold, self._absence = failure_threshold, absence

    @property
    def consecutive_failures(self) -> int:
        """Failures in a row of the mode that fails most."""
        return max(self._failures.values())

    @property
    def next_mode(self) -> Mode | None:
        """Mode that must be probed next: the one that fails, else one not proved yet. None: free choice."""
        failing = max(Mode, key=lambda mode: self._failures[mode])
        if self._failures[failing]:
            return failing
        return next((mode for mode in Mode if mode not in self._proven), None) if not self._ready else None

    def engine(self, state: EngineState, now: float) -> None:
        """The engine of this pod was looked at."""
        if state in (EngineState.LOADING, EngineState.UNREACHABLE):
            self._withdraw()
            self._failure = None
            self._failures = dict.fromkeys(Mode, 0)
            self._absent, self._absent_since = None, None
        else:
            self._ever_alive = True
        if state is EngineState.UNREACHABLE and self._ever_alive:
            self._refused_since = now if self._refused_since is None else self._refused_since
        else:
            self._refused_since = None
        self._engine = state

    def passed(self, mode: Mode) -> None:
        """A probe came back exactly right."""
        if self._gone:
            return
        self._absent, self._absent_since = None, None
        self._failures[mode] = 0
        self._proven.add(mode)
        if len(self._proven) == len(Mode) and not self.consecutive_failures:
            self._ready = True
            self._failure = None

    def failed(self, mode: Mode, failure: Failure) -> None:
        """A probe failed and the engine or its path to the peer may be to blame."""
        if self._gone:
            return
        self._absent, self._absent_since = None, None
        self._proven.discard(mode)
        self._failures[mode] += 1
        # The first failure of a kind keeps its message: peers rotate, and a message that followed them would
        # change all the time.
        if self._failure is None or self._stale_failure or self._failure.reason is not failure.reason:
            self._failure, self._stale_failure = failure, False
        if self._failures[mode] >= self._threshold:
            self._withdraw()

    def no_usable_peer(self, reason: Reason, now: float) -> None:
        """No peer could be probed. ``reason``: NO_PEER or PEER_LOADING."""
        self._absent = reason
        self._absent_since = now if self._absent_since is None else self._absent_since
        if self._ready and now - self._absent_since > self._absence:
            self._withdraw()
            self._failures = dict.fromkeys(Mode, 0)
            self._failure = None

    def peers(self, addresses: Collection[str]) -> None:
        """Current peer addresses: a message about a peer that is gone gives way to the next failure's."""
        self._stale_failure = self._failure is not None and self._failure.peer not in addresses

    def refused_for(self, now: float) -> float:
        """Seconds for which the once living engine has refused connections, 0 when it does not."""
        return 0.0 if self._refused_since is None else now - self._refused_since

    @property
    def _gone(self) -> bool:
        """The engine does not serve: a late result of a probe that started before says nothing about the next one."""
        return self._engine in (EngineState.LOADING, EngineState.UNREACHABLE)

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
        failure = self._failure
        # The first row whose condition holds: what is nearest to this engine comes first.
        rows = (
            (
                self._engine is EngineState.LOADING,
                Reason.ENGINE_LOADING,
                "the engine in this pod does not serve yet, its model is loading",
            ),
            (
                self._engine is EngineState.UNREACHABLE,
                Reason.ENGINE_UNREACHABLE,
                "the engine in this pod served before and now refuses connections",
            ),
            (self._ready, Reason.PASSING, f"tool calls through this {own} come back exactly right"),
            (
                failure is not None,
                failure.reason if failure else Reason.PROBE_FAILED,
                f"{self._path(failure.peer)} {failure.what}" if failure else "",
            ),
            (
                self._absent is Reason.PEER_LOADING,
                Reason.PEER_LOADING,
                f"every {other} found under {self._peer_host} is still loading its model",
            ),
            (
                self._absent is Reason.NO_PEER,
                Reason.NO_PEER,
                f"no {other} can be reached under {self._peer_host}, so nothing can be proved",
            ),
        )
        for holds, reason, message in rows:
            if holds:
                return reason, message
        return Reason.PROBING, f"whole and streamed tool calls have yet to pass through this {own}"

    def _path(self, peer: str) -> str:
        if self._role is Role.PREFILL:
            return f"tool call through this prefill to decode {peer}"
        return f"tool call through prefill {peer} to this decode"
