"""What the classifier makes of damaged model output after each era's output parsing.

The parsers are the simulator's, which agree with recordings and sources of SGLang: ``leak`` (up to 0.5.20) returns
damaged markup as text, ``silent`` (0.5.21, 0.5.22) drops it without a word, ``token`` (0.5.23) swallows it or returns
broken arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsv4_canary.classify import classify, classify_pair, same_calls
from dsv4_canary.expect import Expectation
from dsv4_canary.reply import Reply, from_completion, join_chunks
from dsv4_engine_sim.detector import Parser, TextParser
from dsv4_engine_sim.dsml import Delta, OutputParser
from dsv4_engine_sim.tokens import parse_specials

ARGUMENTS = {"token": "zk-41-quartz-ramp", "n": 7}
EXPECTED = Expectation(tool="probe_echo", arguments=ARGUMENTS)
BLOCK = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="probe_echo">\n'
    '<｜DSML｜parameter name="token" string="true">zk-41-quartz-ramp</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">7</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
ERAS = ("leak", "silent", "token")


def parser(era: str, stream: bool) -> Parser:
    if era == "token":
        return OutputParser(thinking=False, tools=True)
    return TextParser(era=era, thinking=False, tools=["probe_echo"], stream=stream)


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    found, start = [], 0
    for size in cuts:
        found.append(text[start : start + size])
        start += size
    return [piece for piece in (*found, text[start:]) if piece]


def answer(output: str, era: str, *, stream: bool, cuts: Iterable[int] = (), finish: str = "stop") -> Reply:
    """The reply that a client of that era gets for a model's output."""
    engine = parser(era, stream)
    deltas = [engine.feed(piece) for piece in pieces(parse_specials(output), cuts)] + [engine.finish()]
    called = any(delta.calls for delta in deltas)
    reason = "tool_calls" if called and finish == "stop" else finish
    count = {"usage": {"prompt_tokens": 9, "completion_tokens": max(2, len(output) // 3)}}
    if stream:
        return join_chunks([*(_chunk(delta) for delta in deltas), _end(reason), {"choices": [], **count}])
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for piece in delta.calls:
            calls.setdefault(piece.index, [piece.name or "", ""])[1] += piece.arguments
    message = {
        "content": "".join(delta.content for delta in deltas),
        "reasoning_content": "".join(delta.reasoning for delta in deltas),
        "tool_calls": [{"function": {"name": name, "arguments": text}} for name, text in calls.values()],
    }
    return from_completion({"choices": [{"message": message, "finish_reason": reason}], **count})


def _chunk(delta: Delta) -> dict[str, Any]:
    calls = [{"index": c.index, "function": {"name": c.name, "arguments": c.arguments}} for c in delta.calls]
    return {"choices": [{"index": 0, "delta": {"content": delta.content, "tool_calls": calls}, "finish_reason": None}]}


def _end(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


CUTS = st.lists(st.integers(1, 12), max_size=60)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("before", ["", "Calling the tool now.\n\n"])
@given(cuts=CUTS)
def test_right_output_is_clean_whole_and_in_any_chunks(era: str, before: str, cuts: list[int]) -> None:
    whole = answer(before + BLOCK, era, stream=False)
    streamed = answer(before + BLOCK, era, stream=True, cuts=cuts)
    assert classify(whole, EXPECTED).signatures == ()
    assert classify(streamed, EXPECTED).signatures == ()
    assert classify_pair(streamed, whole, EXPECTED).signatures == ()


@pytest.mark.parametrize(
    ("output", "leak", "silent", "token"),
    [
        # The opening tag is garbled.
        (BLOCK.replace("<｜DSML｜tool_calls>", "<｜DSML｜tool_cals>", 1), "S1", "", ""),
        # The first invoke is garbled.
        (BLOCK.replace("｜DSML｜invoke name", "｜DSML｜invok name", 1), "S9", "S9", "S9"),
        # Cut off in a value by the token limit or by damage.
        (BLOCK[:120], "S9", "S9", "S11"),
        # No marker in the opening tag: plain text for a parser that wants the token.
        (BLOCK.replace("｜DSML｜", ""), "S7", "S7", "S7"),
        ("I will call the tool.", "S10", "S10", "S10"),
        (BLOCK.replace("quartz", "qartz"), "S15", "S15", "S15"),
        (BLOCK.replace('string="false">7', 'string="true">7'), "S14", "S14", "S14"),
        (BLOCK.replace('string="false">7', 'string="false">7]'), "S14", "S14", "S11"),
    ],
)
def test_damage_by_era(output: str, leak: str, silent: str, token: str) -> None:
    for era, wanted in (("leak", leak), ("silent", silent), ("token", token)):
        found = classify(answer(output, era, stream=False), EXPECTED).signatures
        assert (wanted in found) if wanted else not found, (era, found)


_CHARACTERS = st.one_of(
    st.sampled_from('"\\{}[]:,=<>/|｜‖ \n0179zkaramptruefalse'),
    st.characters(codec="utf-8", exclude_categories=["Cs"]),
    st.sampled_from(["<｜DSML｜", "</", "<｜end▁of▁sentence｜>", "</think>"]),
)


MARKER = "｜DSML｜"


@st.composite
def edited(draw: st.DrawFn) -> str:
    """The block with one edit: of a character, of a marker (one token), or cut off."""
    kind = draw(st.sampled_from(("delete", "insert", "replace", "swap", "cut", "marker")))
    at = draw(st.integers(1, len(BLOCK) - 1))
    match kind:
        case "delete":
            return BLOCK[:at] + BLOCK[at + 1 :]
        case "swap":
            return BLOCK[: at - 1] + BLOCK[at] + BLOCK[at - 1] + BLOCK[at + 1 :]
        case "cut":
            return BLOCK[:at]
        case "marker":
            parts = BLOCK.split(MARKER)
            lost = draw(st.integers(1, len(parts) - 1))
            return MARKER.join(parts[:lost]) + draw(st.sampled_from(("", "DSML", "||"))) + MARKER.join(parts[lost:])
        case _:
            return BLOCK[:at] + draw(_CHARACTERS) + BLOCK[at + (kind == "replace") :]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("era", ERAS)
@settings(max_examples=300)
@given(output=edited(), cuts=CUTS)
@example(output="", cuts=[])
def test_one_edit_of_the_output_is_seen_or_harmless(era: str, stream: bool, output: str, cuts: list[int]) -> None:
    """Either the client gets exactly the call that was asked for and nothing else, or there is a signature."""
    reply = answer(output, era, stream=stream, cuts=cuts)
    right = answer(BLOCK, era, stream=False)
    harmless = same_calls(reply, right) and not reply.content.strip() and not reply.reasoning
    found = classify(reply, EXPECTED)
    assert harmless or found.failed, reply
    if harmless:
        assert found.signatures == (), reply


def test_eras_differ_where_whole_and_streamed_do() -> None:
    """0.5.21: a block that never closes is dropped whole, and its closed invokes are kept when streamed."""
    output = BLOCK.removesuffix("\n</｜DSML｜tool_calls>")
    whole = answer(output, "leak", stream=False)
    assert "S9" in classify(whole, EXPECTED).signatures
    streamed = answer(BLOCK, "leak", stream=True)
    assert classify_pair(streamed, whole, EXPECTED).signatures == ("S9", "S30")


def test_pair_compares_values_and_not_layout() -> None:
    one = answer(BLOCK, "token", stream=True)
    text = json.dumps(dict(reversed(ARGUMENTS.items())), indent=2)
    other = from_completion(
        {
            "choices": [
                {
                    "message": {"tool_calls": [{"function": {"name": "probe_echo", "arguments": text}}]},
                    "finish_reason": "tool_calls",
                }
            ]
        }
    )
    assert classify_pair(one, other, EXPECTED).signatures == ()
