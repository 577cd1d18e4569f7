"""Arms of a bisection on a real API server with the operator: made, Ready, removed; the given object never touched.

Nodes are simulated, so no load runs here; tests of the load are in test_bisect_simulated.py and test_soak_job.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsv4_operator.cli.bisect import objects
from dsv4_operator.cli.bisect.cluster import ClusterRunner
from dsv4_operator.cli.bisect.factors import Factor
from dsv4_operator.cli.bisect.plan import Arm, Limits, Plan, make_plan
from dsv4_operator.cli.bisect.runner import ArmError
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.judge import judge_object
from dsv4_operator.cli.kubectl import Kubectl
from dsv4_operator.engine.images import ImageDefaults
from localcluster import tools
from operator_process import IMAGES, OperatorProcess
from world import World, deployment

pytestmark = pytest.mark.cluster

DEFAULTS = ImageDefaults(**IMAGES)


@pytest.fixture
def operator(api_world: World, start_operator: Callable[..., OperatorProcess]) -> OperatorProcess:
    """An operator that looks after the test's namespace alone."""
    return start_operator(api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}")


@pytest.fixture
def raw() -> dict[str, Any]:
    """The object under suspicion."""
    return deployment("pair", indexK={"dtype": "FP4"}, hiCache={"enabled": True}, prefill={"memory": "100Gi"})


@pytest.fixture
def plan(raw: dict[str, Any]) -> Plan:
    judgement = judge_object(raw, "x", DEFAULTS, assume=True)
    assert judgement.deployment is not None
    assert judgement.release is not None
    spec = judgement.deployment.spec
    return make_plan(objects.setting_of(spec, judgement.release, spec.engine.image), Limits())


def runner_of(world: World, raw: dict[str, Any], plan: Plan, **changes: Any) -> ClusterRunner:
    words = (str(tools.kubectl()), "--kubeconfig", str(world.cluster.kubeconfig), "--namespace", world.namespace)
    values: dict[str, Any] = {"images": DEFAULTS, "canary_image": IMAGES["canary"], "start_timeout": 120.0}
    return ClusterRunner(Kubectl(words), raw, plan.given.setting, "a1b2c3", **(values | changes))


def arm_of(plan: Plan, factor: Factor) -> Arm:
    return next(arm for arm in plan.singles if arm.factor is factor)


def test_arms_come_and_go_and_the_given_object_stays(
    api_world: World, operator: OperatorProcess, raw: dict[str, Any], plan: Plan
) -> None:
    api_world.create(raw)
    api_world.wait_ready("pair")
    before = api_world.get("pair")
    with runner_of(api_world, raw, plan) as runner:
        with runner.open(arm_of(plan, Factor.HICACHE)):
            made = api_world.get("pair-bs-hicache-off")
            assert made["spec"]["hiCache"]["enabled"] is False
            assert made["spec"]["indexK"]["dtype"] == "FP4"
            assert any(item["type"] == "Ready" and item["status"] == "True" for item in made["status"]["conditions"])
        assert api_world.cluster.api.get_or_none(api_world.path("pair-bs-hicache-off")) is None
        assert not api_world.pods("pair-bs-hicache-off", "prefill")
        with runner.open(arm_of(plan, Factor.TOPOLOGY)):
            workload = api_world.child("Deployment", "pair-bs-topology-one-server")
            assert workload is not None
            assert workload["status"]["availableReplicas"] == 1
            assert api_world.child("Service", "pair-bs-topology-one-server") is not None
        for kind in ("Deployment", "Service"):
            assert api_world.child(kind, "pair-bs-topology-one-server") is None
        # An arm whose body fails, as on Ctrl-C, is removed all the same.
        with pytest.raises(KeyboardInterrupt), runner.open(plan.given):
            raise KeyboardInterrupt
        assert api_world.cluster.api.get_or_none(api_world.path("pair-bs-given")) is None
    after = api_world.get("pair")
    assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (
        before["metadata"]["uid"],
        before["metadata"]["generation"],
    )


def test_a_name_that_is_taken_is_left_alone(
    api_world: World, operator: OperatorProcess, raw: dict[str, Any], plan: Plan
) -> None:
    taken = deployment("pair-bs-given")
    api_world.create(taken)
    with runner_of(api_world, raw, plan) as runner, pytest.raises(ArmError, match="exists and is none of ours"):
        runner.open(plan.given).__enter__()
    assert api_world.get("pair-bs-given")["spec"]["model"] == taken["spec"]["model"] | {
        "source": api_world.get("pair-bs-given")["spec"]["model"]["source"]
    }


def test_left_over_arms_stop_a_second_bisection(api_world: World, raw: dict[str, Any], plan: Plan) -> None:
    spec = objects.arm_spec(raw, plan.given.setting, plan.given.setting)
    api_world.create(objects.pair_object("pair-bs-given", "pair", "ffffff", spec))
    with pytest.raises(UnreadableError, match=r"arms of another bisection are there \(pair-bs-given\)"):
        runner_of(api_world, raw, plan).__enter__()


def test_a_test_object_is_edited_and_gets_its_own_spec_back(
    api_world: World, operator: OperatorProcess, raw: dict[str, Any], plan: Plan
) -> None:
    test = deployment("trial", canary={"intervalSeconds": 7})
    api_world.create(test)
    api_world.wait_ready("trial")
    own = api_world.get("trial")["spec"]
    with pytest.raises(UnreadableError, match="carries no label that allows edits"):
        runner_of(api_world, raw, plan, test_deployment="trial").__enter__()
    label = {"metadata": {"labels": {objects.LABEL_TESTING: "true"}}}
    api_world.cluster.api.merge(api_world.path("trial"), label)
    with runner_of(api_world, raw, plan, test_deployment="trial") as runner:
        with runner.open(plan.given):
            assert api_world.get("trial")["spec"]["hiCache"]["enabled"] is True
        with runner.open(arm_of(plan, Factor.HICACHE)):
            assert api_world.get("trial")["spec"]["hiCache"]["enabled"] is False
    assert api_world.get("trial")["spec"] == own


def test_the_given_object_is_never_the_test_object(api_world: World, raw: dict[str, Any], plan: Plan) -> None:
    labels = {objects.LABEL_TESTING: "true"}
    api_world.create({**raw, "metadata": {"name": "pair", "labels": labels}})
    with pytest.raises(UnreadableError, match="is the object under suspicion itself"):
        runner_of(api_world, raw, plan, test_deployment="pair").__enter__()


def test_what_cannot_become_ready_says_why_and_goes(
    api_world: World, operator: OperatorProcess, raw: dict[str, Any], plan: Plan
) -> None:
    greedy = {**raw, "spec": {**raw["spec"], "decode": {"gpus": 16, "replicas": 5}}}
    with runner_of(api_world, greedy, plan, start_timeout=8.0) as runner:
        with pytest.raises(ArmError, match="not ready within 8 s"):
            runner.open(plan.given).__enter__()
        assert api_world.cluster.api.get_or_none(api_world.path("pair-bs-given")) is None
