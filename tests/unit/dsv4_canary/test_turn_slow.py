"""The whole sidecar beside engines that are slow, hang or lose requests, in simulated time."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4_canary import engine_watch, pair
from dsv4_canary.engine_view import EngineSample
from dsv4_canary.loop import Canary
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Role
from dsv4_canary.pair import Leg, LegKind, PairResult
from dsv4_canary.reply import parse_completion
from dsv4_canary.settings import Environment
from dsv4_canary.watch import SettingsFile

pytestmark = pytest.mark.looptime

INTERVAL, THRESHOLD, JITTER = 30.0, 3, 1.1
QUICK, SLOW = 1.0, 40.0
MINUTES = 60.0
REFUSED = Leg(LegKind.ANSWERED, 400)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class World:
    """Engines that all do alike. What is set holds for requests that begin later."""

    answer: float | None = QUICK
    """Seconds of every request, the probes' and the users'; None: no answer ever comes."""
    loaded: bool = False
    """Requests wait, and tokens are counted."""
    given: dict[float, float] = field(default_factory=dict)
    """When each probe began, and how long it would have been waited for. The two of a twin are one."""
    stalled_at: float | None = None

    def hang(self) -> None:
        """Nothing moves any more. No queue shows it, so only probes can tell."""
        self.answer, self.loaded, self.stalled_at = None, False, now()

    async def drive(
        self, _session: object, _target: object, body: Mapping[str, Any], *, seconds: float, **how: Any
    ) -> PairResult:
        if how["path"] == pair.GENERATE:
            return PairResult(REFUSED, REFUSED, None, timed_out=False, seconds=0.0)  # drift is unusable here
        self.given[now()] = seconds
        need = self.answer
        if need is None or need > seconds:
            await asyncio.sleep(seconds)
            return PairResult(Leg(LegKind.OPEN), Leg(LegKind.OPEN), None, timed_out=True, seconds=seconds)
        await asyncio.sleep(need)
        done = Leg(LegKind.ANSWERED, 200)
        return PairResult(done, done, parse_completion(right_answer(body)), timed_out=False, seconds=need)

    async def look(self, _session: object, _url: str) -> EngineSample:
        moved = now() if self.stalled_at is None else self.stalled_at
        return EngineSample(
            now(),
            running=0.0,
            queued=40.0 if self.loaded else 0.0,
            generation_tokens=100 * moved,
            decode_tokens=1_000 * moved,
            prefill_tokens=20_000 * moved,
        )

    def limits(self, since: float) -> list[float]:
        """How long each probe that began after ``since`` would have been waited for."""
        return [limit for began, limit in self.given.items() if began >= since]

    @property
    def latest(self) -> float:
        return list(self.given.values())[-1]


def right_answer(body: Mapping[str, Any]) -> bytes:
    ask = body["messages"][-1]["content"]
    if "Do not call" in ask:
        message: dict[str, Any] = {"content": "The harbour is calm today."}
    else:
        arguments = json.dumps({"token": ask.split('"')[1], "n": int(ask.split(" n ")[1].split(".")[0])})
        message = {"content": "", "tool_calls": [{"function": {"name": "probe_echo", "arguments": arguments}}]}
    finish = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 2_700, "completion_tokens": 40}
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage}).encode()


@asynccontextmanager
async def sidecar(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    world: World,
    role: Role = Role.PREFILL,
    *,
    peers: int = 2,
    timeout: float = 60.0,
) -> AsyncIterator[Canary]:
    clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time, time=time.time)
    for name, module in list(sys.modules.items()):
        if name.startswith("dsv4_canary.") and hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)

    async def healthy(*_: object) -> int:
        return 200

    async def ranks(*_: object) -> int:
        return 1

    async def registry(*_: object) -> bool:
        return True

    async def resolve(_host: str) -> list[str]:
        return [f"127.0.0.{number + 2}" for number in range(peers)]

    monkeypatch.setattr(pair, "drive", world.drive)
    monkeypatch.setattr(pair, "health", healthy)
    monkeypatch.setattr(pair, "dp_size", ranks)
    monkeypatch.setattr(engine_watch, "read_engine", world.look)
    monkeypatch.setattr(engine_watch, "registry_answers", registry)
    path = folder / "canary.json"
    settings = {"version": 1, "model": "m", "intervalSeconds": INTERVAL, "timeoutSeconds": timeout}
    path.write_text(json.dumps(settings | {"failureThreshold": THRESHOLD}))
    env = Environment(
        role=role,
        listen_port=1,
        engine_url="http://127.0.0.1:1",
        peer_host="peers",
        peer_port=2,
        bootstrap_port=3,
        fingerprint="f",
        pod_name="p",
        pod_namespace="n",
        pod_uid="u",
        pod_ip="127.0.0.1",
        engine_dead=600.0,
        config_path=str(path),
    )
    canary = Canary(env, SettingsFile(str(path)), Metrics(role.value, "f"), resolve)
    task = asyncio.create_task(canary.run())
    try:
        await until(lambda: canary.verdict.ready, within=MINUTES)
        await asyncio.sleep(10 * MINUTES)
        assert canary.verdict.ready
        assert world.latest == min(timeout, INTERVAL), "quick answers shorten the time of a probe"
        yield canary
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], within: float) -> float:
    """Seconds until it holds."""
    began = now()
    while not condition():
        assert now() - began <= within, f"not within {within:g} s"
        await asyncio.sleep(1.0)
    return now() - began


async def keeps(condition: Callable[[], bool], seconds: float) -> None:
    began = now()
    while now() - began < seconds:
        assert condition(), f"no longer after {now() - began:g} s"
        await asyncio.sleep(1.0)


def noticed_within(limit: float) -> float:
    """What the documentation says of a fault to which nothing comes back: the interval, the first failure, the others
    at a third of the interval."""
    return JITTER * INTERVAL + THRESHOLD * limit + (THRESHOLD - 1) * JITTER * INTERVAL / 3 + 1.0


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("peers", "timeout"), [(1, 60.0), (2, 60.0), (2, 300.0), (10, 60.0)])
async def test_answers_within_the_time_out_keep_an_overloaded_pod_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role, peers: int, timeout: float
) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world, role, peers=peers, timeout=timeout) as canary:
        world.answer, world.loaded = SLOW, True
        began = now()
        await keeps(lambda: canary.verdict.ready, 20 * MINUTES)
        assert canary.status()["consecutiveFailures"] == 0
        cut_short = [limit for limit in world.limits(began) if limit < SLOW]
        assert len(cut_short) == 1, "one probe is enough to learn that the engines are slower than they were"


@pytest.mark.parametrize("role", list(Role))
async def test_a_hang_after_slow_answers_is_noticed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world, role) as canary:
        world.answer, world.loaded = SLOW, True
        await asyncio.sleep(20 * MINUTES)
        assert canary.verdict.ready
        world.hang()
        # The answer that is on its way still comes.
        await until(lambda: not canary.verdict.ready, within=SLOW + noticed_within(60.0))


@pytest.mark.parametrize("role", list(Role))
async def test_a_hang_in_the_middle_of_the_first_slow_answers_is_noticed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """The probes have their full time, and none has passed yet."""
    world = World()
    async with sidecar(tmp_path, monkeypatch, world, role) as canary:
        world.answer, world.loaded = None, True
        await until(lambda: world.latest == 60.0, within=3 * MINUTES)
        world.hang()
        await until(lambda: not canary.verdict.ready, within=60.0 + noticed_within(60.0))


async def test_a_hang_after_quick_answers_is_noticed_in_the_shortened_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world) as canary:
        world.hang()
        began = now()
        await until(lambda: not canary.verdict.ready, within=QUICK + noticed_within(INTERVAL))
        assert set(world.limits(began)) == {INTERVAL}


async def test_quick_answers_bring_the_shortened_time_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world) as canary:
        world.answer, world.loaded = SLOW, True
        await asyncio.sleep(20 * MINUTES)
        world.answer, world.loaded = QUICK, False
        # "The slowest recent one" is forgotten by a tenth with each pass.
        await asyncio.sleep(20 * MINUTES)
        began = now()
        world.hang()
        await until(lambda: not canary.verdict.ready, within=QUICK + noticed_within(INTERVAL))
        assert set(world.limits(began)) == {INTERVAL}


async def test_a_short_burst_leaves_the_shortened_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world) as canary:
        world.answer, world.loaded = None, True
        began = now()
        await until(lambda: bool(world.limits(began)), within=2 * MINUTES)
        world.answer, world.loaded = QUICK, True
        await until(lambda: len(world.limits(began)) > 4, within=5 * MINUTES)
        assert world.limits(began)[:2] == [INTERVAL, 60.0]
        assert world.latest == INTERVAL
        assert canary.verdict.ready


@pytest.mark.parametrize("role", list(Role))
async def test_requests_that_a_loaded_engine_drops_are_not_excused_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    world = World()
    async with sidecar(tmp_path, monkeypatch, world, role) as canary:
        world.answer, world.loaded = None, True
        # Since the last pass: the excuse of five time-outs, one more for the probe that was cut short; then failures.
        excuse = 5 * 60.0 + 60.0
        took = await until(lambda: not canary.verdict.ready, within=excuse + noticed_within(60.0))
        assert took > 5 * 60.0
        assert canary.verdict.reason == "ProbeTimedOut"


async def test_a_pod_that_was_out_comes_back_though_answers_are_slow_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The excuse has ended long ago. What is out gets the full time too: else it could never prove itself again."""
    world = World()
    async with sidecar(tmp_path, monkeypatch, world) as canary:
        world.hang()
        await asyncio.sleep(10 * MINUTES)
        assert not canary.verdict.ready
        world.answer, world.loaded, world.stalled_at = SLOW, True, None
        await until(lambda: canary.verdict.ready, within=10 * MINUTES)
