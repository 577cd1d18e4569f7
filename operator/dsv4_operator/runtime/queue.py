"""Work queue: de-duplicated keys, one run per key at a time, delays, per-key backoff.

The semantics are those of client-go's workqueue, which Kubernetes controllers rely on:
- a key waits at most once, however often it is added;
- a key added while it runs, runs once more afterwards, never twice at once;
- of several delays for a key the earliest wins; the start of a run cancels the rest, for that run sees
  everything;
- an error decides by its type (runtime.outcome) what happens next.

All methods are called from the event loop's thread. Time is the loop's, so tests run on a fake clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dsv4_operator.runtime.outcome import Verdict, decide

LOG = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Handler = Callable[[K], Awaitable[float | None]]
"""Returns the seconds after which the key wants another run, or None to wait for the next `add`."""


class QueueObserver(Protocol):
    """Told about every finished run and every retry; runtime.metrics.OperatorMetrics is one."""

    def reconcile_done(self, result: str, seconds: float) -> None:
        """A run ended: `ok`, or Verdict.result."""

    def reconcile_retried(self) -> None:
        """A failed key was put back with backoff."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A snapshot. Seconds throughout."""

    depth: int
    """Keys ready and waiting for a worker, those to run again included."""
    delayed: int
    """Keys that wait for a point in time."""
    running: int
    oldest_age: float
    """How long the longest-waiting ready key has waited; 0 without one."""
    longest_run: float
    """How long the longest current run has taken so far; 0 without one."""
    last_progress: float
    """Loop time of the last finished run (of the queue's creation before the first)."""
    stalled: float
    """How long there has been work while no run finished; 0 when idle or not started."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays between `first` and `longest` seconds, spread by +-`jitter` (a share)."""

    first: float = 1.0
    longest: float = 300.0
    jitter: float = 0.2

    def delay(self, failures: int, rng: random.Random) -> float:
        """Seconds to wait after that many failures in a row (1 or more)."""
        doublings = min(failures - 1, 32)
        spread = 1 + rng.uniform(-self.jitter, self.jitter)
        return max(self.first, min(self.longest, self.first * 2.0**doublings * spread))


class WorkQueue(Generic[K]):
    """See the module's docstring. `run_limit`: seconds after which a single run is cut off and retried."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        observer: QueueObserver | None = None,
        classify: Callable[[BaseException], Verdict] = decide,
        run_limit: float = 300.0,
        rng: random.Random | None = None,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._observer = observer
        self._classify = classify
        self._run_limit = run_limit
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._ready: dict[K, float] = {}  # key -> loop time it became ready; a dict keeps first-come order
        self._again: set[K] = set()  # added while running
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._runs: dict[K, tuple[asyncio.Task[None], float]] = {}
        self._handler: Handler[K] | None = None
        self._workers = 0
        self._context: contextvars.Context | None = None
        self._stopping = False
        self._stopped = asyncio.Event()
        self._busy_since: float | None = None
        self._last_progress: float | None = None

    def add(self, key: K) -> None:
        """Have the key run as soon as a worker is free. Ignored once the queue stops."""
        if self._stopping:
            return
        if key in self._runs:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = now = _now()
            if self._busy_since is None:
                self._busy_since = now
            self._pump()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key run in that many seconds, or earlier when an earlier delay is pending."""
        if self._stopping:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = _now() + seconds
        pending = self._timers.get(key)
        if pending is not None:
            if pending.when() <= due:
                return
            pending.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(due, self._fire, key)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Count a failure of the key and add it after its backoff, but no earlier than `at_least` seconds.

        Returns the delay in seconds.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(failures, self._rng))
        self.add_after(key, delay)
        if self._observer is not None:
            self._observer.reconcile_retried()
        return delay

    def forget(self, key: K) -> None:
        """Forget the key's failures: the next backoff starts at its beginning. Pending runs stay."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Failures in a row."""
        return self._failures.get(key, 0)

    async def run(self, handler: Handler[K], workers: int, drain_seconds: float = 20.0) -> None:
        """Serve keys with at most `workers` runs at once until `stop` is called, or until cancelled.

        A cancellation stops the queue too, and lets current runs finish for `drain_seconds`.
        """
        if self._handler is not None:
            raise RuntimeError("the queue runs already")
        if self._stopping:
            return
        self._handler, self._workers = handler, workers
        # Runs must not inherit the context (log fields, say) of whoever happened to add the key.
        self._context = contextvars.copy_context()
        self._last_progress = _now()
        if self._ready:
            self._busy_since = self._last_progress
        self._pump()
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            await self.stop(drain_seconds)
            raise

    async def stop(self, deadline: float) -> bool:
        """Start nothing new; let current runs finish for `deadline` seconds, then cancel them.

        True when none had to be cancelled. Keys that wait are dropped: the next start lists everything
        anyway.
        """
        self._stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._again.clear()
        try:
            late: set[asyncio.Task[None]] = set()
            if self._runs:
                _, late = await asyncio.wait([task for task, _ in self._runs.values()], timeout=deadline)
            if late:
                LOG.warning("%d runs did not finish within %g s and are cancelled", len(late), deadline)
                for task in late:
                    task.cancel()
                await asyncio.wait(late, timeout=1.0)
            return not late
        finally:
            self._stopped.set()

    def stats(self) -> QueueStats:
        """The queue now."""
        now = _now()
        last = self._last_progress
        stalled = 0.0
        if self._handler is not None and self._busy_since is not None and last is not None:
            stalled = now - max(last, self._busy_since)
        return QueueStats(
            depth=len(self._ready) + len(self._again),
            delayed=len(self._timers),
            running=len(self._runs),
            oldest_age=now - next(iter(self._ready.values()), now),
            longest_run=now - min((started for _, started in self._runs.values()), default=now),
            last_progress=now if last is None else last,
            stalled=stalled,
        )

    def _fire(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _pump(self) -> None:
        """Start runs while there are keys and free workers."""
        while self._handler is not None and not self._stopping and self._ready and len(self._runs) < self._workers:
            key = next(iter(self._ready))
            del self._ready[key]
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            task = asyncio.get_running_loop().create_task(
                self._run_one(key, self._handler), name=f"queue:{key}", context=_copy(self._context)
            )
            self._runs[key] = (task, _now())

    async def _run_one(self, key: K, handler: Handler[K]) -> None:
        started, result = _now(), "cancelled"
        try:
            async with asyncio.timeout(self._run_limit):
                after = await handler(key)
        except asyncio.CancelledError:
            if self._stopping:
                raise
            # Something the handler awaited was cancelled, not the run itself: the key must not get lost.
            result = self._failed(key, RuntimeError("the run was cancelled from inside"))
        except Exception as error:  # the one place where a failure becomes a decision
            result = self._failed(key, error)
        else:
            result = "ok"
            self.forget(key)
            if after is not None:
                self.add_after(key, after)
        finally:
            del self._runs[key]
            self._last_progress = _now()
            if self._observer is not None:
                self._observer.reconcile_done(result, self._last_progress - started)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            if not self._ready and not self._runs:
                self._busy_since = None
            self._pump()

    def _failed(self, key: K, error: Exception) -> str:
        """Log, and put the key where its error says. Returns the result for the metric."""
        verdict = self._classify(error)
        if verdict.backoff:
            delay: float | None = self.retry(key, at_least=verdict.after or 0.0)
        else:
            self.forget(key)
            delay = verdict.after
            if delay is not None:
                self.add_after(key, delay)
        then = "waits for a change" if delay is None else f"again in {delay:.1f} s"
        if verdict.unexpected:
            LOG.error("%s: unexpected error, %s", key, then, exc_info=error)
        else:
            level = logging.INFO if verdict.result == "waiting" else logging.WARNING
            LOG.log(level, "%s: %s; %s", key, error or type(error).__name__, then)
        return verdict.result


def _now() -> float:
    return asyncio.get_running_loop().time()


def _copy(context: contextvars.Context | None) -> contextvars.Context | None:
    return None if context is None else context.copy()
