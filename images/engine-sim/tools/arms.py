"""Starts simulated engines, and the real router before a pair, as one arm of a comparison. Processes on loopback.

A library of the tools beside it and of tests. Nothing of the product uses it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "src"
MODEL = "simulator"
DEADLINE = 120.0
"""Seconds until a process must answer."""


@dataclass(frozen=True)
class Engines:
    """What one arm runs. `env` goes to all engines, `switches` are set on all of them."""

    index_k: str = "bf16"
    hicache: bool = True
    overlap: bool = True
    early_send: bool = True
    pair: bool = True
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    decode_env: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Serving:
    """An arm that serves: where to send requests, and its engines, prefill first."""

    url: str
    engines: tuple[str, ...]


@contextmanager
def serving(arm: Engines) -> Iterator[Serving]:
    """Start everything, wait until it answers, stop it by pid at the end."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        registry = str(free_port())
        roles = ("prefill", "decode") if arm.pair else ("null",)
        started = [stack.enter_context(_engine(arm, role, registry, folder)) for role in roles]
        urls = [process.url for process in started]
        for process in started:
            process.wait("/ready")
        for url in urls:
            put(url, arm.switches)
        front = urls[0] if not arm.pair else stack.enter_context(_router(urls, registry, folder))
        yield Serving(front, tuple(urls))


@contextmanager
def _engine(arm: Engines, role: str, registry: str, folder: Path) -> Iterator[_Process]:
    port = free_port()
    command = ["-m", "sglang.launch_server", "--model-path", "/models/none", "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"]
    command += ["--enable-metrics", "--enable-cache-report"]
    if role != "null":
        command += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        command += ["--disaggregation-bootstrap-port", registry]
    if arm.hicache and role != "decode":
        command += ["--enable-hierarchical-cache"]
    if not arm.overlap:
        command += ["--disable-overlap-schedule"]
    if role != "decode":
        command += arm.flags
    env = {
        "PYTHONPATH": str(SOURCES),
        # The simulator's own name, and that of a gated image whose plugin is not played.
        "DSV4_SIM_INDEX_K_DTYPE": arm.index_k,
        "DSV4_INDEX_K_DTYPE": arm.index_k,
        "DSV4_SIM_STARTUP_SECONDS": "0",
        "DSV4_SIM_HEALTH_SECONDS": "0",
        "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "1" if arm.early_send else "0",
        **arm.env,
        **(arm.decode_env if role == "decode" else {}),
    }
    with _started(command, env, folder / f"{role}.log", port) as process:
        yield process


@contextmanager
def _router(urls: list[str], registry: str, folder: Path) -> Iterator[str]:
    workers = [
        {"id": "p", "url": urls[0], "worker_type": "prefill", "bootstrap_port": int(registry)},
        {"id": "d", "url": urls[1], "worker_type": "decode"},
    ]
    manifest = folder / "workers.json"
    manifest.write_text(json.dumps({"version": 1, "workers": workers}))
    port = free_port()
    command = ["-m", "smg.launch_router", "--host", "127.0.0.1", "--port", str(port), "--pd-disaggregation"]
    command += ["--discovery-provider", "file", "--discovery-file", str(manifest)]
    command += ["--discovery-check-interval-secs", "1", "--no-remove-unhealthy-workers", "--disable-retries"]
    command += ["--disable-circuit-breaker", "--prefill-policy", "cache_aware", "--decode-policy", "random"]
    command += ["--health-check-endpoint", "/ready", "--prometheus-host", "127.0.0.1"]
    command += ["--prometheus-port", str(free_port())]
    with _started(command, {}, folder / "router.log", port) as process:
        process.wait("/readiness")
        yield process.url


@dataclass(frozen=True)
class _Process:
    url: str
    child: subprocess.Popen[bytes]
    log: Path

    def wait(self, path: str) -> None:
        """Wait until a GET of the path answers 200. Raises RuntimeError."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if self.child.poll() is not None:
                raise RuntimeError(f"{self.url}: exit status {self.child.returncode}: {self.log.read_text()[-2000:]}")
            try:
                with urllib.request.urlopen(self.url + path, timeout=10) as response:
                    if response.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{self.url}: no answer in {DEADLINE:.0f} s: {self.log.read_text()[-2000:]}")


@contextmanager
def _started(command: list[str], env: Mapping[str, str], log: Path, port: int) -> Iterator[_Process]:
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, *command], env=os.environ | env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield _Process(f"http://127.0.0.1:{port}", child, log)
    finally:
        child.kill()
        child.wait()


def put(url: str, switches: Mapping[str, Any]) -> None:
    """Set switches of an engine."""
    request = urllib.request.Request(f"{url}/sim/switches", json.dumps(dict(switches)).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
