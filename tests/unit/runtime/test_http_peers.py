from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from dsv4_operator.runtime.http import serving
from dsv4_operator.runtime.http_peers import MAX_BYTES, PeerClient, PeerError

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def peer(answer: Answer) -> AsyncIterator[str]:
    """A real HTTP server on loopback that answers everything by `answer`."""
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with serving(app, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}/status"


def saying(body: str | bytes, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status)

    return answer


async def failure_of(answer: Answer, **more: float) -> PeerError:
    async with peer(answer) as url, PeerClient() as client:
        with pytest.raises(PeerError) as caught:
            await client.read_canary_status(url, **more)
        return caught.value


STATUS = {"version": 1, "ready": True, "reason": "Passing", "peers": [{"address": "10.1.0.7"}], "more": 1}


async def test_canary_status_as_sent() -> None:
    async with peer(saying(json.dumps(STATUS))) as url, PeerClient() as client:
        assert await client.read_canary_status(url) == STATUS


async def test_router_workers_with_the_key() -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"workers": [{"url": "http://10.1.0.7:30000", "status": "ready"}], "total": 1})

    async with peer(answer) as url, PeerClient() as client:
        assert [w["url"] for w in await client.read_router_workers(url, "key")] == ["http://10.1.0.7:30000"]
        await client.read_router_workers(url, None)
    assert seen == ["Bearer key", None]


@pytest.mark.parametrize("body", ['{"workers": {}}', '{"workers": [1]}', '{"workers": [{"id": "x"}]}', "{}", "[]"])
async def test_router_answer_of_another_shape(body: str) -> None:
    async with peer(saying(body)) as url, PeerClient() as client:
        with pytest.raises(PeerError) as caught:
            await client.read_router_workers(url, "secret-key-0123456789")
    assert caught.value.reason == PeerError.NOT_UNDERSTOOD
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "ok",
        "[]",
        "{}",
        '{"ready": "yes", "reason": "x"}',
        '{"ready": true}',
        '{"ready": true, "reason": "x", "peers": [1]}',
        "[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
async def test_canary_answer_of_another_shape(body: str | bytes) -> None:
    assert (await failure_of(saying(body))).reason == PeerError.NOT_UNDERSTOOD


async def test_status_other_than_200() -> None:
    error = await failure_of(saying("no", status=503))
    assert (error.reason, error.status) == (PeerError.BAD_STATUS, 503)


async def test_redirects_are_not_followed() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/status"
        raise web.HTTPFound("/elsewhere")

    assert (await failure_of(answer)).status == 302


async def test_endless_answer_is_cut_off() -> None:
    sent = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                await response.write(b" " * 65536)
                sent += 65536
        return response

    error = await failure_of(answer)
    assert error.reason == PeerError.TOO_LARGE
    assert sent < 100 * MAX_BYTES


async def test_silent_peer_times_out() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    assert (await failure_of(answer, timeout_seconds=0.05)).reason == PeerError.TIMED_OUT


async def test_nobody_there(unused_tcp_port: int) -> None:
    async with PeerClient() as client:
        for url in (f"http://127.0.0.1:{unused_tcp_port}/status", "http://[::bad/", "nonsense"):
            with pytest.raises(PeerError) as caught:
                await client.read_canary_status(url)
            assert caught.value.reason == PeerError.UNREACHABLE


async def test_requests_at_once_are_limited() -> None:
    running = most = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return web.json_response(STATUS)

    async with peer(answer) as url, PeerClient(concurrency=3) as client:
        await asyncio.gather(*(client.read_canary_status(url, timeout_seconds=30) for _ in range(12)))
    assert most == 3
