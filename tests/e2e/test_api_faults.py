"""The operator behind a proxy that answers errors, delays and cuts: it converges, and writes no more than it must."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcluster import audit
from localcluster.faults import FaultProxy
from operator_process import OperatorProcess
from world import World, deployment

pytestmark = pytest.mark.cluster

Start = Callable[..., OperatorProcess]


@pytest.fixture
def operator(api_world: World, fault_proxy: FaultProxy, start_operator: Start) -> OperatorProcess:
    """An operator that reaches the API server through the proxy alone."""
    options = ("--no-lease", f"--namespaces={api_world.namespace}", "--request-timeout=5")
    return start_operator(api_world.cluster, *options, kubeconfig=fault_proxy.kubeconfig())


@pytest.mark.parametrize("status", [409, 429, 500])
def test_failing_writes_are_retried_until_all_is_there(
    api_world: World, fault_proxy: FaultProxy, operator: OperatorProcess, status: int
) -> None:
    rule = fault_proxy.respond(status, method="PATCH", path=f"/namespaces/{api_world.namespace}/", times=3)
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    assert rule.hits == 3
    assert len(api_world.children("pair", "Deployment")) == 3


def test_failing_status_writes_do_not_stop_the_children(
    api_world: World, fault_proxy: FaultProxy, operator: OperatorProcess
) -> None:
    rule = fault_proxy.respond(500, method="PATCH", path=r"/status\?", times=3)
    api_world.create(deployment("pair"))
    api_world.wait("the children", lambda: len(api_world.children("pair", "Deployment")) == 3, timeout=30)
    api_world.wait_ready("pair")
    assert rule.hits == 3


def test_cut_watches_lose_no_change(api_world: World, fault_proxy: FaultProxy, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    fault_proxy.refuse()
    fault_proxy.cut_connections(watches_only=True)
    api_world.patch("pair", {"hiCache": {"enabled": True}})
    api_world.create(deployment("second"))
    fault_proxy.refuse(False)
    api_world.wait_ready("second")
    fp = api_world.get("pair")["status"]["fingerprint"]

    def toggled() -> bool:
        prefill = api_world.child("Deployment", f"pair-{fp}-prefill") or {}
        return "--enable-hierarchical-cache" in prefill["spec"]["template"]["spec"]["containers"][0]["args"]

    api_world.wait("the edit made in the dark to be carried out", toggled)


def test_an_api_server_that_is_gone_for_a_while_does_no_harm(
    api_world: World, fault_proxy: FaultProxy, operator: OperatorProcess
) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()}
    fault_proxy.refuse()
    fault_proxy.cut_connections()
    api_world.wait("a failed call to be counted", lambda: "dsv4_operator_api_calls_total" in operator.get("/metrics"))
    assert operator.get("/healthz").startswith("ok")
    fault_proxy.refuse(False)
    api_world.create(deployment("after"))
    api_world.wait_ready("after")
    assert {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()} == before


def test_a_settled_object_costs_no_write(api_world: World, operator: OperatorProcess) -> None:
    """Passes go on (every few seconds), and none of them writes."""
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    # With simulated nodes no router can be read: the drift is reported once, then all is quiet.
    api_world.wait("the drift report", lambda: api_world.condition("pair", "Degraded").get("reason") == "RouterDrift")
    passes = operator.metric('dsv4_operator_reconcile_total{result="ok"}') or 0
    start = audit.now()

    def three_more_passes() -> bool:
        return (operator.metric('dsv4_operator_reconcile_total{result="ok"}') or 0) >= passes + 3

    api_world.wait("three more passes", three_more_passes, timeout=90)
    events = api_world.cluster.audit_events(since=start)
    ours = [e for e in events if e.is_write and e.user_agent.startswith("dsv4-operator")]
    assert [(e.verb, e.resource, e.name) for e in ours] == []


@pytest.mark.parametrize(("status", "reason"), [(400, "ApplyRejected"), (500, "ApplyFailed")])
def test_a_child_that_cannot_be_written_hides_nothing_else(
    api_world: World, fault_proxy: FaultProxy, operator: OperatorProcess, status: int, reason: str
) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    fp = api_world.get("pair")["status"]["fingerprint"]
    fault_proxy.respond(status, method="PATCH", path=f"/deployments/pair-{fp}-prefill", times=None)
    api_world.patch("pair", {"hiCache": {"enabled": True}, "router": {"replicas": 2}})

    def told() -> bool:
        obj = api_world.get("pair")
        seen = obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
        return seen and api_world.condition("pair", "Degraded").get("reason") == reason

    api_world.wait(f"{reason} of the newest spec", told, timeout=60)
    router = api_world.child("Deployment", f"pair-{fp}-router") or {}
    assert router["spec"]["replicas"] == 2, "what comes after the failed child is written all the same"
    fault_proxy.clear()

    def toggled() -> bool:
        prefill = api_world.child("Deployment", f"pair-{fp}-prefill") or {}
        return "--enable-hierarchical-cache" in prefill["spec"]["template"]["spec"]["containers"][0]["args"]

    api_world.wait("the edit to be carried out", toggled, timeout=90)
    api_world.wait("the fault to be forgotten", lambda: api_world.condition("pair", "Degraded").get("reason") != reason)
