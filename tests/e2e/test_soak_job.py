"""A soak as a Job on a real API server: what it accepts, what the soak's account may do, what comes back, what stays.

Nodes are simulated: their pods end at once. The test plays the pod, with the account and the code of the real one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4_canary.soak.publish import Account, PublishError, content, publish
from dsv4_operator.cli.kubectl import AlreadyThereError, ClusterError, Kubectl
from dsv4_operator.cli.soak_cluster import JobResult, run_job
from dsv4_operator.desired import soak_job
from dsv4_operator.desired.soak_job import SoakJob
from localcluster import LocalCluster, tools
from localcluster.waiting import wait_for

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("job", "configmap", "role", "rolebinding", "serviceaccount", "pod")


@pytest.fixture
def kubectl(control_plane: LocalCluster, namespace: str) -> Kubectl:
    return Kubectl((str(tools.kubectl()), "--kubeconfig", str(control_plane.kubeconfig), "--namespace", namespace))


@pytest.fixture
def job() -> SoakJob:
    words = soak_job.arguments({"endpoint": "http://pair.default.svc", "tag": "first"})
    return SoakJob("soak-first-a1b2c3", "a1b2c3", "first", "localhost/dsv4/canary:dev", words)


@pytest.fixture
def no_pods(control_plane: LocalCluster, namespace: str) -> Iterator[str]:
    """A quota that keeps pods from being made until it is deleted."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    control_plane.api.create(path, quota)
    wait_for("the quota to count", lambda: control_plane.api.get(f"{path}/none").get("status", {}).get("hard"), 60)
    yield f"{path}/none"


def account(cluster: LocalCluster, namespace: str, name: str) -> Account:
    """What the kubelet would mount into the pod."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    token = cluster.api.create(path, request)["status"]["token"]
    return Account(cluster.server, namespace, token, cluster.ca)


def results(folder: Path) -> Path:
    """Files of a soak, the report cut down to what its page needs not."""
    folder.mkdir()
    (folder / "first.json").write_text(json.dumps({"verdict": "clean", "sentence": "No corruption in 80 sessions."}))
    (folder / "first.md").write_text("# Soak first")
    (folder / "first.jsonl").write_text('{"soak": 1}\n')
    return folder


async def publish_as(cluster: LocalCluster, namespace: str, job: SoakJob, name: str, folder: Path) -> None:
    await publish(account(cluster, namespace, job.name), name, content(folder, "first", 0), patience=0.0)


async def test_the_account_writes_its_results_and_nothing_else(
    control_plane: LocalCluster, namespace: str, kubectl: Kubectl, job: SoakJob, no_pods: str, tmp_path: Path
) -> None:
    owner = kubectl.create(soak_job.results_object(job))
    for item in soak_job.other_objects(job, owner["metadata"]["uid"]):
        kubectl.create(item)
    folder = results(tmp_path / "r")
    await publish_as(control_plane, namespace, job, job.name, folder)
    found = kubectl.get("configmap", job.name)
    assert found is not None
    assert found["data"]["sentence"] == "No corruption in 80 sessions."
    assert "first.jsonl.gz" in found["binaryData"]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}
    kubectl.create(other)
    with pytest.raises(PublishError, match="HTTP 403"):
        await publish_as(control_plane, namespace, job, "other", folder)
    # Made once: a name that is taken by others is never taken over; ours is, when an answer was lost.
    with pytest.raises(AlreadyThereError):
        kubectl.create(other)
    assert kubectl.create(soak_job.results_object(job))["metadata"]["uid"] == owner["metadata"]["uid"]
    # The owner takes all with it.
    kubectl.delete("configmap", job.name)
    for kind in ("job", "role", "rolebinding", "serviceaccount"):
        wait_for(f"{kind} to go", lambda kind=kind: kubectl.get(kind, job.name) is None, 60)


async def test_a_run_brings_its_files_and_leaves_nothing(
    control_plane: LocalCluster, namespace: str, kubectl: Kubectl, job: SoakJob, no_pods: str, tmp_path: Path
) -> None:
    brought: list[JobResult | BaseException] = []

    def follow() -> None:
        try:
            brought.append(run_job(kubectl, job, quiet=True))
        except BaseException as error:
            brought.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        wait_for("the Job", lambda: kubectl.get("job", job.name) is not None, 60)
        await publish_as(control_plane, namespace, job, job.name, results(tmp_path / "r"))
        control_plane.api.delete(no_pods)  # now the pod runs, and ends at once
    finally:
        thread.join(240)
    (result,) = brought
    assert isinstance(result, JobResult), result
    assert result.status == 0
    assert result.files.keys() == {"first.json", "first.md", "first.jsonl"}
    assert result.files["first.jsonl"] == b'{"soak": 1}\n'
    assert result.report("first") == {"verdict": "clean", "sentence": "No corruption in 80 sessions."}
    for kind in KINDS:
        wait_for(f"no {kind} to be left", lambda kind=kind: not kubectl.listed(kind, f"{soak_job.LABEL_TAG}=first"), 60)


def test_a_job_that_cannot_start_is_said_and_removed(
    kubectl: Kubectl, job: SoakJob, no_pods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv4_operator.cli.soak_cluster.START_SECONDS", 3.0)
    with pytest.raises(ClusterError, match="did not start within 3 s"):
        run_job(kubectl, job, quiet=True)
    for kind in KINDS:
        wait_for(f"no {kind} to be left", lambda kind=kind: not kubectl.listed(kind, f"{soak_job.LABEL_TAG}=first"), 60)


def test_an_interrupt_removes_the_job(
    control_plane: LocalCluster, namespace: str, kubectl: Kubectl, no_pods: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "dsv4_operator.cli.main", "soak", "--in-cluster", "--image", "localhost/c:1"]
    command += ["--endpoint", "http://pair.default.svc", "--tag", "first", "--out", str(tmp_path / "o")]
    command += ["-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "KUBECTL": str(tools.kubectl())}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for("the Job", lambda: kubectl.listed("job", f"{soak_job.LABEL_TAG}=first"), 60)
        wait_for("the command to say so", lambda: process.stderr and "Ctrl-C stops it" in process.stderr.readline(), 60)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "stopping the Job" in said
    for kind in KINDS:
        wait_for(f"no {kind} to be left", lambda kind=kind: not kubectl.listed(kind, f"{soak_job.LABEL_TAG}=first"), 60)


def test_the_manifests_are_accepted(control_plane: LocalCluster, namespace: str) -> None:
    folder = ROOT / "manifests" / "soak"
    control_plane.kubectl("apply", "--server-side", "-n", namespace, "-k", str(folder))
    wait_for(
        "the Job to end",
        lambda: (
            "1"
            in control_plane.kubectl("get", "job", "dsv4-soak", "-n", namespace, "-o", "jsonpath={.status.succeeded}")
        ),
        120,
    )
