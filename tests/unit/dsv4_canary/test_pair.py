"""Driving a pair, over real sockets, against engines that misbehave in scripted ways; and what is made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dsv4_canary import discovery, pair
from dsv4_canary.judge import Judgement, Kind, judge
from dsv4_canary.model import Mode, PeerOutcome, Reason, Role, Severity
from dsv4_canary.probes import Probe, echo_probe
from localcluster.ports import free_port

pytestmark = pytest.mark.processes

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class ScriptedEngine:
    """An HTTP server that answers chat completions as told and remembers what it was asked."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.bodies: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        return await self.behaviour(request, body)

    async def abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(behaviour)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_post("/abort_request", engine.abort)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield engine
    finally:
        await runner.cleanup()


def completion(body: dict[str, Any], cached: int | None = None) -> dict[str, Any]:
    ask = body["messages"][-1]["content"]
    token, number = ask.split('"')[1], int(ask.split(" n ")[1].split(".")[0])
    function = {"name": "probe_echo", "arguments": json.dumps({"token": token, "n": number})}
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {
        "choices": [
            {
                "index": 0,
                "message": {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 2700, "completion_tokens": 40, **details},
    }


async def right(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(completion(body, 0))


async def hang(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def status(code: int) -> Behaviour:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"object": "error", "code": code}, status=code)

    return answer


def raw(text: str) -> Behaviour:
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(text.encode())
        return response

    return answer


async def drop(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return await hang(request, _body)


def closed_port_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


def probe_of(mode: Mode = Mode.FUNCTIONAL) -> Probe:
    return echo_probe("m", mode, "s", 50)


async def drive(prefill: str, decode: str, probe: Probe, seconds: float = 20.0) -> pair.PairResult:
    async with aiohttp.ClientSession() as session:
        target = pair.Target(decode, prefill, "10.9.9.9", 8998)
        return await pair.drive(session, target, probe.body, seconds=seconds)


async def judged(
    prefill: Behaviour, decode: Behaviour, role: Role, mode: Mode = Mode.FUNCTIONAL, seconds: float = 20.0
) -> Judgement:
    probe = probe_of(mode)
    async with serving(prefill) as first, serving(decode) as second:
        return judge(await drive(first.url, second.url, probe, seconds), role, probe.expectation)


async def test_same_body_to_both_and_the_answer_of_decode() -> None:
    probe = probe_of()
    async with serving(status(200)) as prefill, serving(right) as decode:
        result = await drive(prefill.url, decode.url, probe)
        again = await drive(prefill.url, decode.url, probe)
    assert prefill.bodies == decode.bodies
    first, second = decode.bodies
    assert (first["bootstrap_host"], first["bootstrap_port"]) == ("10.9.9.9", 8998)
    assert first["bootstrap_room"] != second["bootstrap_room"]
    assert judge(result, Role.DECODE, probe.expectation).kind is Kind.PASS
    assert result.cached.total == 0
    assert not result.timed_out
    assert again.prefill.status == 200
    assert prefill.aborted == decode.aborted == []


async def test_hanging_transfer_times_out_and_aborts_both() -> None:
    probe = probe_of()
    async with serving(hang) as prefill, serving(hang) as decode:
        result = await drive(prefill.url, decode.url, probe, 0.3)
        assert prefill.aborted == decode.aborted == [probe.request_id]
    for role in Role:
        outcome = judge(result, role, probe.expectation)
        assert (outcome.kind, outcome.reason) == (Kind.FAIL, Reason.PROBE_TIMED_OUT)
        assert outcome.failures == {"timeout": Severity.TRANSPORT}


async def test_decode_that_hangs_after_prefill_answered_times_out() -> None:
    outcome = await judged(right, hang, Role.PREFILL, seconds=0.3)
    assert outcome.reason is Reason.PROBE_TIMED_OUT


@pytest.mark.parametrize("role", list(Role))
async def test_failed_prefill_ends_the_wait_for_decode(role: Role) -> None:
    outcome = await judged(status(500), hang, role, seconds=60)
    assert (outcome.kind, outcome.reason) == (Kind.FAIL, Reason.TRANSFER_FAILED)
    assert "prefill answered HTTP 500" in outcome.what


async def test_rejected_request_is_a_failure_that_names_the_side() -> None:
    outcome = await judged(status(200), status(400), Role.DECODE)
    assert (outcome.kind, outcome.reason) == (Kind.FAIL, Reason.PROBE_FAILED)
    assert "decode answered HTTP 400" in outcome.what


async def test_peer_that_starts_up_is_no_failure() -> None:
    assert (await judged(hang, status(503), Role.PREFILL, seconds=60)).kind is Kind.PEER_LOADING
    assert (await judged(status(503), hang, Role.DECODE, seconds=60)).kind is Kind.PEER_LOADING
    # Seen from the side that answers 503 itself, it is one.
    assert (await judged(status(503), hang, Role.PREFILL, seconds=60)).kind is Kind.FAIL


async def test_who_refuses_the_connection_matters() -> None:
    probe = probe_of()
    async with serving(hang) as decode:
        result = await drive(closed_port_url(), decode.url, probe, 60)
    assert judge(result, Role.DECODE, probe.expectation).kind is Kind.PEER_LOADING
    assert judge(result, Role.PREFILL, probe.expectation).kind is Kind.ENGINE_GONE


async def test_peer_that_dies_during_the_probe_is_no_failure_of_this_engine() -> None:
    assert (await judged(drop, hang, Role.DECODE, seconds=60)).kind is Kind.PEER_UNREACHABLE
    outcome = await judged(drop, hang, Role.PREFILL, seconds=60)
    assert (outcome.kind, outcome.reason) == (Kind.FAIL, Reason.TRANSFER_FAILED)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('data: {"error": {"code": 500, "message": "transfer failed"}}\n\n', Reason.TRANSFER_FAILED),
        ('data: {"error": {"code": 400, "message": "x"}}\n\n', Reason.PROBE_FAILED),
        ('data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}\n\n', Reason.TRANSFER_FAILED),
        ('data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', Reason.PROBE_FAILED),
        ('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', Reason.PROBE_FAILED),
        ("data: {{{\n\n", Reason.PROBE_FAILED),
        ("", Reason.PROBE_FAILED),
    ],
)
async def test_bad_streams_fail(text: str, reason: Reason) -> None:
    outcome = await judged(right, raw(text), Role.DECODE, Mode.STREAMED)
    assert (outcome.kind, outcome.reason, outcome.peer_outcome) == (Kind.FAIL, reason, PeerOutcome.FAIL)
    assert outcome.failures
    assert outcome.what


async def test_endless_answer_is_cut() -> None:
    async def endless(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    outcome = await judged(right, endless, Role.DECODE, seconds=60)
    assert (outcome.kind, outcome.reason) == (Kind.FAIL, Reason.PROBE_FAILED)


async def test_failed_call_names_the_signature() -> None:
    async def silent(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]})

    outcome = await judged(right, silent, Role.DECODE)
    assert outcome.what == "came back without a call and without text (S9)"
    assert outcome.signatures == ("S9",)


async def test_addresses_of_peers() -> None:
    assert await discovery.resolve("127.0.0.1") == ["127.0.0.1"]
    assert await discovery.resolve("no-such-name.invalid") == []
    assert discovery.base_url("10.1.0.5", 1) == "http://10.1.0.5:1"
    assert discovery.base_url("fd00::5", 1) == "http://[fd00::5]:1"
