"""Live counts of a running soak, for the progress display and the metrics. Pure but for the clock it is given."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dsv4_canary.soak.record import Failure, Phase, Record, Verdict

_WINDOW = 15.0
"""Seconds over which the rate of tokens is taken."""


@dataclass(slots=True)
class Tally:
    """Counts of the present phase; a new phase starts from what a journal already holds of it."""

    clock: Callable[[], float]
    """Seconds, monotonic."""
    phase: Phase = Phase.BASELINE
    planned_sessions: int = 0
    planned_replies: int = 0
    replies: int = 0
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    failures: Counter[Failure] = field(default_factory=Counter)
    corrupted_sessions: set[int] = field(default_factory=set)
    finished_sessions: int = 0
    """Sessions with no request left."""
    running: int = 0
    """Requests in flight."""
    _left: dict[int, int] = field(default_factory=dict)
    _tokens: deque[tuple[float, int]] = field(default_factory=deque)
    _began: float = 0.0

    def begin(self, phase: Phase, plan: dict[int, int]) -> None:
        """Start a phase; ``plan`` has the number of requests of each session."""
        self.phase = phase
        self.planned_sessions, self.planned_replies = len(plan), sum(plan.values())
        self.replies = self.finished_sessions = 0
        self.verdicts, self.failures, self.corrupted_sessions = Counter(), Counter(), set()
        self._left = dict(plan)
        self._tokens.clear()
        self._began = self.clock()

    def add(self, record: Record, *, live: bool = True) -> None:
        """Count a record; not ``live``: it comes from the journal of an earlier run."""
        self.replies += 1
        self.verdicts[record.verdict] += 1
        if record.failure is not None:
            self.failures[record.failure] += 1
        if record.verdict is Verdict.CORRUPTED:
            self.corrupted_sessions.add(record.session)
        self._left[record.session] = left = self._left.get(record.session, 1) - 1
        self.finished_sessions += left == 0
        if live and record.completion_tokens:
            self._tokens.append((self.clock(), record.completion_tokens))

    @property
    def timeouts(self) -> int:
        """Requests that ran into the timeout."""
        return self.failures[Failure.TIMEOUT]

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of finished replies, per second, over the last seconds."""
        now = self.clock()
        while self._tokens and self._tokens[0][0] < now - _WINDOW:
            self._tokens.popleft()
        span = min(_WINDOW, now - self._began)
        return sum(count for _, count in self._tokens) / span if span > 0 else 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the phase began."""
        return self.clock() - self._began
