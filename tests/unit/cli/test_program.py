"""The program as it is installed: two names, quick to start, plain when piped, coloured for people."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsv4_operator.cli.importer.launch import RULES
from localcluster import tools

Write = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "operator"), "TERM": "xterm"}


def scripts() -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The console scripts as an installer writes them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, target in scripts().items():
        module, function = target.split(":")
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def run(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], env=ENV | env, text=True, capture_output=True, check=False)


def test_both_names_are_installed() -> None:
    assert scripts()["dsv4ctl"] == scripts()["kubectl-dsv4"] == "dsv4_operator.cli.main:main"


def test_as_a_plugin_of_kubectl(installed: Path, spec: Any, write: Write) -> None:
    path = f"{installed}:{os.environ['PATH']}"
    kubectl = tools.kubectl()
    done = run(kubectl, "dsv4", "lint", "-f", write(spec), PATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ": fine" in done.stdout
    done = run(kubectl, "dsv4", "lint", "-f", write(spec | {"rollout": {"soak": {}}}), "-o", "json", PATH=path)
    assert done.returncode == 1
    assert any(finding["rule"] == "not-built" for finding in json.loads(done.stdout)["findings"])
    done = run(kubectl, "dsv4", "explain", "none", PATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("kubectl dsv4: none: no rule")
    assert "kubectl-dsv4" in run(kubectl, "plugin", "list", PATH=path).stdout


FORBIDDEN = ("rich", "kopf", "kubernetes", "aiohttp", "jinja2", "prometheus_client", "pydantic_settings", "asyncio")
PROBE = """
import sys
from dsv4_operator.cli.main import main
code = main(sys.argv[1:])
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & set(%r), loaded
sys.exit(code)
"""


@pytest.mark.parametrize("command", [("lint",), ("render",), ("plan",)], ids=lambda command: command[0])
def test_json_needs_few_modules(command: tuple[str], spec: Any, write: Write) -> None:
    done = run(sys.executable, "-c", PROBE % (FORBIDDEN,), *command, "-f", write(spec), "-o", "json")
    assert done.returncode == 0, done.stderr


def test_piped_output_needs_no_rich(spec: Any, write: Write) -> None:
    done = run(sys.executable, "-c", PROBE % (FORBIDDEN,), "lint", "-f", write(spec))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[0].count("Set    early-send  spec.prefill: ") == 1


def on_a_terminal(*words: object, **env: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    parent, child = pty.openpty()
    command = [str(word) for word in words]
    with subprocess.Popen(command, env=ENV | {"COLUMNS": "80"} | env, stdout=child, stderr=child) as process:
        os.close(child)
        text = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        process.wait()
    os.close(parent)
    return text.decode()


def test_people_get_a_table_with_colours(spec: Any, write: Write) -> None:
    ctl = (sys.executable, "-m", "dsv4_operator.cli.main")
    text = on_a_terminal(*ctl, "lint", "-f", write(spec))
    assert "\x1b[" in text
    for header in ("ACTION", "RULE", "FIELD", "WHAT"):
        assert header in text
    assert "\x1b[" not in on_a_terminal(*ctl, "lint", "-f", write(spec), NO_COLOR="1", TERM="dumb")
    assert "\x1b" not in on_a_terminal(*ctl, "lint", "-f", write(spec), "-o", "json")
    assert "ROLE" in on_a_terminal(*ctl, "plan", "-f", write(spec))


def test_a_reader_that_stops_early_is_no_error(spec: Any, write: Write) -> None:
    command = f"{sys.executable} -m dsv4_operator.cli.main render -f {write(spec)} 2>err | head -1"
    done = run("bash", "-c", f"cd {write(spec).parent} && {command}; cat err")
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr


def test_help_and_version() -> None:
    ctl = (sys.executable, "-m", "dsv4_operator.cli.main")
    assert run(*ctl, "--version").stdout.startswith("dsv4ctl ")
    for command in ("render", "lint", "plan", "explain", "import"):
        done = run(*ctl, command, "--help")
        assert done.returncode == 0
        assert "Exit codes: 0 fine, 1 refused, 2 unreadable" in done.stdout


def test_the_documentation_names_every_rule_of_import() -> None:
    page = (ROOT / "docs/dsv4ctl.md").read_text()
    rows = dict(re.findall(r"^\| (`import-[^|]*`) \| (\w+) \|", page, re.MULTILINE))
    told = {name: action for names, action in rows.items() for name in re.findall(r"import-[a-z-]+", names)}
    assert told == {name: action.value for name, (action, _) in RULES.items()}
