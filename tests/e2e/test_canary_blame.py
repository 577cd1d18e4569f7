"""Three prefills and two decodes on the real node, one thing broken at a time: who is taken out, and what status says.

"Within two intervals" is counted in the canary's own probes where a probe finds the fault: the sidecar of the broken
pod tests one peer per interval, after a failure every third of one, so two intervals are at most six probes. Kubelet
asks for readiness every few seconds and the operator needs a pass; both are in the deadlines, which are generous and
only there to end a test that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from canary_lab import Pod, UserLoad, added, alerts, by_name, findings, has, ready_code, report, samples, total
from localcluster.ports import free_port
from world import World, deployment, engine_url, http_status, is_ready, switch

pytestmark = pytest.mark.node

INTERVAL = 5
"""Seconds between two probes of a sidecar."""
PRODUCT_INTERVAL = 30
"""The default, for which the shipped alerts' ``for`` is meant."""
WEDGE = 2 * INTERVAL
"""`wedgeSeconds`: two intervals."""
SLACK = 90
"""Seconds for a probe's time-out, kubelet's look at readiness and the operator's pass, on a busy machine."""
ORDER = {"item": "blue lamp", "count": 3}


@pytest.fixture(scope="module")
def pool(module_world: World) -> World:
    """Three prefills, two decodes, all Ready."""
    env = [{"name": "DSV4_SIM_STARTUP_SECONDS", "value": "0"}, {"name": "DSV4_SIM_HEALTH_SECONDS", "value": "0.2"}]
    module_world.create(
        deployment(
            "pair",
            engine={"env": env},
            prefill={"replicas": 3},
            decode={"replicas": 2},
            canary={"intervalSeconds": INTERVAL, "timeoutSeconds": 4, "failureThreshold": 2, "wedgeSeconds": WEDGE},
        )
    )
    return module_world


@pytest.fixture
def healthy(pool: World) -> Iterator[World]:
    """The pool with all five pods in the router, before and after the test.

    Each test breaks pods of its own, since a canary is wary of an engine that has just failed. The busy one comes
    first: the others leave prefixes behind that were damaged when their drift was first read.
    """
    everybody_serves(pool)
    try:
        yield pool
    finally:
        for pod in engines(pool):
            switch(pod, bad_pod="off", bad_link="", wedge="off", busy_seconds=0)
            # What a broken kernel wrote stays in a prefix cache; there is none here.
        everybody_serves(pool)


def engines(world: World) -> list[Pod]:
    return [*world.pods("pair", "prefill"), *world.pods("pair", "decode")]


def uid(pod: Pod) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def name(pod: Pod) -> str:
    found: str = pod["metadata"]["name"]
    return found


def members(world: World) -> set[str]:
    """Uids in the published worker list."""
    return {worker["id"] for worker in world.workers("pair", world.get("pair")["status"]["fingerprint"])}


def everybody_serves(world: World) -> None:
    world.wait_ready("pair")
    world.wait("all five to be in the router", lambda: members(world) == set(map(uid, engines(world))), timeout=180)


def blame(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.get("pair")["status"].get("blame") or []
    return found


def restarts(world: World) -> list[int]:
    return [
        status["restartCount"]
        for pod in engines(world)
        for status in (*pod["status"].get("initContainerStatuses", []), *pod["status"]["containerStatuses"])
    ]


def conclusive(pod: Pod) -> float:
    return total(samples(pod), "dsv4_canary_probes_total", outcome={"pass", "fail"})


def two_more_rounds(world: World, pods: list[Pod]) -> None:
    """Until each pod's canary has made two more conclusive probes."""
    before = {name(pod): conclusive(pod) for pod in pods}
    world.wait("two more rounds", lambda: all(conclusive(pod) >= before[name(pod)] + 2 for pod in pods), timeout=180)


def test_busy_is_no_wedge_no_corruption_and_no_alert(healthy: World, tmp_path: Any) -> None:
    """One prefill computes for 30 s, /health 503: six intervals, seven time-outs, three times ``wedgeSeconds``."""
    world = healthy
    busy = world.pods("pair", "prefill")[2]
    before, counts = by_name(engines(world)), restarts(world)
    with alerts(tmp_path / "prometheus", free_port(), world, "pair", PRODUCT_INTERVAL / INTERVAL) as watch:
        world.wait("scrapes", lambda: watch.query("dsv4_pod:canary_ready:max"), timeout=30)
        switch(busy, busy_seconds=30)
        seen: dict[str, float] = {"wedged": 0, "verdict": 0, "red": 0}

        def over() -> bool:
            for pod in engines(world):
                found = samples(pod)
                seen["wedged"] = max(seen["wedged"], total(found, "dsv4_engine_wedged"))
                seen["verdict"] = max(seen["verdict"], total(found, "dsv4_canary_corruption_verdict"))
            red = http_status(f"{engine_url(busy)}/health") == 503
            seen["red"] += red
            return bool(seen["red"]) and not red

        world.wait("the long prefill to end", over, timeout=90)
        everybody_serves(world)
        ever = watch.ever()
    found = added(engines(world), before)
    timeouts = total(found, "dsv4_canary_failures_total", signature="timeout")
    print(f"\nseen while busy: {seen}; timeouts {timeouts:.0f}; alerts: {sorted(ever)}; {findings(found)}")
    assert (seen["wedged"], seen["verdict"]) == (0, 0)
    assert has(found, "dsv4_canary_probes_total")
    assert total(found, "dsv4_canary_failures_total", severity="corruption") == 0
    assert ever == set()
    assert restarts(world) == counts
    assert not any(charge["reason"] in ("EngineWedged", "Corruption") for charge in blame(world))


def test_a_bad_link_is_named_and_takes_nobody_out(healthy: World) -> None:
    world = healthy
    prefill, decode = world.pods("pair", "prefill")[1], world.pods("pair", "decode")[1]
    switch(prefill, bad_link=decode["status"]["podIP"])

    def named() -> dict[str, Any] | None:
        links = [charge for charge in blame(world) if charge["kind"] == "Link"]
        return links[0] if links else None

    charge = world.wait("the link to be named", named, timeout=18 * INTERVAL + SLACK)
    assert set(charge["pods"]) == {name(prefill), name(decode)}
    assert name(prefill) in charge["message"] and name(decode) in charge["message"]
    everybody = set(map(uid, engines(world)))
    two_more_rounds(world, engines(world))
    world.wait("the link alone to be blamed", lambda: [c["kind"] for c in blame(world)] == ["Link"], timeout=SLACK)
    assert members(world) == everybody, [report(pod) for pod in engines(world) if uid(pod) not in members(world)]
    assert all(is_ready(pod) for pod in engines(world))
    degraded = world.condition("pair", "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "BadLink")
    assert "link" in degraded["message"]


def test_a_wedged_decode_is_out_within_two_intervals_and_no_prefill_is_blamed(healthy: World) -> None:
    world = healthy
    wedged, other = world.pods("pair", "decode")
    prefills = world.pods("pair", "prefill")
    # A wedge is seen by work that waits: users' calls, which are there at once, or else the canary's next probe.
    with UserLoad(prefills, [wedged], workers=2, patience=6):
        start = time.monotonic()
        switch(wedged, wedge="on")
        world.wait("the wedge metric", lambda: total(samples(wedged), "dsv4_engine_wedged") == 1, WEDGE + SLACK)
        taken = time.monotonic() - start
    assert http_status(f"{engine_url(wedged)}/health") == 200
    seen = report(wedged)
    print(f"\nafter {taken:.1f} s with wedgeSeconds {WEDGE}: {seen['wedge']}")
    assert seen["wedge"]["wedged"] is True
    assert not seen["ready"]
    world.wait("it to leave the router", lambda: uid(wedged) not in members(world), timeout=SLACK)
    sound = {uid(pod) for pod in (*prefills, other)}
    assert members(world) == sound
    two_more_rounds(world, [other])
    assert members(world) == sound
    for pod in (*prefills, other):
        found = samples(pod)
        assert total(found, "dsv4_engine_wedged") == 0
        assert total(found, "dsv4_canary_corruption_verdict") == 0
        assert report(pod)["ready"], report(pod)
    charge = world.wait("the charge", lambda: (c := blame(world)) and c[0]["reason"] == "EngineWedged" and c, SLACK)[0]
    assert charge["pods"] == [name(wedged)]
    world.wait(
        "no prefill to be blamed",
        lambda: not any(name(pod) in c["pods"] for c in blame(world) for pod in prefills),
        timeout=SLACK,
    )
    for _ in range(5):
        assert world.chat_tool_call("pair") == ORDER


def test_exactly_the_bad_prefill_leaves_the_router(healthy: World) -> None:
    world = healthy
    bad, *others = world.pods("pair", "prefill")
    decodes = world.pods("pair", "decode")
    before = conclusive(bad)
    switch(bad, bad_pod="compute")
    world.wait("its canary to withdraw", lambda: ready_code(bad) != 200, timeout=2 * INTERVAL + SLACK)
    probes = conclusive(bad) - before
    world.wait("it to leave the router", lambda: uid(bad) not in members(world), timeout=SLACK)
    print(f"\nout after {probes:.0f} conclusive probes of its own canary")
    assert probes <= 6, "two intervals of hurried probes"
    sound = {uid(pod) for pod in (*others, *decodes)}
    assert members(world) == sound
    two_more_rounds(world, [*others, *decodes])
    assert members(world) == sound, "nobody else may follow it"
    assert all(is_ready(pod) for pod in engines(world) if uid(pod) in sound)
    assert http_status(f"{engine_url(bad)}/health") == 200
    for _ in range(10):
        assert world.chat_tool_call("pair") == ORDER
    seen: set[tuple[str, tuple[str, ...]]] = set()

    def settled() -> dict[str, Any] | None:
        charges = blame(world)
        seen.update((charge["kind"], tuple(charge["pods"])) for charge in charges)
        return charges[0] if [charge["kind"] for charge in charges] == ["Pod"] else None

    charge = world.wait("one pod to be charged", settled, timeout=SLACK)
    # While its pairs are found out one by one nobody can be named; but nothing wrong may be said meanwhile.
    assert {(kind, pods) for kind, pods in seen if kind != "Undecided"} == {("Pod", (name(bad),))}
    assert charge["pods"] == [name(bad)]
    assert name(bad) in charge["message"]
    assert world.condition("pair", "CanaryPassing")["status"] == "False"
