"""Two sidecars beside a simulated prefill and decode, all as processes on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from localcluster.ports import free_ports

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 90.0
MODEL = "simulator"
ROLES = ("prefill", "decode")


@dataclass
class Pair:
    """Ports, settings file and processes of one test. Nothing is started on its own."""

    folder: Path
    settings: dict[str, Any] = field(
        default_factory=lambda: {
            "version": 1,
            "model": MODEL,
            "intervalSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        }
    )
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = free_ports(5)
        self.engine_port = dict(zip(ROLES, ports[:2], strict=True))
        self.canary_port = dict(zip(ROLES, ports[2:4], strict=True))
        self.bootstrap_port = ports[4]
        self.write_settings(json.dumps(self.settings))

    @property
    def settings_path(self) -> Path:
        return self.folder / "canary.json"

    def write_settings(self, text: str) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(text)
        fresh.replace(self.settings_path)

    def start_engine(self, role: str, startup_seconds: float = 0.2) -> None:
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/none", "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(self.engine_port[role]), "--disaggregation-mode", role,
            "--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(self.bootstrap_port),
            "--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4",
            "--enable-metrics", "--enable-cache-report",
        ]  # fmt: skip
        env = {
            "PYTHONPATH": str(ROOT / "images/engine-sim/src"),
            "SGLANG_HOST_IP": "127.0.0.1",
            "DSV4_SIM_STARTUP_SECONDS": str(startup_seconds),
            "DSV4_SIM_HEALTH_SECONDS": "0.05",
            "DSV4_SIM_DRAIN_SECONDS": "0.1",
        }
        self._start(f"engine-{role}", command, env)

    def start_canary(self, role: str, **env: str) -> None:
        other = ROLES[1 - ROLES.index(role)]
        fixed = {
            "PYTHONPATH": str(ROOT / "operator"),
            "DSV4_CANARY_CONFIG": str(self.settings_path),
            "DSV4_CANARY_ROLE": role,
            "DSV4_CANARY_LISTEN_PORT": str(self.canary_port[role]),
            "DSV4_CANARY_ENGINE_URL": f"http://127.0.0.1:{self.engine_port[role]}",
            "DSV4_CANARY_PEER_HOST": "127.0.0.1",
            "DSV4_CANARY_PEER_PORT": str(self.engine_port[other]),
            "DSV4_CANARY_BOOTSTRAP_PORT": str(self.bootstrap_port),
            "DSV4_CANARY_FINGERPRINT": "abcdef",
            "POD_NAME": f"pod-{role}",
            "POD_UID": f"uid-{role}",
            "POD_IP": "127.0.0.1",
        }
        self._start(f"canary-{role}", [sys.executable, "-m", "dsv4_canary", "serve"], fixed | env)

    def start_all(self) -> None:
        for role in ROLES:
            self.start_engine(role)
            self.start_canary(role)

    def _start(self, name: str, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env={"PATH": os.environ["PATH"]} | env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def pair_in(folder: Path) -> Iterator[Pair]:
    pair = Pair(folder)
    try:
        yield pair
    finally:
        for process in pair.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


class Client:
    """What a test asks of one pair."""

    def __init__(self, pair: Pair, session: aiohttp.ClientSession) -> None:
        self.pair, self.session = pair, session

    async def get(self, role: str, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{self.pair.canary_port[role]}{path}") as response:
            return response.status, await response.text()

    async def status(self, role: str) -> dict[str, Any]:
        code, text = await self.get(role, "/status")
        assert code == 200
        document: dict[str, Any] = json.loads(text)
        return document

    async def metric(self, role: str, series: str) -> float:
        """Sum of the samples whose line starts so."""
        _, text = await self.get(role, "/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))

    async def switch(self, **values: str) -> None:
        for role in ROLES:
            url = f"http://127.0.0.1:{self.pair.engine_port[role]}/sim/switches"
            async with self.session.put(url, json=values) as response:
                assert response.status == 200, await response.text()

    async def engine_health(self, role: str) -> int:
        async with self.session.get(f"http://127.0.0.1:{self.pair.engine_port[role]}/health") as response:
            code: int = response.status
            return code

    async def eventually(self, what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
        last: object = None
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    self._check_processes(what)
                    try:
                        last = await condition()
                        if last:
                            return last
                    except aiohttp.ClientError as error:
                        last = error
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"{what}: not within {DEADLINE:g} s; last {last!r}{self._logs()}")

    def _check_processes(self, what: str) -> None:
        ended = [name for name, process in self.pair.processes.items() if process.poll() is not None]
        if ended:
            pytest.fail(f"{what}: {', '.join(ended)} ended early{self._logs()}")

    def _logs(self) -> str:
        return "".join(f"\n--- {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.pair.folder.glob("*.log")))

    async def both_ready(self) -> None:
        for role in ROLES:
            await self.eventually(f"{role} ready", partial(self.is_ready, role))

    async def is_ready(self, role: str) -> bool:
        return (await self.get(role, "/readyz"))[0] == 200

    async def not_ready(self, role: str, reasons: set[str]) -> dict[str, Any]:
        async def condition() -> dict[str, Any] | None:
            document = await self.status(role)
            fits = not document["ready"] and document["reason"] in reasons
            return document if fits else None

        found: dict[str, Any] = await self.eventually(f"{role} not ready because of {reasons}", condition)
        assert (await self.get(role, "/readyz"))[0] == 503
        return found


@pytest.fixture
def client(pair: Pair, http: aiohttp.ClientSession) -> Client:
    return Client(pair, http)


async def test_pair_becomes_ready_fails_with_the_transfer_and_recovers(pair: Pair, client: Client) -> None:
    pair.start_all()
    await client.both_ready()
    for role in ROLES:
        document = await client.status(role)
        assert (document["reason"], document["engine"], document["live"]) == ("Passing", {"healthy": True}, True)
        assert (document["role"], document["pod"], document["podUID"]) == (role, f"pod-{role}", f"uid-{role}")
        assert document["fingerprint"] == "abcdef"
        assert [peer["outcome"] for peer in document["peers"]] == ["Pass"]
        assert document["lastSuccessTime"] > 0
        assert await client.metric(role, "dsv4_canary_ready ") == 1
        assert await client.metric(role, 'dsv4_canary_peer_result{peer="127.0.0.1"}') == 1
        assert await client.metric(role, "dsv4_canary_prompt_tokens ") > 2600
        assert await client.metric(role, "dsv4_canary_failures_total") == 0
        assert await client.metric(role, 'dsv4_canary_probes_total{cache="cold",outcome="pass"') >= 2

    await client.switch(transfer="drop")
    for role in ROLES:
        document = await client.not_ready(role, {"ProbeTimedOut", "TransferFailed"})
        assert "127.0.0.1" in document["message"]
        assert document["consecutiveFailures"] >= 2
        assert [peer["outcome"] for peer in document["peers"]] == ["Fail"]
        assert await client.engine_health(role) == 200
        assert await client.metric(role, "dsv4_canary_ready ") == 0
        assert await client.metric(role, "dsv4_canary_failures_total") > 0
        code, body = await client.get(role, "/readyz")
        assert (code, body.count("\n")) == (503, 1)
        assert (await client.get(role, "/livez"))[0] == 200

    await client.switch(transfer="ok")
    await client.both_ready()
    for role in ROLES:
        assert (await client.status(role))["consecutiveFailures"] == 0
        assert pair.stop(f"canary-{role}") == 0


async def test_sidecar_waits_for_engine_and_peer_without_failure(pair: Pair, client: Client) -> None:
    pair.start_canary("decode")
    document = await client.not_ready("decode", {"EngineLoading"})
    assert document["live"]
    pair.start_engine("decode")
    pair.start_engine("prefill", startup_seconds=3600)
    document = await client.not_ready("decode", {"PeerLoading"})
    await client.eventually(
        "some attempts", lambda: _at_least(client, 'dsv4_canary_probes_total{cache="unknown",outcome="loading"', 4)
    )
    document = await client.not_ready("decode", {"PeerLoading"})
    assert document["consecutiveFailures"] == 0
    assert document["history"] == []
    assert [peer["outcome"] for peer in document["peers"]] == ["Loading"]
    assert await client.metric("decode", "dsv4_canary_failures_total") == 0
    pair.stop("engine-prefill", signal.SIGKILL)
    pair.start_engine("prefill")
    await client.eventually("decode ready", partial(client.is_ready, "decode"))


async def _at_least(client: Client, series: str, count: int) -> bool:
    return await client.metric("decode", series) >= count


async def test_engine_and_peer_that_die_and_return(pair: Pair, client: Client) -> None:
    pair.start_engine("prefill")
    pair.start_engine("decode")
    pair.start_canary("prefill", DSV4_CANARY_ENGINE_DEAD_SECONDS="3")
    pair.start_canary("decode")
    await client.both_ready()
    pair.stop("engine-prefill", signal.SIGKILL)
    await client.not_ready("prefill", {"EngineUnreachable"})
    # The decode is sound; but with no prefill left nothing is proved any more.
    document = await client.not_ready("decode", {"PeerLoading", "NoPeer"})
    assert document["consecutiveFailures"] == 0
    await client.eventually("prefill not live", lambda: _not_live(client))
    pair.start_engine("prefill")
    await client.both_ready()
    assert (await client.get("prefill", "/livez"))[0] == 200


async def _not_live(client: Client) -> bool:
    code, _ = await client.get("prefill", "/livez")
    return code == 503


async def test_settings_change_without_restart(pair: Pair, client: Client) -> None:
    pair.start_all()
    await client.both_ready()
    pair.write_settings(json.dumps(pair.settings | {"timeoutSeconds": "soon"}))

    async def complains() -> bool:
        document = await client.status("decode")
        return "timeoutSeconds" in document["message"] and document["ready"]

    await client.eventually("broken settings are told", complains)
    assert await client.metric("decode", "dsv4_canary_settings_errors_total ") == 1
    assert await client.metric("decode", "dsv4_canary_settings_valid ") == 0
    pair.write_settings(json.dumps(pair.settings | {"promptTokens": 5200}))

    async def longer() -> bool:
        return await client.metric("decode", "dsv4_canary_prompt_tokens ") > 5200

    await client.eventually("longer prompts", longer)
    assert await client.metric("decode", "dsv4_canary_settings_valid ") == 1
    assert "settings" not in (await client.status("decode"))["message"]


async def test_stops_at_once_while_a_probe_hangs(pair: Pair, client: Client) -> None:
    pair.settings["timeoutSeconds"] = 600
    pair.write_settings(json.dumps(pair.settings))
    pair.start_engine("prefill")
    pair.start_engine("decode")
    await client.eventually("engines", lambda: _both_healthy(client))
    await client.switch(transfer="drop")
    pair.start_canary("prefill")

    async def in_flight() -> bool:
        document = await client.status("prefill")
        return bool(document["reason"] == "Probing")

    await client.eventually("a probe in flight", in_flight)
    assert pair.stop("canary-prefill") == 0


async def _both_healthy(client: Client) -> bool:
    codes = [await client.engine_health(role) for role in ROLES]
    return codes == [200, 200]
