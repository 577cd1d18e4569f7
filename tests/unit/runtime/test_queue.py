from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections import Counter

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.kube.errors import ApiUnavailable, Conflict, Forbidden, TooManyRequests
from dsv4_operator.runtime.outcome import InvalidSpec, NotYet
from dsv4_operator.runtime.queue import Backoff, WorkQueue

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


class Recorder:
    """A handler that notes when each run starts and ends, and checks that no key runs twice at once."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.starts: list[tuple[float, str]] = []
        self.running: Counter[str] = Counter()
        self.most_at_once = 0
        self.outcomes: dict[str, list[float | Exception | None]] = {}

    async def __call__(self, key: str) -> float | None:
        self.starts.append((now(), key))
        self.running[key] += 1
        assert self.running[key] == 1, f"{key} runs twice at once"
        self.most_at_once = max(self.most_at_once, self.running.total())
        try:
            await asyncio.sleep(self.seconds)
            outcome = self.outcomes[key].pop(0) if self.outcomes.get(key) else None
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            self.running[key] -= 1

    def times(self, key: str) -> list[float]:
        return [time for time, started in self.starts if started == key]


class Observer:
    def __init__(self) -> None:
        self.results: list[str] = []
        self.retries = 0

    def reconcile_done(self, result: str, seconds: float) -> None:
        self.results.append(result)

    def reconcile_retried(self) -> None:
        self.retries += 1


def steady(observer: Observer | None = None, run_limit: float = 300.0) -> WorkQueue[str]:
    return WorkQueue(backoff=Backoff(jitter=0.0), observer=observer, run_limit=run_limit)


async def serve(queue: WorkQueue[str], handler: Recorder, seconds: float, workers: int = 2) -> None:
    """Run the queue for that long (by the fake clock), then stop it."""
    task = asyncio.create_task(queue.run(handler, workers))
    await asyncio.sleep(seconds)
    await queue.stop(60)
    await task


async def test_key_added_often_waits_once() -> None:
    queue, handler = steady(), Recorder()
    for _ in range(5):
        queue.add("a")
    assert queue.stats().depth == 1
    await serve(queue, handler, 10)
    assert handler.times("a") == [0]


async def test_key_added_while_running_runs_once_more() -> None:
    queue, handler = steady(), Recorder(seconds=4)
    task = asyncio.create_task(serve(queue, handler, 20))
    queue.add("a")
    for _ in range(3):
        await asyncio.sleep(1)
        queue.add("a")
    await task
    assert handler.times("a") == [0, 4]


async def test_workers_bound_what_runs_at_once_and_keys_come_in_order() -> None:
    queue, handler = steady(), Recorder()
    for key in "abcdef":
        queue.add(key)
    await serve(queue, handler, 10, workers=2)
    assert handler.most_at_once == 2
    assert [key for _, key in handler.starts] == list("abcdef")
    assert handler.times("f") == [2]


async def test_earliest_delay_wins_and_a_run_cancels_the_rest() -> None:
    queue, handler = steady(), Recorder()
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 7)
    queue.add_after("b", 8)
    task = asyncio.create_task(serve(queue, handler, 30))
    await asyncio.sleep(6.5)
    queue.add("b")
    await task
    assert handler.starts == [(5, "a"), (6.5, "b")]


async def test_delay_asked_for_during_a_run_survives_it() -> None:
    queue, handler = steady(), Recorder(seconds=2)
    handler.outcomes["a"] = [50.0]
    queue.add("a")
    task = asyncio.create_task(serve(queue, handler, 20))
    await asyncio.sleep(1)
    queue.add_after("a", 3)
    await task
    assert handler.times("a") == [0, 4]


async def test_returned_seconds_requeue() -> None:
    queue, handler = steady(), Recorder()
    handler.outcomes["a"] = [15.0, None]
    queue.add("a")
    await serve(queue, handler, 100)
    assert handler.times("a") == [0, 16]


async def test_backoff_doubles_is_bounded_and_forgotten_after_success() -> None:
    queue, handler = steady(), Recorder(seconds=0)
    handler.outcomes["a"] = [ApiUnavailable("down") for _ in range(12)]
    queue.add("a")
    await serve(queue, handler, 2000)
    times = handler.times("a")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert queue.failures("a") == 0


@pytest.mark.parametrize(
    ("error", "second_run", "result"),
    [
        pytest.param(InvalidSpec("no"), None, "invalid", id="invalid waits for a change"),
        pytest.param(NotYet("soon", after=42), 42, "waiting", id="not yet names its time"),
        pytest.param(Conflict("changed"), 1, "conflict", id="conflict at once"),
        pytest.param(TooManyRequests("slow down", retry_after=9), 9, "throttled", id="throttled as told"),
        pytest.param(ApiUnavailable("down"), 1, "unavailable", id="unavailable backs off"),
        pytest.param(Forbidden("no"), 1, "forbidden", id="forbidden backs off"),
        pytest.param(KeyError("bug"), 1, "error", id="a bug backs off"),
    ],
)
async def test_error_type_decides(error: Exception, second_run: float | None, result: str) -> None:
    observer = Observer()
    queue, handler = steady(observer), Recorder(seconds=0)
    handler.outcomes["a"] = [error]
    queue.add("a")
    await serve(queue, handler, 100)
    assert handler.times("a") == ([0] if second_run is None else [0, second_run])
    assert observer.results[0] == result
    assert observer.retries == (0 if result in {"invalid", "waiting"} else 1)


async def test_failing_key_does_not_hold_up_others() -> None:
    queue, handler = steady(), Recorder(seconds=0)
    handler.outcomes["bad"] = [RuntimeError("bug") for _ in range(50)]
    queue.add("bad")
    task = asyncio.create_task(serve(queue, handler, 100, workers=1))
    for number in range(20):
        await asyncio.sleep(1)
        queue.add(f"good{number}")
    await task
    assert {key for _, key in handler.starts} == {"bad"} | {f"good{number}" for number in range(20)}


async def test_run_that_hangs_is_cut_off_and_retried() -> None:
    observer = Observer()
    queue, handler = steady(observer, run_limit=30), Recorder(seconds=1000)
    queue.add("a")
    await serve(queue, handler, 32)
    assert handler.times("a") == [0, 31]
    assert observer.results[0] == "error"


async def test_cancellation_inside_a_handler_is_a_failure_like_others() -> None:
    queue = steady()
    starts: list[float] = []

    async def handler(key: str) -> None:
        starts.append(now())
        if len(starts) == 1:
            raise asyncio.CancelledError

    queue.add("a")
    task = asyncio.create_task(queue.run(handler, 1))
    await asyncio.sleep(10)
    await queue.stop(1)
    await task
    assert starts == [0, 1]


async def test_stop_lets_running_handlers_finish() -> None:
    observer = Observer()
    queue, handler = steady(observer), Recorder(seconds=5)
    task = asyncio.create_task(queue.run(handler, 1))
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(1)
    assert await queue.stop(10) is True
    await task
    assert now() == 5
    assert observer.results == ["ok"]
    queue.add("c")
    await asyncio.sleep(100)
    assert [key for _, key in handler.starts] == ["a"]


async def test_stop_cancels_what_exceeds_the_deadline() -> None:
    observer = Observer()
    queue, handler = steady(observer), Recorder(seconds=500)
    task = asyncio.create_task(queue.run(handler, 1))
    queue.add("a")
    await asyncio.sleep(1)
    assert await queue.stop(10) is False
    await task
    assert now() == 11
    assert observer.results == ["cancelled"]
    assert queue.stats().running == 0


async def test_cancelling_run_drains_too() -> None:
    observer = Observer()
    queue, handler = steady(observer), Recorder(seconds=5)
    task = asyncio.create_task(queue.run(handler, 1, drain_seconds=10))
    queue.add("a")
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert observer.results == ["ok"]


async def test_stats_tell_age_and_stall() -> None:
    queue, handler = steady(), Recorder(seconds=60)
    await asyncio.sleep(1000)
    queue.add("early")
    assert queue.stats().stalled == 0, "a queue that nobody serves yet owes nothing"
    await asyncio.sleep(10)
    task = asyncio.create_task(queue.run(handler, 1))
    queue.add("late")
    queue.add_after("later", 999)
    await asyncio.sleep(30)
    stats = queue.stats()
    assert (stats.depth, stats.running, stats.delayed) == (1, 1, 1)
    assert (stats.oldest_age, stats.longest_run, stats.stalled) == (30, 30, 30)
    await asyncio.sleep(40)
    assert queue.stats().stalled == 10
    await asyncio.sleep(60)
    stats = queue.stats()
    assert (stats.depth, stats.running, stats.stalled, stats.oldest_age) == (0, 0, 0, 0)
    await asyncio.sleep(500)
    queue.add("next")
    await asyncio.sleep(2)
    assert queue.stats().stalled == 2, "idle time is no stall"
    await queue.stop(100)
    await task


async def test_run_does_not_inherit_the_context_of_who_added_the_key() -> None:
    field = contextvars.ContextVar("field", default="none")
    seen: list[str] = []
    queue: WorkQueue[str] = steady()

    async def handler(key: str) -> None:
        seen.append(field.get())
        field.set(key)
        if key == "first":
            queue.add("second")

    task = asyncio.create_task(queue.run(handler, 1))
    await asyncio.sleep(0)
    field.set("adder")
    queue.add("first")
    await asyncio.sleep(1)
    await queue.stop(1)
    await task
    assert seen == ["none", "none"]


def test_backoff_spreads_within_its_bounds() -> None:
    rng, backoff = random.Random(1), Backoff()
    delays = [backoff.delay(3, rng) for _ in range(200)]
    assert len(set(delays)) > 100
    assert all(3.2 <= delay <= 4.8 for delay in delays)
    assert all(1 <= backoff.delay(failures, rng) <= 300 for failures in (1, 2, 50, 10_000))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc")),
        st.tuples(st.just("after"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 6)),
        st.tuples(st.just("fail"), st.sampled_from("abc")),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, workers=st.integers(1, 3), seconds=st.integers(0, 5))
def test_no_add_is_lost_whatever_the_order(steps: list[tuple[object, ...]], workers: int, seconds: int) -> None:
    """After any interleaving each key has started at or after its last add, and the queue is empty."""

    async def scenario() -> None:
        queue, handler = steady(), Recorder(seconds=seconds)
        task = asyncio.create_task(queue.run(handler, workers))
        last: dict[str, float] = {}
        for step in steps:
            match step:
                case ("add", str(key)):
                    queue.add(key)
                    last[key] = now()
                case ("after", str(key), int(delay)):
                    queue.add_after(key, delay)
                    last.setdefault(key, now())
                case ("wait", int(pause)):
                    await asyncio.sleep(pause)
                case ("fail", str(key)):
                    handler.outcomes.setdefault(key, []).append(ApiUnavailable("down"))
        await asyncio.sleep(2000)
        stats = queue.stats()
        assert (stats.depth, stats.running, stats.stalled) == (0, 0, 0)
        assert handler.most_at_once <= workers
        for key, time in last.items():
            assert handler.times(key)[-1] >= time
        assert await queue.stop(1)
        await task

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())
