"""evaluate(): all findings at once, in order, allowances, and what holds for any spec."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import SAMPLES, merged, minimal, sample_objects
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.engine.images import ImageDefaults, Images, resolve_images
from dsv4_operator.engine.releases import KNOWN_RELEASES
from dsv4_operator.policy import RULES, RULES_BY_ID, Action, Finding, evaluate, refusals
from dsv4_operator.policy.evaluate import _ORDER

IMAGES = Images(engine="sglang:0.5.23", canary="canary:1", router="router:1")
Patch = dict[str, Any]
EAGLE: Patch = {"algorithm": "EAGLE", "numSteps": 3, "eagleTopk": 1, "numDraftTokens": 4}


def spec_of(patch: Patch | None = None) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal(), {"spec": patch or {}})).spec


def shown(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.action.value, f.path, f.rule) for f in findings]


# -- what is said of specs that people start from


def test_nothing_but_the_standing_rule_speaks_of_a_plain_spec() -> None:
    assert [finding.rule for finding in evaluate(spec_of(), IMAGES)] == ["early-send"]


SAID = {
    "bf16": {"early-send", "guard-required"},
    "hicache": {"early-send"},
    "single-node-8gpu": {"early-send"},
    "speculative": {"early-send"},
    "multi-node": {"early-send"},
    "rdma": {"early-send"},
}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_not_refused(path: Any) -> None:
    defaults = ImageDefaults("sglang:0.5.23", "canary:1", "router:1")
    for raw in sample_objects(path):
        spec = parse_deployment(raw).spec
        found = evaluate(spec, resolve_images(spec, defaults))
        assert refusals(found) == []
        assert {f.rule for f in found} <= SAID.get(path.stem, {"early-send", "moving-tag"})


# -- all at once, order


MANY: Patch = {
    "engine": {"extraArgs": ["--hicac", "--speculative-num-s"], "speculative": EAGLE},
    "indexK": {"dtype": "FP4"},
    "hiCache": {"enabled": True, "onCorruption": "Alert"},
    "network": {"checksum": True},
    "rollout": {"soak": {}},
    "canary": {"enabled": False},
    "prefill": {"gpus": 8, "parallelism": {"tensor": 4}},
    "accelerator": {"architecture": "SM120"},
}


def test_all_findings_at_once_refusals_first() -> None:
    found = evaluate(spec_of(MANY), Images("x:latest", None, None))
    assert shown(found) == [
        ("Refuse", "spec.engine.extraArgs[0]", "owned-flag"),
        ("Refuse", "spec.engine.extraArgs[1]", "owned-flag"),
        ("Refuse", "spec.engine.release", "unknown-release"),
        ("Refuse", "spec.indexK.dtype", "hicache-fp4-speculation"),
        ("Refuse", "spec.network.checksum", "kv-checksum"),
        ("Refuse", "spec.prefill.parallelism.tensor", "gpu-count"),
        ("Refuse", "spec.rollout.soak", "not-built"),
        ("Refuse", "spec.router.image", "image-unset"),
        ("Warn", "spec.accelerator.architecture", "sm120-experimental"),
        ("Warn", "spec.canary.enabled", "canary-disabled"),
        ("Warn", "spec.engine.image", "moving-tag"),
        ("Warn", "spec.hiCache.onCorruption", "without-effect"),
        ("Warn", "spec.indexK.dtype", "fp4-accuracy"),
        ("Warn", "spec.prefill.memory", "hicache-memory-unset"),
    ]
    assert refusals(found) == found[:8]


def test_a_flag_has_one_finding_from_the_rule_that_knows_most() -> None:
    given_args = ["--page-siz", "64", "--kv-cache-d=x", "--max-queued", "1", "--no-such", "--mem-fraction-stat=0.9"]
    found = evaluate(spec_of({"engine": {"extraArgs": given_args}}), IMAGES)
    assert shown(refusals(found)) == [
        ("Refuse", "spec.engine.extraArgs[0]", "page-size"),
        ("Refuse", "spec.engine.extraArgs[2]", "kv-cache-dtype"),
        ("Refuse", "spec.engine.extraArgs[3]", "abbreviated-flag"),
        ("Refuse", "spec.engine.extraArgs[5]", "unknown-flag"),
        ("Refuse", "spec.engine.extraArgs[6]", "owned-flag"),
    ]


def test_rules_of_an_unknown_release_are_those_of_all_releases() -> None:
    """Nothing is said of flags that nobody can know."""
    patch = {"engine": {"release": "9.9.9", "extraArgs": ["--no-such"], "env": [{"name": "SGLANG_X", "value": "1"}]}}
    found = evaluate(spec_of(patch | {"hiCache": {"enabled": True}}), IMAGES)
    assert shown(found) == [
        ("Refuse", "spec.engine.release", "unknown-release"),
        ("Warn", "spec.prefill.memory", "hicache-memory-unset"),
    ]


def test_what_users_write_is_cut_in_findings() -> None:
    """Status bounds both path and message."""
    long = "x" * 4000
    words = [f"--{long}", f"-{long}", f"--{long}"]
    overlay = {"metadata": {"labels": {f"serving.dsv4.dev/{long}": "a"}}}
    found = evaluate(spec_of({"engine": {"extraArgs": words}, "decode": {"podTemplate": overlay}}), IMAGES)
    assert {"unknown-flag", "flag-value", "duplicate-flag", "overlay-guarded-field"} <= {f.rule for f in found}
    assert all(len(f.path) <= 512 and len(f.message) <= 600 for f in found)


# -- allowances


FP4: Patch = {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}}
REASON = "tested here for a month"


def allowing(*rules: str) -> Patch:
    return {"policy": {"allow": [{"rule": rule, "reason": REASON} for rule in rules]}}


def test_an_allowance_makes_a_warning_of_a_refusal() -> None:
    refused = evaluate(spec_of(FP4), IMAGES)
    allowed = evaluate(spec_of(FP4 | allowing("hicache-fp4-speculation")), IMAGES)
    assert [f.rule for f in refusals(refused)] == ["hicache-fp4-speculation"]
    assert refusals(allowed) == []
    (warning,) = (f for f in allowed if f.rule == "hicache-fp4-speculation")
    assert warning.action is Action.WARN
    assert warning.message == f"allowed ({REASON}): {refusals(refused)[0].message}"


def test_an_allowance_reaches_its_own_rule_alone() -> None:
    found = evaluate(spec_of(FP4 | {"network": {"checksum": True}} | allowing("hicache-fp4-speculation")), IMAGES)
    assert [f.rule for f in refusals(found)] == ["kv-checksum"]


def test_the_checksum_is_taken_where_the_guard_mends_it() -> None:
    taken = {
        release
        for release in KNOWN_RELEASES
        if not any(
            f.rule == "kv-checksum"
            for f in evaluate(spec_of({"network": {"checksum": True}}), Images(f"s:{release}", "c:1", "r:1"))
        )
    }
    assert taken == {"0.5.23"}


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_bf16_is_taken_on_the_releases_of_the_guard(release: str) -> None:
    patch = {"indexK": {"dtype": "BF16"}, "hiCache": {"enabled": True}} | allowing("nixl-minimum-release")
    found = evaluate(spec_of(patch), Images(f"sglang-dsv4:{release}", "canary:1", "router:1"))
    assert refusals(found) == []
    assert "guard-required" in {f.rule for f in found}


ALLOWABLE = {
    "bf16-model",
    "dummy-weights",
    "duplicate-flag",
    "guard-unchecked",
    "hicache-deadlock",
    "hicache-fp4-speculation",
    "hicache-memory",
    "hicache-speculation",
    "hicache-storage",
    "hisparse",
    "nixl-device-conflict",
    "nixl-minimum-release",
    "retraction-backup",
    "role-kv-mismatch",
    "test-variable",
    "unknown-flag",
}
"""Refusals that can be lifted: what runs, and may corrupt, hang or be slower than thought."""


def test_which_refusals_can_be_allowed() -> None:
    assert {rule.id for rule in RULES if rule.action is Action.REFUSE and rule.allowable} == ALLOWABLE


@pytest.mark.parametrize(
    "rule", sorted(rule.id for rule in RULES if rule.action is Action.REFUSE and not rule.allowable)
)
def test_what_cannot_be_allowed_is_said(rule: str) -> None:
    (found,) = refusals(evaluate(spec_of(allowing(rule)), IMAGES))
    assert (found.rule, found.path) == ("unknown-allowance", "spec.policy.allow")
    assert f"{rule} cannot be allowed" in found.message


def test_an_allowance_of_what_cannot_start_changes_nothing() -> None:
    images = Images("sglang:0.5.22", "canary:1", "router:1")
    found = evaluate(spec_of({"network": {"checksum": True}} | allowing("kv-checksum")), images)
    assert {f.rule for f in refusals(found)} == {"kv-checksum", "unknown-allowance"}


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("no-such-rule", "use an id of docs/policy.md"),
        ("early-send", "stays"),
        ("unknown-allowance", "cannot be allowed"),
    ],
)
def test_an_allowance_that_means_nothing_is_refused(rule: str, says: str) -> None:
    (found,) = refusals(evaluate(spec_of(allowing(rule)), IMAGES))
    assert (found.rule, found.path) == ("unknown-allowance", "spec.policy.allow")
    assert rule in found.message
    assert says in found.message


@pytest.mark.parametrize("rule", ["canary-disabled", "hicache-fp4-speculation"], ids=["a warning", "in advance"])
def test_an_allowance_without_a_finding_is_fine(rule: str) -> None:
    assert refusals(evaluate(spec_of(allowing(rule)), IMAGES)) == []


# -- for any spec

WORDS = """
--hicac --log-level x -- -t --speculative-num --a=b --tp-si 7 --enable-prefill-cp --kv-canary log = -1 --page-size=64
--no-such --disaggregation-decode-host-receive-threshold nan --json-model-override-args={}
"""
ARGUMENTS = st.lists(st.sampled_from([*WORDS.split(), " ", "--x y", "--chat-template={{ a b }}"]), max_size=5)
ENV = st.lists(
    st.sampled_from(["A", "SGLANG_TEST_X", "SGLANG_NO", "SGLANG_RUST_SERVER", "SGLANG_OPT_USE_ONLINE_COMPRESS"]),
    unique=True,
    max_size=3,
).map(lambda found: [{"name": name, "value": ""} for name in found])
OVERLAYS = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["engine", "model", "UCX_TLS"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "labels", "spec", "containers", "env", "name", "args", "volumes", "hostIPC"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)
ROLES = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(1, 16),
        "nodes": st.integers(1, 3),
        "replicas": st.integers(1, 3),
        "extraArgs": ARGUMENTS,
        "env": ENV,
        "memory": st.sampled_from(["1", "64Gi", "1e3", "0.5Ti", "1e-3", "1e99", "9E", 7]),
        "sharedMemory": st.sampled_from(["1Gi", "64Gi"]),
        "podTemplate": st.dictionaries(st.sampled_from(["metadata", "spec", "x"]), OVERLAYS, max_size=3),
        "parallelism": st.fixed_dictionaries(
            {}, optional={"tensor": st.integers(1, 32), "attentionData": st.integers(1, 8), "expert": st.integers(1, 8)}
        ),
    },
)
PATCHES = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "indexK": st.sampled_from(["FP8", "FP4", "BF16"]).map(lambda dtype: {"dtype": dtype}),
        "hiCache": st.fixed_dictionaries(
            {},
            optional={
                "enabled": st.booleans(),
                "ratio": st.sampled_from(["2", "0.5", "99.99", "0.01"]),
                "layout": st.sampled_from(["LayerFirst", "PageFirst"]),
                "onCorruption": st.sampled_from(["DisableHiCache", "Alert"]),
            },
        ),
        "overlapSchedule": st.sampled_from(["Auto", "Enabled", "Disabled"]),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "image": st.sampled_from(["x:0.5.23", "x", "x:latest", "x:0.5.2"]),
                "release": st.sampled_from([*KNOWN_RELEASES, "0.5.1", "9.9.9"]),
                "speculative": st.sampled_from(["None", "EAGLE", "DSPARK"]).map(lambda name: {"algorithm": name}),
                "contextLength": st.sampled_from([4096, 262144, 4194304]),
                "extraArgs": ARGUMENTS,
                "env": ENV,
            },
        ),
        "prefill": ROLES,
        "decode": ROLES,
        "accelerator": st.sampled_from(["Blackwell", "SM100", "SM103", "SM120"]).map(lambda a: {"architecture": a}),
        "network": st.fixed_dictionaries({}, optional={"checksum": st.booleans(), "hostIPC": st.booleans()}),
        "canary": st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "wedgeSeconds": st.integers(10, 99)}),
        "router": st.fixed_dictionaries({}, optional={"enabled": st.booleans()}),
        "rollout": st.sampled_from([{}, {"soak": {}}]),
        "policy": st.lists(st.sampled_from([rule.id for rule in RULES] + ["nonsense"]), unique=True, max_size=3).map(
            lambda rules: allowing(*rules)["policy"]
        ),
    },
)
DEFAULTS = st.builds(
    ImageDefaults,
    engine=st.sampled_from([None, "x:0.5.23"]),
    canary=st.sampled_from([None, "c:1"]),
    router=st.sampled_from([None, "r:1"]),
)


@settings(max_examples=400, deadline=None)
@given(PATCHES, DEFAULTS)
def test_any_spec_gets_the_same_sorted_findings(patch: Patch, defaults: ImageDefaults) -> None:
    try:
        spec = spec_of(patch)
    except InvalidSpecError:
        return
    images = resolve_images(spec, defaults)
    found = evaluate(spec, images)
    assert found == evaluate(spec_of(patch), images)
    assert found == sorted(found, key=lambda f: (_ORDER[f.action], f.path, f.rule, f.message))
    assert len(set(found)) == len(found)
    allowed = {entry.rule for entry in spec.policy.allow}
    for finding in found:
        rule = RULES_BY_ID[finding.rule]
        lifted = rule.action is Action.REFUSE and rule.allowable and finding.rule in allowed
        assert finding.action is (Action.WARN if lifted else rule.action)
        assert finding.allowable is rule.allowable
    assert (("image-unset", "spec.engine.image") in {(f.rule, f.path) for f in found}) is (images.engine is None)
