"""Every rule of policy: a spec that it speaks of, one that it does not, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import merged, minimal
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.engine.images import ImageDefaults, Images, resolve_images
from dsv4_operator.policy import RULES, Action, Finding, evaluate, refusals
from dsv4_operator.policy.evaluate import _ORDER

IMAGES = Images(engine="sglang:0.5.23", canary="canary:1", router="router:1")
Patch = dict[str, Any]
ALWAYS = {"early-send"}
"""Rules that speak of every spec: the one release that is known needs them."""


def spec_of(patch: Patch | None = None) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal(), {"spec": patch or {}})).spec


def role(**changes: Any) -> Any:
    """A spec as it could only be stored past the schema: the rule is the second line of defence."""

    def change(spec: DSV4DeploymentSpec) -> DSV4DeploymentSpec:
        return spec.model_copy(update={name: part(getattr(spec, name)) for name, part in changes.items()})

    return change


def on(**changes: Any) -> Any:
    return lambda part: part.model_copy(update=changes)


@dataclass(frozen=True)
class Case:
    """`applies` and `not_applies` are patches of the minimal spec; `bend` alters the parsed spec of `applies`."""

    rule: str
    path: str
    applies: Patch
    not_applies: Patch
    images: Images = IMAGES
    bend: Any = None
    says: tuple[str, ...] = ()

    def finding_spec(self) -> DSV4DeploymentSpec:
        spec = spec_of(self.applies)
        return self.bend(spec) if self.bend else spec


EAGLE: Patch = {"algorithm": "EAGLE"}
CASES = [
    Case(
        "image-unset", "spec.engine.image", {}, {}, Images(None, "c:1", "r:1"), says=("images/", "defaults.engineImage")
    ),
    Case("image-unset", "spec.canary.image", {}, {"canary": {"enabled": False}}, Images("x:0.5.23", None, "r:1")),
    Case("image-unset", "spec.router.image", {}, {"router": {"enabled": False}}, Images("x:0.5.23", "c:1", "")),
    Case(
        "unknown-release",
        "spec.engine.release",
        {},
        {"engine": {"release": "0.5.23"}},
        Images("x:latest", "c:1", "r:1"),
        says=("x:latest", "set spec.engine.release", "0.5.23"),
    ),
    Case(
        "unknown-release",
        "spec.engine.release",
        {},
        {"engine": {"release": "0.5.23"}},
        Images("x:0.5.11", "c:1", "r:1"),
        says=("SGLang 0.5.11", "a newer operator"),
    ),
    Case(
        "moving-tag",
        "spec.engine.image",
        {"engine": {"release": "0.5.23"}},
        {},
        Images("x:latest", "c:1", "r:1"),
        says=("digest",),
    ),
    Case(
        "owned-flag",
        "spec.engine.extraArgs[1]",
        {"engine": {"extraArgs": ["--log-level=debug", "--speculative-num-s=4"]}},
        {"engine": {"extraArgs": ["--log-level=debug", "--max-queued-requests", "4"]}},
        says=("--speculative-num-s sets --speculative-num-steps", "spec.engine.speculative.numSteps"),
    ),
    Case(
        "owned-flag",
        "spec.prefill.extraArgs[0]",
        {"prefill": {"extraArgs": ["--context-l=4096"]}},
        {"prefill": {"extraArgs": ["--log-level", "debug"]}},
        says=("--context-l sets --context-length", "spec.engine.contextLength"),
    ),
    Case(
        "owned-flag",
        "spec.decode.extraArgs[0]",
        {"decode": {"extraArgs": ["--page-siz", "64"]}},
        {"decode": {"extraArgs": []}},
        says=("remove it, nothing replaces it: V4 forces 256",),
    ),
    Case(
        "owned-env",
        "spec.decode.env[0]",
        {"decode": {"env": [{"name": "A", "value": "b"}]}},
        {"decode": {"env": [{"name": "A", "value": "b"}]}},
        bend=role(decode=lambda d: d.model_copy(update={"env": [d.env[0].model_copy(update={"name": "UCX_TLS"})]})),
        says=("UCX_TLS", "spec.network.ucxTransports"),
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
        {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP8"}, "engine": {"speculative": EAGLE}},
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": {"algorithm": "DSPARK"}}},
        {"hiCache": {"enabled": False}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
        {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}},
    ),
    Case(
        "hicache-layout",
        "spec.hiCache.layout",
        {"hiCache": {"enabled": True}},
        {"hiCache": {"enabled": True, "ioBackend": "Direct", "layout": "PageFirstDirect"}},
        bend=role(hi_cache=on(layout="PageFirstDirect")),
        says=("Kernel", "PageFirstDirect"),
    ),
    Case("early-send", "spec.prefill", {}, {}, says=("NIXL",)),
    Case(
        "overlap-eagle-attention-dp",
        "spec.overlapSchedule",
        {"engine": {"speculative": EAGLE}, "decode": {"parallelism": {"attentionData": 4}}},
        {
            "engine": {"speculative": EAGLE},
            "decode": {"parallelism": {"attentionData": 4}},
            "overlapSchedule": "Enabled",
        },
    ),
    Case(
        "tensor-ratio",
        "spec.decode.parallelism.tensor",
        {"prefill": {"gpus": 6}, "decode": {"gpus": 6}},
        # Attention groups are what is mapped: 8 ranks in one group against 6 in six.
        {"prefill": {"gpus": 8}, "decode": {"gpus": 6, "parallelism": {"attentionData": 6}}},
        bend=role(decode=on(gpus=4)),
        says=("6", "4"),
    ),
    Case(
        "gpu-count",
        "spec.prefill.parallelism.tensor",
        {"prefill": {"gpus": 8, "parallelism": {"tensor": 4}}},
        {"prefill": {"gpus": 4, "nodes": 2, "parallelism": {"tensor": 8}}},
        says=("4", "8"),
    ),
    Case(
        "gpu-count",
        "spec.decode.parallelism.attentionData",
        {},
        {"decode": {"parallelism": {"attentionData": 2}}},
        bend=role(decode=lambda d: d.model_copy(update={"parallelism": on(attention_data=3)(d.parallelism)})),
    ),
    Case(
        "fp4-architecture",
        "spec.indexK.dtype",
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM103"}},
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM120"}},
    ),
    Case(
        "sm120-experimental",
        "spec.accelerator.architecture",
        {"accelerator": {"architecture": "SM120"}},
        {"accelerator": {"architecture": "SM100"}},
    ),
    Case("not-built", "spec.indexK.dtype", {"indexK": {"dtype": "BF16"}}, {"indexK": {"dtype": "FP8"}}, says=("FP8",)),
    Case("not-built", "spec.network.checksum", {"network": {"checksum": True}}, {"network": {"checksum": False}}),
    Case(
        "not-built",
        "spec.network.computeDomain.mode",
        {"network": {"computeDomain": {"mode": "Create"}}},
        {"network": {"computeDomain": {"mode": "None"}}},
    ),
    Case("not-built", "spec.rollout.soak", {"rollout": {"soak": {}}}, {"rollout": {"drainSeconds": 1}}),
    Case(
        "without-effect",
        "spec.recovery",
        {"recovery": {"restartBudget": {"count": 1}}},
        {"recovery": {"restartBudget": {"count": 3}}},
    ),
    Case(
        "without-effect",
        "spec.hiCache.onCorruption",
        {"hiCache": {"onCorruption": "Alert"}},
        {"hiCache": {"onCorruption": "DisableHiCache"}},
    ),
    Case(
        "without-effect", "spec.canary.wedgeSeconds", {"canary": {"wedgeSeconds": 61}}, {"canary": {"wedgeSeconds": 60}}
    ),
    Case(
        "without-effect",
        "spec.canary.minimumAvailable",
        {"canary": {"minimumAvailable": 2}},
        {"canary": {"minimumAvailable": 1}},
    ),
    Case(
        "canary-disabled",
        "spec.canary.enabled",
        {"canary": {"enabled": False}},
        {"canary": {"enabled": True}},
        says=("turn it on",),
    ),
]


def names(case: Case) -> str:
    return f"{case.rule}-{case.path}"


@pytest.mark.parametrize("case", CASES, ids=names)
def test_rule_applies(case: Case) -> None:
    (rule,) = (rule for rule in RULES if rule.id == case.rule)
    found = [f for f in evaluate(case.finding_spec(), case.images) if f.rule == case.rule and f.path == case.path]
    assert len(found) == 1
    assert found[0].action is rule.action
    assert found[0].source == rule.source
    for part in case.says:
        assert part in found[0].message


@pytest.mark.parametrize("case", [case for case in CASES if case.rule not in ALWAYS], ids=names)
def test_rule_is_silent(case: Case) -> None:
    images = case.images if case.not_applies else IMAGES
    found = [f for f in evaluate(spec_of(case.not_applies), images) if (f.rule, f.path) == (case.rule, case.path)]
    assert found == []


def test_values_of_refused_arguments_are_not_quoted() -> None:
    """They may be keys, and findings go into status and events."""
    found = evaluate(spec_of({"engine": {"extraArgs": ["--speculative-num-s=hunter2"]}}), IMAGES)
    assert "owned-flag" in {finding.rule for finding in found}
    assert not any("hunter2" in finding.message for finding in found)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_nothing_but_the_standing_rule_speaks_of_a_plain_spec() -> None:
    assert [finding.rule for finding in evaluate(spec_of(), IMAGES)] == ["early-send"]


REMEDY = ("use ", "set ", "remove", "turn ", "leave ", "make ", "pin ", "watch ", "build ", "delete ", "follow ")


@pytest.mark.parametrize("case", CASES, ids=names)
def test_message_says_field_why_and_remedy(case: Case) -> None:
    for finding in evaluate(case.finding_spec(), case.images):
        assert finding.path.startswith("spec.")
        assert len(finding.message) > 30
        assert finding.message[-1] not in ".; "
        assert finding.source
        if finding.action is not Action.SET:
            assert any(word in finding.message for word in REMEDY), finding.message
        if finding.action is Action.REFUSE:
            assert any(mark in finding.message for mark in (":", "; ", ",")), "no reason"


# -- all at once, order, allowances


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
    assert [(f.action.value, f.path, f.rule) for f in found] == [
        ("Refuse", "spec.engine.extraArgs[0]", "owned-flag"),
        ("Refuse", "spec.engine.extraArgs[1]", "owned-flag"),
        ("Refuse", "spec.engine.release", "unknown-release"),
        ("Refuse", "spec.indexK.dtype", "hicache-fp4-speculation"),
        ("Refuse", "spec.network.checksum", "not-built"),
        ("Refuse", "spec.prefill.parallelism.tensor", "gpu-count"),
        ("Refuse", "spec.rollout.soak", "not-built"),
        ("Refuse", "spec.router.image", "image-unset"),
        ("Set", "spec.prefill", "early-send"),
        ("Warn", "spec.accelerator.architecture", "sm120-experimental"),
        ("Warn", "spec.canary.enabled", "canary-disabled"),
        ("Warn", "spec.engine.image", "moving-tag"),
        ("Warn", "spec.hiCache.onCorruption", "without-effect"),
    ]
    assert refusals(found) == found[:8]


FP4 = next(case for case in CASES if case.rule == "hicache-fp4-speculation").applies
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
    assert [f.rule for f in refusals(found)] == ["not-built"]


@pytest.mark.parametrize(
    "rule", sorted(rule.id for rule in RULES if rule.action is Action.REFUSE and not rule.allowable)
)
def test_what_cannot_start_cannot_be_allowed(rule: str) -> None:
    case = next(case for case in CASES if case.rule == rule)
    bent = case.finding_spec()
    spec = bent.model_copy(update={"policy": spec_of(allowing(rule)).policy})
    found = refusals(evaluate(spec, case.images))
    assert rule in {f.rule for f in found}
    (about_allow,) = (f for f in found if f.rule == "unknown-allowance")
    assert about_allow.path == "spec.policy.allow"
    assert rule in about_allow.message


@pytest.mark.parametrize(
    ("rule", "says"),
    [("no-such-rule", "docs/policy.md"), ("early-send", "stays"), ("unknown-allowance", "no rule of this operator")],
)
def test_an_allowance_that_means_nothing_is_refused(rule: str, says: str) -> None:
    (found,) = refusals(evaluate(spec_of(allowing(rule)), IMAGES))
    assert (found.rule, found.path) == ("unknown-allowance", "spec.policy.allow")
    assert rule in found.message
    assert says in found.message


def test_an_allowance_of_what_is_only_a_warning_is_fine() -> None:
    assert refusals(evaluate(spec_of(allowing("canary-disabled")), IMAGES)) == []


def test_an_allowance_in_advance_is_fine() -> None:
    assert refusals(evaluate(spec_of(allowing("hicache-fp4-speculation")), IMAGES)) == []


# -- for any spec

NAMES = st.sampled_from(["a", "b-1", "x"])
ARGUMENTS = st.lists(
    st.sampled_from(["--hicac", "--log-level", "x", "--", "-t", "--speculative-num", "--a=b", "--tp-si", "7"]),
    max_size=4,
)
ENV = st.lists(st.sampled_from(["A", "B", "C"]), unique=True, max_size=3).map(
    lambda found: [{"name": name, "value": ""} for name in found]
)
ROLES = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.integers(1, 16),
        "nodes": st.integers(1, 3),
        "replicas": st.integers(1, 3),
        "extraArgs": ARGUMENTS,
        "env": ENV,
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
                "layout": st.sampled_from(["LayerFirst", "PageFirst"]),
                "onCorruption": st.sampled_from(["DisableHiCache", "Alert"]),
            },
        ),
        "overlapSchedule": st.sampled_from(["Auto", "Enabled", "Disabled"]),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "image": st.sampled_from(["x:0.5.23", "x", "x:latest", "x:0.5.2"]),
                "release": st.sampled_from(["0.5.23", "0.5.1"]),
                "speculative": st.sampled_from(["None", "EAGLE", "DSPARK"]).map(lambda name: {"algorithm": name}),
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


@settings(max_examples=300, deadline=None)
@given(PATCHES, DEFAULTS)
def test_any_spec_gets_the_same_sorted_findings(patch: Patch, defaults: ImageDefaults) -> None:
    try:
        spec = spec_of(patch)
    except InvalidSpecError:
        return
    images = resolve_images(spec, defaults)
    found = evaluate(spec, images)
    assert found == evaluate(spec_of(patch), images)
    assert found == sorted(found, key=lambda f: (_ORDER[f.action], f.path, f.rule))
    known = {rule.id: rule for rule in RULES}
    allowed = {entry.rule for entry in spec.policy.allow}
    for finding in found:
        assert isinstance(finding, Finding)
        if finding.rule != "unknown-allowance":
            rule = known[finding.rule]
            lifted = rule.action is Action.REFUSE and rule.allowable and finding.rule in allowed
            assert finding.action is (Action.WARN if lifted else rule.action)
    assert (("image-unset", "spec.engine.image") in {(f.rule, f.path) for f in found}) is (images.engine is None)
