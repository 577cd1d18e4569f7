"""Logprobs: upstream's format, the same bits for the same bytes, and a clear move when bytes are missing."""

import asyncio
import json
import random

import pytest

from dsv4_engine_sim.logprobs import CANDIDATES, Distribution

PROMPT = random.Random(7).choices(range(1000, 30000), k=2700)


def steps(read, count=4, **how):
    distribution = Distribution(read, **how)
    return [distribution.step() for _ in range(count)]


def moved(one, other, top=20):
    """(tokens in common among the first `top`, greatest difference of their logprobs) of two steps."""
    left, right = ({token: value for value, token in step.top[:top]} for step in (one, other))
    common = left.keys() & right.keys()
    return len(common), max((abs(left[token] - right[token]) for token in common), default=9.0)


def test_same_reading_same_bits_and_a_proper_distribution():
    first, second = steps(PROMPT), steps(list(PROMPT))
    assert first == second
    for step in first:
        assert len({token for _, token in step.top}) == CANDIDATES
        assert abs(sum(2.718281828459045**value for value, _ in step.top) - 1) < 1e-5
        assert (step.logprob, step.token) == step.top[0]
        assert step.top == tuple(sorted(step.top, key=lambda pair: (-pair[0], pair[1])))


def test_one_other_token_far_back_moves_the_list_while_the_text_often_stays():
    right = steps(PROMPT)[0]
    same = 0
    for place in range(0, 2600, 13):
        wrong = steps([*PROMPT[:place], PROMPT[place] ^ 1, *PROMPT[place + 1 :]])[0]
        common, most = moved(right, wrong)
        assert common <= 15 or most > 0.5, place
        same += wrong.token == right.token
    assert same > 100, "of 200"


def test_noise_stays_within_what_was_declared_and_follows_the_salt():
    base = steps(PROMPT, 1, noise=0.2, salt=1)[0]
    assert steps(PROMPT, 1, noise=0.2, salt=1)[0] == base
    for salt in range(2, 100):
        other = steps(PROMPT, 1, noise=0.2, salt=salt)[0]
        common, most = moved(base, other)
        assert common >= 14
        assert 0 < most <= 0.4  # two logits and the sum of all
    clean, noisy = steps(PROMPT, 1)[0], steps(PROMPT, 1, noise=0.2, salt=5)[0]
    assert clean != noisy


def test_a_word_that_was_chosen_elsewhere_is_the_most_probable():
    distribution = Distribution(PROMPT)
    step = distribution.step(4 << 32 | 1234)
    assert step.token == step.top[0][1] == 4 << 32 | 1234


# -- through a pair ----------------------------------------------------------------------------------------------------


def body(pair, **extra):
    return {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0, "max_new_tokens": 5},
        "return_logprob": True,
        "top_logprobs_num": 20,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": pair.prefill.bootstrap_port,
        "bootstrap_room": next(pair.rooms),
    } | extra


async def ask(pair, **extra):
    replies = await pair.post(body(pair, **extra), "/generate")
    assert [status for status, _ in replies] == [200, 200], replies
    return [json.loads(text) for _, text in replies]


def scores(reply):
    meta = reply["meta_info"]
    return meta["output_token_logprobs"], meta["output_top_logprobs"]


@pytest.mark.processes
async def test_format_is_upstreams_and_the_first_token_is_prefills(pair):
    prefill, decode = await ask(pair)
    meta = decode["meta_info"]
    assert len(decode["output_ids"]) == meta["completion_tokens"] == meta["output_token_logprobs_length"] == 5
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["input_token_logprobs"], meta["input_top_logprobs"]) == ([], [])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == decode["output_ids"]
    for entry, top in zip(*scores(decode), strict=True):
        assert len(top) == 20
        assert top[0] == entry
        assert entry[2] is None
        assert isinstance(entry[0], float)
    assert (prefill["output_ids"], scores(prefill)[0]) == (decode["output_ids"][:1], scores(decode)[0][:1])
    assert scores(prefill)[1] == scores(decode)[1][:1]
    again = (await ask(pair))[1]
    assert scores(again) == scores(decode)
    plain = (await ask(pair, return_logprob=False))[1]
    assert plain["output_ids"] == decode["output_ids"]
    assert "output_token_logprobs" not in plain["meta_info"]
    assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (0, None)


@pytest.mark.processes
async def test_stream_text_and_batch_carry_logprobs_too(pair):
    whole = (await ask(pair))[1]
    _, (status, text) = await pair.post(body(pair, stream=True), "/generate")
    assert status == 200
    last = [json.loads(row[6:]) for row in text.splitlines() if row.startswith("data: {")][-1]
    assert (last["output_ids"], scores(last)) == (whole["output_ids"], scores(whole))
    _, both = await ask(pair, input_ids=[PROMPT, PROMPT])
    assert [scores(item) for item in both] == [scores(whole)] * 2
    words = (await ask(pair, input_ids=None, text="once upon a time", return_text_in_logprobs=True))[1]
    assert "".join(entry[2] for entry in words["meta_info"]["output_token_logprobs"]) == words["text"]
    assert [status for status, _ in await pair.post(body(pair, top_logprobs_num=129), "/generate")] == [400, 400]


@pytest.mark.processes
async def test_lost_index_rows_move_the_list(pair):
    right = (await ask(pair))[1]
    pair.prefill.switch(bad_link="127.0.0.1")
    try:
        wrong = (await ask(pair))[1]
    finally:
        pair.prefill.switch(bad_link="")
    common = {tuple(entry[:2]) for entry in scores(right)[1][1]} & {tuple(entry[:2]) for entry in scores(wrong)[1][1]}
    assert not common
    assert scores(wrong)[0][0] == scores(right)[0][0], "the first token is prefill's own"
    assert scores((await ask(pair))[1]) == scores(right)


@pytest.mark.processes
async def test_without_a_tokenizer_only_ids_are_served_and_noise_is_declared(start, pair):
    env = {"DSV4_SIM_LOGPROB_NOISE": "0.2"}
    bare = type(pair)(start("prefill", "--skip-tokenizer-init", **env), start("decode", "--skip-tokenizer-init", **env))
    replies = [reply for _, reply in await asyncio.gather(*(ask(bare, bootstrap_room=room) for room in range(1, 7)))]
    assert all("text" not in reply for reply in replies)
    assert len({json.dumps(scores(reply)) for reply in replies}) == len(replies)
    calm = dict(map(reversed, ((entry[0], entry[1]) for entry in scores((await ask(pair))[1])[1][0])))
    for reply in replies:
        noisy = {entry[1]: entry[0] for entry in scores(reply)[1][0]}
        common = calm.keys() & noisy.keys()
        assert len(common) >= 15
        assert max(abs(calm[token] - noisy[token]) for token in common) <= 0.2
    assert [status for status, _ in await bare.post(body(bare, input_ids=None, text="x"), "/generate")] == [400, 400]


@pytest.mark.processes
async def test_ids_go_through_the_prefix_cache_and_tell_their_tier(start, pair):
    env = {"DSV4_SIM_POOL_PAGES": "24", "DSV4_SIM_LAYER_MS": "1", "DSV4_SIM_HOST_BANDWIDTH_MBPS": "64"}
    cached = type(pair)(start("prefill", "--enable-hierarchical-cache", **env), start("decode"))
    cold = (await ask(cached))[1]
    device = (await ask(cached))[1]
    for seed in (1, 2, 3):  # push it out of 24 pages
        await ask(cached, input_ids=random.Random(seed).choices(range(1000, 30000), k=2700))
    host = (await ask(cached))[1]
    details = [reply["meta_info"]["cached_tokens_details"] for reply in (cold, device, host)]
    assert details == [None, {"device": 2560, "host": 0}, {"device": 0, "host": 2560}]
    assert scores(cold) == scores(device) == scores(host)
