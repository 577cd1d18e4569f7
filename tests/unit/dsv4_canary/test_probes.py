"""Probes and rotation: what is asked, and of whom."""

from __future__ import annotations

import random
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.classify import classify
from dsv4_canary.model import Mode
from dsv4_canary.probes import echo_probe, filler, fresh_nonce, fresh_room, quiet_probe
from dsv4_canary.reply import Call, Reply
from dsv4_canary.rotation import Rotation


@given(st.text(max_size=20), st.integers(1, 5000))
def test_filler_is_deterministic_and_long_enough(seed: str, tokens: int) -> None:
    text = filler(seed, tokens)
    assert text == filler(seed, tokens)
    assert tokens < len(text.split()) < tokens + 120


def test_other_seed_other_text_from_the_start() -> None:
    assert len({filler(str(i), 100)[:120] for i in range(50)}) > 45
    assert len({len(filler(str(i), 100).split()) % 4 for i in range(50)}) == 4


def test_echo_probe_body() -> None:
    probe = echo_probe("model-x", Mode.FUNCTIONAL, "s", 2600, other_nonces=("a", "b"))
    body = probe.body
    assert (body["model"], body["tool_choice"], body["temperature"], body["stream"]) == ("model-x", "auto", 0, False)
    assert "ignore_eos" not in body
    assert body["max_tokens"] >= 4 * 60
    ask = body["messages"][-1]
    assert ask["role"] == "user"
    match = re.fullmatch(
        r'Call the tool probe_echo exactly once with token "([a-z]{2}-\d\d-[a-z]+-[a-z]+)" and n (\d+)\. '
        r"Do not write anything else\.",
        ask["content"],
    )
    assert match is not None
    assert probe.expectation.arguments == {"token": match[1], "n": int(match[2])}
    assert probe.expectation.nonces == ("a", "b")
    # The nonce stands in the request only: the head must be the same for the same seed, or no cache could match it.
    again = echo_probe("model-x", Mode.STREAMED, "s", 2600)
    assert body["messages"][:-1] == again.body["messages"][:-1]
    assert again.body["stream"] is True
    assert again.body["stream_options"] == {"include_usage": True}
    assert probe.nonce != again.nonce


def test_rooms_fit_and_nonces_differ() -> None:
    rooms = [fresh_room() for _ in range(1000)]
    assert len(set(rooms)) == 1000
    assert all(0 <= room < 2**63 - 1024 for room in rooms)
    assert max(rooms) > 2**61
    assert {room % 8 for room in rooms} == set(range(8))
    assert len({fresh_nonce() for _ in range(200)}) == 200


def test_rooms_visit_the_rank_they_are_meant_for() -> None:
    for ranks in (1, 2, 8, 12):
        for rank in range(ranks):
            rooms = {fresh_room(rank, ranks) for _ in range(50)}
            assert len(rooms) == 50
            assert {room % ranks for room in rooms} == {rank}
            assert all(0 <= room < 2**63 - 1024 for room in rooms)


def test_quiet_probe_offers_the_tool_and_wants_no_call() -> None:
    probe = quiet_probe("model-x", Mode.STREAMED, "s", 2600, other_nonces=("zk-41-quartz-ramp",))
    assert probe.body["tools"] == echo_probe("model-x", Mode.STREAMED, "s", 2600).body["tools"]
    assert (probe.body["tool_choice"], probe.body["temperature"], probe.expectation.mode) == ("auto", 0, "text")
    assert not classify(Reply(content="The harbour is calm today.", finish_reason="stop"), probe.expectation).failed
    call = Reply(calls=(Call("probe_echo", "{}"),), finish_reason="tool_calls")
    assert "S32" in classify(call, probe.expectation).signatures
    assert "S9" in classify(Reply(finish_reason="stop"), probe.expectation).signatures


def test_peers_rotate_untried_first() -> None:
    rotation = Rotation(random.Random(1))
    peers = ["a", "b", "c"]
    seen = []
    for now in range(6):
        first = rotation.order(peers)[0]
        seen.append(first)
        rotation.tried(first, float(now))
    assert sorted(seen[:3]) == peers
    assert seen[:3] == seen[3:]
    assert rotation.order([*peers, "new"])[0] == "new"
    firsts = {Rotation(random.Random(i)).order(peers)[0] for i in range(50)}
    assert firsts == set(peers)


def test_every_rank_is_visited_in_turn() -> None:
    rotation = Rotation(random.Random(1))
    assert sorted(rotation.rank("a", 8) for _ in range(8)) == list(range(8))
    assert {rotation.rank("b", 1) for _ in range(5)} == {0}


def test_delays() -> None:
    rotation = Rotation(random.Random(1))
    steady: Any = {"became_ready": False, "conclusive": True, "interval": 30.0}
    for _ in range(100):
        assert 27 <= rotation.delay(ready=True, hurried=False, **steady) <= 33
        assert 9 <= rotation.delay(ready=True, hurried=True, **steady) <= 11
        assert 9 <= rotation.delay(ready=False, hurried=True, **steady) <= 11
        assert rotation.delay(ready=False, hurried=False, **steady) == 0
        assert 9 <= rotation.delay(ready=False, hurried=False, proving=False, **steady) <= 11, "it waits for its guard"
        spread = rotation.delay(ready=True, became_ready=True, hurried=False, conclusive=True, interval=30.0)
        assert 9 <= spread <= 30
        short = rotation.delay(ready=False, became_ready=False, hurried=True, conclusive=True, interval=1.0)
        assert short >= 0.9


def test_a_long_wait_for_engine_or_peers_slows_down() -> None:
    rotation = Rotation(random.Random(1))
    waits = [
        rotation.delay(ready=False, became_ready=False, hurried=False, conclusive=False, interval=30.0)
        for _ in range(30)
    ]
    assert waits[0] <= 1.4
    assert 4.4 <= waits[-1] <= 5.6
    rotation.delay(ready=False, became_ready=False, hurried=False, conclusive=True, interval=30.0)
    assert rotation.delay(ready=False, became_ready=False, hurried=False, conclusive=False, interval=30.0) <= 1.4
