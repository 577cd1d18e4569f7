"""A real prefill and decode process on loopback."""

import asyncio
import json
import signal
import time

import aiohttp
import pytest

from dsv4_engine_sim import chat, pages, tokens, wire
from dsv4_engine_sim.pages import KV, PageLayout

pytestmark = pytest.mark.processes

FILLER = "All work and no play makes the scheduler a dull loop. " * 220
ASK = 'Call the tool probe_echo exactly once with token "{token}" and n {n}. Do not write anything else.'


def arguments(text):
    message = json.loads(text)["choices"][0]["message"]
    return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def events(text):
    parts = [line[len("data: ") :] for line in text.split("\n\n") if line]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


async def until(condition):
    """Poll until `condition` holds."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "condition never held"
        await asyncio.sleep(0.05)


async def get(url):
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_echo_call_over_2048_tokens(pair):
    prefill, decode = await pair.post(pair.body(FILLER + ASK.format(token="zk-41-quartz-ramp", n=7)))
    assert (prefill[0], decode[0]) == (200, 200)
    reply = json.loads(decode[1])
    assert arguments(decode[1]) == [{"token": "zk-41-quartz-ramp", "n": 7}]
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "probe_echo"
    assert reply["usage"]["prompt_tokens"] > 2048
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "SIMULATOR" in reply["system_fingerprint"]
    own = json.loads(prefill[1])
    assert (own["usage"]["completion_tokens"], own["choices"][0]["finish_reason"]) == (1, "length")


async def test_streamed_equals_not_streamed(pair):
    text = FILLER + ASK.format(token='ab-\\"12\\"-é', n=-4)
    _, whole = await pair.post(pair.body(text))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    _, streamed = await pair.post(pair.body(text, **options))
    chunks = events(streamed[1])
    pieces = [
        call for chunk in chunks if chunk["choices"] for call in chunk["choices"][0]["delta"].get("tool_calls") or []
    ]
    assert pieces[0]["function"]["name"] == "probe_echo"
    assert pieces[0]["id"]
    assert all(piece["function"]["name"] is None for piece in pieces[1:])
    assert [json.loads("".join(piece["function"]["arguments"] for piece in pieces))] == arguments(whole[1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == json.loads(whole[1])["usage"]["completion_tokens"]


async def test_text_thinking_limit_and_stop(pair):
    _, plain = await pair.post(pair.body("hello there"))
    message = json.loads(plain[1])["choices"][0]["message"]
    assert 'You said: "hello there"' in message["content"]
    assert message["reasoning_content"] is None
    _, thought = await pair.post(pair.body("hello there", chat_template_kwargs={"thinking": True}))
    message = json.loads(thought[1])["choices"][0]["message"]
    assert "answer in text" in message["reasoning_content"]
    assert "</think>" not in message["content"] + message["reasoning_content"]
    _, short = await pair.post(pair.body("hello there", max_tokens=3))
    choice = json.loads(short[1])["choices"][0]
    assert (choice["finish_reason"], json.loads(short[1])["usage"]["completion_tokens"]) == ("length", 3)
    _, stopped = await pair.post(pair.body("hello there", stop=["You said"]))
    assert json.loads(stopped[1])["choices"][0]["message"]["content"].endswith("). ")


async def test_completions_and_generate(pair):
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pair.prefill.bootstrap_port}
    body = {"prompt": "once upon a time", "max_tokens": 50, **room, "bootstrap_room": next(pair.rooms)}
    _, decode = await pair.post(body, "/v1/completions")
    assert "once upon a time" in json.loads(decode[1])["choices"][0]["text"]
    body = {
        "text": ["first one", "second one"],
        "sampling_params": {"max_new_tokens": 50},
        **room,
        "bootstrap_room": 77,
    }
    prefill, decode = await pair.post(body, "/generate")
    assert [len(item["output_ids"]) for item in json.loads(prefill[1])] == [1, 1]
    for word, item in zip(("first one", "second one"), json.loads(decode[1]), strict=True):
        assert word in item["text"]
        assert item["meta_info"]["finish_reason"]["type"] == "stop"


async def test_decode_answers_what_prefill_read_not_its_own_body(pair):
    """Same length, other words: decode's own copy of the prompt must not matter."""
    there, here = (pair.body(FILLER + ASK.format(token=token, n=7)) for token in ("prefill-side", "decode-sides"))
    here["bootstrap_room"] = there["bootstrap_room"]
    assert len(tokens.encode(chat.render(there))) == len(tokens.encode(chat.render(here)))
    async with aiohttp.ClientSession() as session:

        async def post(sim, body):
            async with session.post(sim.url + "/v1/chat/completions", json=body) as response:
                return await response.text()

        _, answer = await asyncio.gather(post(pair.prefill, there), post(pair.decode, here))
    assert arguments(answer) == [{"token": "prefill-side", "n": 7}]


async def test_fifty_at_once_are_all_exact(pair):
    wanted = [{"token": f"nonce-{number * 7919:06d}", "n": number} for number in range(50)]
    bodies = [pair.body(FILLER[: 2000 + 97 * index] + "\n" + ASK.format(**item)) for index, item in enumerate(wanted)]
    replies = await asyncio.gather(*map(pair.post, bodies))
    assert [arguments(decode[1]) for _, decode in replies] == [[item] for item in wanted]
    assert pair.prefill.total("num_prefill_inflight_queue_reqs") == 0
    assert pair.decode.total("num_decode_transfer_queue_reqs") == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
async def test_missing_room_is_400_with_upstreams_text(pair, path):
    body = {"messages": [{"role": "user", "content": "x"}], "text": "x"}
    for status, text in await pair.post(body, path):
        assert status == 400
        assert "Disaggregated request received without bootstrap room id" in text


async def test_bad_requests_are_400(pair):
    for change in (
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"max_tokens": 10**9},
        {"n": 2},
        {"logprobs": True},
        {"bootstrap_room": -1},
        {"reasoning_effort": 50},
    ):
        for status, text in await pair.post(pair.body("x", **change)):
            assert (status, bool(json.loads(text)["message"])) == (400, True), change
    async with aiohttp.ClientSession() as session:
        async with session.post(pair.decode.url + "/v1/chat/completions", data=b"{oops") as response:
            assert response.status == 400
        async with session.put(pair.decode.url + "/sim/switches", json={"nonsense": 1}) as response:
            assert response.status == 400
        async with session.put(pair.decode.url + "/sim/switches", json={"transfer": "maybe"}) as response:
            assert response.status == 400


async def test_fake_peer_moves_no_kv(pair):
    before = pair.prefill.total("kv_transfer_latency_ms_count")
    body = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1},
        "bootstrap_host": "2.2.2.2",
        "bootstrap_room": 0,
    }
    for status, text in await pair.post(body, "/generate"):
        assert status == 200
        assert json.loads(text)["meta_info"]["completion_tokens"] == 1
    assert pair.prefill.total("kv_transfer_latency_ms_count") == before


async def test_information_endpoints(pair):
    for sim in (pair.prefill, pair.decode):
        info = json.loads((await get(sim.url + "/server_info"))[1])
        assert info["disaggregation_mode"] == sim.role
        assert (info["version"], info["page_size"], info["tp_size"], info["dp_size"]) == ("0.5.23", 256, 1, 1)
        assert "SIMULATOR" in info["simulator"]["notice"]
        assert json.loads((await get(sim.url + "/get_model_info"))[1])["disaggregation_mode"] == sim.role
        models = json.loads((await get(sim.url + "/v1/models"))[1])
        assert models["data"][0]["id"] == "deepseek-v4"
        assert "SIMULATOR" in models["data"][0]["owned_by"]
        for path in ("/health", "/health_generate", "/ready", "/flush_cache", "/get_server_info", "/model_info"):
            assert (await get(sim.url + path))[0] == 200, path
        assert "THIS IS A SIMULATOR" in sim.log.read_text()


async def test_registry(pair):
    base = f"http://127.0.0.1:{pair.prefill.bootstrap_port}"
    query = "prefill_dp_rank={0}&prefill_cp_rank={0}&target_tp_rank={0}&target_pp_rank={0}"
    status, text = await get(f"{base}/route?{query.format(-1)}")
    info = json.loads(text)
    assert status == 200
    assert (info["page_size"], info["kv_cache_dtype"], info["kv_layout"]) == (256, "fp8_e4m3", "v4,c4:v4,c128:v4")
    assert info["prefill_http_port"] == pair.prefill.port
    assert set(json.loads((await get(f"{base}/route?{query.format(0)}"))[1])) == {"rank_ip", "rank_port"}
    assert (await get(f"{base}/route?{query.format(5)}"))[0] == 404
    assert (await get(f"{base}/route"))[0] == 400
    assert (await get(f"{base}/health"))[0] == 200
    async with aiohttp.ClientSession() as session:
        await session.post(f"{base}/register_dp_rank", json={"bootstrap_room": 9, "dp_rank": 1})
        async with session.post(f"{base}/query_dp_ranks", json={"bootstrap_rooms": [9, 10]}) as response:
            assert await response.json() == {"9": 1}


def test_metric_names_and_labels(pair):
    names = {
        "num_running_reqs", "num_queue_reqs", "gen_throughput", "token_usage", "num_prefill_bootstrap_queue_reqs",
        "num_prefill_inflight_queue_reqs", "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs",
        "num_transfer_failed_reqs_total", "num_bootstrap_failed_reqs_total", "kv_transfer_latency_ms_count",
        "kv_transfer_speed_gb_s_sum", "prompt_tokens_total", "generation_tokens_total", "num_requests_total",
        "e2e_request_latency_seconds_count",
    }  # fmt: skip
    for sim in (pair.prefill, pair.decode):
        series = sim.metrics()
        assert names <= {name.split("{")[0].removeprefix("sglang:") for name in series}
        running = next(name for name in series if name.startswith("sglang:num_running_reqs{"))
        assert f'engine_type="{sim.role}"' in running
        assert 'model_name="deepseek-v4"' in running


# -- faults ------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(start, pair):
    """A pair whose two waits end after a second; same class as the healthy one."""
    waits = {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "1", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "1"}
    return type(pair)(start("prefill", **waits), start("decode", **waits))


async def test_dropped_transfer_times_out_on_both_with_health_green(impatient):
    pair = impatient
    pair.prefill.switch(transfer="drop")
    prefill, decode = await pair.post(pair.body("x"))
    assert (prefill[0], decode[0]) == (500, 500)
    assert "Decode transfer failed for request rank=" in decode[1]
    assert "in KVPoll.WaitingForInput" in decode[1]
    assert "Prefill transfer failed for request rank=" in prefill[1]
    assert pair.decode.total("num_transfer_failed_reqs_total") == 1
    assert pair.prefill.total("num_transfer_failed_reqs_total") == 1
    for sim in (pair.prefill, pair.decode):
        assert (await get(sim.url + "/health"))[0] == 200
    _, streamed = await pair.post(pair.body("x", stream=True))
    assert streamed[0] == 200, "as upstream: the failure is an event in the stream"
    assert events(streamed[1])[0]["error"]["code"] == 500
    pair.prefill.switch(transfer="ok")
    _, decode = await pair.post(pair.body(ASK.format(token="back", n=1)))
    assert arguments(decode[1]) == [{"token": "back", "n": 1}]
    assert pair.decode.total("num_decode_deferred_kv_release_reqs") == 0


async def test_different_rooms_never_meet(impatient):
    pair = impatient
    body = pair.body("x")
    async with aiohttp.ClientSession() as session:

        async def post(sim, room):
            data = body | {"bootstrap_room": room}
            async with session.post(sim.url + "/v1/chat/completions", json=data) as response:
                return response.status, await response.text()

        prefill, decode = await asyncio.gather(post(pair.prefill, 1001), post(pair.decode, 1002))
    assert (prefill[0], decode[0]) == (500, 500)
    assert "Prefill bootstrap failed for request rank=" in prefill[1]
    assert "in KVPoll.Bootstrapping" in prefill[1]
    assert "in KVPoll.WaitingForInput" in decode[1]
    assert pair.prefill.total("num_bootstrap_failed_reqs_total") == 1


async def test_client_disconnect_frees_everything(start, pair):
    lone = type(pair)(start("prefill"), start("decode"))
    lone.prefill.switch(transfer="drop")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await lone.post(lone.body(FILLER))
    await until(
        lambda: (
            not any(
                [
                    lone.decode.total("num_used_tokens"),
                    lone.decode.total("num_decode_transfer_queue_reqs"),
                    lone.prefill.total("num_prefill_inflight_queue_reqs"),
                    lone.prefill.total("num_used_tokens"),
                ]
            )
        )
    )


async def test_abort_request_ends_with_reason_abort(start, pair):
    slow = start("null", DSV4_SIM_TOKENS_PER_SECOND="2")
    body = {"messages": [{"role": "user", "content": "hello"}], "rid": "abc-1"}
    async with aiohttp.ClientSession() as session:

        async def ask():
            async with session.post(slow.url + "/v1/chat/completions", json=body) as response:
                return await response.json()

        task = asyncio.create_task(ask())
        await until(lambda: slow.total("num_running_reqs") == 1)
        async with session.post(slow.url + "/abort_request", json={"rid": "abc"}) as response:
            assert response.status == 200
        assert (await task)["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("env", "flags", "text"),
    [
        ({"DSV4_SIM_PAGE_SIZE": "64"}, (), "Page size mismatch: prefill server has page_size=64"),
        ({}, ("--kv-cache-dtype", "bfloat16"), "KV cache dtype mismatch: prefill server has kv_cache_dtype=bfloat16"),
        (
            {"DSV4_SIM_INDEX_K_DTYPE": "bf16", "DSV4_SIM_INDEX_K_IN_LAYOUT": "1"},
            (),
            "KV layout mismatch: prefill server has kv_layout=v4,c4:v4,c128:v4,index_k:bf16",
        ),
    ],
)
async def test_a_mismatched_prefill_kills_the_decode_server(start, pair, env, flags, text):
    decode = start("decode")
    mixed = type(pair)(start("prefill", *flags, SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT="1", **env), decode)
    replies = await asyncio.gather(mixed.post(mixed.body("x")), return_exceptions=True)
    assert decode.process.wait(30) == 1
    assert text in decode.log.read_text()
    assert replies


async def test_a_larger_index_k_item_is_refused_per_transfer(start, pair):
    """Without the layout check (stock image): NIXL refuses a source item larger than the target's."""
    mixed = type(pair)(start("prefill", DSV4_SIM_INDEX_K_DTYPE="bf16"), pair.decode)
    prefill, decode = await mixed.post(mixed.body("x"))
    assert (prefill[0], decode[0]) == (500, 500)
    assert "item length mismatch" in prefill[1]


async def test_a_smaller_index_k_item_lands_in_wrong_strides_silently(start, pair):
    mixed = type(pair)(start("prefill", DSV4_SIM_INDEX_K_DTYPE="fp4"), pair.decode)
    _, decode = await mixed.post(mixed.body(FILLER + ASK.format(token="zk-41-quartz-ramp", n=7)))
    assert decode[0] == 200
    message = json.loads(decode[1])["choices"][0]["message"]
    assert arguments_or_none(message) != [{"token": "zk-41-quartz-ramp", "n": 7}]


def arguments_or_none(message):
    try:
        return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    except json.JSONDecodeError:
        return None


class Flipper:
    """A proxy on the transfer port that flips the lowest bit of one byte of one page frame."""

    def __init__(self, target, region, layer, number, offset):
        self.target = target
        self.wanted = (region, layer, number)
        self.offset = offset
        self.flipped = 0
        self.seen = 0
        self.ended = asyncio.Event()

    async def serve(self, reader, writer):
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.target, limit=2**20)

        async def control():
            while data := await reader.read(65536):
                upstream_writer.write(data)
            upstream_writer.close()

        task = asyncio.create_task(control())
        try:
            while True:
                frame = await wire.read_frame(upstream_reader)
                if frame.kind == wire.CONTROL:
                    writer.write(wire.control_frame(frame.control()))
                    continue
                data = bytearray(frame.payload)
                if (frame.region, frame.layer) == self.wanted[:2]:
                    if self.seen == self.wanted[2]:
                        pages.damage(data, self.offset)
                        self.flipped += 1
                    self.seen += 1
                writer.write(wire.page_frame(frame.room, frame.region, frame.layer, frame.page, bytes(data)))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            task.cancel()
            writer.close()
            upstream_writer.close()
            self.ended.set()


async def test_one_byte_flipped_in_transit_changes_the_answer(start, pair, unused_tcp_port_factory):
    """The byte is one of the KV row that holds part of the nonce; nobody notices but the reader."""
    token = "zk-41-quartz-ramp"
    text = FILLER + ASK.format(token=token, n=7)
    inner, outer = unused_tcp_port_factory(), unused_tcp_port_factory()
    prefill = start("prefill", DSV4_SIM_TRANSFER_PORT=str(inner), DSV4_SIM_TRANSFER_ADVERTISE=f"127.0.0.1:{outer}")
    broken = type(pair)(prefill, start("decode"))
    ids = tokens.encode(chat.render(broken.body(text)))
    # Where a piece of the nonce is: its page, the layer it is read from, and its KV row there.
    position = next(index for index, item in enumerate(ids) if "41" in tokens.decode_one(item))
    layout = PageLayout(256, "fp8", 4)
    pool = pages.PagePool(layout, 64)
    mine = pool.allocate(-(-len(ids) // 256))
    pages.write_tokens(pool, mine, ids)
    number, place = divmod(position, 256)
    layer = layout.owner(place)
    row = pages.folded_index(pool, layer, mine[number])[place]
    flipper = Flipper(inner, KV, layer, number, 8 * row + 7)
    server = await asyncio.start_server(flipper.serve, "127.0.0.1", outer)
    async with server:
        prefill_reply, decode = await broken.post(broken.body(text))
        broken.decode.process.kill()  # hangs up, so that the proxy's task ends
        await flipper.ended.wait()
    assert (prefill_reply[0], decode[0], flipper.flipped) == (200, 200, 1)
    (found,) = arguments(decode[1])
    assert found["n"] == 7
    assert found["token"] != token
    assert len(found["token"]) == len(token)


# -- life cycle ------------------------------------------------------------


async def test_start_up_listens_but_is_not_healthy(start):
    sim = start("null", wait=False, DSV4_SIM_STARTUP_SECONDS="3600")
    sim.wait("/health", 503)
    assert (await get(sim.url + "/ready"))[0] == 503
    async with aiohttp.ClientSession() as session, session.post(sim.url + "/generate", json={"text": "x"}) as response:
        assert response.status == 503


async def test_sigterm_finishes_running_requests_and_exits_zero(start):
    sim = start("null", DSV4_SIM_TOKENS_PER_SECOND="10")
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 15}}
    async with aiohttp.ClientSession() as session:

        async def ask():
            async with session.post(sim.url + "/generate", json=body) as response:
                return await response.json()

        task = asyncio.create_task(ask())
        await until(lambda: sim.total("num_running_reqs") == 1)
        sim.process.send_signal(signal.SIGTERM)
        sim.wait("/ready", 503)
        late = asyncio.create_task(ask())
        assert (await task)["meta_info"]["completion_tokens"] == 15
        assert (await late)["meta_info"]["completion_tokens"] == 15
    assert sim.process.wait(30) == 0


async def test_a_prefill_that_dies_fails_its_rooms_and_its_successor_serves(start, pair):
    decode = start("decode")
    first = start("prefill")
    broken = type(pair)(first, decode)
    first.switch(transfer="drop")
    body = broken.body("x")
    async with aiohttp.ClientSession() as session:

        async def ask(sim):
            async with session.post(sim.url + "/v1/chat/completions", json=body) as response:
                return response.status, await response.text()

        lost, failed = asyncio.create_task(ask(first)), asyncio.create_task(ask(decode))
        await until(lambda: first.total("num_prefill_inflight_queue_reqs") == 1)
        first.process.send_signal(signal.SIGKILL)
        status, text = await failed
        await asyncio.gather(lost, return_exceptions=True)
    assert status == 500
    assert "Lost connection with prefill instance" in text
    first.process.wait(30)
    second = type(pair)(start("prefill", bootstrap_port=first.bootstrap_port), decode)
    _, reply = await second.post(second.body(ASK.format(token="again", n=2)))
    assert arguments(reply[1]) == [{"token": "again", "n": 2}]


async def test_api_key(start):
    sim = start("null", "--api-key", "secret")
    assert (await get(sim.url + "/health"))[0] == 200
    assert (await get(sim.url + "/v1/models"))[0] == 401
    headers = {"Authorization": "Bearer secret"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(sim.url + "/v1/models") as response:
        assert response.status == 200
