"""The real ServerArgs, on a CPU that poses as a GPU: what it makes of our commands, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from matrix import ARCHITECTURES, laid_over, spec_of, specs
from refusals import RESOLVED, REWRITTEN, SOURCE
from resolving import real_parser

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.prediction import predicted
from dsv4_operator.engine.releases import DEFAULT_RELEASE, OLDEST_RECOMMENDED, Release
from dsv4_operator.engine.wheel import flags
from dsv4_operator.policy import RULES_BY_ID, evaluate, refusals

Resolved = Callable[[str, str], dict[str, dict[str, Any]]]
RELEASES = [str(DEFAULT_RELEASE), str(OLDEST_RECOMMENDED)]
sglang = pytest.mark.sglang
pytestmark = pytest.mark.timeout(2400)
"""The first test waits for the others' resolutions too, and for environments where they have to be made."""


def differences(values: dict[str, Any], wanted: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field -> (predicted, resolved) where they differ or the field is missing."""
    return {name: (value, values.get(name, "missing")) for name, value in wanted.items() if
            name not in values or values[name] != value}  # fmt: skip


def test_the_matrix_is_large_enough() -> None:
    assert len(specs()) >= 60
    for letter in ("hiCache", "overlapSchedule", "indexK", "engine", "prefill", "decode", "network"):
        assert any(letter in patch for patch in specs().values()), letter


@sglang
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("release", RELEASES)
def test_every_spec_resolves_to_what_was_predicted(release: str, architecture: str, resolved: Resolved) -> None:
    results = resolved(release, architecture)
    wrong = {}
    for name, patch in specs().items():
        for role in ENGINE_ROLES:
            result = results[f"spec|{name}|{role}"]
            if result["outcome"] != "accepted":
                wrong[f"{name}|{role}"] = result["error"]
                continue
            found = differences(result["values"], predicted(spec_of(patch), Release.parse(release), Role(role)))
            if found:
                wrong[f"{name}|{role}"] = found
    assert not wrong


@sglang
def test_a_wrong_prediction_and_a_wrong_flag_are_seen(resolved: Resolved) -> None:
    """The comparison can fail: another value, a missing field, and a command with a flag that does not exist."""
    release = str(DEFAULT_RELEASE)
    values = resolved(release, "SM100")["spec|hicache-default/Auto/FP8|prefill"]["values"]
    wanted = predicted(spec_of({"hiCache": {"enabled": True}}), DEFAULT_RELEASE, Role.PREFILL)
    assert not differences(values, wanted)
    for name in wanted:
        assert differences(values, wanted | {name: "another"}).keys() == {name}
    assert differences(values, wanted | {"no_such_field": 1}).keys() == {"no_such_field"}
    assert resolved(release, "SM100")["refused|unknown flag|prefill"]["outcome"] == "unparsed"


@sglang
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", RESOLVED, ids=[case.name for case in RESOLVED])
def test_upstream_refuses(release: str, case: Any, resolved: Resolved) -> None:
    if Release.parse(release) not in case.releases:
        return  # said in the table; the other release is in it
    result = resolved(release, case.architecture)[f"refused|{case.name}|{case.role.value}"]
    assert result["outcome"] == case.outcome, result["error"]
    assert re.search(case.says, result["error"])


@pytest.mark.parametrize("case", RESOLVED, ids=[case.name for case in RESOLVED])
def test_each_refusal_is_of_a_release_that_is_resolved(case: Any) -> None:
    assert any(Release.parse(release) in case.releases for release in RELEASES)


@sglang
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", REWRITTEN, ids=[case.name for case in REWRITTEN])
def test_upstream_takes_and_changes(release: str, case: Any, resolved: Resolved) -> None:
    result = resolved(release, "SM100")[f"rewritten|{case.name}|{case.role.value}"]
    assert result["outcome"] == "accepted", result["error"]
    assert not differences(result["values"], dict(case.values))


def patched(case: Any) -> dict[str, Any]:
    """The spec of a refused command: the same words as the role's extraArgs."""
    return laid_over(case.patch, {case.role.value: {"extraArgs": list(case.add)}}) if case.add else case.patch


@pytest.mark.parametrize("case", RESOLVED, ids=[case.name for case in RESOLVED])
def test_policy_refuses_the_same_at_admission(case: Any) -> None:
    """No rule is needed where the API itself refuses; an SM90 cannot be asked for."""
    if case.architecture == "SM90":
        return
    try:
        spec = spec_of({"engine": {"image": f"registry.example/sglang:{DEFAULT_RELEASE}"}}, patched(case))
    except InvalidSpecError:
        return
    found = refusals(evaluate(spec, resolve_images(spec, ImageDefaults(None, "c:1", "r:1"))))
    assert found, f"{case.name} would reach a GPU"
    assert case.rule in {finding.rule for finding in found} | {"owned-flag"}


def test_rules_that_are_named_exist() -> None:
    named = {case.rule for case in (*RESOLVED, *SOURCE)} - {"attention-data-divides-tensor"}
    assert named <= RULES_BY_ID.keys()


@sglang
@pytest.mark.parametrize("release", RELEASES)
def test_data_is_what_the_real_parser_has(release: str) -> None:
    """Every flag by name, destination, choices, default and whether it is required: the wheel was read rightly."""
    real, ours = real_parser(release), {flag.name: flag for flag in flags(Release.parse(release))}
    assert real.keys() == ours.keys()
    for name, flag in ours.items():
        negated = {f"--no-{spelling[2:]}" for spelling in flag.spellings} if flag.kind == "optional-switch" else set()
        choices = sorted({str(choice) for choice in flag.choices}) if flag.choices is not None else None
        assert {*flag.spellings, *negated} == set(real[name]["names"])
        assert (flag.dest, flag.takes_value, flag.required) == (
            real[name]["dest"], real[name]["takes_value"], real[name]["required"]
        ), name  # fmt: skip
        assert choices == real[name]["choices"], name
        assert flag.default in (real[name]["default"], "<computed>"), name
