"""LeaderLease and EventRecorder against a real API server. Lease times are short, and real."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dsv4_operator.kube import kinds as k
from dsv4_operator.kube.client import KubeClient
from dsv4_operator.kube.port import JsonObject
from dsv4_operator.runtime.events import EventRecorder
from dsv4_operator.runtime.lease import LeaderLease
from localcluster import LocalCluster

pytestmark = pytest.mark.cluster

NAMESPACE = "runtime"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(f"lease-{os.getpid()}") as running:
        running.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield running


@pytest.fixture
async def api(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(
        user_agent="dsv4-operator/test", kubeconfig=str(cluster.kubeconfig), request_timeout=5
    ) as client:
        yield client


class Candidates:
    """Makes candidates for one lease and releases them at the end."""

    def __init__(self, api: KubeClient, name: str) -> None:
        self.api, self.name = api, name
        self.made: list[LeaderLease] = []
        self.changes: list[tuple[str, bool]] = []

    def new(self, identity: str, duration: float = 3.0) -> LeaderLease:
        lease = LeaderLease(
            self.api,
            namespace=NAMESPACE,
            name=self.name,
            identity=identity,
            duration=duration,
            renew_deadline=duration * 2 / 3,
            retry_period=0.1,
            on_change=lambda leading: self.changes.append((identity, leading)),
        )
        self.made.append(lease)
        return lease

    async def live(self) -> JsonObject:
        found = await self.api.get(k.LEASE, NAMESPACE, self.name)
        assert found is not None
        return found

    async def holder(self) -> str:
        return str((await self.live())["spec"]["holderIdentity"])


@pytest.fixture
async def candidates(api: KubeClient, request: pytest.FixtureRequest) -> AsyncIterator[Candidates]:
    made = Candidates(api, request.node.name.removeprefix("test_").replace("_", "-"))
    yield made
    for lease in made.made:
        await lease.release()


async def soon(waiting: Any) -> Any:
    return await asyncio.wait_for(waiting, PATIENCE)


def crash(lease: LeaderLease) -> None:
    """The process is gone: nothing renews, nothing is released."""
    assert lease._renewal is not None
    lease._renewal.cancel()
    lease._leading = False


async def test_one_leads_and_release_hands_over_at_once(candidates: Candidates) -> None:
    first, second = candidates.new("first", duration=3600), candidates.new("second", duration=3600)
    await soon(first.acquire())
    waiting = asyncio.create_task(second.acquire())
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert not done
    assert first.leading
    assert not second.leading
    await first.release()
    await soon(waiting)  # an hour before the duration ends
    assert second.leading
    assert not first.leading
    assert await candidates.holder() == "second"
    assert (await candidates.live())["spec"]["leaseTransitions"] == 1
    assert candidates.changes == [("first", True), ("first", False), ("second", True)]
    assert not first.lost.is_set(), "a release is no loss"


async def test_released_lease_has_no_holder(candidates: Candidates) -> None:
    lease = candidates.new("me", duration=3600)
    await soon(lease.acquire())
    await lease.release()
    assert await candidates.holder() == ""


async def test_renewal_goes_on(candidates: Candidates) -> None:
    lease = candidates.new("me")
    await soon(lease.acquire())
    first = await candidates.live()

    async def renewed() -> None:
        while (await candidates.live())["spec"]["renewTime"] <= first["spec"]["renewTime"]:
            await asyncio.sleep(0.05)

    await soon(renewed())
    spec = (await candidates.live())["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("me", 3)
    assert spec["acquireTime"] == first["spec"]["acquireTime"]
    assert spec.get("leaseTransitions", 0) == 0


async def test_many_candidates_one_leader(candidates: Candidates) -> None:
    racers = [candidates.new(f"racer-{n}", duration=3600) for n in range(8)]
    tasks = [asyncio.create_task(racer.acquire()) for racer in racers]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
    await asyncio.sleep(1)
    leaders = [racer for racer in racers if racer.leading]
    assert [racer.identity for racer in leaders] == [await candidates.holder()]
    for task in tasks:
        task.cancel()


async def test_crashed_leader_is_succeeded(candidates: Candidates) -> None:
    first, second = candidates.new("first"), candidates.new("second")
    await soon(first.acquire())
    crash(first)
    await soon(second.acquire())
    assert await candidates.holder() == "second"


async def test_same_identity_takes_its_lease_back_at_once(candidates: Candidates) -> None:
    first = candidates.new("me", duration=3600)
    await soon(first.acquire())
    crash(first)
    again = candidates.new("me", duration=3600)
    await soon(again.acquire())
    assert again.leading


async def test_lease_taken_away_is_lost(candidates: Candidates) -> None:
    lease = candidates.new("me", duration=3600)
    await soon(lease.acquire())
    thief = {"metadata": {"name": candidates.name, "namespace": NAMESPACE}, "spec": {"holderIdentity": "thief"}}
    await candidates.api.apply({"apiVersion": k.LEASE.api_version, "kind": k.LEASE.kind} | thief, "thief", force=True)
    await soon(lease.lost.wait())
    assert not lease.leading
    await lease.release()
    assert await candidates.holder() == "thief", "what was lost is not released"


async def test_deleted_lease_is_lost(candidates: Candidates) -> None:
    lease = candidates.new("me", duration=3600)
    await soon(lease.acquire())
    await candidates.api.delete(k.LEASE, NAMESPACE, candidates.name, None)
    await soon(lease.lost.wait())


async def test_touched_lease_is_kept(candidates: Candidates) -> None:
    lease = candidates.new("me", duration=3600)
    await soon(lease.acquire())
    touched = await candidates.api.annotate(k.LEASE, NAMESPACE, candidates.name, {"touched": "yes"})

    async def renewed() -> None:
        while (await candidates.live())["spec"]["renewTime"] == touched["spec"]["renewTime"]:
            await asyncio.sleep(0.05)

    await soon(renewed())
    assert lease.leading
    assert (await candidates.live())["metadata"]["annotations"] == {"touched": "yes"}


async def test_lease_is_lost_when_the_server_stays_away(candidates: Candidates, cluster: LocalCluster) -> None:
    lease = candidates.new("me")
    await soon(lease.acquire())
    with cluster.stopped("kube-apiserver"):
        await soon(lease.lost.wait())
    assert not lease.leading
    assert candidates.changes == [("me", True), ("me", False)]


async def test_lease_is_acquired_when_the_server_comes_back(candidates: Candidates, cluster: LocalCluster) -> None:
    lease = candidates.new("me")
    with cluster.stopped("kube-apiserver"):
        waiting = asyncio.create_task(lease.acquire())
        await asyncio.sleep(0.5)
        assert not waiting.done()
    await soon(waiting)


async def regarding(api: KubeClient, name: str) -> JsonObject:
    return await api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}}
    )


async def events_about(api: KubeClient, obj: JsonObject) -> list[JsonObject]:
    items = (await api.list(k.EVENT, obj["metadata"]["namespace"])).items
    return [event for event in items if event["involvedObject"].get("uid") == obj["metadata"]["uid"]]


def recorder_for(api: KubeClient, ttl: float = 600, flush_seconds: float = 5) -> EventRecorder:
    return EventRecorder(api, component="dsv4-operator", instance="pod-0", ttl=ttl, flush_seconds=flush_seconds)


async def test_event_as_kubectl_shows_it(api: KubeClient, cluster: LocalCluster) -> None:
    about = await regarding(api, "shown")
    batch = recorder_for(api).batch()
    batch.add(about, "Warning", "CanaryFailed", "The canary of pod x failed.")
    assert await batch.flush() == 1
    (event,) = await events_about(api, about)
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "CanaryFailed",
        "The canary of pod x failed.",
    )
    assert (event["reportingComponent"], event["reportingInstance"]) == ("dsv4-operator", "pod-0")
    shown = cluster.kubectl("describe", "configmap", "shown", "-n", NAMESPACE)
    line = next(line for line in shown.splitlines() if "CanaryFailed" in line)
    assert "dsv4-operator" in line
    assert "<unknown>" not in line


async def test_same_event_is_posted_once_until_forgotten(api: KubeClient) -> None:
    about = await regarding(api, "repeated")
    recorder = recorder_for(api)
    for _ in range(3):
        batch = recorder.batch()
        batch.add(about, "Normal", "Applied", "Applied a Service.")
        batch.add(about, "Normal", "Applied", "Applied a Service.")
        await batch.flush()
    other = recorder.batch()
    other.add(about, "Normal", "Applied", "Applied a Deployment.")
    assert await other.flush() == 1
    assert len(await events_about(api, about)) == 2
    forgetful = recorder_for(api, ttl=0)
    for _ in range(2):
        batch = forgetful.batch()
        batch.add(about, "Normal", "Again", "Again.")
        assert await batch.flush() == 1


async def test_events_are_kept_within_the_servers_limits(api: KubeClient) -> None:
    about = await regarding(api, "limits")
    batch = recorder_for(api).batch()
    batch.add(about, "Normal", "R" * 300, "ü" * 2000, action="A" * 300)
    for number in range(100):
        batch.add(about, "Normal", "Many", f"Message {number}.")
    assert await batch.flush() == 20
    assert await batch.flush() == 0
    assert len(await events_about(api, about)) == 20


async def test_event_of_a_cluster_scoped_object(api: KubeClient) -> None:
    crd = {
        "apiVersion": k.CUSTOM_RESOURCE_DEFINITION.api_version,
        "kind": k.CUSTOM_RESOURCE_DEFINITION.kind,
        "metadata": {"name": "x.example.com", "uid": "u"},
    }
    batch = recorder_for(api).batch()
    batch.add(crd, "Warning", "SchemaBehind", "Fields are missing.")
    assert await batch.flush() == 1


async def test_an_event_that_cannot_be_posted_fails_nobody(
    api: KubeClient, cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    about = await regarding(api, "unpostable")
    recorder = recorder_for(api, flush_seconds=3)
    nowhere = about | {"metadata": about["metadata"] | {"namespace": "gone"}}
    batch = recorder.batch()
    batch.add(nowhere, "Normal", "Lost", "Nobody hears it.")
    assert await batch.flush() == 0
    batch = recorder.batch()
    batch.add(about, "Normal", "Later", "Said twice.")
    with cluster.stopped("kube-apiserver"):
        assert await batch.flush() == 0
    assert "Said twice." in caplog.text
    batch.add(about, "Normal", "Later", "Said twice.")
    assert await batch.flush() == 1, "a failed one is not remembered as posted"
