"""The wedge detector against simulated engines as processes: their metrics, their ``/health``, real requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dsv4_canary.engine_view import EngineSample, progressed, read_engine, registry_answers
from dsv4_canary.model import Mode
from dsv4_canary.probes import echo_probe, fresh_room
from dsv4_canary.wedge import WedgeDetector, WedgeKind, WedgeState
from localcluster.ports import free_ports

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 60.0
MODEL = "simulator"
LIMIT = 2.0


@dataclass(frozen=True)
class Ports:
    prefill: int
    decode: int
    registry: int

    def url(self, role: str) -> str:
        return f"http://127.0.0.1:{getattr(self, role)}"


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """A simulated pair; every test leaves its switches healthy."""
    ports = Ports(*free_ports(3))
    started = []
    for role in ("prefill", "decode"):
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/none", "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(getattr(ports, role)), "--disaggregation-mode", role,
            "--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(ports.registry),
            "--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4", "--enable-metrics",
        ]  # fmt: skip
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "images/engine-sim/src"),
            "SGLANG_HOST_IP": "127.0.0.1",
            "DSV4_SIM_STARTUP_SECONDS": "0.2",
            "DSV4_SIM_HEALTH_SECONDS": "0.05",
        }
        log = tmp_path_factory.mktemp("engine") / f"{role}.log"
        with log.open("wb") as out:
            started.append(subprocess.Popen(command, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL))
    yield ports
    for process in started:
        process.kill()
        process.wait(DEADLINE)


class Bench:
    """Detectors of both engines, fed as sidecars feed them, and requests through the pair."""

    def __init__(self, ports: Ports, session: aiohttp.ClientSession) -> None:
        self.ports, self.session = ports, session
        self.detectors = {role: WedgeDetector(LIMIT, gauge_age=LIMIT) for role in ("prefill", "decode")}
        self.samples: dict[str, list[EngineSample]] = {"prefill": [], "decode": []}
        self.tasks: set[asyncio.Task[Any]] = set()

    async def health(self, role: str) -> int:
        async with self.session.get(self.ports.url(role) + "/health") as response:
            code: int = response.status
            return code

    async def switch(self, role: str, **values: Any) -> None:
        async with self.session.put(self.ports.url(role) + "/sim/switches", json=values) as response:
            assert response.status == 200, await response.text()

    def send(self) -> asyncio.Task[bool]:
        """One tool call through the pair; cancel it to give up. True: both sides answered 200."""
        body = echo_probe(MODEL, Mode.FUNCTIONAL, str(time.monotonic()), 300).body | {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.ports.registry,
            "bootstrap_room": fresh_room(),
        }

        async def one(role: str) -> int:
            async with self.session.post(self.ports.url(role) + "/v1/chat/completions", json=body) as response:
                await response.read()
                return response.status

        async def both() -> bool:
            return set(await asyncio.gather(one("prefill"), one("decode"))) == {200}

        task = asyncio.create_task(both())
        self.tasks.add(task)
        return task

    async def look(self) -> None:
        now = time.monotonic()
        for role, detector in self.detectors.items():
            sample = await read_engine(self.session, self.ports.url(role))
            if sample is not None:
                self.samples[role].append(sample)
            detector.observe(sample, now)

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            await self.look()
            if condition():
                return
            await asyncio.sleep(0.1)
        states = {role: detector.state for role, detector in self.detectors.items()}
        pytest.fail(f"{what}: not within {DEADLINE:g} s: {states}, {[s[-1:] for s in self.samples.values()]}")

    async def during(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        await self.until("time goes on", lambda: time.monotonic() > end)

    def state(self, role: str) -> WedgeState:
        return self.detectors[role].state


@pytest.fixture
async def bench(engines: Ports) -> AsyncIterator[Bench]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        made = Bench(engines, session)

        async def serves() -> bool:
            try:
                return await made.health("prefill") == await made.health("decode") == 200
            except aiohttp.ClientError:
                return False

        end = time.monotonic() + DEADLINE
        while not await serves():
            assert time.monotonic() < end, "the simulated pair never served"
            await asyncio.sleep(0.1)
        await made.look()
        yield made
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        healthy = {"wedge": "off", "busy_seconds": 0, "transfer": "ok", "bootstrap": "ok"}
        for role in ("prefill", "decode"):
            await made.switch(role, **healthy)


async def test_wedged_decode_is_found_and_recovers(bench: Bench) -> None:
    await bench.switch("decode", wedge="on")
    stuck = bench.send()
    await bench.until("the wedge shows", lambda: bench.state("decode").wedged)
    assert bench.state("decode").kind is WedgeKind.GENERATION
    assert not bench.state("prefill").wedged
    assert await bench.health("decode") == 200
    await bench.switch("decode", wedge="off")
    assert await stuck

    async def load() -> None:
        while True:
            await bench.send()

    bench.tasks.add(asyncio.create_task(load()))
    await bench.until("the wedge is over", lambda: not bench.state("decode").wedged)


async def test_wedged_prefill_is_found(bench: Bench) -> None:
    await bench.switch("prefill", wedge="on")
    bench.send()
    await bench.until("the wedge shows", lambda: bench.state("prefill").wedged)
    assert bench.state("prefill").kind is WedgeKind.GENERATION
    # Decode waits for KV: not its fault.
    await bench.during(LIMIT)
    assert not bench.state("decode").wedged
    assert bench.state("decode").stalled_seconds > LIMIT


async def test_dropped_transfer_accuses_prefill(bench: Bench) -> None:
    await bench.switch("prefill", transfer="drop")
    bench.send()
    await bench.until("the wedge shows", lambda: bench.state("prefill").wedged)
    assert bench.state("prefill").kind is WedgeKind.INFLIGHT
    for _ in range(3):
        bench.detectors["decode"].probe("timeout", time.monotonic(), peer="one")
        await bench.during(LIMIT)
    assert not bench.state("decode").wedged


async def test_hanging_registry_accuses_prefill(bench: Bench) -> None:
    await bench.during(0.5)
    assert await registry_answers(bench.session, "127.0.0.1", bench.ports.registry)
    await bench.switch("prefill", bootstrap="hang")
    # A decode that knows this registry asks it no more; the room of a new decode waits.
    bench.send()
    prefill = bench.detectors["prefill"]
    answers = await registry_answers(bench.session, "127.0.0.1", bench.ports.registry)
    assert not answers
    prefill.registry(answers, time.monotonic())
    prefill.probe("timeout", time.monotonic())
    await bench.during(LIMIT + 1)
    assert prefill.registry(False, time.monotonic()).kind is WedgeKind.BOOTSTRAP
    assert not bench.state("decode").wedged


async def test_busy_prefill_is_no_wedge(bench: Bench) -> None:
    await bench.switch("prefill", busy_seconds=8)
    bench.send()
    await bench.during(1.5)
    mark = bench.samples["prefill"][-1]
    assert await bench.health("prefill") == 503
    await bench.during(3 * LIMIT - 2)
    assert progressed(mark, bench.samples["prefill"][-1])
    assert not any(bench.state(role).wedged for role in bench.detectors)


async def test_idle_pair_is_no_wedge(bench: Bench) -> None:
    assert await bench.send()
    await bench.during(2 * LIMIT)
    assert not any(bench.state(role).wedged for role in bench.detectors)
    sample = bench.samples["decode"][-1]
    assert sample.running == 0
    assert (sample.decode_tokens or 0) > 0
    assert bench.samples["prefill"][-1].prefill_tokens
