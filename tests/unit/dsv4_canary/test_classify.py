"""Classifier: one example per signature, no false alarm on right replies, no damage unseen."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4_canary.classify import classify
from dsv4_canary.expect import Expectation
from dsv4_canary.model import Mode, Severity
from dsv4_canary.probes import echo_probe, filler
from dsv4_canary.reply import Call, Reply, from_completion, join_chunks, parse_completion, parse_stream
from dsv4_canary.signatures import CATALOGUE

TOKEN, N = "zk-41-quartz-ramp", 7
RIGHT = json.dumps({"token": TOKEN, "n": N})
FILLER = filler("classify", 300)
EXPECTED = Expectation(
    tool="probe_echo", arguments={"token": TOKEN, "n": N}, nonces=("ab-12-copper-heron",), prompt=FILLER
)


def reply(content: str = "", arguments: str | None = None, name: str = "probe_echo", **more: Any) -> Reply:
    calls = () if arguments is None else (Call(name, arguments),)
    more.setdefault("finish_reason", "stop" if arguments is None else "tool_calls")
    more.setdefault("calls", calls)
    return Reply(content=content, **more)


BLOCK = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="probe_echo">\n<｜DSML｜parameter name="n" string="false">7'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)

EXAMPLES: list[tuple[Reply, set[str]]] = [
    (reply(BLOCK), {"S1"}),
    (reply("Calling now. <｜DSML｜inv"), {"S2"}),
    (reply("Calling now. </｜DS"), {"S2"}),
    (reply("</｜DSML｜tool_calls>"), {"S3"}),
    (reply("<‖DSML‖tool_calls>"), {"S1", "S4"}),
    (reply('<｜｜DSML｜｜invoke name="probe_echo">'), {"S1", "S4"}),
    (reply('<|DSML|invoke name="probe_echo">'), {"S1", "S4"}),
    (reply("<｜DSML｜toolcalls>"), {"S1", "S5"}),
    (reply("<｜DSML｜tool_cals>"), {"S1", "S5"}),
    (reply("<｜DSML｜invok name="), {"S2", "S5"}),
    (reply("<｜DSML｜function_calls>"), {"S1", "S6"}),
    (reply("<｜DSML｜ calls>"), {"S1", "S6"}),
    (reply('<parameter name="n">7</｜DSML｜parameter>'), {"S3", "S7"}),
    (reply('```json\n{"token":"zk-41-quartz-ramp","n":7}\n```'), {"S8"}),
    (reply(""), {"S9"}),
    (reply("I will call the tool."), {"S10"}),
    (reply(arguments='{"token":"zk-41-qua'), {"S11"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":NaN}'), {"S11"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":7,"n":7}'), {"S11"}),
    (reply(arguments="{}"), {"S12"}),
    (reply(arguments='{"arguments":{"token":"zk-41-quartz-ramp","n":7}}'), {"S13"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":"7"}'), {"S14"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":true}'), {"S14"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":7.0}'), {"S14"}),
    (reply(arguments="[7]"), {"S14"}),
    (reply(arguments='{"token":"zk-41-qartz-rmap","n":7}'), {"S15"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":8}'), {"S15"}),
    (reply(arguments='{"token":"zk-41-quartz-ramp","n":7,"x":1}'), {"S15"}),
    (reply(arguments='{"token":"zk-41-quartz-","n":7}'), {"S16"}),
    (reply(arguments=RIGHT, name="probe_ech"), {"S17"}),
    (reply(arguments=RIGHT, name="probe_echoprobe_echo"), {"S17"}),
    (reply(calls=(Call("probe_echo", RIGHT),), finish_reason="tool_calls", nameless_piece=True), {"S18"}),
    (reply(calls=(Call("probe_echo", RIGHT),), finish_reason="tool_calls", index_fault=True), {"S19"}),
    (reply(calls=(Call("probe_echo", RIGHT),) * 2, finish_reason="tool_calls"), {"S20"}),
    (reply(reasoning='so <｜DSML｜invoke name="probe_echo">'), {"S21"}),
    (reply(reasoning="the user wants a call"), {"S22"}),
    (reply("</think>Sure", RIGHT), {"S22"}),
    (reply("ok<｜end▁of▁sentence｜>", RIGHT), {"S23"}),
    (reply("<｜User｜>", RIGHT), {"S23"}),
    (reply(arguments=RIGHT, finish_reason="stop"), {"S24"}),
    (reply(finish_reason="tool_calls"), {"S9", "S24"}),
    (reply("ramp " * 200, finish_reason="length"), {"S10", "S25"}),
    (reply("one two three four five, " * 30, finish_reason="length"), {"S10", "S25"}),
    (reply("it\ufffd", RIGHT), {"S26"}),
    (reply("itâ€™s", RIGHT), {"S26"}),
    (reply("12\u4e2d34", RIGHT), {"S26"}),
    (reply(" ".join(FILLER.split()[40:75])), {"S10", "S27"}),
    (reply("ab-12-copper-heron", RIGHT), {"S28"}),
    (reply(completion_tokens=1), {"S9", "S29"}),
]


@pytest.mark.parametrize(
    ("damaged", "expected"), EXAMPLES, ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else ""
)
def test_example_has_exactly_its_signatures(damaged: Reply, expected: set[str]) -> None:
    result = classify(damaged, EXPECTED)
    assert set(result.signatures) == expected
    assert result.failed is (expected != {"S13"})
    assert result.severity is not None


def test_examples_cover_the_catalogue() -> None:
    # S30 compares two replies; S31 and S32 belong to probes that expect no call.
    covered = {name for _, names in EXAMPLES for name in names}
    assert covered == set(CATALOGUE) - {"S30", "S31", "S32"}


@pytest.mark.parametrize(
    ("damaged", "severity"),
    [
        (reply(arguments='{"token":"zk-41-qartz-rmap","n":7}'), Severity.CORRUPTION),
        (reply(arguments="{}"), Severity.CONTRACT),
        (reply(arguments='{"token":"zk', finish_reason="length"), Severity.BUDGET),
        (reply(arguments='{"token":"zk', finish_reason="tool_calls"), Severity.CONTRACT),
        (reply(arguments=RIGHT, finish_reason="length"), Severity.BUDGET),
        (reply(completion_tokens=0), Severity.CORRUPTION),
    ],
)
def test_severity(damaged: Reply, severity: Severity) -> None:
    assert classify(damaged, EXPECTED).severity is severity


def test_probe_without_call() -> None:
    silent = Expectation(mode="none", tool_choice="none")
    assert classify(reply("A plain answer."), silent).signatures == ()
    assert classify(reply(BLOCK), silent).signatures == ("S31",)
    assert "S32" in classify(reply(arguments=RIGHT), silent).signatures


# Right replies.


def test_right_reply_is_clean_in_every_form() -> None:
    for arguments in (RIGHT, '{"n":7,"token":"zk-41-quartz-ramp"}', '{ "token" : "zk-41-quartz-ramp",\n"n" : 7 }'):
        for content in ("", "\n\n", "Calling the tool now."):
            result = classify(reply(content, arguments, completion_tokens=60), EXPECTED)
            assert result.signatures == ()
            assert result.excerpt == ""
            assert not result.failed


@given(seed=st.integers(0, 2**32), cut=st.lists(st.integers(1, 9), max_size=40))
def test_right_reply_to_any_probe_is_clean_whole_and_streamed(seed: int, cut: list[int]) -> None:
    probe = echo_probe("m", Mode.STREAMED, str(seed), 50)
    arguments = json.dumps(dict(probe.expectation.arguments))
    assert classify(reply("", arguments, completion_tokens=55), probe.expectation).signatures == ()
    chunks = [_chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "probe_echo", "arguments": ""}}]})]
    rest = arguments
    for size in [*cut, len(arguments)]:
        chunks.append(_chunk({"tool_calls": [{"index": 0, "function": {"arguments": rest[:size]}}]}))
        rest = rest[size:]
    chunks.append(_chunk({}, "tool_calls"))
    assert classify(join_chunks(chunks), probe.expectation).signatures == ()


# Damage.

_CHARACTERS = st.one_of(st.sampled_from('"\\{}[]:,0179-.eE zkaramp\u00e4\u4e2d\ufffd\uff5c|<>'), st.characters())


@st.composite
def one_edit(draw: st.DrawFn, text: str) -> str:
    kind = draw(st.sampled_from(("delete", "insert", "replace", "swap")))
    at = draw(st.integers(0, len(text) - 1))
    if kind == "delete":
        return text[:at] + text[at + 1 :]
    if kind == "swap":
        return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
    char = draw(_CHARACTERS)
    return text[:at] + char + text[at + (kind == "replace") :]


def _same(text: str) -> bool:
    """The edit changed nothing that a client can see: white space outside strings."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(value == json.loads(RIGHT)) and {k: type(v) for k, v in value.items()} == {"token": str, "n": int}


@given(one_edit(RIGHT))
def test_any_edit_of_the_arguments_is_seen(arguments: str) -> None:
    assume(not _same(arguments))
    result = classify(reply("", arguments, completion_tokens=55), EXPECTED)
    assert result.failed, arguments


@given(one_edit("probe_echo"))
def test_any_edit_of_the_name_is_seen(name: str) -> None:
    assume(name != "probe_echo")
    assert "S17" in classify(reply("", RIGHT, name), EXPECTED).signatures


@given(st.text(max_size=300))
def test_any_text_without_a_call_fails(content: str) -> None:
    assert classify(reply(content), EXPECTED).failed


# Robustness.

KEYS = (
    "choices",
    "message",
    "delta",
    "content",
    "reasoning_content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "index",
    "usage",
    "error",
    "code",
    "prompt_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "finish_reason",
    "object",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=5),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(JSON)
def test_any_json_is_classified(value: Any) -> None:
    classify(from_completion(value), EXPECTED)
    classify(join_chunks([value]), EXPECTED)
    classify(from_completion({"choices": [{"message": value, "finish_reason": value}], "usage": value}), EXPECTED)
    classify(join_chunks([{"choices": [{"delta": {"tool_calls": [value, {"function": value}]}}]}]), EXPECTED)


def test_random_bytes_never_crash() -> None:
    rng = random.Random(20260101)
    alphabet = [
        b"data:",
        b"\n",
        b"{",
        b"}",
        b'"',
        "｜DSML｜".encode(),
        b"<",
        b">",
        b"[",
        b"]",
        b":",
        b",",
        b"\xff",
        b"\xed\xa0\x80",
    ]
    for _ in range(5_000):
        data = b"".join(
            rng.choice(alphabet) if rng.random() < 0.7 else rng.randbytes(3) for _ in range(rng.randrange(40))
        )
        classify(parse_completion(data), EXPECTED)
        classify(parse_stream(data), EXPECTED)
        classify(Reply(content=data.decode("utf-8", "surrogateescape"), reasoning=data.decode("latin-1")), EXPECTED)


@pytest.mark.parametrize(
    "text", ["a" * 65536, "<" * 65536, "{" * 65536, "```{" * 16000, "<｜DSML｜" * 9000, "｜" * 65536]
)
def test_long_hostile_text_is_classified(text: str) -> None:
    assert classify(reply(text, finish_reason="length"), EXPECTED).failed


# Evidence.


def test_excerpt_masks_foreign_words_and_keeps_the_probe() -> None:
    secret = "patient Miller owes 4711 Euro, zk-41-qartz-ramp"
    result = classify(reply(secret, '{"token":"my password is hunter2","n":7}'), EXPECTED)
    for word in ("patient", "Miller", "4711", "Euro", "password", "hunter2", "owes"):
        assert word not in result.excerpt
    assert "zk-41-qartz-ramp" in result.excerpt
    assert '"n":7' in result.excerpt


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_excerpt_is_bounded_and_printable(content: str, arguments: str) -> None:
    result = classify(reply(content, arguments), EXPECTED)
    assert len(result.excerpt) <= 200
    assert result.excerpt.isprintable()


# Streams.


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _piece(index: Any, arguments: str, name: str | None = None) -> dict[str, Any]:
    return _chunk({"tool_calls": [{"index": index, "function": {"name": name, "arguments": arguments}}]})


@pytest.mark.parametrize(
    ("pieces", "signature"),
    [
        ([_piece(0, RIGHT)], "S18"),
        ([_piece(0, RIGHT, "probe_echo"), _piece(0, RIGHT, "probe_echo")], "S19"),
        ([_piece(0, RIGHT, "probe_echo"), _piece(2, RIGHT, "probe_echo")], "S19"),
        ([_piece(1, RIGHT, "probe_echo")], "S19"),
        ([_piece(None, RIGHT, "probe_echo")], "S19"),
        ([_piece(0, RIGHT, "probe_echo"), _piece(1, RIGHT, "probe_echo")], "S20"),
    ],
)
def test_stream_faults(pieces: list[dict[str, Any]], signature: str) -> None:
    joined = join_chunks([*pieces, _chunk({}, "tool_calls")])
    assert signature in classify(joined, EXPECTED).signatures


def test_stream_usage_error_and_end() -> None:
    lines = [
        _chunk({"role": "assistant", "content": "o"}),
        _chunk({"content": "k"}, "stop"),
        {
            "choices": [],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
        },
    ]
    data = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
    joined = parse_stream((data + "data: [DONE]\n\n").encode())
    assert (joined.content, joined.finish_reason, joined.complete) == ("ok", "stop", True)
    assert (joined.prompt_tokens, joined.completion_tokens, joined.cached_tokens) == (9, 2, 4)
    assert parse_stream(f"data: {json.dumps(lines[0])}\n\n".encode()).complete is False
    assert parse_stream(b'data: {"error": {"code": 500, "message": "x"}}\n\n').error == "500"


def test_expectation_file() -> None:
    raw = {"mode": "call", "tool": "probe_echo", "arguments": {"token": TOKEN, "n": N}, "nonces": ["x"], "prompt": "p"}
    read = Expectation.from_json(raw)
    assert (read.tool, read.arguments, read.nonces, read.tool_choice) == (
        "probe_echo",
        raw["arguments"],
        ("x",),
        "auto",
    )
    assert classify(reply("", RIGHT), read).signatures == ()
    assert Expectation.from_json({"mode": "none", "toolChoice": "none"}).tool_choice == "none"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"mode": "maybe"}, "mode"),
        ({"mode": "call"}, "tool"),
        ({"tool": 3}, "tool"),
        ({"tool": "t", "arguments": [1]}, "arguments"),
        ({"tool": "t", "nonces": "x"}, "nonces"),
    ],
)
def test_wrong_expectation_names_the_field(raw: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} = "):
        Expectation.from_json(raw)
