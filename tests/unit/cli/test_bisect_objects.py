"""Arms of a bisection as objects: valid, judged as fine, short names, and never the given object's."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsv4_operator.api.constants import LABEL_DEPLOYMENT, MAX_NAME_LENGTH
from dsv4_operator.cli.bisect import objects
from dsv4_operator.cli.bisect.factors import Factor, Setting
from dsv4_operator.cli.bisect.plan import Limits, make_plan
from dsv4_operator.cli.judge import Judgement, judge_object
from dsv4_operator.cli.render import context
from dsv4_operator.engine.images import ImageDefaults
from dsv4_operator.policy import Action

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ImageDefaults(engine="e.example/engine:0.5.23", canary="e.example/canary:1", router="e.example/router:1")


@pytest.fixture
def raw() -> dict[str, Any]:
    """The sample with HiCache, as the incident had it, and much that an arm must not have."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "manifests/samples/hicache.yaml").read_text())
    found["spec"]["indexK"] = {"dtype": "FP4"}
    found["spec"]["replicas"] = 3
    found["spec"]["router"] = {"service": {"type": "LoadBalancer"}, "replicas": 2}
    return found


def judged(raw: dict[str, Any]) -> Judgement:
    judgement = judge_object(raw, "x", IMAGES, assume=True)
    assert not judgement.refused, judgement.findings
    return judgement


def setting(judgement: Judgement) -> Setting:
    assert judgement.deployment is not None
    assert judgement.release is not None
    spec = judgement.deployment.spec
    return objects.setting_of(spec, judgement.release, spec.engine.image)


def test_every_pair_arm_is_the_given_one_with_its_change(raw: dict[str, Any]) -> None:
    before = copy.deepcopy(raw)
    base = setting(judged(raw))
    assert (base.index_k, base.hicache, base.early_send, base.pair) == ("FP4", True, False, True)
    plan = make_plan(base, Limits(), safe_image="e.example/engine-gated:0.5.23")
    assert Factor.EARLY_SEND in plan.skipped
    for arm in (plan.given, *plan.singles, plan.all_safe, plan.again):
        spec = objects.arm_spec(raw, base, arm.setting)
        obj = objects.pair_object(objects.arm_name("pair", arm.name), "pair", "r1", spec)
        judgement = judged(obj)
        if arm.setting.pair:
            assert setting(judgement) == arm.setting
        assert judgement.deployment is not None
        found = judgement.deployment.spec
        assert (found.replicas, found.canary.enabled, found.router.service.type) == (1, False, "ClusterIP")
        assert found.hi_cache.on_corruption == "Alert" or not found.hi_cache.enabled
        assert any(f.rule == "canary-disabled" and f.action is Action.WARN for f in judgement.findings)
    assert raw == before


def test_one_server_is_an_engine_without_a_peer(raw: dict[str, Any]) -> None:
    base = setting(judged(raw))
    plan = make_plan(base, Limits())
    (arm,) = [item for item in plan.singles if item.factor is Factor.TOPOLOGY]
    obj = objects.pair_object("pair-bs-x", "pair", "r1", objects.arm_spec(raw, base, arm.setting))
    judgement = judged(obj)
    assert judgement.deployment is not None
    service, workload = objects.alone_objects(context(judgement, judgement.deployment), "pair-bs-x", "pair", "r1")
    for item in (service, workload):
        kubernetes_validate.validate(item, "1.36", strict=True)
        # The operator must take neither for a child of its own.
        assert LABEL_DEPLOYMENT not in item["metadata"]["labels"]
    template = workload["spec"]["template"]
    assert LABEL_DEPLOYMENT not in template["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert "initContainers" not in pod
    (engine,) = pod["containers"]
    assert not [word for word in engine["args"] if "disaggregation" in word]
    assert "nixl" not in engine["args"]
    assert "--enable-hierarchical-cache" in engine["args"]
    assert service["spec"]["ports"][0]["targetPort"] == engine["ports"][0]["containerPort"]
    assert {mount["name"] for mount in engine["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}


def test_one_server_of_several_nodes_is_refused(raw: dict[str, Any]) -> None:
    raw["spec"]["prefill"] = {"gpus": 8, "nodes": 2}
    judgement = judged(raw)
    assert judgement.deployment is not None
    with pytest.raises(ValueError, match="several nodes"):
        objects.alone_objects(context(judgement, judgement.deployment), "n", "pair", "r1")


def test_flags_of_the_pair_go_with_their_values() -> None:
    words = ["--a", "1", "--disaggregation-mode", "prefill", "--b", "--disaggregation-enable-kv-checksum", "--c", "2"]
    assert objects.without_pair(words) == ["--a", "1", "--b", "--c", "2"]


@given(
    st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["given", "topology-one-server", "only-early-send", "given-again"]),
)
def test_names_are_names_of_a_deployment_and_new(name: str, arm: str) -> None:
    made = objects.arm_name(name, arm)
    assert len(made) <= MAX_NAME_LENGTH
    assert made != name
    assert made[-1].isalnum()


def test_an_arm_that_needs_the_guard_is_allowed_to_run_without_a_canary(
    raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RULES_BY_ID", {objects.GUARD_RULE: None})
    base = Setting("BF16", hicache=True, overlap=True, early_send=False, pair=True, image="")
    raw["spec"]["indexK"] = {"dtype": "BF16"}
    raw["spec"]["policy"] = {"allow": [{"rule": "other", "reason": "known and accepted"}]}
    allowed = objects.arm_spec(raw, base, base)["policy"]["allow"]
    assert [item["rule"] for item in allowed] == ["other", objects.GUARD_RULE]
    safe = dataclasses.replace(base, index_k="FP8")
    assert [item["rule"] for item in objects.arm_spec(raw, base, safe)["policy"]["allow"]] == ["other"]


MARKER = 'dsv4_guard_info{version="1",release="0.5.23",index_k="bf16",process="%s"} 1.0'


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ((MARKER % "api", MARKER % "scheduler"), True),
        ((MARKER % "api",), False),
        ((MARKER % "api", (MARKER % "scheduler").replace("bf16", "fp8")), False),
        ((MARKER % "api", (MARKER % "scheduler").replace(" 1.0", " 0.0")), False),
        ((), False),
    ],
)
def test_the_marker_of_the_guard(lines: tuple[str, ...], shown: bool) -> None:
    text = "\n".join(("# HELP dsv4_guard_info x", *lines, "sglang:num_running_reqs 3"))
    assert objects.shows_guard(text, "BF16") is shown
