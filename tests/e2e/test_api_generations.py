"""What serves goes on serving while another generation comes up, whatever is lost, rejected or not Ready meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from operator_process import OperatorProcess
from world import World, deployment

pytestmark = pytest.mark.cluster

Start = Callable[..., OperatorProcess]
FINGERPRINT = "serving.dsv4.dev/fingerprint"
NOWHERE = {"nodeSelector": {"no-node": "has-it"}}
"""Pods with it wait for ever, so their generation never becomes whole."""
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


@pytest.fixture
def operator(api_world: World, start_operator: Start) -> OperatorProcess:
    """An operator that looks after the test's namespace alone."""
    return start_operator(api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}")


def passes(world: World, operator: OperatorProcess, count: int) -> None:
    """Wait until the operator has looked that many times more, whether or not all went well."""

    def seen() -> float:
        results = ("ok", "waiting", "error", "unavailable", "forbidden", "conflict")
        return sum(operator.metric(f'dsv4_operator_reconcile_total{{result="{r}"}}') or 0 for r in results)

    before = seen()
    world.wait(f"{count} more passes", lambda: seen() >= before + count, timeout=90)


def workloads(world: World, fingerprint: str) -> dict[str, str]:
    """Name to uid of a generation's Deployments."""
    found = world.children("pair", "Deployment")
    return {
        n: o["metadata"]["uid"] for (_, n), o in found.items() if o["metadata"]["labels"][FINGERPRINT] == fingerprint
    }


def second_generation(world: World, stuck: bool, **more: object) -> tuple[str, str]:
    """Ask for another fingerprint; (the one that serves, the new one)."""
    old = world.get("pair")["status"]["fingerprint"]
    roles = {"prefill": NOWHERE, "decode": NOWHERE} if stuck else {}
    world.patch("pair", {"engine": {"contextLength": 131072}, **roles, **more})

    def new() -> str | None:
        found = {o["metadata"]["labels"][FINGERPRINT] for o in world.children("pair", "Deployment").values()} - {old}
        return next(iter(found), None)

    return old, world.wait("the second generation", new)


def selector(world: World) -> str:
    return str(((world.child("Service", "pair") or {"spec": {}})["spec"].get("selector") or {}).get(FINGERPRINT))


def test_a_deleted_service_comes_back_in_front_of_what_serves(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    old, _ = second_generation(api_world, stuck=True)
    before = workloads(api_world, old)
    api_world.cluster.api.delete(api_world.child_path("Service", "pair"))
    api_world.wait("the Service to come back", lambda: api_world.child("Service", "pair"))
    passes(api_world, operator, 3)
    assert selector(api_world) == old
    assert workloads(api_world, old) == before
    assert len(before) == 3


def test_without_a_router_a_pod_that_is_not_ready_ends_no_generation(
    api_world: World, operator: OperatorProcess
) -> None:
    api_world.create(deployment("pair", router={"enabled": False}))
    api_world.wait_ready("pair")
    old, _ = second_generation(api_world, stuck=True)
    before = workloads(api_world, old)
    pod = api_world.serving("pair", "prefill")[0]
    status = {"conditions": [{**c, "status": "False"} for c in pod["status"]["conditions"] if c["type"] == "Ready"]}
    api_world.cluster.api.merge(f"{api_world.child_path('Pod', pod['metadata']['name'])}/status", {"status": status})
    api_world.wait(
        "the operator to see it", lambda: api_world.condition("pair", "PrefillAvailable").get("status") == "False"
    )
    passes(api_world, operator, 3)
    assert workloads(api_world, old) == before
    assert len(before) == 2


@pytest.fixture
def frozen_selectors(api_world: World) -> Iterator[None]:
    """An admission policy that lets nobody turn a Service of the test's namespace."""
    api, name = api_world.cluster.api, f"frozen-{api_world.namespace}"
    head = {"apiVersion": "admissionregistration.k8s.io/v1"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services"]}
    frozen = "object.spec.?selector == oldObject.spec.?selector"
    body = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": frozen, "message": "Services stay as they are"}],
    }
    where = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api_world.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": where}
    api.create(POLICIES, {**head, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": body})
    api.create(
        BINDINGS, {**head, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding}
    )
    try:
        yield
    finally:
        api.delete(f"{BINDINGS}/{name}")
        api.delete(f"{POLICIES}/{name}")


def test_a_service_that_cannot_be_turned_keeps_what_it_points_at(
    api_world: World, operator: OperatorProcess, request: pytest.FixtureRequest
) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    request.getfixturevalue("frozen_selectors")
    old, _ = second_generation(api_world, stuck=False)
    before = workloads(api_world, old)
    api_world.wait(
        "the rejection to be reported",
        lambda: api_world.condition("pair", "Degraded").get("reason") == "ApplyRejected",
    )
    passes(api_world, operator, 3)
    assert "Services stay as they are" in api_world.condition("pair", "Degraded")["message"]
    assert selector(api_world) == old
    assert workloads(api_world, old) == before
    assert len(before) == 3
    assert api_world.get("pair")["status"]["fingerprint"] == old


def test_canaries_of_what_serves_are_asked_nothing_that_only_the_next_generation_takes(
    api_world: World, operator: OperatorProcess
) -> None:
    def asked() -> int:
        settings = api_world.child("ConfigMap", "pair-canary") or {}
        return int(json.loads(settings["data"]["canary.json"])["promptTokens"])

    api_world.create(deployment("pair", engine={"contextLength": 8192}))
    api_world.wait_ready("pair")
    before = asked()
    second_generation(api_world, stuck=True, canary={"promptTokens": 20000, "intervalSeconds": 3})
    passes(api_world, operator, 3)
    assert asked() == before
    api_world.patch("pair", {role: {"nodeSelector": None} for role in ("prefill", "decode")})
    api_world.wait_ready("pair")
    api_world.wait("the longer prompt", lambda: asked() == 20000)


def test_a_lost_router_key_keeps_no_failed_worker_in_the_list(api_world: World, start_operator: Start) -> None:
    options = ("--no-lease", f"--namespaces={api_world.namespace}")
    first = start_operator(api_world.cluster, *options)
    api_world.create(deployment("pair", prefill={"replicas": 2}))
    api_world.wait_ready("pair")
    fingerprint = api_world.get("pair")["status"]["fingerprint"]
    api_world.wait("the list", lambda: len(api_world.workers("pair", fingerprint)) == 3)
    first.stop()  # it remembers the key for five minutes
    api_world.cluster.api.merge(api_world.child_path("Secret", "pair-router-key"), {"data": {"key": None}})
    start_operator(api_world.cluster, *options)
    pod = api_world.serving("pair", "prefill")[0]
    status = {"conditions": [{**c, "status": "False"} for c in pod["status"]["conditions"] if c["type"] == "Ready"]}
    api_world.cluster.api.merge(f"{api_world.child_path('Pod', pod['metadata']['name'])}/status", {"status": status})
    api_world.wait("the failed worker to leave", lambda: len(api_world.workers("pair", fingerprint)) == 2)
    degraded = api_world.wait(
        "the lost key to be reported",
        lambda: (c := api_world.condition("pair", "Degraded")).get("reason") == "NameConflict" and c,
    )
    assert "pair-router-key" in degraded["message"]
