"""Classifier: one example per signature, no false alarm on right replies, no damage unseen."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsv4_canary.classify import classify, classify_pair
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


def test_streamed_and_whole_differ() -> None:
    right, wrong = reply(arguments=RIGHT), reply(arguments=RIGHT.replace("quartz", "qartz"))
    assert classify_pair(right, right, EXPECTED).signatures == ()
    assert classify_pair(right, wrong, EXPECTED).signatures == ("S15", "S30")
    assert classify_pair(wrong, wrong, EXPECTED).signatures == ("S15",)
    assert classify_pair(right, reply(), EXPECTED).signatures == ("S9", "S30")
    # Even where any call would do.
    free = Expectation(mode="none")
    assert classify_pair(right, wrong, free).signatures == ("S30", "S32")
    assert classify_pair(right, wrong, EXPECTED).excerpt


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BLOCK, ("V4",)),
        (BLOCK.replace("tool_calls", "function_calls"), ("V3.2",)),
        (
            BLOCK.replace("tool_calls", " calls")
            .replace("｜DSML｜invoke", "｜DSML｜ invoke")
            .replace("｜DSML｜parameter", "｜DSML｜ parameter"),
            ("V4.1",),
        ),
        ("<‖DSML‖function_calls>", ("V3.2",)),
        ("<||DSML|| calls>", ("V4.1",)),
        ("<｜DSML｜tool_calls><｜DSML｜ invoke name=", ("V4", "V4.1")),
        ('<｜DSML｜invoke name="f">', ()),
        ("plain", ()),
    ],
)
def test_dialects_are_told_apart(text: str, found: tuple[str, ...]) -> None:
    result = classify(reply(text), EXPECTED)
    assert result.dialects == found
    assert ("S6" in result.signatures) is (found not in ((), ("V4",)))


@pytest.mark.parametrize(
    ("content", "signature"),
    [
        ("DSML｜tool_calls>", "S4"),
        ("<DSML｜tool_calls>", "S4"),
        ("<｜DSL｜tool_calls>", "S5"),
        ('invoke name="probe_echo">', "S5"),
        ('parameter name="n" string="false">7', "S5"),
        ('<tool_calls>\n<invoke name="probe_echo">', "S7"),
        ("Calling it. <｜", "S2"),
        ('Calling it. <"', "S2"),
    ],
)
def test_pieces_of_markup_beside_a_right_call(content: str, signature: str) -> None:
    assert classify(reply(content, RIGHT), EXPECTED).signatures == (signature,)


@pytest.mark.parametrize(
    "content", ["I will invoke the tool.", "x < 3 -> y > 2", "The parameter n is 7.", "token | n", "名前｜値", "<3"]
)
def test_prose_beside_a_right_call_is_clean(content: str) -> None:
    assert classify(reply(content, RIGHT), EXPECTED).signatures == ()


def test_repetition_is_not_scored_where_the_model_itself_repeats() -> None:
    looped = {"content": "ramp " * 200, "finish_reason": "length"}
    assert "S25" in classify(reply(**looped, prompt_tokens=80_000), EXPECTED).signatures
    assert "S25" not in classify(reply(**looped, prompt_tokens=100_000), EXPECTED).signatures


@pytest.mark.parametrize(
    ("wanted", "got", "signature"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, "S15"),
        ({"a": [1]}, {"a": [True]}, "S15"),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, "S15"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, "S15"),
        ({"a": 2.0}, {"a": 2}, ""),
        ({"a": 2.0}, {"a": 3}, "S14"),
        ({"a": None}, {"a": ""}, "S14"),
        ({"a": "ramp"}, {"a": ""}, "S16"),
        ({"a": "zk-ramp"}, {"a": "zk-ram"}, "S15"),
    ],
)
def test_values_are_compared_as_json(wanted: dict[str, Any], got: dict[str, Any], signature: str) -> None:
    expected = Expectation(tool="f", arguments=wanted)
    found = classify(reply(arguments=json.dumps(got), name="f"), expected).signatures
    assert found == ((signature,) if signature else ())


def test_call_without_arguments() -> None:
    for text in ("{}", "", " "):
        assert classify(reply(arguments=text, name="f"), Expectation(tool="f")).signatures == ()


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


ODD_TEXTS = st.text() | st.sampled_from(
    [
        "a" * 400,
        "\ufffd",
        "\x07",
        "â€™",
        "<｜DSML｜tool_calls>",
        "</think>",
        "<｜User｜>",
        "12中34",
        FILLER,
        "ab-12-copper-heron",
    ]
)
ODD_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ODD_TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD_TEXTS, inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(ODD_TEXTS, ODD_VALUES, max_size=4), st.booleans(), st.lists(st.integers(1, 9), max_size=40))
def test_right_reply_is_clean_however_odd_its_arguments(
    arguments: dict[str, Any], escaped: bool, cut: list[int]
) -> None:
    """Markup, loops, broken characters and copies of the prompt are fine in values that were asked for."""
    expected = replace(EXPECTED, arguments=arguments)
    text = json.dumps(arguments, ensure_ascii=escaped)
    assert classify(reply("", text, completion_tokens=60), expected).signatures == ()
    chunks, rest = [_piece(0, "", "probe_echo")], text
    for size in [*cut, len(text)]:
        chunks.append(_piece(0, rest[:size]))
        rest = rest[size:]
    assert classify(join_chunks([*chunks, _chunk({}, "tool_calls")]), expected).signatures == ()


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
    readers = (
        parse_completion,
        parse_stream,
        lambda data: Reply(content=data.decode("utf-8", "surrogateescape"), reasoning=data.decode("latin-1")),
        lambda data: reply("", data.decode("utf-8", "replace"), "probe_echo"),
    )
    for number in range(100_000):
        data = b"".join(
            rng.choice(alphabet) if rng.random() < 0.7 else rng.randbytes(3) for _ in range(rng.randrange(14))
        )
        assert classify(readers[number % 4](data), EXPECTED).failed


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


WORDS = st.text(st.sampled_from("bcdfghjklmwxyäж"), min_size=6, max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=30), st.sampled_from((" ", ", ", "\n", '": "', "/")))
def test_excerpt_never_shows_a_foreign_word(words: list[str], between: str) -> None:
    """Whatever the reply holds, in text, reasoning or arguments, a word that is not the probe's is masked."""
    text = between.join(words)
    shown = classify(reply(text, json.dumps({"token": text, "n": 7}), reasoning=text), EXPECTED).excerpt
    assert shown
    assert not any(word in shown for word in words)


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
        ({"tool": "t", "toolChoice": 1}, "toolChoice"),
        ({"tool": "t", "prompt": ["x"]}, "prompt"),
    ],
)
def test_wrong_expectation_names_the_field(raw: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} = "):
        Expectation.from_json(raw)


def test_expectation_with_an_unknown_or_deep_field() -> None:
    with pytest.raises(ValueError, match=r"^argument: no field .* arguments,"):
        Expectation.from_json({"tool": "t", "argument": {}})
    deep: Any = {}
    for _ in range(60):
        deep = {"a": [deep]}
    with pytest.raises(ValueError, match="nested deeper than 50"):
        Expectation.from_json({"tool": "t", "arguments": deep})
