"""Whatever stands in a file: an answer with an exit code, never a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.importer.shell import read_script
from dsv4_operator.cli.main import main

SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(), st.binary(max_size=4)
)
KEY = st.one_of(
    st.sampled_from(["model", "engine", "prefill", "replicas", "extraArgs", "env", "policy", "podTemplate", "name"]),
    st.text(max_size=4), st.integers(), st.dates(), st.booleans(),
)  # fmt: skip
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4))
HEAD = {"apiVersion": "serving.dsv4.dev/v1alpha1", "kind": "DSV4Deployment"}
GOOD: dict[str, Any] = {
    "model": {"id": "v4", "source": {"huggingFace": {"repo": "a/b"}}},
    "engine": {"image": "registry.example.com/sglang:0.5.23"},
}
FIELD = st.sampled_from(
    ["replicas", "model", "engine", "indexK", "hiCache", "prefill", "decode", "network", "router", "canary", "rollout"]
)
SHELL = st.lists(
    st.sampled_from(
        ["python -m sglang.launch_server", " ", "\n", "'", '"', "$", "${", "}", "$(", ")", "(", "A=", "A+=(", "`", "\\",
         "\\\n", "<<EOF", "EOF", ">", "&&", "|", ";", "export ", "#", "--x", "${A:-$B}", "${A[@]}", "$@", "if ",
         "bash -c ", "é", "1"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


def answer(text: str, *words: str) -> int:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        path = Path(folder) / "cr.yaml"
        path.write_text(text)
        with contextlib.redirect_stderr(io.StringIO()):
            code = main([*(str(path) if word == "FILE" else word for word in words), "-o", "json"])
        json.loads(out.getvalue())
        return code


@settings(deadline=None)
@given(VALUE)
def test_any_document(value: Any) -> None:
    assert answer(yaml.safe_dump(value), "lint", "-f", "FILE") == 2


@settings(deadline=None)
@given(VALUE)
def test_any_metadata(value: Any) -> None:
    assert answer(yaml.safe_dump({**HEAD, "metadata": value, "spec": GOOD}), "lint", "-f", "FILE") in (0, 1, 2)


@settings(deadline=None)
@given(FIELD, VALUE)
def test_any_value_of_a_field(field: str, value: Any) -> None:
    body = yaml.safe_dump({**HEAD, "metadata": {"name": "x"}, "spec": GOOD | {field: value}})
    codes = [
        answer(body, "lint", "-f", "FILE", "--assume-images"),
        answer(body, "render", "-f", "FILE", "--assume-images", "--force"),
        answer(body, "plan", "-f", "FILE"),
    ]
    assert len(set(codes)) == 1
    assert codes[0] in (0, 1, 2)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    assert answer(text, "lint", "-f", "FILE") == 2
    assert answer(text, "import", "--prefill", "FILE", "--decode", "FILE") in (0, 1, 2)


@settings(deadline=None)
@given(SHELL)
def test_any_script(text: str) -> None:
    try:
        script = read_script(text, "x.sh", {})
    except UnreadableError as error:
        assert str(error).startswith("x.sh:")
    else:
        assert all(isinstance(word, str) for launch in script.launches for word in launch.arguments)
