"""Live-traffic counters: the judge alone, and on the real chat serving of both releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_guard.live import judge

SCHEMA = {
    "type": "object",
    "properties": {"restaurant": {"type": "string", "pattern": "(a+)+$"}, "guests": {"type": "integer"}},
    "required": ["restaurant"],
    "additionalProperties": False,
}
TOOLS = {"book_table": SCHEMA}
DSML = "｜DSML｜"


def outcome(*calls: tuple[str, str], content: str = "", cut: bool = False) -> str:
    made = [judge.Call(name, arguments) for name, arguments in calls]
    return judge.judge(judge.Completion(content, made, cut), TOOLS, judge.matches_schema)


GOOD = ("book_table", '{"restaurant": "Luna", "guests": 4}')


@pytest.mark.parametrize(
    ("expected", "calls", "content"),
    [
        ("none", [], "All tables are taken."),
        ("valid", [GOOD], ""),
        ("valid", [GOOD, GOOD], "Booking."),
        ("invalid_json", [("book_table", '{"restaurant": "Lu')], ""),
        ("invalid_json", [("book_table", '["Luna"]')], ""),
        ("invalid_json", [("book_table", "")], ""),
        ("unknown_tool", [("book_tabel", '{"restaurant": "Luna"}')], ""),
        ("schema", [("book_table", '{"guests": 4}')], ""),
        ("schema", [("book_table", '{"restaurant": "Luna", "guests": "four"}')], ""),
        ("schema", [("book_table", '{"restaurant": "Luna", "quests": 4}')], ""),
        ("invalid_json", [GOOD, ("book_table", "{")], ""),
        ("leaked", [GOOD], f"<{DSML}tool_calls>"),
        ("leaked", [], "a </|DSML|parameter> b"),
        ("leaked", [("book_table", json.dumps({"restaurant": f"Luna</{DSML}parameter>"}))], ""),
        ("leaked", [], '<invoke name="book_table"> <parameter name="guests" string="false">4'),
        ("leaked", [], "done<｜end▁of▁sentence｜>"),
        ("loop", [], "the table is booked, " * 40),
        ("loop", [("book_table", '{"restaurant": "' + "Luna " * 80)], ""),
        ("none", [], "=" * 400),
        ("none", [], "| a | b |\n|---|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(60))),
        ("none", [], "\n" * 900),
    ],
)
def test_outcomes(expected: str, calls: list[tuple[str, str]], content: str) -> None:
    assert outcome(*calls, content=content) == expected


def test_the_token_limit_is_no_damage() -> None:
    assert outcome(("book_table", '{"restaurant": "Lu'), cut=True) == "none"
    assert outcome(content=f"<{DSML}inv", cut=True) == "leaked"


def test_the_worst_outcome_counts() -> None:
    assert judge.worst(["valid", "schema", "unknown_tool"]) == "unknown_tool"
    assert judge.worst([]) == "none"


@given(st.text(max_size=400))
def test_any_text_is_judged(text: str) -> None:
    assert outcome(("book_table", text), content=text) in judge.OUTCOMES


@given(st.dictionaries(st.sampled_from(["restaurant"]), st.text(alphabet="abc xyz", max_size=30), min_size=1))
def test_arguments_that_match_are_valid(arguments: dict[str, str]) -> None:
    assert outcome(("book_table", json.dumps(arguments))) == "valid"


def test_a_clients_pattern_cannot_stall_the_server() -> None:
    """(a+)+$ against a long string takes minutes when it is applied; it is not."""
    assert outcome(("book_table", json.dumps({"restaurant": "a" * 5000 + "!"}))) in ("valid", "loop")


def doubling(levels: int) -> dict[str, Any]:
    """A schema of `levels` short lines that takes 2 ** levels steps."""
    links = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**links, f"a{levels}": {"type": "object"}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (doubling(200), {}),
        ({"properties": {"a": {"items": {"enum": [[n] * 9 for n in range(9000)]}}}}, {"a": [[8999] * 9] * 9000}),
        ({"properties": {"a": {"uniqueItems": True}}}, {"a": [{"x": n} for n in range(9000)]}),
    ],
    ids=["references that double", "a long enum", "unique items"],
)
def test_a_schema_that_would_take_for_ever_blames_nobody(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert judge.matches_schema(schema, arguments)


def test_a_schema_that_took_too_long_does_not_spoil_the_next() -> None:
    assert judge.matches_schema(doubling(200), {})
    assert not judge.matches_schema({"required": ["b"]}, {})


@pytest.mark.parametrize(
    ("schema", "matches"),
    [
        ({"$ref": "http://192.0.2.1/schema.json"}, True),
        ({"type": "nonsense"}, True),
        ({"type": "array"}, False),
        ({"properties": {"a": {"enum": [1, 2]}}}, True),
    ],
)
def test_a_schema_that_cannot_be_applied_blames_nobody(schema: dict[str, Any], matches: bool) -> None:
    assert judge.matches_schema(schema, {"a": 1}) is matches


@pytest.mark.parametrize(
    ("meta", "tier"),
    [
        ({"cached_tokens": 0, "cached_tokens_details": None}, "cold"),
        ({"cached_tokens": 9, "cached_tokens_details": {"device": 9, "host": 0}}, "device"),
        ({"cached_tokens": 9, "cached_tokens_details": {"device": 3, "host": 6}}, "host"),
        ({"cached_tokens": 9, "cached_tokens_details": {"device": 0, "host": 0, "storage": 9}}, "host"),
        ({"cached_tokens": 9}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_cache_tiers(meta: dict[str, Any], tier: str) -> None:
    assert judge.cache_tier(meta) == tier


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("text", "meta", "series"), [("valid", "host", "valid/host"), ("none", "cold", "none/cold")])
def test_a_completion_is_counted_and_passed_on_unchanged(
    value: Callable[..., Any], stream: bool, text: str, meta: str, series: str
) -> None:
    seen = value("counters", "shown", stream=stream, text=text, meta=meta)
    assert seen["same"]
    assert seen["counted"] == {series: 1.0, "timed": 1.0}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_tools_in_messages_are_offered_too(value: Callable[..., Any], stream: bool, tools: bool, role: str) -> None:
    """Beside those of the request, or alone."""
    seen = value("counters", "shown", stream=stream, text="valid", tools=tools, message_tools=role)
    assert seen["same"]
    assert seen["counted"] == {"valid/cold": 1.0, "timed": 1.0}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "asked", [{"tools": False}, {"choice": "none"}, {"mode": "prefill"}, {"finish": "abort"}], ids=str
)
def test_what_is_not_counted(value: Callable[..., Any], stream: bool, asked: dict[str, Any]) -> None:
    seen = value("counters", "shown", stream=stream, text="none", **asked)
    assert seen["counted"] == {"timed": 0.0}


def test_damage_shows_in_the_series(value: Callable[..., Any]) -> None:
    seen = value("counters", "shown", stream=True, text=f"Your table <|DSML|invoke is {'booked, ' * 3}")
    assert seen["counted"] == {"leaked/cold": 1.0, "timed": 1.0}


def test_an_abandoned_stream_leaves_nothing(value: Callable[..., Any]) -> None:
    assert value("counters", "abandoned") == {"counted": {"timed": 0.0}, "open": 0}


def test_all_series_exist_from_the_start(value: Callable[..., Any]) -> None:
    assert value("counters", "series_from_the_start") == 28
