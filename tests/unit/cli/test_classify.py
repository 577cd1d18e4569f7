"""dsv4ctl classify: every form of a reply, what it prints, and one line for what cannot be read."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv4_canary.signatures import CATALOGUE

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = '{"token":"zk-41-quartz-ramp","n":7}'
EXPECT = {"mode": "call", "tool": "probe_echo", "arguments": {"token": "zk-41-quartz-ramp", "n": 7}}


def completion(arguments: str = ARGUMENTS, content: str | None = None, finish: str = "tool_calls") -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "probe_echo", "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def chunks(arguments: str = ARGUMENTS) -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    first = {"index": 0, "id": "call_1", "function": {"name": "probe_echo", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": arguments[at : at + 9]}} for at in range(0, len(arguments), 9)]
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"tool_calls": [piece]}) for piece in (first, *rest)),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 30}},
    ]


Ask = Callable[..., Any]


@pytest.fixture
def ask(ctl: Any, tmp_path: Path) -> Ask:
    """Classifies a reply given as text, bytes or JSON."""

    def run(reply: Any, *words: str, expect: Any = EXPECT, name: str = "reply.json") -> Any:
        path, wanted = tmp_path / name, tmp_path / "expect.json"
        data = reply if isinstance(reply, bytes) else (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        path.write_bytes(data)
        wanted.write_text(expect if isinstance(expect, str) else json.dumps(expect))
        return ctl("classify", "--reply", path, "--expect", wanted, *words)

    return run


FORMS = {
    "whole": lambda a: json.dumps(completion(a)),
    "whole, laid out": lambda a: json.dumps(completion(a), indent=2),
    "whole, with a byte order mark": lambda a: "\ufeff" + json.dumps(completion(a)),
    "JSON lines": lambda a: "\n".join(json.dumps(chunk) for chunk in chunks(a)),
    "list of chunks": lambda a: json.dumps(chunks(a)),
    "event stream": lambda a: (
        ": comment\n\n" + "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks(a)) + "data: [DONE]\n\n"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_reply(ask: Ask, form: str) -> None:
    done = ask(FORMS[form](ARGUMENTS), "-o", "json")
    assert (done.code, done.json, done.err) == (0, {"signatures": [], "severity": None}, "")
    done = ask(FORMS[form](ARGUMENTS.replace("quartz", "qartz")), "-o", "json")
    assert (done.code, done.json) == (1, {"signatures": ["S15"], "severity": "corruption"})


def test_for_people(ask: Ask) -> None:
    done = ask(completion(ARGUMENTS.replace("quartz", "qartz"), "<｜DSML｜function_calls>"))
    assert done.code == 1
    for name in ("S1", "S6", "S15"):
        assert f"{name} {CATALOGUE[name].severity.value}: the tool call {CATALOGUE[name].meaning}" in done.out
        assert CATALOGUE[name].accuses in done.out
    assert "markup: V3.2" in done.out
    assert "zk-41-qartz-ramp" in done.out
    assert done.out.splitlines()[-1].endswith("reply.json: corruption (S1, S6, S15)")
    assert ask(completion()).out.endswith("reply.json: clean\n")


def test_warning_is_said_to_be_one(ask: Ask) -> None:
    done = ask(completion(json.dumps({"arguments": EXPECT["arguments"]})))
    assert done.code == 1
    assert "a warning only" in done.out


def test_cut_off_stream_is_noted(ask: Ask) -> None:
    done = ask("\n".join(json.dumps(chunk) for chunk in chunks()[:-2]))
    assert done.code == 1
    assert "no finish reason" in done.out


def test_foreign_words_are_masked(ask: Ask) -> None:
    done = ask(completion(content="Mrs Miller owes 4711 Euro"))
    assert done.code == 0
    done = ask(completion("{", content="Mrs Miller owes 4711 Euro"))
    assert "S11" in done.out
    assert "Miller" not in done.out


def test_bytes_that_are_no_text_are_damage(ask: Ask) -> None:
    broken = json.dumps(completion(content="x")).encode().replace(b'"x"', b'"\xff\xfe"')
    assert ask(broken, "-o", "json").json == {"signatures": ["S26"], "severity": "corruption"}


def test_compares_with_a_whole_reply(ask: Ask, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    stream = "\n".join(json.dumps(chunk) for chunk in chunks())
    whole.write_text(json.dumps(completion()))
    assert ask(stream, "--whole", str(whole)).code == 0
    whole.write_text(json.dumps(completion(ARGUMENTS.replace("7", "8"))))
    assert ask(stream, "--whole", str(whole), "-o", "json").json["signatures"] == ["S15", "S30"]


def test_other_modes(ask: Ask) -> None:
    text = {"choices": [{"message": {"content": "It is <｜DSML｜tool_calls>"}, "finish_reason": "stop"}]}
    found = ask(text, "-o", "json", expect={"mode": "none", "toolChoice": "none"}).json
    assert found["signatures"] == ["S31"]
    assert ask(completion(), "-o", "json", expect={"mode": "none"}).json["signatures"] == ["S32"]
    assert ask(completion(), "-o", "json", expect="mode: none\n").json["signatures"] == ["S32"]


def test_reads_stdin(ctl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.json").write_text(json.dumps(EXPECT))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FORMS["event stream"](ARGUMENTS).encode())))
    assert ctl("classify", "--reply", "-", "--expect", tmp_path / "e.json").out == "stdin: clean\n"
    done = ctl("classify", "--reply", "-", "--expect", "-")
    assert (done.code, done.err) == (2, "dsv4ctl: stdin: can be read once; give - once\n")


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "reply.json: is empty"),
        ("{}", "reply.json: has no choices"),
        ("[]", "reply.json: has no choices"),
        ("7", "reply.json: has no choices"),
        ('{"choices": 7}', "reply.json: has no choices"),
        ('{"choices": [', "reply.json:1: not JSON"),
        (json.dumps(chunks()[0]) + '\n{"choices": [}\n', "reply.json:2: not JSON"),
        ("data: {}\n\ndata: {x}\n", "reply.json:3: not JSON"),
        ("<html>502 Bad Gateway</html>", "reply.json:1: not JSON"),
        ('{"error": {"message": "no room\\nid", "code": 400}}', "reply.json: is an error and no reply: no room id"),
        ('{"object": "error", "message": "gone"}', "reply.json: is an error and no reply: gone"),
        (json.dumps([completion(), completion()]), "reply.json: holds 2 values, whole replies among them"),
        ("[" * 100_000, "reply.json: nested too deeply"),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_unreadable_reply(ask: Ask, reply: str, said: str, output: str) -> None:
    done = ask(reply, "-o", output)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    if output == "json":
        assert done.json["signatures"] == []
        assert said in done.json["error"]


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        ("", "must hold one object"),
        ("[1]", "must hold one object"),
        ('{"tool": ', "expect.json:1:10: not JSON"),
        ({"mode": "maybe"}, "expect.json: mode = 'maybe': unknown"),
        ({"mode": "call"}, "expect.json: tool = '': must be the name"),
        ({"tool": "f", "argument": {}}, "expect.json: argument: no field of an expectation"),
    ],
)
def test_unreadable_expectation(ask: Ask, expect: Any, said: str) -> None:
    done = ask(completion(), expect=expect)
    assert done.code == 2
    assert said in done.err


def test_missing_file(ctl: Any, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(json.dumps(EXPECT))
    done = ctl("classify", "--reply", tmp_path / "none.json", "--expect", tmp_path / "e.json")
    assert done.code == 2
    assert done.err.endswith("none.json: No such file or directory\n")
    assert ctl("classify", "--reply", tmp_path / "e.json").code == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80) | st.text(st.sampled_from('data: {}[]",\n\r0choices\u2028'), max_size=60).map(str.encode))
def test_any_bytes_get_an_answer(ask: Ask, data: bytes) -> None:
    done = ask(data)
    assert done.code in (0, 1, 2)
    assert "Traceback" not in done.err


def test_page_of_signatures_says_what_the_catalogue_says() -> None:
    lines = (ROOT / "docs/signatures.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `S")]
    assert [[row[0].strip("`"), *row[1:4]] for row in rows] == [
        [s.id, s.severity.value, s.meaning, s.accuses] for s in CATALOGUE.values()
    ]
