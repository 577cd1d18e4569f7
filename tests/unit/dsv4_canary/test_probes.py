"""Probes and rotation: what is asked, and of whom."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.model import Mode
from dsv4_canary.probes import echo_probe, filler, fresh_nonce, fresh_room
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


def test_peers_rotate_untried_first() -> None:
    rotation = Rotation("run", random.Random(1))
    peers = ["a", "b", "c"]
    seen = []
    for now in range(6):
        first = rotation.order(peers)[0]
        seen.append(first)
        rotation.tried(first, float(now))
    assert sorted(seen[:3]) == peers
    assert seen[:3] == seen[3:]
    assert rotation.order([*peers, "new"])[0] == "new"
    firsts = {Rotation("run", random.Random(i)).order(peers)[0] for i in range(50)}
    assert firsts == set(peers)


def test_prefix_and_mode_cycle_covers_all_four() -> None:
    rotation = Rotation("run", random.Random(1))
    plans = [rotation.plan("a", None) for _ in range(8)]
    kinds = {(plan.mode, index % 2 == 1) for index, plan in enumerate(plans)}
    assert len(kinds) == 4
    assert plans[0].seed == plans[1].seed != plans[2].seed == plans[3].seed
    assert rotation.plan("a", Mode.STREAMED).mode is Mode.STREAMED
    last = rotation.plan("a", None).seed
    rotation.plan("a", None)
    rotation.fresh_prefix("a")
    assert rotation.plan("a", None).seed != last


def test_delays() -> None:
    rotation = Rotation("run", random.Random(1))
    steady = {"became_ready": False, "conclusive": True, "interval": 30.0}
    for _ in range(100):
        assert 27 <= rotation.delay(ready=True, failing=False, **steady) <= 33  # type: ignore[arg-type]
        assert 9 <= rotation.delay(ready=True, failing=True, **steady) <= 11  # type: ignore[arg-type]
        assert 9 <= rotation.delay(ready=False, failing=True, **steady) <= 11  # type: ignore[arg-type]
        assert rotation.delay(ready=False, failing=False, **steady) == 0  # type: ignore[arg-type]
        waiting = rotation.delay(ready=False, became_ready=False, failing=False, conclusive=False, interval=30.0)
        assert 0.9 <= waiting <= 1.1
        spread = rotation.delay(ready=True, became_ready=True, failing=False, conclusive=True, interval=30.0)
        assert 9 <= spread <= 30
        short = rotation.delay(ready=False, became_ready=False, failing=True, conclusive=True, interval=1.0)
        assert short >= 0.9
