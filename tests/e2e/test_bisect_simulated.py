"""The bisection names a hidden fault: simulated engines, the real router, the product's own soak, planner and decider.

One trial of each fault, smaller than `images/engine-sim/tools/bisect_trials.py`, which repeats them with all factors.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsv4_operator.cli.bisect.factors import Factor

pytestmark = pytest.mark.processes

TOOLS = Path(__file__).resolve().parents[2] / "images" / "engine-sim" / "tools"


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


trials = load_tool("bisect_trials")

SURE = {"sessions": 12, "rounds": 1}
"""Faults that hit every session need few."""


@pytest.mark.parametrize(
    ("name", "factors", "load"),
    [
        ("no gate", (Factor.HICACHE, Factor.INDEX_K, Factor.EARLY_SEND), {}),
        ("no early-send guard", (Factor.HICACHE, Factor.INDEX_K, Factor.EARLY_SEND), {}),
        ("no early-send fence", (Factor.EARLY_SEND, Factor.OVERLAP, Factor.INDEX_K), SURE),
        ("wedge in the overlapped loop", (Factor.HICACHE, Factor.OVERLAP), SURE | {"timeout": 4.0}),
        ("a kernel that loses stores", (Factor.HICACHE, Factor.OVERLAP, Factor.IMAGE), SURE),
    ],
)
def test_the_hidden_fault_is_named(name: str, factors: Any, load: dict[str, Any], tmp_path: Path) -> None:
    fault = trials.FAULTS[name]
    report = trials.trial(
        replace(fault, load={**fault.load, **load}), tmp_path, 3, factors=factors, recheck=False, verbose=True
    )
    assert report["outcome"] == "named", report["sentence"]
    assert report["culprit"] == fault.culprit, report["sentence"]
    assert (tmp_path / "bisect.md").read_text().startswith("# Bisection")
