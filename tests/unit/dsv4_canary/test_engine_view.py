"""Engine metrics: summed over ranks, whatever the spelling; a series that is absent is None, not 0."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.engine_view import (
    EngineSample,
    answered,
    parse_metrics,
    progressed,
    read_engine,
    restarted,
    ticked,
    with_loads,
)

DECODE = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="decode",tp_rank="0",dp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="decode",tp_rank="0",dp_rank="1"} 2.0
sglang:num_queue_reqs{engine_type="decode",dp_rank="0"} 0.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true"} 100.0
sglang:generation_tokens_total{is_streaming="false"} 23.0
sglang:realtime_tokens_total{mode="decode",dp_rank="0"} 70.0
sglang:realtime_tokens_total{mode="decode",dp_rank="1"} 80.0
sglang:realtime_tokens_total{mode="prefill_compute",dp_rank="1"} 8.0
sglang:realtime_tokens_total{mode="prefill_cache",dp_rank="1"} 1024.0
sglang:num_decode_prealloc_queue_reqs{dp_rank="0"} 1.0
sglang:num_decode_transfer_queue_reqs{dp_rank="0"} 4.0
sglang:num_transfer_failed_reqs_total{dp_rank="0"} 2.0
sglang:kv_available_tokens{dp_rank="0"} 10.0
sglang:kv_evictable_tokens{dp_rank="0"} 90.0
sglang:max_total_num_tokens{dp_rank="0"} 200.0
sglang:spec_accept_length{dp_rank="0"} 2.0
sglang:spec_accept_length{dp_rank="1"} 3.0
sglang:e2e_request_latency_seconds_bucket{le="+Inf"} 5.0
"""


def test_decode_over_ranks() -> None:
    sample = parse_metrics(DECODE, 5.0)
    assert sample == EngineSample(
        time=5.0,
        running=5,
        queued=0,
        generation_tokens=123,
        decode_tokens=150,
        prefill_tokens=8,
        decode_prealloc=1,
        decode_transfer=4,
        transfer_failed=2,
        kv_available=10,
        kv_evictable=90,
        kv_total=200,
        spec_accept_length=2.5,
    )
    assert sample.prefill_inflight is None
    assert sample.load_back_tokens is None


def test_underscore_spelling_is_the_same() -> None:
    assert parse_metrics(DECODE.replace("sglang:", "sglang_"), 5.0) == parse_metrics(DECODE, 5.0)


def test_host_tier_and_sources() -> None:
    text = """\
sglang:load_back_tokens_total{pool="kv",tp_rank="0"} 512.0
sglang:load_back_tokens_total{pool="kv",tp_rank="1"} 256.0
sglang:load_back_tokens_total{pool="index_k",tp_rank="0"} 512.0
sglang:cached_tokens_total{cache_source="device"} 10.0
sglang:cached_tokens_total{cache_source="host"} 20.0
sglang:hicache_host_total_tokens{tp_rank="0"} 4096.0
"""
    sample = parse_metrics(text)
    assert sample.load_back_tokens == 768
    assert sample.cached_tokens == {"device": 10, "host": 20}
    assert sample.hicache
    # Up to 0.5.17 the counter has no pool.
    assert parse_metrics('sglang:load_back_tokens_total{tp_rank="0"} 7\n').load_back_tokens == 7
    assert not parse_metrics("sglang:hicache_host_total_tokens 0\n").hicache


def test_priorities_are_parts_of_the_total() -> None:
    text = 'sglang:num_running_reqs{priority=""} 5\nsglang:num_running_reqs{priority="1"} 3\n'
    assert parse_metrics(text).running == 5


def test_no_speculation_is_none() -> None:
    assert parse_metrics("sglang:spec_accept_length 0\n").spec_accept_length is None


def test_damaged_lines_cost_only_themselves() -> None:
    text = (
        'sglang:num_running_reqs{a="} 7\nsglang:num_queue_reqs NaN\nsglang:num_queue_reqs 2\n'
        "sglang:kv_available_tokens x\nsglang:kv_evictable_tokens\n"
    )
    sample = parse_metrics(text)
    assert (sample.running, sample.queued, sample.kv_available, sample.kv_evictable) == (None, 2, None, None)


@given(st.text(alphabet=st.sampled_from('sglang:_num_running_reqs{}="1 .,\n#'), max_size=200) | st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    parse_metrics(text)
    parse_metrics("sglang:num_running_reqs" + text)


# Current queue lengths.


def loads(mode: str, running: float = 0, **queues: float) -> dict[str, Any]:
    """An answer of ``/v1/loads`` as SGLang 0.5.23 gives it (``load_snapshot.py``), of two ranks."""
    section = {"mode": mode, "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0} | queues
    rank = {"timestamp": 1.0, "num_running_reqs": running, "num_waiting_reqs": 9, "token_usage": 0.1}
    ranks = [{"dp_rank": number, **rank, "disaggregation": section} for number in (0, 1)]
    return {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "loads": ranks}


def test_current_queues_replace_old_gauges() -> None:
    """A decode whose gauges show what ran long ago, while requests wait for a slow prefill."""
    old = parse_metrics(DECODE, 5.0)
    new = with_loads(old, loads("decode", 0, decode_prealloc_queue_reqs=0, decode_transfer_queue_reqs=3))
    assert (old.running, new.running) == (5, 0)
    assert (new.decode_prealloc, new.decode_transfer, new.queued) == (0, 6, 0)
    assert new.prefill_inflight is None
    assert new.live
    assert new.decode_tokens == old.decode_tokens


def test_running_requests_of_a_prefill_are_in_its_gauge_alone() -> None:
    text = "sglang:num_running_reqs 1\nsglang:num_prefill_inflight_queue_reqs 0\n"
    new = with_loads(parse_metrics(text), loads("prefill", 0, prefill_inflight_queue_reqs=2))
    assert (new.running, new.prefill_inflight) == (1, 4)


@pytest.mark.parametrize(
    "answer", [None, 404, [], {}, {"loads": None}, {"loads": []}, {"loads": [7]}, {"detail": "Not Found"}]
)
def test_without_current_queues_the_gauges_stay(answer: object) -> None:
    sample = parse_metrics(DECODE, 5.0)
    assert with_loads(sample, answer) is sample


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["loads", "num_running_reqs", "disaggregation", "mode", "decode_transfer_queue_reqs"]),
                inner,
            )
        ),
    )
)
def test_any_answer_about_queues_is_read(answer: object) -> None:
    with_loads(parse_metrics(DECODE), answer)
    with_loads(parse_metrics(DECODE), {"loads": [answer]})


# Progress.


def sample(at: float, **values: float) -> EngineSample:
    return EngineSample(time=at, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # (ticked, progressed, answered)
        ({}, {}, (False, False, False)),
        ({"decode_tokens": 5}, {"decode_tokens": 5}, (False, False, False)),
        ({"decode_tokens": 5}, {"decode_tokens": 6}, (True, True, True)),
        ({}, {"decode_tokens": 1}, (True, True, True)),
        ({"generation_tokens": 5}, {"generation_tokens": 6}, (True, True, True)),
        ({"prefill_tokens": 100}, {"prefill_tokens": 8292}, (True, True, False)),
        # Health checks of an idle prefill are no progress.
        ({"prefill_tokens": 100}, {"prefill_tokens": 105}, (True, False, False)),
        # A restart is none either.
        ({"prefill_tokens": 9000}, {"prefill_tokens": 4000}, (False, False, False)),
        ({"decode_tokens": 9000}, {}, (False, False, False)),
        ({"decode_tokens": 5}, {"decode_tokens": 5, "running": 3}, (False, False, False)),
    ],
)
def test_progress(before: dict[str, float], after: dict[str, float], expected: tuple[bool, bool, bool]) -> None:
    one, two = sample(10.0, **before), sample(15.0, **after)
    assert (ticked(one, two), progressed(one, two), answered(one, two)) == expected


def test_restart_is_seen() -> None:
    assert restarted(sample(0, decode_tokens=5), sample(1, decode_tokens=4))
    assert restarted(sample(0, decode_tokens=5), sample(1))
    assert not restarted(sample(0), sample(1, decode_tokens=4))
    assert not restarted(sample(0, running=5), sample(1, running=0))


# Reading.


@pytest.fixture
async def serve() -> AsyncIterator[tuple[str, list[web.Response], list[web.Response]]]:
    """A server with the given answers: (URL, those of /metrics, those of /v1/loads, without which it is 404)."""
    answers: list[web.Response] = []
    queues: list[web.Response] = []

    async def current(_request: web.Request) -> web.Response:
        return queues.pop(0) if queues else web.Response(status=404)

    async def metrics(_request: web.Request) -> web.Response:
        return answers.pop(0)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/loads", current)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield f"http://127.0.0.1:{port}", answers, queues
    await runner.cleanup()


async def test_read_engine(serve: tuple[str, list[web.Response], list[web.Response]]) -> None:
    url, answers, queues = serve
    many = "".join(f'sglang:x_bucket{{le="{i}"}} {i}\n' for i in range(30_000))
    answers.append(web.Response(text=many + DECODE + "sglang:num_prefill_inflight_queue_reqs 6"))
    answers.append(web.Response(status=503))
    answers.append(web.Response(body=b"x" * (17 * 1024 * 1024)))
    async with aiohttp.ClientSession() as session:
        found = await read_engine(session, url)
        assert found is not None
        assert (found.running, found.decode_tokens, found.prefill_inflight) == (5, 150, 6)
        assert found.time <= asyncio.get_running_loop().time()
        assert await read_engine(session, url) is None
        assert await read_engine(session, url) is None
        queues.append(web.json_response(loads("decode", 1, decode_transfer_queue_reqs=2)))
        answers.append(web.Response(text=DECODE))
        found = await read_engine(session, url)
        assert found is not None
        assert (found.running, found.decode_transfer, found.live) == (2, 4, True)
        assert await read_engine(session, "http://127.0.0.1:1") is None
