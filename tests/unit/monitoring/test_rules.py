"""The rules, evaluated by promtool over situations."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_alerts(case: Case, tmp_path: Path) -> None:
    test, some = tmp_path / "test.yaml", tmp_path / "rules.yaml"
    everything = yaml.safe_load(RULES.read_text())["groups"]
    some.write_text(yaml.safe_dump({"groups": [g for g in everything if not case.groups or g["name"] in case.groups]}))
    test.write_text(yaml.safe_dump(case.document(str(some)), width=1000))
    done = promtool("test", "rules", str(test))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_somewhere_and_is_silent_in_a_near_miss() -> None:
    fired = {name for case in CASES for names in case.firing.values() for name in names}
    assert fired == set(ALERT_NAMES)
    missed = [case.name for case in CASES if not any(case.firing.values())]
    assert len(missed) > len(list(quiet()))
