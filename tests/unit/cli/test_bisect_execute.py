"""The execution of a bisection: one arm at a time, torn down whatever happens, resumed where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsv4_operator.cli.bisect.execute import Bisection
from dsv4_operator.cli.bisect.factors import Setting
from dsv4_operator.cli.bisect.plan import Arm, Limits, Plan, make_plan
from dsv4_operator.cli.bisect.runner import ArmError, Load
from dsv4_operator.cli.errors import UnreadableError

GIVEN = Setting(index_k="BF16", hicache=True, overlap=True, early_send=False, pair=True, image="")
LOAD = {"sessions": 80, "rounds": 4}


def report(corrupted: int, silent: int, seed: int) -> dict[str, Any]:
    """The parts of a soak's report that count."""
    sessions = {"events": corrupted, "trials": 80 - silent}
    load = {"corruptedSessions": sessions, "failedSessions": {"events": silent, "trials": 80}, "seconds": 1.0}
    return {
        "phases": {"load": load},
        "attribution": {"engineSessions": corrupted},
        "verdict": "corrupted" if corrupted else "clean",
        "settings": {"seed": seed},
    }


class Scripted:
    """A runner whose arms are corrupted while HiCache is on; it writes down what it is told."""

    def __init__(self, *, stop_at: str | None = None, broken: str | None = None) -> None:
        self.log: list[str] = []
        self.seeds: dict[str, int] = {}
        self.stop_at = stop_at
        self.broken = broken

    @contextmanager
    def open(self, arm: Arm) -> Iterator[Scripted]:
        self.log.append(f"+{arm.name}")
        if arm.name == self.broken:
            self.log.append(f"-{arm.name}")
            raise ArmError("no GPUs are free")
        self.arm = arm
        try:
            yield self
        finally:
            self.log.append(f"-{arm.name}")

    def soak(self, load: Load) -> dict[str, Any]:
        if load.tag == self.stop_at:
            raise KeyboardInterrupt
        self.log.append(load.tag)
        self.seeds[load.tag] = load.values["seed"]
        return report(14 if self.arm.setting.hicache else 0, 0, load.values["seed"])


def plan(**limits: Any) -> Plan:
    return make_plan(GIVEN, Limits(**limits))


def test_one_arm_at_a_time_with_the_same_requests(tmp_path: Path) -> None:
    runner = Scripted()
    found = Bisection(plan(), runner, tmp_path, load=LOAD, seed=7).run()
    assert found["outcome"] == "named"
    names = ["given", "hicache-off", "index-k-fp8", "overlap-off", "topology-one-server", "given-again"]
    assert runner.log == [word for name in names for word in (f"+{name}", f"{name}-1", f"-{name}")]
    assert set(runner.seeds.values()) == {7}
    assert json.loads((tmp_path / "bisect.json").read_text()) == found
    assert found["safe"]["patch"] == {"spec": {"hiCache": {"enabled": False}}}
    assert "enabled: false" in (tmp_path / "bisect.md").read_text()


def test_an_arm_that_does_not_start_is_said_and_passed_over(tmp_path: Path) -> None:
    runner = Scripted(broken="index-k-fp8")
    found = Bisection(plan(), runner, tmp_path, load=LOAD, seed=7).run()
    rows = {row["name"]: row for row in found["arms"]}
    assert rows["index-k-fp8"]["failed"] == "no GPUs are free"
    assert "Index-K in fp8 could not be run." in found["sentence"]
    assert rows["overlap-off"]["verdict"] == "same"


def test_an_interrupt_tears_down_and_resume_goes_on(tmp_path: Path) -> None:
    first = Scripted(stop_at="index-k-fp8-1")
    found = Bisection(plan(), first, tmp_path, load=LOAD, seed=7).run()
    assert found["interrupted"]
    assert first.log[-1] == "-index-k-fp8"
    assert "Not tried: index-K in fp8" in found["sentence"]

    second = Scripted()
    again = Bisection(plan(), second, tmp_path, load=LOAD, seed=99)
    again.resume()
    found = again.run()
    assert second.log[0] == "+index-k-fp8"
    assert set(second.seeds.values()) == {7}
    assert not found["interrupted"]
    assert found["outcome"] == "named"


def test_resume_refuses_what_another_plan_left(tmp_path: Path) -> None:
    Bisection(plan(), Scripted(), tmp_path, load=LOAD, seed=7).run()
    for other in (Bisection(plan(sessions=40), Scripted(), tmp_path, load=LOAD, seed=7),):
        with pytest.raises(UnreadableError, match="other options"):
            other.resume()
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(UnreadableError, match="cannot be used"):
        Bisection(plan(), Scripted(), tmp_path, load=LOAD, seed=7).resume()


def test_a_budget_ends_it_before_it_is_passed(tmp_path: Path) -> None:
    runner = Scripted()
    found = Bisection(plan(max_gpu_hours=2.5), runner, tmp_path, load=LOAD, seed=7).run()
    # 2 GPUs, 20 + 10 minutes: an hour an arm.
    assert [word for word in runner.log if word.startswith("+")] == ["+given", "+hicache-off"]
    assert found["outcome"] == "budget"
    assert found["gpuHours"] == 2.0
    assert found["safe"]["factor"] == "hicache"
