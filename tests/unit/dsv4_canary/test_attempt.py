"""One probe of each kind over real sockets against scripted engines: what is sent, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dsv4_canary import attempt
from dsv4_canary.attempt import Context
from dsv4_canary.judge import Kind
from dsv4_canary.model import Cache, Mode, ProbeName, Role
from dsv4_canary.pair import Target, dp_size
from dsv4_canary.probe_set import SetSettings, run_set
from dsv4_canary.tiers import Cached, cache_label, read_cached

pytestmark = pytest.mark.processes


class Engine:
    """Prefill and decode at once: answers chats and ``/generate``; a prefix seen before is cached on the device."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self.damage: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda _body, arguments: arguments
        self.shift: Callable[[int], float] = lambda _count: 0.0
        self.generate_status = 200
        self.size = 512
        self.tiers: dict[str, int] | None = None
        self.load_back = 0
        self.loads = 0
        self.meet: asyncio.Barrier | None = None
        self.url = ""

    def cached(self, head: str) -> int:
        known = head in self.seen
        self.seen.add(head)
        self.load_back += self.loads if known else 0
        return self.size if known else 0

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.meet is not None:
            await self.meet.wait()
        ask = body["messages"][-1]["content"]
        details: dict[str, Any] = {"cached_tokens": self.cached(json.dumps(body["messages"][:-1]))}
        answer: dict[str, Any] = {"usage": {"prompt_tokens": 3000, "completion_tokens": 40}}
        answer["usage"]["prompt_tokens_details"] = details
        if self.tiers is not None:
            answer["sglext"] = {"cached_tokens_details": self.tiers}
        message: dict[str, Any] = {"content": "The harbour is calm today."}
        reason = "stop"
        if "Do not call" not in ask:
            arguments = {"token": ask.split('"')[1], "n": int(ask.split(" n ")[1].split(".")[0])}
            text = json.dumps(self.damage(body, arguments))
            function = {"name": "probe_echo", "arguments": text}
            message = {"content": "", "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}
            reason = "tool_calls"
        if not body["stream"]:
            return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": reason}], **answer})
        chunks = [{"choices": [{"index": 0, "delta": message, "finish_reason": reason}]}, {"choices": [], **answer}]
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")

    async def generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.generate_status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.generate_status)
        cached = self.cached(json.dumps(body["input_ids"]))
        shift = self.shift(len(self.bodies))
        row = [[-0.5 * number - shift, 5000 + number, None] for number in range(20)]
        meta = {
            "output_top_logprobs": [row] * 4,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": 4,
            "cached_tokens": cached,
            "cached_tokens_details": self.tiers or {"device": cached, "host": 0},
            "finish_reason": {"type": "length"},
        }
        return web.json_response({"output_ids": [5000] * 4, "meta_info": meta})

    async def server_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"dp_size": 8})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=f'sglang:load_back_tokens_total{{pool="kv"}} {self.load_back}\n')


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Engine, aiohttp.ClientSession]]:
    engine = Engine()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_post("/generate", engine.generate)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_get("/server_info", engine.server_info)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:
            yield engine, session
    finally:
        await runner.cleanup()


def context(engine: Engine, **changes: Any) -> Context:
    values: dict[str, Any] = {
        "target": Target(engine.url),
        "role": Role.DECODE,
        "model": "m",
        "prompt_tokens": 100,
        "seconds": 20.0,
    }
    return Context(**(values | changes))


async def test_twin_is_two_requests_at_once_that_must_not_be_mixed_up() -> None:
    async with served() as (engine, session):
        engine.meet = asyncio.Barrier(2)
        results = await attempt.twin(session, context(engine), "p")
        assert [result.outcome for result in results] == ["pass", "pass"]
        first, second = engine.bodies
        assert first["messages"][:-1] == second["messages"][:-1]
        assert first["messages"][-1] != second["messages"][-1]

        tokens: dict[str, str] = {}

        def swap(body: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
            tokens[body["rid"]] = arguments["token"]
            others = [token for rid, token in tokens.items() if rid != body["rid"]]
            return arguments | {"token": others[-1]} if others else arguments

        engine.damage = swap
        engine.meet = None
        results = await attempt.twin(session, context(engine), "p")
        assert sorted(result.outcome for result in results) == ["fail", "pass"]
        (failed,) = [result for result in results if result.outcome == "fail"]
        assert "S28" in failed.judgement.failures


async def test_parity_compares_the_calls_of_both_ways() -> None:
    async with served() as (engine, session):
        results = await attempt.parity(session, context(engine), "p")
        assert [(r.mode, r.outcome, r.judged_parity) for r in results] == [
            (Mode.FUNCTIONAL, "pass", False),
            (Mode.STREAMED, "pass", True),
        ]
        assert engine.bodies[0]["messages"] == engine.bodies[1]["messages"]
        engine.damage = lambda body, arguments: arguments | ({"n": 1} if body["stream"] else {})
        _, streamed = await attempt.parity(session, context(engine), "q")
        assert {"S30", "S15"} <= set(streamed.judgement.failures)
        engine.damage = lambda _body, arguments: arguments | {"n": 1}
        whole, streamed = await attempt.parity(session, context(engine), "r")
        assert whole.outcome == streamed.outcome == "fail"
        assert "S30" not in streamed.judgement.failures, "wrong, and the same both ways"


async def test_drift_cold_then_cached_then_damaged() -> None:
    async with served() as (engine, session):
        first = await attempt.drifting(session, context(engine), "p", None)
        assert (first.outcome, first.cache, first.deviation, first.prompt_tokens) == ("pass", Cache.COLD, None, 100)
        again = await attempt.drifting(session, context(engine), "p", first.reading)
        assert (again.outcome, again.cache) == ("pass", Cache.DEVICE)
        assert again.deviation is not None
        assert again.deviation.nats == 0
        engine.shift = lambda _count: 0.5
        engine.tiers = {"device": 256, "host": 256}
        noise = await attempt.drifting(session, context(engine), "p", first.reading, 0.6, again.reading)
        assert (noise.outcome, noise.cache) == ("pass", Cache.HOST)
        damaged = await attempt.drifting(session, context(engine), "p", first.reading, 0.35, again.reading)
        assert (damaged.outcome, set(damaged.judgement.failures)) == ("fail", {"drift"})
        # Where noise is learnt the greatest margin holds.
        engine.tiers = {"device": 512, "host": 0}
        noisy = await attempt.drifting(session, context(engine), "p", first.reading, 0.35, again.reading)
        assert (noisy.outcome, noisy.like_with_like) == ("pass", True)
        engine.shift = lambda _count: 0.8
        noisy = await attempt.drifting(session, context(engine), "p", first.reading, 0.35, again.reading)
        assert (noisy.outcome, noisy.like_with_like) == ("fail", True)
        assert all("ignore_eos" not in body["sampling_params"] for body in engine.bodies)


async def test_what_was_computed_in_other_shapes_is_told_and_accuses_nobody() -> None:
    async with served() as (engine, session):
        # Cold prompts go in chunks: on a real engine that moved logprobs by 1.1 nats.
        engine.shift = lambda count: 1.1 if count == 1 else 0.0
        cold = await attempt.drifting(session, context(engine), "p", None, 0.35)
        device = await attempt.drifting(session, context(engine), "p", cold.reading, 0.35)
        assert (device.outcome, device.cache, device.like_with_like) == ("pass", Cache.DEVICE, False)
        assert device.deviation is not None
        assert device.deviation.nats == pytest.approx(1.1)
        # From the host, and only half of it: the other half is computed in another shape than before.
        engine.shift = lambda _count: 1.1
        engine.tiers, engine.size = {"device": 0, "host": 256}, 256
        half = await attempt.drifting(session, context(engine), "p", cold.reading, 0.35, device.reading)
        assert (half.outcome, half.cache, half.like_with_like) == ("pass", Cache.HOST, False)
        engine.tiers, engine.size = {"device": 0, "host": 512}, 512
        whole = await attempt.drifting(session, context(engine), "p", cold.reading, 0.35, device.reading)
        assert (whole.outcome, whole.cache, whole.like_with_like) == ("fail", Cache.HOST, True)
        assert whole.to_json()["drift"] == {"nats": 1.1, "inCommon": 20, "of": 20, "margin": 0.35, "counts": True}


async def test_a_set_compares_a_repeat_with_the_answer_out_of_the_cache() -> None:
    async with served() as (engine, session):
        engine.shift = lambda count: 1.1 if count == 1 else 0.0
        settings = SetSettings("m", prompt_tokens=50, probes=(ProbeName.DRIFT,))
        results = await run_set(session, Target(engine.url), settings)
        assert [(r.outcome, r.cache, r.like_with_like) for r in results] == [
            ("pass", Cache.COLD, False),
            ("pass", Cache.DEVICE, False),
            ("pass", Cache.DEVICE, True),
        ]


@pytest.mark.parametrize(("status", "kind"), [(400, Kind.UNUSABLE), (404, Kind.UNUSABLE), (500, Kind.FAIL)])
async def test_drift_on_an_engine_that_does_not_serve_it(status: int, kind: Kind) -> None:
    async with served() as (engine, session):
        engine.generate_status = status
        assert (await attempt.drifting(session, context(engine), "p", None)).judgement.kind is kind


async def test_load_back_counter_tells_host_from_device_where_the_answer_does_not() -> None:
    async with served() as (engine, session):

        async def load_back() -> float:
            return float(engine.load_back)

        made = context(engine, load_back=load_back)
        caches = []
        for loads in (0, 0, 512):
            engine.loads = loads
            caches.append((await attempt.ask(session, made, ProbeName.REPEAT, Mode.FUNCTIONAL, "p")).cache)
        assert caches == [Cache.COLD, Cache.DEVICE, Cache.HOST]
        engine.tiers = {"device": 512, "host": 0}
        assert (await attempt.ask(session, made, ProbeName.REPEAT, Mode.STREAMED, "p")).cache is Cache.DEVICE


async def test_rooms_go_to_the_rank() -> None:
    async with served() as (engine, session):
        assert await dp_size(session, engine.url) == 8
        assert await dp_size(session, engine.url + "/nowhere") is None
        target = Target(engine.url, engine.url, "10.0.0.1", 8998)
        for rank in (0, 3, 7):
            engine.bodies.clear()
            made = context(engine, target=target, rank=rank, ranks=8)
            await attempt.ask(session, made, ProbeName.ECHO, Mode.FUNCTIONAL, "p")
            rooms = {body["bootstrap_room"] for body in engine.bodies}
            assert len(engine.bodies) == 2
            assert {room % 8 for room in rooms} == {rank}
            assert len(rooms) == 1


async def test_a_set_covers_every_kind_and_stops_where_nobody_answers() -> None:
    async with served() as (engine, session):
        shown: list[str] = []
        results = await run_set(
            session, Target(engine.url), SetSettings("m", prompt_tokens=50), lambda result: shown.append(result.probe)
        )
        assert {result.probe for result in results} == set(ProbeName)
        assert shown == [result.probe for result in results]
        assert {result.outcome for result in results} == {"pass"}
        assert {result.cache for result in results if result.probe is ProbeName.REPEAT} == {Cache.DEVICE}
        json.dumps([result.to_json() for result in results])
        url = engine.url
    async with aiohttp.ClientSession() as session:
        results = await run_set(session, Target(url), SetSettings("m", prompt_tokens=50))
        assert len(results) == 1
        assert results[0].outcome != "pass"


@pytest.mark.parametrize(
    ("data", "cached"),
    [
        (b"", Cached()),
        (b"[]", Cached()),
        (b'{"usage": {"prompt_tokens_details": null}}', Cached()),
        (b'{"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}', Cached(0)),
        (b'{"usage": {"prompt_tokens_details": {"cached_tokens": 256}}}', Cached(256)),
        (b'{"meta_info": {"cached_tokens": 9, "cached_tokens_details": {"device": 4, "host": 5}}}', Cached(9, 4, 5)),
        (b'{"sglext": {"cached_tokens_details": {"device": 1, "storage": 2}}}', Cached(3, 1, 2)),
        (b'data: {"usage": {"prompt_tokens_details": {"cached_tokens": 7}}}\n\ndata: [DONE]\n', Cached(7)),
        (b'data: {"sglext": {"cached_tokens_details": {"host": "x"}}}\n', Cached(0, 0, 0)),
    ],
)
def test_cached_tokens_of_an_answer(data: bytes, cached: Cached) -> None:
    assert read_cached(data) == cached


def test_cache_label() -> None:
    assert cache_label(Cached(0), reported_before=False) is Cache.COLD
    assert cache_label(Cached(256), reported_before=False) is Cache.DEVICE
    assert cache_label(Cached(), reported_before=False) is Cache.UNKNOWN
    assert cache_label(Cached(), reported_before=True) is Cache.COLD
    assert cache_label(Cached(256), reported_before=True, loaded_back=256) is Cache.HOST
    assert cache_label(Cached(256, 256, 0), reported_before=True, loaded_back=256) is Cache.DEVICE
    assert cache_label(Cached(256, 0, 256), reported_before=True) is Cache.HOST
    # A decode that tells zeroes says nothing about prefill's cache.
    assert Cached(0, 0, 0).merge(Cached(256)) == Cached(256)
    assert Cached(0, 0, 0).merge(Cached(256, 128, 128)) == Cached(256, 128, 128)
