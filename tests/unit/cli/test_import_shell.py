"""Launches in every form that people have them in, read into flags and environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_operator.api.constants import Role
from dsv4_operator.cli.importer.arguments import split_arguments
from dsv4_operator.cli.importer.launch import FlagUse
from dsv4_operator.cli.importer.shell import read_script
from dsv4_operator.cli.importer.sources import read_env, read_launch

Ctl = Callable[..., Any]
RUN = "python3 -m sglang.launch_server"

SCRIPTS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "plain": (f"{RUN} --tp 8 --x", ["--tp", "8", "--x"], {}),
    "continued": (f"{RUN} \\\n  --tp 8 \\\n  --dp 4\n", ["--tp", "8", "--dp", "4"], {}),
    "crlf": (f"{RUN} \\\r\n  --tp 8\r\n", ["--tp", "8"], {}),
    "comment": (f"# {RUN} --no\n{RUN} --a#b # --c\n", ["--a#b"], {}),
    "quotes": (f"""{RUN} --a 'x "y"' --b "p 'q'" --c x\\ y""", ["--a", 'x "y"', "--b", "p 'q'", "--c", "x y"], {}),
    "json": (f"""{RUN} --a '{{"b": [1, 2]}}'""", ["--a", '{"b": [1, 2]}'], {}),
    "empty-word": (f'{RUN} --a ""', ["--a", ""], {}),
    "variable": (f"A=8\n{RUN} --tp $A --m ${{A}}b", ["--tp", "8", "--m", "8b"], {}),
    "default": (f"{RUN} --tp ${{TP:-8}} --m ${{M:-/data/$X}}", ["--tp", "8", "--m", "/data/<$X>"], {}),
    "default-unused": (f"TP=4\n{RUN} --tp ${{TP:-8}}", ["--tp", "4"], {}),
    "default-kept": (f": ${{TP:=8}}\n{RUN} --tp $TP", ["--tp", "8"], {}),
    "alternative": (f"A=1\n{RUN} ${{A:+--x}} ${{B:+--y}}", ["--x"], {}),
    "unset": (f'{RUN} --tp $TP --b "$B"', ["--tp", "<$TP>", "--b", "<$B>"], {}),
    "empty": (f"A=\n{RUN} $A --tp 8", ["--tp", "8"], {}),
    "split": (f'A="--tp 8"\n{RUN} $A "$A"', ["--tp", "8", "--tp 8"], {}),
    "appended": (f'A="--tp 8"\nA+=" --dp 4"\nA="$A --x"\n{RUN} $A', ["--tp", "8", "--dp", "4", "--x"], {}),
    "array": (f'A=(--tp 8 "b c")\nA+=(--x)\n{RUN} "${{A[@]}}" ${{A}}', ["--tp", "8", "b c", "--x", "--tp"], {}),
    "array-lines": (f'A=(\n  --tp 8 # eight\n  --x\n)\n{RUN} "${{A[@]}}"', ["--tp", "8", "--x"], {}),
    "positional": (f'{RUN} --rank $1 "$@" --n $#', ["--rank", "<$1>", "--n", "<$#>"], {}),
    "command": (f"{RUN} --a $(hostname -i | head -1):1", ["--a", "<output of hostname -i | head -1>:1"], {}),
    "backtick": (f"{RUN} --a `hostname`", ["--a", "<output of hostname>"], {}),
    "pattern": (f"{RUN} --a ${{X%%.*}}", ["--a", "<$X>"], {}),
    "export": (f"export A=1 B='2 3'\nC=4\nexport C\nD=5\n{RUN} --x", ["--x"], {"A": "1", "B": "2 3", "C": "4"}),
    "declare": (f"declare -x A=1\ndeclare B=2\n{RUN} --x", ["--x"], {"A": "1"}),
    "prefix": (f"A=1 B=2 {RUN} --x", ["--x"], {"A": "1", "B": "2"}),
    "env": (f"env -u C A=1 {RUN} --x", ["--x"], {"A": "1"}),
    "exec": (f"exec numactl -N 0 {RUN} --x", ["--x"], {}),
    "redirected": (f"{RUN} --x > a.log 2>&1 &\n", ["--x"], {}),
    "piped": (f"{RUN} --x 2>&1 | tee log", ["--x"], {}),
    "nohup": (f"nohup {RUN} --x &>/dev/null &", ["--x"], {}),
    "and": (f"cd /x && {RUN} --x; echo done", ["--x"], {}),
    "subshell": (f"(cd /x; {RUN} --x)", ["--x"], {}),
    "function": (f'go() {{\n  {RUN} --x "$@"\n}}\ngo', ["--x"], {}),
    "heredoc": (f"cat > c <<'EOF'\n{RUN} --no 'text\nEOF\n{RUN} --x", ["--x"], {}),
    "docker": (
        f"docker run --gpus all -e A=1 --env B=2 --env=C=3 -e HF_TOKEN image:tag {RUN} --x",
        ["--x"],
        {"A": "1", "B": "2", "C": "3"},
    ),
    "nested": (f"export A=1\nssh host \"B=2 {RUN} --x 'y z'\"", ["--x", "y z"], {"A": "1", "B": "2"}),
    "file": ("python /opt/sglang/launch_server.py --x", ["--x"], {}),
    "dynamo": ("python3 -m dynamo.sglang --x", ["--x"], {}),
    "serve": ("sglang serve --x", ["--x"], {}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    text, arguments, env = SCRIPTS[name]
    (launch,) = read_script(text, "x.sh", {}).launches
    assert launch.arguments == arguments
    assert launch.env == env


def test_variables_from_outside() -> None:
    script = f"{RUN} --m $MODEL --n ${{MODEL:-other}}"
    (launch,) = read_script(script, "x.sh", {"MODEL": "mine"}).launches
    assert launch.arguments == ["--m", "mine", "--n", "mine"]


def test_branches_are_reported() -> None:
    script = f"case $R in\n  a) X=1 ;;\n  b) X=2 ;;\nesac\n[ -n $Y ] && X=3\nfor i in 1 2; do {RUN} --x $X; done\n"
    found = read_script(script, "x.sh", {})
    assert [launch.arguments for launch in found.launches] == [["--x", "3"]]
    assert sorted(set(found.branches)) == [1, 5, 6]


def test_splitting_arguments() -> None:
    words = ["stray", "--a", "1", "--b=x=y", "--c", "-1", "-.5", "--d", "--e", "p", "q"]
    flags, stray = split_arguments(words)
    assert stray == ["stray"]
    assert flags == [
        FlagUse("--a", ("1",)),
        FlagUse("--b", ("x=y",)),
        FlagUse("--c", ("-1", "-.5")),
        FlagUse("--d"),
        FlagUse("--e", ("p", "q")),
    ]


FORMS = {
    "args.txt": "--tp 8 \\\n  # comment\n  --x 'a b'\n",
    "args.json": '["--tp", "8", "--x", "a b"]',
    "args.yaml": "- --tp\n- 8\n- --x\n- a b\n",
    "config.yaml": "tp: 8\nx: a b\noff: false\nnothing: null\n",
    "role.json": '{"flags": [["--tp", "8"], ["--x", "a b"]], "env": [["A", "1"]]}',
    "role-map.json": '{"flags": [["--tp", 8], ["--x", ["a b"]]], "env": {"A": 1}}',
    "entry.json": '{"roles": {"prefill (main)": {"flags": [["--tp", "8"], ["--x", "a b"]], "env": [["A", 1]]}}}',
    "script.sh": f"A=1 {RUN} --tp 8 --x 'a b'",
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(FORMS[name])
    launch = read_launch(str(path), Role.PREFILL, {})
    assert launch.flags == [FlagUse("--tp", ("8",)), FlagUse("--x", ("a b",))]
    assert launch.notes == []
    assert launch.env in ({}, {"A": "1"})


def test_a_config_file_is_read_in_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tp-size: 4\nenable_metrics: true\ncuda-graph-bs-decode: [1, 2]\njson: {a: 1}\n")
    (tmp_path / "p.sh").write_text(f"{RUN} --config c.yaml --tp-size 8\n")
    launch = read_launch(str(tmp_path / "p.sh"), Role.PREFILL, {})
    assert launch.flags == [
        FlagUse("--enable-metrics"),
        FlagUse("--cuda-graph-bs-decode", ("1", "2")),
        FlagUse("--json", ('{"a": 1}',)),
        FlagUse("--tp-size", ("8",)),
    ]
    (tmp_path / "p.sh").write_text(f"{RUN} --config missing.yaml\n")
    (note,) = read_launch(str(tmp_path / "p.sh"), Role.PREFILL, {}).notes
    assert note.rule == "import-placeholder"


def test_env_files(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# comment\n\nA=1\nexport B='2 3'\nC=x=y\n")
    assert read_env(str(path)) == {"A": "1", "B": "2 3", "C": "x=y"}


def test_both_roles_of_one_script(ctl: Ctl) -> None:
    path = Path(__file__).with_name("scripts") / "pair.sh"
    done = ctl("import", "--prefill", path, "--decode", path, "-v", "--name", "pair")
    golden = Path(__file__).with_name("golden") / "pair.txt"
    said = f"exit code {done.code}\n\n{done.out}\n{done.err}".replace(str(path), "pair.sh")
    assert said == golden.read_text()
