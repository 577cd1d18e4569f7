"""The rules, evaluated by promtool over situations."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from monitoring.alerts import ALERT_NAMES
from monitoring.files import MANIFESTS
from promtool_cases import Case
from situations import CASES, quiet

from localcluster.prometheus import program

pytestmark = pytest.mark.processes

RULES = MANIFESTS / "rules.yaml"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program("promtool")), *arguments], capture_output=True, text=True, check=False)


def test_rules_are_well_formed() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def document_of(case: Case, folder: Path) -> dict[str, Any]:
    """The test file of a case, for the groups that it asks for, in the order of the rule file."""
    some = folder / "rules.yaml"
    groups = [g for g in yaml.safe_load(RULES.read_text())["groups"] if not case.groups or g["name"] in case.groups]
    some.write_text(yaml.safe_dump({"groups": groups}))
    return case.document(str(some), [group["name"] for group in groups])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_alerts(case: Case, tmp_path: Path) -> None:
    test = tmp_path / "test.yaml"
    test.write_text(yaml.safe_dump(document_of(case, tmp_path), width=1000))
    done = promtool("test", "rules", str(test))
    assert done.returncode == 0, done.stdout + done.stderr


SUMMARIES = {
    "a decode stands still": ["The engine stands still (generation): decode pod demo-decode-0 of llm/demo"],
    "a canary that hangs": [
        "No probe has passed for 15 minutes, and none failed: decode pod demo-decode-0 of llm/demo"
    ],
    "one link fails": ["One link fails: decode pod demo-decode-0 of llm/demo with 10.0.0.8"],
    "a tenth of the calls on reloaded prefixes is damaged": [
        "7.121% of users' tool calls on host prefixes are damaged: llm/demo"
    ],
    "a router lacks a worker": ["A router's worker list is not the wanted one: llm/demo"],
    "the router cannot start": ["No router is available, and every engine's canary passes: llm/demo"],
    "the router is down while one of two decodes loads": [
        "No router is available, and a prefill and a decode pass their canaries: llm/demo"
    ],
    "no node has room for the engines": ["Nothing has served for 90 minutes: llm/demo"],
    "the operator's series end": ["No operator leads in dsv4-system"],
    "no reloaded prefix is met": ["The canary cannot see (host): prefill pod demo-prefill-0 of llm/demo"],
}


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_read_well(name: str, tmp_path: Path) -> None:
    """As people get them, placeholders filled. promtool shows them when it expects no alert and gets one."""
    (case,) = (case for case in CASES if case.name == name)
    document = document_of(case, tmp_path)
    test = document["tests"][0]
    del test["promql_expr_test"]
    test["alert_rule_test"] = [{"alertname": case.labels["alertname"], "eval_time": f"{max(case.firing)}m"}]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(document, width=1000))
    done = promtool("test", "rules", str(path))
    shown = done.stdout + done.stderr
    assert re.findall(r'summary="([^"]+)"', shown) == SUMMARIES[name], shown
    assert "error expanding" not in shown
    assert "<no value>" not in shown


def test_every_alert_fires_somewhere_and_is_silent_in_a_near_miss() -> None:
    fired = {name for case in CASES for names in case.firing.values() for name in names}
    assert fired == set(ALERT_NAMES)
    missed = [case.name for case in CASES if not any(case.firing.values())]
    assert len(missed) > len(list(quiet()))
