"""What sessions say: reproducible, prefixes as promised, and every right answer passes the classifier."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_canary.classify import classify
from dsv4_canary.reply import Call, Reply
from dsv4_canary.soak.script import Script
from dsv4_canary.soak.settings import (
    SettingsError,
    SoakSettings,
    Stream,
    Thinking,
    check,
    parse_endpoint,
    settings_from_header,
)
from dsv4_canary.soak.tools import NAMES

BASE = SoakSettings(
    endpoint="http://e", tag="t", model="m", sessions=12, rounds=5, ctx=30, shared_ctx=100, share=2, seed=3
)


def script(**changes: Any) -> Script:
    wanted = dataclasses.replace(BASE, **changes)
    return Script(wanted, "load", wanted.sessions)


def bodies(made: Script) -> list[str]:
    return [
        json.dumps(made.request(session, number).body)
        for session in range(made.sessions)
        for number in range(1, BASE.rounds + 1)
    ]


def test_same_seed_same_bytes_and_another_seed_others() -> None:
    assert bodies(script()) == bodies(script())
    assert not set(bodies(script())) & set(bodies(script(seed=4)))
    # The answer to a request does not depend on which were made before it.
    assert script().request(7, 4).body == script().request(7, 4).body


def test_each_round_extends_the_one_before() -> None:
    made = script()
    for number in range(1, BASE.rounds):
        shorter, longer = (made.request(5, n).body["messages"] for n in (number, number + 1))
        assert longer[: len(shorter)] == shorter
        added = longer[len(shorter) :]
        assert [message["role"] for message in added] == ["assistant", "tool", "user"]
        assert len(added[1]["content"].split()) == BASE.ctx + 1
        # The history holds the call that was right.
        call = added[0]["tool_calls"][0]["function"]
        assert json.loads(call["arguments"]) == made.request(5, number).expectation.arguments


def test_groups_share_a_prefix_and_every_fourth_shares_none() -> None:
    made = script()

    def head(session: int) -> tuple[str, str]:
        system, user = made.request(session, 1).body["messages"][:2]
        return system["content"], user["content"].partition("Own notes.")[0]

    groups = [head(session) for session in range(12)]
    assert groups[0] == groups[1] != groups[2] == groups[3] != groups[4] == groups[5]
    assert groups[6] != groups[7]  # the fourth group
    assert len(set(groups)) == 7
    assert len(groups[0][1].split()) == BASE.shared_ctx + 2
    own = {made.request(session, 1).body["messages"][1]["content"] for session in range(12)}
    assert len(own) == 12
    tools = {json.dumps(made.request(session, 1).body["tools"]) for session in range(12)}
    assert len(tools) == 1
    assert made.footprint_words() == 7 * BASE.shared_ctx + 12 * BASE.rounds * BASE.ctx
    # Asked again: nothing of the beginning is the same, so no cache can help.
    assert made.request(0, 1, salt="-x").body["messages"][0] != made.request(0, 1).body["messages"][0]
    assert made.request(0, 1, salt="-x").expectation.arguments == made.request(0, 1).expectation.arguments


def test_phases_share_no_text() -> None:
    baseline = Script(BASE, "baseline", 4)
    assert baseline.request(0, 1).body["messages"] != script().request(0, 1).body["messages"]


def test_streaming_and_thinking() -> None:
    mix = [script().request(s, n).stream for s, n in itertools.product(range(4), (1, 2))]
    assert mix == [False, True, True, False] * 2
    assert script(stream=Stream.ALWAYS).request(0, 1).body["stream_options"] == {"include_usage": True}
    assert not script(stream=Stream.NEVER).request(1, 1).body["stream"]
    assert "chat_template_kwargs" not in script().request(0, 1).body
    assert script(thinking=Thinking.OFF).request(0, 1).body["chat_template_kwargs"] == {"thinking": False}


def test_all_tools_are_called_and_nonces_are_unique() -> None:
    made = script(sessions=40)
    asked = [made.request(session, number).task for session in range(40) for number in range(1, 6)]
    assert {task.tool for task in asked} == set(NAMES)
    nonces = [task.nonce for task in asked if task.nonce]
    assert len(nonces) == len(set(nonces))
    first = made.request(0, 1)
    others = first.expectation.nonces
    assert not any(
        made.request(0, number).task.nonce in others for number in range(1, 6) if made.request(0, number).task.nonce
    )
    assert set(others) == {task.nonce for task in asked[5:] if task.nonce}
    empty = next(task for task in asked if task.tool == "session_ping")
    assert empty.arguments == {}


@given(seed=st.integers(0, 2**63 - 1), ascii_only=st.booleans())
@settings(max_examples=25, deadline=None)
def test_every_right_answer_is_clean_and_every_altered_one_is_not(seed: int, ascii_only: bool) -> None:
    made = script(seed=seed, sessions=3, rounds=8, ctx=5, shared_ctx=40)
    for session, number in itertools.product(range(3), range(1, 9)):
        request = made.request(session, number)
        text = json.dumps(dict(request.task.arguments), ensure_ascii=ascii_only)
        right = Reply(calls=(Call(request.task.tool, text),), finish_reason="tool_calls", completion_tokens=50)
        found = classify(right, request.expectation)
        assert found.signatures == (), (request.task, found)
        if request.task.nonce:
            altered = text.replace(request.task.nonce, request.task.nonce[:-1] + "~")
            assert altered != text
            wrong = dataclasses.replace(right, calls=(Call(request.task.tool, altered),))
            assert classify(wrong, request.expectation).failed
        # What is asked can be written in the markup, which has no escaping.
        assert "DSML" not in text
        assert "`" not in json.dumps(dict(request.task.arguments), ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/", "http://h:1"),
        ("https://h/v1/", "https://h"),
        ("http://[::1]:8/base/v1", "http://[::1]:8/base"),
    ],
)
def test_endpoint(text: str, url: str) -> None:
    assert parse_endpoint(text) == url


@pytest.mark.parametrize(
    "text", ["", "h:1", "ftp://h", "http://", "http://h:x", "http://h:0", "http://h/?q=1", "http://["]
)
def test_bad_endpoint(text: str) -> None:
    with pytest.raises(SettingsError, match="--endpoint"):
        parse_endpoint(text)


def test_endpoint_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_endpoint("http://user:hunter2@h")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        {"sessions": 0},
        {"rounds": 101},
        {"ctx": -1},
        {"timeout": float("nan")},
        {"timeout": 0.0},
        {"max_tokens": 1},
        {"tag": "../x"},
        {"tag": ""},
        {"tag": ".x"},
        {"max_failed": 101.0},
    ],
)
def test_bad_settings_name_the_option(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(SettingsError, match="--" + name.replace("_", "-")) as caught:
        check(dataclasses.replace(BASE, **bad))
    assert "\n" not in str(caught.value)


def test_settings_survive_their_json_form() -> None:
    wanted = dataclasses.replace(BASE, stream=Stream.NEVER, thinking=Thinking.ON, timeout=1.5)
    assert settings_from_header(json.loads(json.dumps(wanted.header()))) == wanted
    assert wanted.differs(wanted.header()) is None
    assert dataclasses.replace(wanted, concurrency=3).differs(wanted.header()) is None
    assert dataclasses.replace(wanted, rounds=9).differs(wanted.header()) == ("rounds", 5, 9)
    for broken in ({}, wanted.header() | {"rounds": "9"}, wanted.header() | {"stream": "x"}):
        with pytest.raises(SettingsError, match="settings"):
            settings_from_header(broken)
