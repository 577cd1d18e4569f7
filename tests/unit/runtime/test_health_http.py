from __future__ import annotations

import aiohttp
import pytest

from dsv4_operator.runtime.health import Health
from dsv4_operator.runtime.http import build_app, serving
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.queue import QueueStats


class World:
    """A clock and a queue that the test sets."""

    def __init__(self) -> None:
        self.time = 0.0
        self.stats = QueueStats(0, 0, 0, 0, 0, 0, 0)
        self.health = Health(
            queue=lambda: self.stats, queue_stall_seconds=60, resync_limit_seconds=900, now=lambda: self.time
        )

    def stall(self, seconds: float) -> None:
        self.stats = QueueStats(
            depth=3, delayed=0, running=2, oldest_age=0, longest_run=0, last_progress=0, stalled=seconds
        )


def test_standby_is_healthy_and_ready_for_ever() -> None:
    world = World()
    world.time = 1e6
    world.stall(1e6)
    assert world.health.illness() is None
    assert world.health.unreadiness() is None
    assert world.health.role == "standby"


@pytest.mark.parametrize("leading", [False, True])
def test_a_replica_is_not_ready_before_its_webhook(leading: bool) -> None:
    world, without = World(), ["no certificate yet"]
    health = Health(
        queue=lambda: world.stats,
        queue_stall_seconds=60,
        resync_limit_seconds=900,
        webhook=lambda: without[0] if without else None,
        now=lambda: world.time,
    )
    if leading:
        health.start_working()
        health.resync_succeeded()
    assert health.unreadiness() == "no certificate yet"
    assert health.illness() is None
    without.clear()
    assert health.unreadiness() is None


def test_leader_is_ready_after_its_first_resync() -> None:
    world = World()
    world.health.start_working()
    assert world.health.unreadiness() == "the first resync is not complete"
    assert world.health.illness() is None
    world.health.resync_succeeded()
    assert world.health.unreadiness() is None


def test_stalled_queue_is_an_illness_with_its_reason() -> None:
    world = World()
    world.health.start_working()
    world.health.resync_succeeded()
    world.stall(60)
    assert world.health.illness() is None
    world.stall(61)
    illness = world.health.illness()
    assert illness is not None
    assert "no progress for 61 s" in illness
    assert "3 waiting, 2 running" in illness
    assert world.health.unreadiness() == illness


@pytest.mark.parametrize("resynced", [False, True])
def test_missing_resync_is_an_illness(resynced: bool) -> None:
    world = World()
    world.time = 1000
    world.health.start_working()
    if resynced:
        world.time = 1500
        world.health.resync_succeeded()
    world.time += 900
    assert world.health.illness() is None
    world.time += 1
    illness = world.health.illness()
    assert illness is not None
    assert ("since the last one" if resynced else "since this replica leads") in illness


def test_shutting_down_is_not_ready_but_not_ill() -> None:
    world = World()
    world.health.start_working()
    world.stall(1000)
    world.health.stop()
    assert world.health.illness() is None
    assert world.health.unreadiness() == "shutting down"


async def test_endpoints_over_http() -> None:
    world, metrics = World(), OperatorMetrics("9.9")
    async with (
        serving(build_app(world.health, metrics), "127.0.0.1", 0) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
    ):

        async def get(path: str) -> tuple[int, str, str]:
            async with client.get(path) as response:
                return response.status, await response.text(), response.headers["Content-Type"]

        assert (await get("/healthz"))[:2] == (200, "ok (standby)\n")
        world.health.start_working()
        assert (await get("/readyz"))[:2] == (503, "the first resync is not complete\n")
        world.stall(100)
        status, text, _ = await get("/healthz")
        assert status == 503
        assert "no progress" in text
        status, text, content_type = await get("/metrics")
        assert status == 200
        assert 'version="9.9"' in text
        assert content_type.startswith("text/plain; version=0.0.4")
        assert (await get("/"))[0] == 404


async def test_without_metrics_there_is_no_such_path() -> None:
    async with (
        serving(build_app(World().health, None), "127.0.0.1", 0) as port,
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 404


async def test_taken_port_is_an_error() -> None:
    async with serving(build_app(World().health, None), "127.0.0.1", 0) as port:
        with pytest.raises(OSError, match="address already in use"):
            async with serving(build_app(World().health, None), "127.0.0.1", port):
                pass
