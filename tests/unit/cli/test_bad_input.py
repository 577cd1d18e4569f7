"""What cannot be read: one line that says what and where, exit code 2, and JSON all the same where it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Ctl = Callable[..., Any]
Write = Callable[..., Path]

HEAD = "apiVersion: serving.dsv4.dev/v1alpha1\nkind: DSV4Deployment\n"
BAD = {
    "empty": ("", "holds no document"),
    "comment": ("# nothing\n---\n", "holds no document"),
    "no-yaml": (HEAD + "metadata: {name: [}\n", ":3:"),
    "tab": (HEAD + "metadata:\n\tname: x\n", ":4:"),
    "text": ("just text\n", "holds a str"),
    "list": ("- a\n", "holds a list"),
    "several": (HEAD + "---\n" + HEAD, "holds 2 documents"),
    "other-kind": ("apiVersion: apps/v1\nkind: Deployment\n", "has kind Deployment, apiVersion apps/v1"),
    "other-version": ("apiVersion: serving.dsv4.dev/v9\nkind: DSV4Deployment\n", "serving.dsv4.dev/v9"),
    "no-kind": ("a: 1\n", "neither kind nor apiVersion"),
    "twice": (HEAD + "kind: DSV4Deployment\n", "stands there twice"),
    "bomb": (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)),
        "values once its aliases",
    ),
    "deep": ("[" * 5000, ""),
    "tag": ("!!python/object:os.system {}\n", "not YAML"),
}
BAD_JSON = {
    "cut": ('{"kind": "DSV4Deployment"', ":1:"),
    "two": ('{"a": 1}\n{"b": 2}\n', "several documents"),
    "twice": ('{"a": 1, "a": 2}', "stands there twice"),
}
COMMANDS = (("lint", "-f"), ("render", "-f"), ("plan", "-f"))


def one_line(done: Any, *parts: str) -> None:
    assert done.code == 2, done
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("name", BAD)
def test_files(ctl: Ctl, tmp_path: Path, name: str, command: tuple[str, str]) -> None:
    path = tmp_path / "cr.yaml"
    text, part = BAD[name]
    path.write_text(text)
    done = ctl(*command, path)
    one_line(done, "cr.yaml", part)
    assert done.out == ""
    done = ctl(*command, path, "-o", "json")
    one_line(done, "cr.yaml", part)
    assert done.json is not None


@pytest.mark.parametrize("name", BAD_JSON)
def test_json_files(ctl: Ctl, tmp_path: Path, name: str) -> None:
    path = tmp_path / "cr.json"
    text, part = BAD_JSON[name]
    path.write_text(text)
    one_line(ctl("lint", "-f", path), "cr.json", part)


def test_what_is_no_text(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "cr.yaml"
    path.write_bytes(b"kind: \xff\xfe")
    one_line(ctl("lint", "-f", path), "not UTF-8")
    path.write_bytes(b"a: " + b"x" * (4 * 1024 * 1024))
    one_line(ctl("lint", "-f", path), "larger than 3 MiB")
    one_line(ctl("lint", "-f", tmp_path), "Is a directory")
    one_line(ctl("lint", "-f", tmp_path / "none.yaml"), "No such file")


@pytest.mark.parametrize("release", ["0.4.9", "9.9.9"])
def test_an_unknown_release(ctl: Ctl, spec: Any, write: Write, release: str) -> None:
    spec["engine"]["release"] = release
    path = write(spec)
    for command in COMMANDS:
        one_line(ctl(*command, path), "new.yaml", "spec.engine.release", release)
    done = ctl("lint", "-f", path, "-o", "json")
    assert done.code == 2
    assert "unknown-release" in done.rules()


def test_a_tag_without_release(ctl: Ctl, spec: Any, write: Write) -> None:
    spec["engine"]["image"] = "registry.example.com/sglang:mine"
    one_line(ctl("lint", "-f", write(spec)), "spec.engine.release")


def test_an_unknown_rule_in_allow(ctl: Ctl, spec: Any, write: Write) -> None:
    spec["policy"] = {"allow": [{"rule": "no-such-rule", "reason": "because I said so"}]}
    path = write(spec)
    for command in COMMANDS:
        one_line(ctl(*command, path), "new.yaml", "spec.policy.allow", "no-such-rule")
    done = ctl("lint", "-f", path, "-o", "json")
    assert done.code == 2
    assert "unknown-allowance" in done.rules()


def test_json_keeps_its_shape(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "cr.yaml"
    path.write_text("a: [")
    found = ctl("lint", "-f", path, "-o", "json").json["findings"]
    assert [set(finding) for finding in found] == [{"rule", "action", "path", "message", "source"}]
    assert found[0]["path"].startswith(str(path))
    assert ctl("render", "-f", path, "-o", "json").json["items"] == []
    plan = ctl("plan", "-f", path, "-o", "json").json
    assert plan["roles"] == {role: {"action": "None", "because": []} for role in ("prefill", "decode")}
    imported = ctl("import", "--prefill", path, "--decode", path, "-o", "json").json
    assert imported["deployment"] is None


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("lint",),
        ("lint", "-f"),
        ("paint",),
        ("render", "-f", "x", "-o", "text"),
        ("lint", "--file", "x"),
        ("import",),
    ],
)
def test_wrong_usage(ctl: Ctl, words: tuple[str, ...]) -> None:
    done = ctl(*words)
    one_line(done, "--help")


def test_plan_of_two_objects(ctl: Ctl, spec: Any, write: Write) -> None:
    one_line(ctl("plan", "-f", write(spec), "--from", write(spec, "old", "other")), "metadata.name")
    bad = write({"model": {}}, "bad")
    one_line(ctl("plan", "-f", write(spec), "--from", bad), "bad.yaml", "spec.model")


def test_stdin_once(ctl: Ctl) -> None:
    one_line(ctl("lint", "-f", "-", "-f", "-"), "stdin")
    one_line(ctl("import", "--prefill", "-", "--decode", "-"), "stdin")


IMPORTS = {
    "no-launch": ("echo hello sglang.launch_serverish\n", "launches no prefill"),
    "open-quote": ("python -m sglang.launch_server --a 'b\n", "never closed"),
    "open-brace": ("python -m sglang.launch_server --a ${B\n", "never closed"),
    "wrong-role": ("python -m sglang.launch_server --disaggregation-mode decode\n", "launches no prefill"),
    "number": ("42\n", "no script"),
    "flags": ('{"flags": 3}', "must be lists"),
    "roles": ('{"roles": {"aggregated": {"flags": []}}}', "has no prefill role (it has aggregated)"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_launches_that_cannot_be_read(ctl: Ctl, tmp_path: Path, name: str) -> None:
    path = tmp_path / "launch"
    text, part = IMPORTS[name]
    path.write_text(text)
    one_line(ctl("import", "--prefill", path, "--decode", path), "launch", part)


def test_import_options(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "args"
    path.write_text("--tp 8\n")
    given = ("import", "--prefill", path, "--decode", path)
    one_line(ctl(*given, "--release", "0.1.2"), "--release", "0.1.2")
    one_line(ctl(*given, "--name", "Not_A_Name"), "--name")
    one_line(ctl(*given, "--define", "x"), "--define")
    one_line(ctl(*given, "--gpus-per-node", "0"), "--gpus-per-node")
    path.with_name("env").write_text("A=1\nB\n")
    one_line(ctl(*given, "--prefill-env", path.with_name("env")), "env:2")
    several = path.with_name("many.json")
    several.write_text(yaml.safe_dump([{"id": "A", "roles": {}}, {"id": "B", "roles": {}}]))
    one_line(ctl("import", "--prefill", several, "--decode", several), "FILE#ID", "A, B")
    one_line(ctl("import", "--prefill", f"{several}#C", "--decode", several), "no entry C")
