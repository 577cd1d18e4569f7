"""The soak against simulated engines in processes of their own: aggregated, and a pair behind the real router."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import smg  # noqa: F401  # part of the test extra: a missing router is an error, not a skip

from dsv4_canary.soak.job import Job, run_job
from localcluster.ports import free_port

pytestmark = pytest.mark.processes

SOURCES = Path(__file__).parents[3] / "images" / "engine-sim" / "src"
DEADLINE = 60.0
Run = Callable[..., str]


def wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as response:
            if response.status == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"{url} never answered 200: {log.read_text()}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Run]:
    """Start a module as a process, wait until its path answers; all are stopped at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(port: int, path: str, module: str, *arguments: str) -> str:
        environ = os.environ | {
            "PYTHONPATH": str(SOURCES),
            "DSV4_SIM_STARTUP_SECONDS": "0",
            "DSV4_SIM_HEALTH_SECONDS": "0",
        }
        log = tmp_path / f"{len(running)}.log"
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port), *arguments]
        with log.open("w") as out:
            process = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT)
        running.append(process)
        url = f"http://127.0.0.1:{port}"
        wait(url + path, process, log)
        return url

    yield begin
    for process in reversed(running):
        process.kill()
        process.wait(DEADLINE)


def engine(start: Run, *more: str) -> str:
    flags = ["--model-path", "/models/v4", "--served-model-name", "deepseek-v4", "--enable-cache-report"]
    flags += ["--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"]
    return start(free_port(), "/ready", "sglang.launch_server", *flags, *more)


def report(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
    return found


SMALL = {"sessions": 8, "rounds": 4, "ctx": 40, "shared_ctx": 400, "concurrency": 8, "timeout": 60.0, "baseline": 2}


async def test_aggregated_engine_is_clean_with_every_tool(start: Run, job: Callable[..., Job], tmp_path: Path) -> None:
    status = await run_job(job(engine(start), folder=tmp_path / "out", **SMALL))
    found = report(tmp_path / "out")
    assert status == 0, found["sentence"]
    load = found["phases"]["load"]
    assert load["verdicts"]["clean"] == 32
    assert len(load["byTool"]) == 8
    assert found["settings"]["model"] == "deepseek-v4"


async def test_pair_behind_the_router_is_clean_and_a_lost_transfer_is_counted(
    start: Run, job: Callable[..., Job], tmp_path: Path
) -> None:
    registry = str(free_port())
    roles = ["--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", registry]
    prefill = engine(start, "--disaggregation-mode", "prefill", *roles)
    decode = engine(start, "--disaggregation-mode", "decode", *roles)
    manifest = tmp_path / "workers.json"
    workers = [
        {"id": "p", "url": prefill, "worker_type": "prefill", "bootstrap_port": int(registry)},
        {"id": "d", "url": decode, "worker_type": "decode"},
    ]
    manifest.write_text(json.dumps({"version": 1, "workers": workers}))
    options = ["--pd-disaggregation", "--discovery-provider", "file", "--discovery-file", str(manifest)]
    options += ["--discovery-check-interval-secs", "1", "--no-remove-unhealthy-workers", "--disable-retries"]
    options += ["--prefill-policy", "cache_aware", "--decode-policy", "random", "--health-check-endpoint", "/ready"]
    options += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    router = await asyncio.to_thread(start, free_port(), "/readiness", "smg.launch_router", *options)

    status = await run_job(job(router, model="deepseek-v4", folder=tmp_path / "good", **SMALL))
    found = report(tmp_path / "good")
    assert status == 0, found["sentence"]
    assert found["phases"]["load"]["verdicts"]["clean"] == 32

    # Pages that never leave prefill: health stays green, and every request runs into its limit.
    request = urllib.request.Request(prefill + "/sim/switches", b'{"transfer": "drop"}', method="PUT")
    await asyncio.to_thread(urllib.request.urlopen, request, timeout=10)
    stuck = SMALL | {"sessions": 3, "rounds": 1, "baseline": 0, "timeout": 2.0}
    status = await run_job(job(router, model="deepseek-v4", folder=tmp_path / "stuck", **stuck))
    found = report(tmp_path / "stuck")
    assert status == 3
    assert found["phases"]["load"]["failures"] == {"timeout": 3}
