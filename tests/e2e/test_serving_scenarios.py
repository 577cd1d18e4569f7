"""The whole product on a real node: kubelet, containerd, our images, the real router, and simulated engines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from localcluster import audit
from operator_process import OperatorProcess
from world import World, deployment, engine_url, http_status, is_ready, switch

pytestmark = pytest.mark.node

Start = Callable[..., OperatorProcess]


@pytest.fixture
def operator(serving_world: World, start_operator: Start) -> OperatorProcess:
    """An operator that looks after the test's namespace alone."""
    return start_operator(serving_world.cluster, "--no-lease", f"--namespaces={serving_world.namespace}")


def fingerprint(world: World, name: str) -> str:
    found: str = world.get(name)["status"]["fingerprint"]
    return found


def uids(world: World, name: str, role: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(name, role)}


def test_pair_serves_a_tool_call(serving_world: World, operator: OperatorProcess) -> None:
    serving_world.create(deployment("pair"))
    serving_world.wait_ready("pair")
    assert serving_world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}
    columns = serving_world.cluster.kubectl("-n", serving_world.namespace, "get", "dsv4").splitlines()
    assert columns[0].split() == ["NAME", "READY", "PREFILL", "DECODE", "INDEX-K", "HICACHE", "CANARY", "AGE"]
    assert columns[1].split()[:7] == ["pair", "True", "1/1", "1/1", "FP8", "false", "True"]


def test_broken_transfer_takes_the_pair_out_and_repair_brings_it_back(
    serving_world: World, operator: OperatorProcess
) -> None:
    """The incident: processes alive, /health 200, and no KV arrives."""
    world = serving_world
    world.create(deployment("pair"))
    world.wait_ready("pair")
    fp = fingerprint(world, "pair")
    (prefill,), (decode,) = world.pods("pair", "prefill"), world.pods("pair", "decode")
    assert {w["worker_type"] for w in world.workers("pair", fp)} == {"prefill", "decode"}

    switch(prefill, transfer="drop")
    world.wait("both pods to lose readiness", lambda: not any(map(is_ready, _engines(world))), timeout=90)
    world.wait("both to leave the router", lambda: world.workers("pair", fp) == [], timeout=30)
    assert http_status(f"{engine_url(prefill)}/health") == 200
    assert http_status(f"{engine_url(decode)}/health") == 200
    for pod in _engines(world):
        assert all(s["restartCount"] == 0 for s in pod["status"]["containerStatuses"])
    ready = world.wait("the reason", lambda: (c := world.condition("pair", "Ready")).get("status") == "False" and c)
    assert "canary" in ready["message"]
    assert any(pod["metadata"]["name"] in ready["message"] for pod in (prefill, decode))
    assert world.condition("pair", "CanaryPassing")["status"] == "False"

    switch(prefill, transfer="ok")
    world.wait_ready("pair", timeout=90)
    assert {w["id"] for w in world.workers("pair", fp)} == {p["metadata"]["uid"] for p in (prefill, decode)}
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}


def _engines(world: World) -> list[dict[str, Any]]:
    return [*world.pods("pair", "prefill"), *world.pods("pair", "decode")]


def test_engine_that_loads_slowly_is_not_restarted(serving_world: World, operator: OperatorProcess) -> None:
    world = serving_world
    slow = [{"name": "DSV4_SIM_STARTUP_SECONDS", "value": "20"}]
    world.create(deployment("pair", decode={"env": slow}))
    message = world.wait(
        "the message to name the decode pod",
        lambda: (m := world.condition("pair", "DecodeAvailable").get("message", "")).startswith("pod pair-") and m,
    )
    assert "-decode-" in message
    assert not any(map(is_ready, _engines(world)))
    world.wait_ready("pair")
    for pod in _engines(world):
        assert all(s["restartCount"] == 0 for s in pod["status"]["containerStatuses"])


def test_hicache_toggle_rolls_prefill_alone(serving_world: World, operator: OperatorProcess) -> None:
    world = serving_world
    world.create(deployment("pair"))
    world.wait_ready("pair")
    before = {role: uids(world, "pair", role) for role in ("prefill", "decode", "router")}
    fp = fingerprint(world, "pair")
    world.patch("pair", {"hiCache": {"enabled": True}})
    world.wait("prefill to be replaced", lambda: uids(world, "pair", "prefill").isdisjoint(before["prefill"]))
    world.wait_ready("pair")
    assert uids(world, "pair", "decode") == before["decode"]
    assert uids(world, "pair", "router") == before["router"]
    assert fingerprint(world, "pair") == fp
    members = uids(world, "pair", "prefill") | before["decode"]
    world.wait("the list to follow", lambda: {w["id"] for w in world.workers("pair", fp)} == members, timeout=30)
    (prefill,) = world.pods("pair", "prefill")
    assert "--enable-hierarchical-cache" in prefill["spec"]["containers"][0]["args"]
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}
    events = world.cluster.api.get(f"/api/v1/namespaces/{world.namespace}/events")["items"]
    why = [e["message"] for e in events if e["reason"] == "RollingRole"]
    assert any("prefill" in text and "--enable-hierarchical-cache added" in text for text in why)


def test_new_fingerprint_makes_a_generation_that_takes_over_when_whole(
    serving_world: World, operator: OperatorProcess
) -> None:
    world = serving_world
    world.create(deployment("pair"))
    world.wait_ready("pair")
    old = fingerprint(world, "pair")
    old_pods = {pod["metadata"]["uid"] for pod in _engines(world)}
    slow = [{"name": "DSV4_SIM_STARTUP_SECONDS", "value": "8"}]
    world.patch("pair", {"indexK": {"dtype": "FP4"}, "decode": {"env": slow}})

    def second() -> str | None:
        workloads = world.children("pair", "Deployment").values()
        found = {workload["metadata"]["labels"]["serving.dsv4.dev/fingerprint"] for workload in workloads}
        return next(iter(found - {old}), None)

    new = world.wait("the second generation", second)
    service = world.child("Service", "pair")
    assert service is not None
    assert service["spec"]["selector"]["serving.dsv4.dev/fingerprint"] == old
    assert world.condition("pair", "Ready")["status"] == "True"
    while fingerprint(world, "pair") == old:
        # The old generation answers for as long as it is the one that serves.
        assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}
    assert fingerprint(world, "pair") == new
    world.wait_ready("pair")
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}

    def only_new() -> bool:
        labels = [o["metadata"]["labels"].get("serving.dsv4.dev/fingerprint") for o in world.children("pair").values()]
        return set(labels) == {new, None}

    world.wait("the old generation to go", only_new, timeout=120)
    assert old_pods.isdisjoint(pod["metadata"]["uid"] for pod in _engines(world))
    assert {w["id"] for w in world.workers("pair", new)} == {p["metadata"]["uid"] for p in _engines(world)}


def test_scaling_keeps_the_ratio_of_the_roles(serving_world: World, operator: OperatorProcess) -> None:
    world = serving_world
    world.create(deployment("pair", prefill={"replicas": 2}))
    world.wait_ready("pair")
    world.cluster.kubectl("-n", world.namespace, "scale", "dsv4/pair", "--replicas=2")
    world.wait("four prefills and two decodes", lambda: _ready_counts(world) == (4, 2), timeout=180)
    world.wait_ready("pair")
    assert len(world.workers("pair", fingerprint(world, "pair"))) == 6
    world.cluster.kubectl("-n", world.namespace, "scale", "dsv4/pair", "--replicas=1")
    world.wait("two prefills and one decode", lambda: _ready_counts(world) == (2, 1), timeout=120)
    world.wait("the list to shrink", lambda: len(world.workers("pair", fingerprint(world, "pair"))) == 3)


def _ready_counts(world: World) -> tuple[int, int]:
    return (
        sum(map(is_ready, world.pods("pair", "prefill"))),
        sum(map(is_ready, world.pods("pair", "decode"))),
    )


def test_operator_restarts_restart_nothing_and_a_settled_pair_is_never_written(
    serving_world: World, start_operator: Start
) -> None:
    """Killed three times while it converges and once after: same objects, no pod restarted, no write when idle."""
    world = serving_world
    operator = start_operator(world.cluster, "--no-lease", f"--namespaces={world.namespace}")
    world.create(deployment("pair"))
    for kinds, wanted in ((("ServiceAccount",), 1), (("Deployment",), 1), (("Pod",), 2)):
        world.wait(f"{wanted} of {kinds}", lambda k=kinds, n=wanted: len(world.children("pair", *k)) >= n, timeout=60)
        operator.kill()
        operator.start()
    world.wait_ready("pair")
    before = {key: obj["metadata"]["uid"] for key, obj in world.children("pair").items()}
    operator.kill()
    operator.start()
    world.wait("the new operator to be ready", lambda: http_ok(operator), timeout=60)
    _wait_quiet(world)

    start = audit.now()
    world.wait("a minute to pass", lambda: datetime.now(UTC) - start > timedelta(seconds=60), timeout=90)
    events = world.cluster.audit_events(since=start)
    writes = [e for e in events if e.is_write and e.user_agent.startswith("dsv4-operator")]
    assert [(e.verb, e.resource, e.subresource, e.name) for e in writes] == []
    assert operator.metric("dsv4_operator_queue_depth") is not None  # it was alive all the while

    assert {key: obj["metadata"]["uid"] for key, obj in world.children("pair").items()} == before
    for pod in (p for (kind, _), p in world.children("pair").items() if kind == "Pod"):
        statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"]]
        assert [s["restartCount"] for s in statuses] == [0] * len(statuses)
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}


def http_ok(operator: OperatorProcess) -> bool:
    return operator.get("/readyz").startswith("ok")


def _wait_quiet(world: World, seconds: float = 6) -> None:
    """Until the object's resourceVersion has stood still for some seconds."""
    seen: dict[str, Any] = {"version": "", "since": datetime.now(UTC)}

    def quiet() -> bool:
        version = world.get("pair")["metadata"]["resourceVersion"]
        if version != seen["version"]:
            seen.update(version=version, since=datetime.now(UTC))
        return bool(datetime.now(UTC) - seen["since"] > timedelta(seconds=seconds))

    world.wait("writes to end", quiet, timeout=60)


def test_restarted_router_finds_its_workers_without_the_operator(serving_world: World, start_operator: Start) -> None:
    world = serving_world
    operator = start_operator(world.cluster, "--no-lease", f"--namespaces={world.namespace}")
    world.create(deployment("pair"))
    world.wait_ready("pair")
    operator.stop()
    (router,) = world.pods("pair", "router")
    world.cluster.api.delete(world.child_path("Pod", router["metadata"]["name"]))

    def another() -> bool:
        pods = world.pods("pair", "router")
        return bool(pods) and pods[0]["metadata"]["uid"] != router["metadata"]["uid"] and is_ready(pods[0])

    world.wait("another router to be Ready", another, timeout=60)
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}


def test_routed_calls_survive_a_prefill_roll(serving_world: World, operator: OperatorProcess) -> None:
    """Two prefills roll one after the other; every call made meanwhile is answered."""
    world = serving_world
    world.create(deployment("pair", prefill={"replicas": 2}))
    world.wait_ready("pair")
    before = uids(world, "pair", "prefill")
    world.patch("pair", {"hiCache": {"enabled": True}})
    calls = 0
    while uids(world, "pair", "prefill") & before:
        assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}
        calls += 1
        assert calls < 5000
    assert calls > 0
    world.wait_ready("pair")
