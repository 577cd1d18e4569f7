"""Real simulator processes on loopback: started with SGLang's command line, polled, stopped by pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from localcluster.ports import free_port

SOURCES = Path(__file__).parents[3] / "images" / "engine-sim" / "src"
MODEL = "deepseek-v4"
DEADLINE = 60.0
ECHO_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_echo",
        "parameters": {
            "type": "object",
            "properties": {"token": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["token", "n"],
        },
    },
}


@dataclass
class Sim:
    """One engine process."""

    role: str
    port: int
    bootstrap_port: int
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, path: str = "/ready", status: int = 200) -> None:
        """Poll until `path` answers with `status`."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError):
                try:
                    with urllib.request.urlopen(self.url + path, timeout=30) as response:
                        found = response.status
                except urllib.error.HTTPError as error:
                    found = error.code
                if found == status:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{self.url}{path} never answered {status}: {self.log.read_text()}")

    def switch(self, **switches: Any) -> None:
        """Set fault switches."""
        data = json.dumps(switches).encode()
        request = urllib.request.Request(self.url + "/sim/switches", data, method="PUT")
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.status == 200

    def metrics(self) -> dict[str, float]:
        """Series with their labels, as text, to values."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return {
            series: float(value)
            for series, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        }

    def total(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return sum(value for series, value in self.metrics().items() if series.split("{")[0] == "sglang:" + name)


@dataclass
class Pair:
    """A prefill and a decode."""

    prefill: Sim
    decode: Sim
    rooms: Iterator[int] = field(default_factory=lambda: iter(lambda: random.SystemRandom().getrandbits(63), None))

    def body(self, text: str, **extra: Any) -> dict[str, Any]:
        """A chat body with the echo tool and a fresh room."""
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "tools": [ECHO_TOOL],
            "temperature": 0,
            "max_tokens": 400,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": next(self.rooms),
        } | extra

    async def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[tuple[int, str]]:
        """The same body to both, at once: [(status, text) of prefill, of decode]."""
        timeout = aiohttp.ClientTimeout(total=DEADLINE)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def one(sim: Sim) -> tuple[int, str]:
                async with session.post(sim.url + path, json=body) as response:
                    return response.status, await response.text()

            return list(await asyncio.gather(one(self.prefill), one(self.decode)))


Start = Callable[..., Sim]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start engines; all are stopped at the end of the module."""
    running: list[Sim] = []

    def begin(role: str, *flags: str, wait: bool = True, bootstrap_port: int | None = None, **env: str) -> Sim:
        port, registry = free_port(), bootstrap_port or free_port()
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/v4", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--served-model-name", MODEL, "--enable-metrics", "--enable-cache-report"]
        command += ["--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"]
        if role != "null":
            command += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
            command += ["--disaggregation-bootstrap-port", str(registry)]
        log = tmp_path_factory.mktemp("engine") / f"{role}.log"
        settings = {"DSV4_SIM_STARTUP_SECONDS": "0", "DSV4_SIM_HEALTH_SECONDS": "0", "DSV4_SIM_POOL_PAGES": "256"}
        process = subprocess.Popen(
            [*command, *flags],
            env=os.environ | {"PYTHONPATH": str(SOURCES)} | settings | env,
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        sim = Sim(role, port, registry, process, log)
        running.append(sim)
        if wait:
            sim.wait()
        return sim

    yield begin
    for sim in running:
        if sim.process.poll() is None:
            sim.process.send_signal(signal.SIGKILL)
        sim.process.wait(DEADLINE)


@pytest.fixture(scope="module")
def pair(start: Start) -> Pair:
    """A healthy pair."""
    return Pair(start("prefill"), start("decode"))
