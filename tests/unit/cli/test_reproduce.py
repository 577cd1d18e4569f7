"""soak, compare and bisect as commands of dsv4ctl: options, refusals, what they need to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
Write = Callable[..., Path]


@pytest.fixture
def risky(spec: dict[str, Any]) -> dict[str, Any]:
    """The incident's setting."""
    prefill = {"gpus": 4, "memory": "2000Gi"}
    return spec | {"indexK": {"dtype": "FP4"}, "hiCache": {"enabled": True}, "prefill": prefill, "decode": {"gpus": 4}}


def report(corrupted: int, sessions: int = 80, tag: str = "a") -> dict[str, Any]:
    counts = {"events": corrupted, "trials": sessions}
    load = dict.fromkeys(("corruptedSessions", "corruptedReplies", "failedReplies"), counts) | {"signatures": {}}
    return {"kind": "dsv4-soak", "version": 1, "settings": {"tag": tag}, "phases": {"load": load}, "verdict": "x"}


def test_compare(ctl: Any, tmp_path: Path) -> None:
    for name, corrupted in (("a", 18), ("b", 0), ("c", 1)):
        (tmp_path / f"{name}.json").write_text(json.dumps(report(corrupted, tag=name)))
    done = ctl("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert done.code == 1
    assert done.out.startswith("a corrupts more sessions than b: 22.5 % against 0 %")
    done = ctl("compare", tmp_path / "b.json", tmp_path / "c.json", "-o", "json")
    assert (done.code, done.json["differ"]) == (0, False)
    (tmp_path / "empty.json").write_text(json.dumps(report(0, sessions=0)))
    done = ctl("compare", tmp_path / "a.json", tmp_path / "empty.json")
    assert (done.code, done.out.splitlines()[0][:18]) == (3, "Nothing to compare")
    done = ctl("compare", tmp_path / "a.json", tmp_path / "none.json")
    assert done.code == 2
    assert "cannot be read" in done.err


def test_soak_takes_the_options_of_the_harness(ctl: Any, tmp_path: Path, unused_tcp_port: int) -> None:
    out = tmp_path / "o"
    done = ctl("soak", "--endpoint", f"http://127.0.0.1:{unused_tcp_port}", "--tag", "t", "--out", out)
    assert done.code == 3
    assert "refuses connections" in done.err
    done = ctl("soak", "--endpoint", "http://h", "--tag", "t", "--sessions", "0", "--out", out)
    assert done.code == 2
    assert "--sessions = 0" in done.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--keep",), "--keep: works with --in-cluster alone"),
        (("-n", "x"), "--namespace: works with --in-cluster alone"),
        (("--in-cluster", "--resume"), "--resume: has no meaning with --in-cluster"),
        (("--in-cluster",), "--image: the canary image is not known"),
        (("--in-cluster", "--image", "i", "--endpoint", "ftp://x"), "--endpoint"),
    ],
)
def test_soak_refuses_what_does_not_fit(ctl: Any, words: tuple[str, ...], named: str) -> None:
    done = ctl("soak", "--endpoint", "http://h", "--tag", "t", *words)
    assert done.code == 2
    assert named in done.err


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['aiohttp'] = None\n"
    code = f"{blocked}from dsv4_operator.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    words = ["soak", "--endpoint", "http://127.0.0.1:1", "--tag", "t"]
    done = subprocess.run([sys.executable, "-c", code, *words], env=ENV, text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert "pip install '.[cli,canary]'" in done.stderr
    assert "Traceback" not in done.stderr


FORBIDDEN = ("kopf", "kubernetes", "aiohttp", "jinja2", "prometheus_client", "pydantic_settings", "rich")
PROBE = """
import sys
from dsv4_operator.cli.main import main
code = main(sys.argv[1:])
assert not {name.split(".")[0] for name in sys.modules} & set(%r)
sys.exit(code)
"""


def test_plans_and_comparisons_need_the_extra_cli_alone(risky: Any, write: Write, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(report(0)))
    for words in (
        ("bisect", "-f", str(write(risky)), "--dry-run"),
        ("compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")),
    ):
        command = [sys.executable, "-c", PROBE % (FORBIDDEN,), *words]
        done = subprocess.run(command, env=ENV, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_dry_run_prints_the_plan_and_its_cost(ctl: Any, risky: Any, write: Write) -> None:
    words = ("bisect", "-f", write(risky), "--dry-run", "--safe-image", "e.example/gated:0.5.23")
    done = ctl(*words)
    assert done.code == 0
    assert "not changed: early-send: the operator turns it off wherever it exists" in done.out
    assert "free GPUs needed at a time: 8" in done.out
    found = ctl(*words, "-o", "json", "--startup-minutes", "30", "--batch-minutes", "30", "--batches", "2").json
    assert [arm["changed"] for arm in found["arms"]] == [None, "hicache", "index-k", "overlap", "topology", "image"]
    # Given, four pairs and given again with 8 GPUs, one server with 4: an hour each with one batch.
    assert found["gpuHours"]["least"] == 6 * 8 + 4
    assert found["arms"][0]["gpuHours"] == {"least": 8.0, "most": 12.0}


def test_one_factor_only(ctl: Any, risky: Any, write: Write) -> None:
    found = ctl("bisect", "-f", write(risky), "--dry-run", "-o", "json", "--factor", "hicache").json
    assert [arm["changed"] for arm in found["arms"]] == [None, "hicache"]
    assert found["leftOut"]["overlap"] == "not asked for"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--factor", "moon"), "--factor = 'moon': is none; give one of hicache"),
        (("--batches", "0"), "--batches = 0"),
        (("--factor", "early-send"), "nothing to change"),
    ],
)
def test_bisect_refuses_in_one_line(ctl: Any, risky: Any, write: Write, words: tuple[str, ...], named: str) -> None:
    done = ctl("bisect", "-f", write(risky), "--dry-run", *words)
    assert done.code == 2
    assert named in done.err


def test_a_refused_object_is_not_bisected(ctl: Any, risky: Any, write: Write) -> None:
    bad = risky | {"hiCache": {"enabled": True, "ioBackend": "Direct", "layout": "PageFirst"}}
    done = ctl("bisect", "-f", write(bad), "--dry-run")
    assert done.code == 2
    assert "hicache-layout" in done.err


def test_no_kubectl_is_said(
    ctl: Any, risky: Any, write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBECTL", raising=False)
    done = ctl("bisect", "-f", write(risky), "--out", tmp_path / "o")
    assert done.code == 2
    assert "kubectl: is not on the PATH" in done.err


def test_the_metrics_example_selects_the_pods_of_a_soak() -> None:
    monitor = yaml.safe_load((ROOT / "manifests/soak/podmonitor.yaml").read_text())
    job = yaml.safe_load((ROOT / "manifests/soak/job.yaml").read_text())
    template = job["spec"]["template"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
