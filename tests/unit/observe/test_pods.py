"""Views of pods and workloads, from objects as kubelet, scheduler and controllers write them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dsv4_operator.api.constants import (
    ANNOTATION_WORKERS,
    LABEL_FINGERPRINT,
    LABEL_ROLE,
    Role,
)
from dsv4_operator.desired.workers import Worker
from dsv4_operator.observe.pods import PodView, view_pod
from dsv4_operator.observe.reports import FAILING_REASONS, read_report, unreachable
from dsv4_operator.observe.workloads import WorkloadView, view_workloads

Object = dict[str, Any]
IMAGE = "registry.example.com/sglang-dsv4:0.5.23"


def running(name: str, *, ready: bool, started: bool = True, image: str = IMAGE) -> Object:
    return {
        "name": name,
        "image": image,
        "imageID": f"{image}@sha256:{'0' * 64}",
        "containerID": "containerd://1",
        "ready": ready,
        "started": started,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-29T10:00:00Z"}},
        "lastState": {},
    }


def waiting(name: str, reason: str, message: str = "", last: Object | None = None) -> Object:
    return {
        "name": name,
        "image": IMAGE,
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 4 if last else 0,
        "state": {"waiting": {"reason": reason, "message": message}},
        "lastState": {"terminated": last} if last else {},
    }


def pod(
    *,
    role: str = "prefill",
    ready: bool = False,
    engine: Object | None = None,
    canary: Object | None = None,
    scheduled: Object | None = None,
    **metadata: Any,
) -> Object:
    now = "2026-11-29T10:00:00Z"
    status: Object = {
        "phase": "Running" if engine else "Pending",
        "conditions": [
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now, **(scheduled or {})},
        ],
    }
    if engine:
        status |= {
            "podIP": "10.0.0.7",
            "containerStatuses": [engine],
            "initContainerStatuses": [canary or running("canary", ready=ready)],
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "pair-f00-prefill-abc",
            "namespace": "ns",
            "uid": "u-1",
            "labels": {LABEL_ROLE: role, LABEL_FINGERPRINT: "f00"},
            **metadata,
        },
        "spec": {},
        "status": status,
    }


def view(found: Object) -> PodView:
    seen = view_pod(found)
    assert seen is not None
    return seen


SCHEDULER = (
    "0/5 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
    "4 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/5 nodes are available: "
    "1 Preemption is not helpful for scheduling, 4 No preemption victims found for incoming pod."
)
UNSCHEDULABLE = {"status": "False", "reason": "Unschedulable", "message": SCHEDULER}
NO_NODE = (
    "no node is available: Insufficient nvidia.com/gpu, "
    "node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"
)
BACK_OFF = "back-off 2m40s restarting failed container=engine pod=x_ns(u)"


@pytest.mark.parametrize(
    ("found", "waits_for"),
    [
        pytest.param(pod(scheduled=UNSCHEDULABLE), f"cannot be scheduled: {NO_NODE}", id="unschedulable"),
        pytest.param(pod(), "starting", id="scheduled, nothing known yet"),
        pytest.param(
            pod(engine=waiting("engine", "PodInitializing"), canary=waiting("canary", "PodInitializing")),
            "the engine is starting",
            id="initializing",
        ),
        pytest.param(
            pod(engine=waiting("engine", "PodInitializing"), canary=waiting("canary", "ErrImagePull", "rpc error")),
            f"container canary: ImagePullBackOff ({IMAGE})",
            id="canary image",
        ),
        pytest.param(
            pod(engine=waiting("engine", "ErrImagePull", "rpc error: not found")),
            f"container engine: ImagePullBackOff ({IMAGE})",
            id="image, first try",
        ),
        pytest.param(
            pod(engine=waiting("engine", "ImagePullBackOff", "Back-off pulling image")),
            f"container engine: ImagePullBackOff ({IMAGE})",
            id="image, later tries",
        ),
        pytest.param(
            pod(engine=waiting("engine", "InvalidImageName")),
            f"container engine: InvalidImageName ({IMAGE})",
            id="image name",
        ),
        pytest.param(
            pod(engine=waiting("engine", "CreateContainerConfigError", "secret not found")),
            f"container engine: CreateContainerConfigError ({IMAGE})",
            id="secret missing",
        ),
        pytest.param(
            pod(engine=waiting("engine", "CrashLoopBackOff", BACK_OFF, {"reason": "Error", "exitCode": 2})),
            "container engine: CrashLoopBackOff, last exit Error with code 2",
            id="crash loop",
        ),
        pytest.param(
            pod(engine=waiting("engine", "CrashLoopBackOff", BACK_OFF, {"reason": "OOMKilled", "exitCode": 137})),
            "container engine: CrashLoopBackOff, last exit OOMKilled with code 137",
            id="out of memory",
        ),
        pytest.param(
            pod(engine=running("engine", ready=False, started=False)), "the engine is starting", id="loading weights"
        ),
        pytest.param(pod(engine=running("engine", ready=True)), "its canary has not passed", id="canary not passed"),
        pytest.param(
            pod(engine=running("engine", ready=False), canary=running("canary", ready=True)),
            "starting",
            id="other gate",
        ),
        pytest.param(pod(ready=True, engine=running("engine", ready=True)), "", id="ready"),
        pytest.param(
            pod(role="router", engine=running("router", ready=False), canary=running("x", ready=True)),
            "starting",
            id="router without workers",
        ),
    ],
)
def test_what_a_pod_waits_for(found: Object, waits_for: str) -> None:
    assert view(found).waits_for == waits_for
    assert view(found).ready is (waits_for == "")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (SCHEDULER, NO_NODE),
        (
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
            "no node is available: Insufficient cpu, Insufficient memory",
        ),
        (
            "0/3 nodes are available: 2 Insufficient memory, 3 Insufficient cpu. preemption: 0/3 nodes are available.",
            "no node is available: Insufficient cpu, Insufficient memory",
        ),
        (
            "0/900 nodes are available: 900 Insufficient cpu, 899 Insufficient memory. preemption: not eligible",
            "no node is available: Insufficient cpu, Insufficient memory",
        ),
        ('persistentvolumeclaim "w" not found', 'persistentvolumeclaim "w" not found'),
        ("", "the scheduler gives no reason"),
    ],
)
def test_the_schedulers_counts_are_left_out(message: str, text: str) -> None:
    """They change with every node, and with them the status of every waiting deployment."""
    assert view(pod(scheduled=UNSCHEDULABLE | {"message": message})).unschedulable == text


@pytest.mark.parametrize("reason", ["SchedulingGated", "SchedulerError"])
def test_other_scheduling_reasons_are_no_lack_of_capacity(reason: str) -> None:
    assert view(pod(scheduled={"status": "False", "reason": reason, "message": "x"})).unschedulable == ""


def test_fields() -> None:
    seen = view(pod(ready=True, engine=running("engine", ready=True), annotations={ANNOTATION_WORKERS: "d1"}))
    assert (seen.name, seen.uid, seen.role, seen.fingerprint, seen.ip, seen.workers_digest) == (
        "pair-f00-prefill-abc",
        "u-1",
        Role.PREFILL,
        "f00",
        "10.0.0.7",
        "d1",
    )
    assert seen.engine_started
    assert not seen.is_leaving
    assert seen.canary_url == "http://10.0.0.7:30002/status"
    assert view(pod(role="decode", engine=running("engine", ready=True))).canary_url == "http://10.0.0.7:30012/status"
    assert view(pod(role="router", engine=running("router", ready=True))).router_url == "http://10.0.0.7:30000/workers"


def test_addresses_of_version_six_are_bracketed() -> None:
    found = pod(engine=running("engine", ready=True))
    found["status"]["podIP"] = "fd00::7"
    seen = view(found)
    assert seen.canary_url == "http://[fd00::7]:30002/status"
    candidate = seen.candidate(0.0)
    assert candidate is not None
    assert candidate.worker.url == "http://[fd00::7]:30000"


@pytest.mark.parametrize("labels", [{}, None, {LABEL_ROLE: "queen"}, {LABEL_FINGERPRINT: "f00"}])
def test_pods_of_others_are_not_seen(labels: Any) -> None:
    assert view_pod(pod(labels=labels)) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pods_are_not_seen(phase: str) -> None:
    """An evicted pod keeps its address and its Ready condition may be stale."""
    found = pod(ready=True, engine=running("engine", ready=True))
    found["status"]["phase"] = phase
    assert view_pod(found) is None


def test_a_pod_without_status_is_starting() -> None:
    found = pod()
    del found["status"]
    seen = view(found)
    assert (seen.ready, seen.ip, seen.waits_for) == (False, "", "starting")
    assert seen.candidate(0.0) is None


# -- leaving

DELETED: dict[str, Any] = {"deletionTimestamp": "2026-11-29T10:05:38Z", "deletionGracePeriodSeconds": 338}
ASKED_AT = 1795946400.0  # 2026-11-29T10:00:00Z


def test_a_leaving_pod_says_since_when() -> None:
    seen = view(pod(ready=True, engine=running("engine", ready=True), **DELETED))
    assert seen.is_leaving
    assert seen.delete_requested_at == ASKED_AT
    candidate = seen.candidate(ASKED_AT + 3)
    assert candidate is not None
    assert (candidate.ready, candidate.leaving_for) == (True, 3.0)
    assert candidate.worker == Worker("http://10.0.0.7:30000", Role.PREFILL, "u-1")
    early = seen.candidate(ASKED_AT - 3)
    assert early is not None
    assert early.leaving_for == 0.0, "clocks differ"


def test_a_pod_killed_at_once_left_just_now() -> None:
    seen = view(pod(deletionTimestamp="2026-11-29T10:00:00Z", deletionGracePeriodSeconds=0))
    assert seen.delete_requested_at == ASKED_AT


def test_a_staying_pod_is_a_candidate_that_stays() -> None:
    candidate = view(pod(ready=True, engine=running("engine", ready=True))).candidate(0.0)
    assert candidate is not None
    assert candidate.leaving_for is None


def test_routers_are_no_candidates() -> None:
    assert view(pod(role="router", ready=True, engine=running("router", ready=True))).candidate(0.0) is None


# -- reports


def test_report() -> None:
    report = read_report({"ready": False, "reason": "TransferFailed", "message": "m" * 999, "lastSuccessTime": 1.0})
    assert report.reachable
    assert report.failing
    assert report.has_passed
    assert len(report.message) == 512


@pytest.mark.parametrize("reason", ["EngineLoading", "NoPeer", "PeerLoading", "Probing", "Passing", ""])
def test_a_start_is_no_failure(reason: str) -> None:
    assert not read_report({"ready": False, "reason": reason}).failing


def test_failures() -> None:
    assert {"ProbeFailed", "ProbeTimedOut", "TransferFailed", "EngineUnreachable"} == FAILING_REASONS
    assert not read_report({"ready": True, "reason": "ProbeFailed"}).failing, "below the threshold"
    assert not unreachable("x").failing
    assert read_report({}).ready is False
    assert read_report({"ready": "yes"}).ready is False
    assert not read_report({}).has_passed


# -- workloads


def workload(kind: str = "Deployment", **status: Any) -> Object:
    return {
        "kind": kind,
        "metadata": {
            "name": "x",
            "generation": 2,
            "labels": {LABEL_ROLE: "prefill", LABEL_FINGERPRINT: "f00"},
        },
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 1, **status},
    }


def one(found: Object) -> WorkloadView:
    (seen,) = view_workloads([found]).values()
    return seen


def test_workload() -> None:
    assert one(workload()) == WorkloadView("f00", Role.PREFILL, 2, 2, 2, 1, settled=True, deadline_exceeded=False)
    assert view_workloads([workload()]).keys() == {("f00", Role.PREFILL)}


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        ({}, True),
        ({"observedGeneration": 1}, False),
        ({"updatedReplicas": 1}, False),
        ({"replicas": 3}, False),
        ({"readyReplicas": 0}, True),
    ],
)
@pytest.mark.parametrize("kind", ["Deployment", "LeaderWorkerSet"])
def test_settled(kind: str, status: dict[str, Any], settled: bool) -> None:
    assert one(workload(kind, **status)).settled is settled


def test_a_leader_worker_set_that_tells_no_generation_can_settle() -> None:
    for kind, settled in (("LeaderWorkerSet", True), ("Deployment", False)):
        found = workload(kind)
        del found["status"]["observedGeneration"]
        assert one(found).settled is settled


def test_deadline() -> None:
    condition = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    assert one(workload(conditions=[condition])).deadline_exceeded
    assert not one(workload(conditions=[{**condition, "reason": "NewReplicaSetAvailable"}])).deadline_exceeded


def test_a_workload_without_status_is_not_settled() -> None:
    found = workload()
    del found["status"]
    seen = one(found)
    assert (seen.existing, seen.updated, seen.ready, seen.settled) == (0, 0, 0, False)


def test_other_objects_are_no_workloads() -> None:
    others = [copy.deepcopy(workload()) for _ in range(3)]
    others[0]["kind"] = "Service"
    others[1]["metadata"]["labels"] = None
    others[2]["metadata"]["labels"][LABEL_ROLE] = "queen"
    assert view_workloads(others) == {}
