"""Whom the operator asks, and when: sidecars that listen on real ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from dsv4_operator.api.constants import CANARY_PORT, Role
from dsv4_operator.observe.pods import PodView
from dsv4_operator.runtime.canaries import LONGEST_SECONDS, SHORTEST_SECONDS, CanaryWatch
from dsv4_operator.runtime.http_peers import PeerClient

INTERVAL = 30.0


def pod(role: Role, *, ready: bool = True, ip: str = "127.0.0.1") -> PodView:
    return PodView(role.value, role.value, role, "0", ip, ready, True, "", "", None, "")


class Sidecar:
    def __init__(self) -> None:
        self.asked = 0
        self.broken = False
        self.status: dict[str, Any] = {"ready": True, "reason": "Passing", "message": "m", "peers": []}

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=500) if self.broken else web.json_response(self.status)

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes([web.get("/status", self.answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            yield
        finally:
            await runner.cleanup()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def world(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> AsyncIterator[tuple[CanaryWatch, Clock, Sidecar]]:
    monkeypatch.setitem(CANARY_PORT, Role.PREFILL, unused_tcp_port)
    sidecar, clock = Sidecar(), Clock()
    async with sidecar.listening(unused_tcp_port), PeerClient() as peers:
        yield CanaryWatch(peers, clock), clock, sidecar


World = tuple[CanaryWatch, Clock, Sidecar]


async def test_a_pod_that_is_not_ready_is_asked_in_every_pass(world: World) -> None:
    watch, _, sidecar = world
    for _ in range(3):
        await watch.read([pod(Role.PREFILL, ready=False)], INTERVAL)
    assert sidecar.asked == 3


async def test_a_ready_one_once_per_interval(world: World) -> None:
    watch, clock, sidecar = world
    mine = [pod(Role.PREFILL)]
    for seconds in (0.0, INTERVAL - 1, 0.5):
        clock.now += seconds
        assert (await watch.read(mine, INTERVAL))["prefill"].reason == "Passing"
    assert sidecar.asked == 1
    clock.now += 1
    await watch.read(mine, INTERVAL)
    assert sidecar.asked == 2


async def test_soon_again_while_a_pair_fails(world: World) -> None:
    watch, clock, sidecar = world
    sidecar.status["peers"] = [{"address": "10.0.0.1", "outcome": "Fail", "lastProbeTime": 1.0}]
    for _ in range(3):
        await watch.read([pod(Role.PREFILL)], INTERVAL)
        clock.now += SHORTEST_SECONDS
    assert sidecar.asked == 3


async def test_what_was_said_before_the_pod_became_ready_is_not_kept(world: World) -> None:
    watch, _, sidecar = world
    sidecar.status |= {"ready": False, "reason": "Probing"}
    await watch.read([pod(Role.PREFILL, ready=False)], INTERVAL)
    sidecar.status |= {"ready": True, "reason": "Passing"}
    assert (await watch.read([pod(Role.PREFILL)], INTERVAL))["prefill"].ready


async def test_silence_is_waited_for_less_and_less_often(world: World) -> None:
    watch, clock, sidecar = world
    sidecar.broken = True
    mine, pauses, last, asked = [pod(Role.PREFILL)], [], clock.now, 0
    for _ in range(1000):
        assert not (await watch.read(mine, INTERVAL))["prefill"].reachable
        if sidecar.asked > asked:
            pauses.append(clock.now - last)
            last, asked = clock.now, sidecar.asked
        clock.now += 5
    assert pauses[:5] == [0, 60, 120, 240, 480]
    assert set(pauses[5:]) == {LONGEST_SECONDS}


async def test_pods_without_an_address_routers_and_those_that_leave_are_not_asked(world: World) -> None:
    watch, _, sidecar = world
    pods = [pod(Role.PREFILL, ip=""), pod(Role.ROUTER), replace(pod(Role.PREFILL), delete_requested_at=1.0)]
    assert await watch.read(pods, INTERVAL) == {}
    assert sidecar.asked == 0
    watch.forget_all_but(set())
