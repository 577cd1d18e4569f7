"""Several simulated prefills and decodes as processes, a sidecar for each: who leaves, and who must not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dsv4_canary import pair
from dsv4_canary.loop import Canary
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Role
from dsv4_canary.settings import Environment
from dsv4_canary.watch import SettingsFile
from dsv4_canary.wording import filler
from localcluster.ports import free_port

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 120.0
MODEL = "simulator"
SETTINGS = {"version": 1, "model": MODEL, "intervalSeconds": 2, "timeoutSeconds": 4, "wedgeSeconds": 4}
P, D = Role.PREFILL, Role.DECODE


@dataclass
class Fleet:
    """Engines have addresses of their own and the ports of their role, as pods do."""

    folder: Path
    session: aiohttp.ClientSession
    sizes: dict[Role, int]
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    env: dict[str, str] = field(default_factory=dict)
    prefill_env: dict[str, str] = field(default_factory=dict)
    hicache: bool = False
    canaries: dict[str, Canary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ports = {role: free_port() for role in Role}
        self.registry = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def addresses(self, role: Role) -> list[str]:
        return [f"127.{1 if role is P else 2}.0.{number + 1}" for number in range(self.sizes[role])]

    def url(self, address: str) -> str:
        return f"http://{address}:{self.ports[P if address.startswith('127.1.') else D]}"

    def start_engine(self, role: Role, address: str) -> None:
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/none", "--served-model-name", MODEL,
            "--host", address, "--port", str(self.ports[role]), "--disaggregation-mode", role.value,
            "--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(self.registry),
            "--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4",
            "--enable-metrics", "--enable-cache-report",
        ]  # fmt: skip
        env = {
            "PYTHONPATH": str(ROOT / "images/engine-sim/src"),
            "SGLANG_HOST_IP": address,
            "DSV4_SIM_STARTUP_SECONDS": "0",
            "DSV4_SIM_HEALTH_SECONDS": "0.05",
        }
        env |= self.env
        if role is P and self.hicache:
            command.append("--enable-hierarchical-cache")
            env |= self.prefill_env
        with (self.folder / f"{address}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, env={"PATH": os.environ["PATH"]} | env, stdout=log, stderr=log)
            )

    def start_canary(self, role: Role, address: str, stack: AsyncExitStack) -> None:
        path = self.folder / "canary.json"
        path.write_text(json.dumps(self.settings))
        env = Environment(
            role=role,
            listen_port=1,
            engine_url=self.url(address),
            peer_host="peers",
            peer_port=self.ports[role.other],
            bootstrap_port=self.registry,
            fingerprint="f",
            pod_name=f"pod-{address}",
            pod_namespace="n",
            pod_uid="u",
            pod_ip=address,
            engine_dead=600.0,
            config_path=str(path),
        )

        async def resolve(_host: str) -> list[str]:
            return self.addresses(role.other)

        canary = Canary(env, SettingsFile(str(path)), Metrics(role.value, "f"), resolve)
        task = asyncio.create_task(canary.run())

        async def stop() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        stack.push_async_callback(stop)
        self.canaries[address] = canary

    async def switch(self, address: str, **values: Any) -> None:
        async with self.session.put(self.url(address) + "/sim/switches", json=values) as response:
            assert response.status == 200, await response.text()

    def ready(self) -> set[str]:
        return {address for address, canary in self.canaries.items() if canary.verdict.ready}

    def metric(self, address: str, series: str) -> float:
        """Sum of the samples whose line starts so."""
        text = self.canaries[address].metrics.render().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))

    def outcomes(self, address: str) -> dict[str, str]:
        peers: Any = self.canaries[address].status()["peers"]
        return {peer["address"]: peer["outcome"] for peer in peers}

    async def until(self, what: str, condition: Callable[[], Any]) -> float:
        """Poll; returns the seconds it took."""
        started = time.monotonic()
        while not condition():
            assert all(process.poll() is None for process in self.processes), "an engine ended"
            if time.monotonic() - started > DEADLINE:
                told = "\n".join(f"{a} {c.verdict} {self.outcomes(a)}" for a, c in self.canaries.items())
                pytest.fail(f"{what}: not within {DEADLINE:g} s\n{told}")
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    async def probed(self, address: str, count: int) -> None:
        """Wait for so many more attempts of a sidecar."""
        wanted = self.metric(address, "dsv4_canary_probes_total{") + count
        await self.until(f"{address} probes", lambda: self.metric(address, "dsv4_canary_probes_total{") >= wanted)


@asynccontextmanager
async def fleet_of(folder: Path, prefills: int, decodes: int, **options: Any) -> AsyncIterator[Fleet]:
    connector = aiohttp.TCPConnector(force_close=True)
    async with AsyncExitStack() as stack, aiohttp.ClientSession(connector=connector) as session:
        fleet = Fleet(folder, session, {P: prefills, D: decodes}, **options)
        try:
            for role in Role:
                for address in fleet.addresses(role):
                    fleet.start_engine(role, address)
                    fleet.start_canary(role, address, stack)
            await fleet.until("all ready", lambda: len(fleet.ready()) == prefills + decodes)
            yield fleet
            await stack.aclose()
        finally:
            for process in fleet.processes:
                process.kill()
                process.wait()


async def test_exactly_the_bad_prefill_leaves_and_comes_back(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 3, 2) as fleet:
        everyone, bad = fleet.ready(), "127.1.0.2"
        await fleet.switch(bad, bad_pod="compute")
        seconds = await fleet.until("bad one leaves", lambda: bad not in fleet.ready())
        print(f"left after {seconds:.1f} s, interval {SETTINGS['intervalSeconds']} s")
        for address in fleet.addresses(D):
            await fleet.until("decodes see it", lambda a=address: fleet.outcomes(a)[bad] == "Fail")  # type: ignore[misc]
            await fleet.probed(address, 6)
        assert fleet.ready() == everyone - {bad}
        verdict = fleet.canaries[bad].verdict
        assert verdict.reason in ("ProbeFailed", "Corruption")
        assert set(fleet.outcomes(bad).values()) == {"Fail"}
        await fleet.switch(bad, bad_pod="off")
        async with fleet.session.post(fleet.url(bad) + "/flush_cache"):
            pass
        await fleet.until("back", lambda: fleet.ready() == everyone)


async def test_one_bad_link_takes_nobody_out(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2, 2) as fleet:
        everyone = fleet.ready()
        await fleet.switch("127.1.0.1", bad_link="127.2.0.2")
        await fleet.until("both ends see it", lambda: _sees(fleet, "127.1.0.1", "127.2.0.2"))
        await fleet.probed("127.1.0.1", 6)
        await fleet.probed("127.2.0.2", 6)
        assert fleet.ready() == everyone
        assert fleet.outcomes("127.1.0.1") == {"127.2.0.1": "Pass", "127.2.0.2": "Fail"}
        assert fleet.outcomes("127.2.0.2") == {"127.1.0.1": "Fail", "127.1.0.2": "Pass"}


def _sees(fleet: Fleet, prefill: str, decode: str) -> bool:
    return fleet.outcomes(prefill)[decode] == fleet.outcomes(decode)[prefill] == "Fail"


async def test_wedged_decode_leaves_and_its_healthy_peers_do_not(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2, 2) as fleet:
        everyone, bad = fleet.ready(), "127.2.0.1"
        await fleet.switch(bad, wedge="on")
        await fleet.until("not ready", lambda: bad not in fleet.ready())
        await fleet.until("wedge", lambda: fleet.metric(bad, "dsv4_engine_wedged ") == 1)
        async with fleet.session.get(fleet.url(bad) + "/health") as response:
            assert response.status == 200
        await fleet.until("reason", lambda: fleet.canaries[bad].verdict.reason == "EngineWedged")
        for address in fleet.addresses(P):
            await fleet.until("seen", lambda a=address: fleet.outcomes(a)[bad] == "Fail")  # type: ignore[misc]
            await fleet.probed(address, 4)
        assert fleet.ready() == everyone - {bad}
        await fleet.switch(bad, wedge="off")
        await fleet.until("back", lambda: fleet.ready() == everyone)
        assert fleet.metric(bad, "dsv4_engine_wedged ") == 0


async def test_wedged_decode_of_a_single_pair_is_not_blamed_on_its_prefill(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 1, 1) as fleet:
        prefill, decode = "127.1.0.1", "127.2.0.1"
        await fleet.switch(decode, wedge="on")
        await fleet.until("wedge", lambda: fleet.canaries[decode].verdict.reason == "EngineWedged")
        await fleet.until("prefill has nobody", lambda: prefill not in fleet.ready())
        verdict = fleet.canaries[prefill].verdict
        assert (verdict.reason, verdict.message.split(":")[0]) == ("NoPeer", "PeerWedged")
        assert fleet.canaries[prefill].status()["consecutiveFailures"] == 0
        assert fleet.metric(prefill, "dsv4_engine_wedged ") == 0
        await fleet.switch(decode, wedge="off")
        await fleet.until("back", lambda: len(fleet.ready()) == 2)


async def test_busy_prefill_keeps_everybody_ready(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 1, 1) as fleet:
        prefill, decode = "127.1.0.1", "127.2.0.1"
        await fleet.switch(prefill, busy_seconds=30)
        for address in (prefill, decode):
            await fleet.until(
                f"{address} calls it busy",
                lambda a=address: (
                    sum(  # type: ignore[misc]
                        fleet.metric(a, f'dsv4_canary_probes_total{{cache="unknown",outcome="busy",probe="{probe}"}}')
                        for probe in ("echo", "repeat", "twin", "parity", "quiet", "drift")
                    )
                    >= 2
                ),
            )
            assert len(fleet.ready()) == 2
            assert fleet.metric(address, 'dsv4_canary_failures_total{cache="unknown",severity="transport"') == 0
        await fleet.switch(prefill, busy_seconds=0)
        await fleet.until("passes again", lambda: set(fleet.outcomes(prefill).values()) == {"Pass"})
        assert len(fleet.ready()) == 2
        assert fleet.metric(prefill, "dsv4_engine_wedged ") == fleet.metric(decode, "dsv4_engine_wedged ") == 0


async def test_prefill_whose_transfers_are_lost_leaves_alone(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2, 2) as fleet:
        everyone, bad = fleet.ready(), "127.1.0.2"
        await fleet.switch(bad, transfer="drop")
        await fleet.until("leaves", lambda: bad not in fleet.ready())
        for address in fleet.addresses(D):
            await fleet.until("seen", lambda a=address: fleet.outcomes(a)[bad] == "Fail")  # type: ignore[misc]
            await fleet.probed(address, 4)
        assert fleet.ready() == everyone - {bad}
        assert fleet.canaries[bad].verdict.reason in ("ProbeTimedOut", "TransferFailed", "EngineWedged")
        await fleet.switch(bad, transfer="ok")
        await fleet.until("back", lambda: fleet.ready() == everyone)


async def test_engine_that_restarts_is_no_failure_of_its_peers(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 2, 1) as fleet:
        gone = "127.1.0.1"
        process = fleet.processes.pop(0)
        process.kill()
        process.wait()
        await fleet.until("gone", lambda: fleet.canaries[gone].verdict.reason == "EngineUnreachable")
        await fleet.until("seen", lambda: fleet.outcomes("127.2.0.1")[gone] in ("Loading", "Unreachable"))
        await fleet.probed("127.2.0.1", 4)
        assert fleet.ready() == {"127.1.0.2", "127.2.0.1"}
        assert fleet.metric("127.2.0.1", "dsv4_canary_failures_total{") == 0
        fleet.start_engine(P, gone)
        await fleet.until("back", lambda: len(fleet.ready()) == 3)


SLOW_COPIER = {
    "DSV4_SIM_INDEX_K_DTYPE": "bf16",
    "DSV4_SIM_HOST_POOL_PAGES": "2048",
    "DSV4_SIM_HOST_BANDWIDTH_MBPS": "4",
    "DSV4_SIM_TRANSFER_POST_MS": "48",
    "DSV4_SIM_LAYER_MS": "24",
}
RACES: dict[str, Any] = {
    "hicache": True,
    "env": SLOW_COPIER,
    "prefill_env": {"DSV4_SIM_POOL_PAGES": "40"},
    "settings": SETTINGS | {"intervalSeconds": 1, "timeoutSeconds": 10, "promptTokens": 3400},
}


@asynccontextmanager
async def users(fleet: Fleet, count: int) -> AsyncIterator[None]:
    """Users of the first pair, whose prompts push everything else out of the small pool."""
    prefill, decode = fleet.addresses(P)[0], fleet.addresses(D)[0]

    async def one(number: int) -> None:
        turn = 0
        while True:
            turn += 1
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": f"user {number} turn {turn} " + filler(f"{number}", 1500)}],
                "max_tokens": 8,
            }
            target = pair.Target(fleet.url(decode), fleet.url(prefill), prefill, fleet.registry)
            await pair.drive(fleet.session, target, body, seconds=30)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(count)]
        yield
        for task in tasks:
            task.cancel()


def host_probes(fleet: Fleet, outcome: str) -> float:
    return sum(
        fleet.metric(address, f'dsv4_canary_probes_total{{cache="host",outcome="{outcome}"')
        for address in fleet.canaries
    )


def told(fleet: Fleet) -> dict[str, Any]:
    return {address: canary.status()["corruption"] for address, canary in fleet.canaries.items()}


async def test_ungated_reloads_are_confirmed_as_corruption_of_the_prefill_and_gated_ones_clear_it(
    tmp_path: Path,
) -> None:
    async with fleet_of(tmp_path, 1, 1, **RACES) as fleet, users(fleet, 2):
        prefill, decode = "127.1.0.1", "127.2.0.1"
        await fleet.switch(prefill, gate="off")
        seconds = await fleet.until("confirmed", lambda: told(fleet)[prefill]["verdict"] == "Confirmed")
        print(f"confirmed after {seconds:.0f} s: {told(fleet)}")
        assert told(fleet)[prefill]["cache"] == "host"
        for address in (prefill, decode):
            assert told(fleet)[address]["window"]["cold"]["failures"] == 0
            assert told(fleet)[address]["window"]["device"]["failures"] == 0
        assert fleet.metric(prefill, "dsv4_canary_corruption_verdict ") == 2
        assert fleet.metric(prefill, 'dsv4_canary_corruption_ratio{cache="host"}') > 0
        await fleet.until("out", lambda: prefill not in fleet.ready())
        assert fleet.canaries[prefill].verdict.reason == "Corruption"
        assert decode in fleet.ready()
        await fleet.switch(prefill, gate="on")
        await fleet.until("cleared", lambda: len(fleet.ready()) == 2)
        assert told(fleet)[prefill]["verdict"] == "None"


async def test_gated_reloads_under_the_same_load_raise_no_suspicion(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, 1, 1, **RACES) as fleet, users(fleet, 2):
        await fleet.until("host probes", lambda: host_probes(fleet, "pass") >= 16)
        print(told(fleet))
        assert {found["verdict"] for found in told(fleet).values()} == {"None"}
        assert sum(fleet.metric(a, "dsv4_canary_window_failures{") for a in fleet.canaries) == 0
        assert len(fleet.ready()) == 2
