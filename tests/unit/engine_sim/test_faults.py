"""The switches: what each one does to real processes, and that the neighbours stay well."""

import asyncio
import json

import aiohttp
import pytest

pytestmark = pytest.mark.processes

FILLER = "All work and no play makes the scheduler a dull loop. " * 220
ASK = 'Call the tool probe_echo exactly once with token "zk-41-quartz-ramp" and n 7. Do not write anything else.'
RIGHT = [{"token": "zk-41-quartz-ramp", "n": 7}]
IMPATIENT = {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "1", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "1"}


async def call(pair, text=FILLER + ASK, **extra):
    """Arguments of the calls that decode returns, or its status, or None for what is no JSON."""
    _, (status, body) = await pair.post(pair.body(text, **extra))
    if status != 200:
        return status
    message = json.loads(body)["choices"][0]["message"]
    try:
        return [json.loads(item["function"]["arguments"]) for item in message.get("tool_calls", [])]
    except ValueError:
        return None


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def status_of(url):
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


@pytest.fixture(scope="module")
def calm(start, pair):
    """A pair for switches that leave no trace; same class as the healthy one."""
    return type(pair)(start("prefill", **IMPATIENT), start("decode", **IMPATIENT))


async def test_all_switches_are_shown_and_checked(calm):
    async with aiohttp.ClientSession() as session:
        url = calm.prefill.url + "/sim/switches"
        async with session.get(url) as response:
            before = await response.json()
        async with session.put(url, json={"gate": "off", "drop_every": "often"}) as response:
            assert response.status == 400
            assert "drop_every" in await response.text()
        async with session.get(url) as response:
            assert await response.json() == before
    assert before["gate"] == before["early_send_guard"] == before["early_send_fence"] == "on"


async def test_a_wedged_decode_runs_without_tokens_and_its_health_is_green(calm):
    calm.decode.switch(wedge="on")
    generated = calm.decode.total("generation_tokens_total")
    task = asyncio.create_task(call(calm))
    await until(lambda: calm.decode.total("num_running_reqs") == 1)
    tokens = calm.decode.total("realtime_tokens_total")
    assert await status_of(calm.decode.url + "/health") == 200
    assert calm.decode.total("num_running_reqs") == 1
    assert calm.decode.total("generation_tokens_total") == generated
    assert calm.decode.total("realtime_tokens_total") == tokens
    assert not task.done()
    calm.decode.switch(wedge="off")
    assert await task == RIGHT


async def test_a_wedge_of_the_overlapped_loop_needs_overlap(start, pair):
    decode = start("decode", "--disable-overlap-schedule")
    decode.switch(wedge="overlap")
    assert await call(type(pair)(start("prefill"), decode)) == RIGHT


async def test_busy_is_unhealthy_but_computes_and_then_answers(calm):
    computed = calm.prefill.total("realtime_tokens_total")
    calm.prefill.switch(busy_seconds=2.5)
    task = asyncio.create_task(call(calm))
    assert await status_of(calm.prefill.url + "/health") == 503
    assert await status_of(calm.prefill.url + "/ready") == 200
    assert calm.prefill.total("num_running_reqs") >= 1
    await until(lambda: calm.prefill.total("realtime_tokens_total") > computed)
    # The decode gave up: its wait is one second here. Nobody is ill when it is over.
    assert await task in (500, RIGHT)
    calm.prefill.switch(busy_seconds=0)
    assert await status_of(calm.prefill.url + "/health") == 200
    assert await call(calm) == RIGHT


async def test_slow_start_looks_like_loading(calm):
    calm.prefill.switch(slow_start_seconds=1.5)
    assert await status_of(calm.prefill.url + "/ready") == 503
    assert await status_of(calm.prefill.url + "/health") == 503
    calm.prefill.wait("/health")
    assert await call(calm) == RIGHT


async def test_every_third_transfer_is_dropped(start, pair):
    dropping = type(pair)(start("prefill", **IMPATIENT), start("decode", **IMPATIENT))
    dropping.prefill.switch(drop_every=3)
    assert [await call(dropping, ASK) for _ in range(6)] == [RIGHT, RIGHT, 500, RIGHT, RIGHT, 500]
    assert dropping.decode.total("num_transfer_failed_reqs_total") == 2


async def test_a_half_dead_registry_accepts_and_never_answers(calm):
    calm.prefill.switch(bootstrap="hang")
    url = f"http://127.0.0.1:{calm.prefill.bootstrap_port}/health"
    task = asyncio.create_task(status_of(url))
    done, _ = await asyncio.wait([task], timeout=0.5)
    assert not done
    assert await status_of(calm.prefill.url + "/health") == 200
    calm.prefill.switch(bootstrap="ok")
    assert await task == 200


async def test_a_bad_link_hurts_one_peer_only(start, pair):
    prefill = start("prefill", **IMPATIENT)
    near, far = (type(pair)(prefill, start("decode", **IMPATIENT)) for _ in range(2))
    prefill.switch(bad_link=f"127.0.0.1:{far.decode.port}")
    assert await call(near) == RIGHT
    assert await call(far) != RIGHT
    prefill.switch(bad_link=f"stall:127.0.0.1:{far.decode.port}")
    assert await call(near) == RIGHT
    assert await call(far) == 500
    prefill.switch(bad_link="")
    assert await call(far) == RIGHT


async def test_a_bad_decode_loses_what_it_receives(start, pair):
    bad = type(pair)(pair.prefill, start("decode"))
    bad.decode.switch(bad_pod="compute")
    assert await call(bad) != RIGHT
    assert await call(pair) == RIGHT
    bad.decode.switch(bad_pod="off")
    assert await call(bad) == RIGHT


@pytest.mark.parametrize(
    ("flags", "env", "right"),
    [
        ((), {}, False),
        (("--disable-overlap-schedule",), {}, True),
        ((), {"SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "false"}, True),
        (("--enable-hierarchical-cache",), {}, True),
    ],
    ids=["exposed", "no overlap", "no early send", "hicache barrier"],
)
async def test_without_the_fence_chunks_leave_while_they_are_written(start, pair, flags, env, right):
    broken = type(pair)(start("prefill", "--chunked-prefill-size", "1024", *flags, **env), start("decode"))
    broken.prefill.switch(early_send_fence="off")
    assert (await call(broken) == RIGHT) == right
    assert await call(broken, ASK) == RIGHT, "one chunk only"
    broken.prefill.switch(early_send_fence="on")
    assert await call(broken, "Again. " + FILLER + ASK) == RIGHT


@pytest.mark.parametrize(
    ("switch", "env", "right"),
    [
        ("off", {}, True),
        ("on", {}, False),
        ("on", {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "true"}, True),
        ("off", {"SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "false"}, False),
    ],
)
async def test_pages_of_an_aborted_request_are_reused_while_prefill_still_writes(start, pair, switch, env, right):
    """A transfer that is posted cannot be called back; 4 MB/s make it last a third of a second."""
    prefill = start("prefill", DSV4_SIM_TRANSFER_BANDWIDTH_MBPS="4")
    racing = type(pair)(prefill, start("decode", **env))
    racing.decode.switch(abort_page_reuse=switch)
    doomed = asyncio.create_task(racing.post(racing.body("Something else. " + FILLER, rid="doomed")))
    await until(lambda: racing.prefill.total("num_prefill_inflight_queue_reqs") == 1)
    abort = racing.decode.url + "/abort_request"
    async with aiohttp.ClientSession() as session, session.post(abort, json={"rid": "doomed"}) as response:
        assert response.status == 200
    assert (await call(racing) == RIGHT) == right
    await doomed
    assert await call(racing, "Calm. " + FILLER + ASK) == RIGHT
    await until(lambda: racing.decode.total("num_decode_deferred_kv_release_reqs") == 0)


@pytest.mark.parametrize(
    ("outcome", "env"),
    [
        ("leak", {"DSV4_SIM_OUTPUT_ERA": "leak"}),
        ("silent", {"SGLANG_SIM_RELEASE": "0.5.22"}),
        ("token", {"SGLANG_SIM_RELEASE": "0.5.23"}),
    ],
)
async def test_the_same_damage_comes_out_as_the_release_handles_it(start, pair, outcome, env):
    """One layer of index-K is lost; nothing else differs between the releases."""
    damaged = type(pair)(start("prefill"), start("decode", **env))
    assert await call(damaged) == RIGHT
    fresh = "Another head. "
    damaged.prefill.switch(bad_link=f"127.0.0.1:{damaged.decode.port}")
    # Layouts decide which letters of the markup are hit; the third of these heads spoils its tags.
    seen = []
    for number in range(6):
        body = damaged.body(FILLER + ASK)
        body["messages"].insert(0, {"role": "system", "content": fresh * number})
        _, (status, text) = await damaged.post(body)
        assert status == 200
        message = json.loads(text)["choices"][0]["message"]
        seen.append((message["content"], [item["function"] for item in message.get("tool_calls", [])]))
    print(outcome, *seen, sep="\n  ")
    leaked = [content for content, calls in seen if "｜DSML｜" in content]
    assert bool(leaked) == (outcome == "leak")
    good = {"name": "probe_echo", "arguments": json.dumps(RIGHT[0])}
    assert any(calls != [good] for _, calls in seen)
