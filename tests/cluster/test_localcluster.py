"""The local cluster's life: it starts, is shared between processes, recovers, and leaves nothing behind."""

import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta

import pytest

import cluster_helpers as helpers
from localcluster import ClusterError, ClusterOptions, LocalCluster, audit, cluster, images, state
from localcluster.api import Api, ApiError
from localcluster.processes import ProcessId, this_process
from localcluster.waiting import wait_for

pytestmark = pytest.mark.cluster

NOTHING: list[str] = []


def _unique(stem: str) -> str:
    return f"{stem}-{this_process().pid}"


def _container_ids(made: LocalCluster) -> list[str]:
    folder = made.dir / "runc" / "k8s.io"
    return [entry.name for entry in folder.iterdir()]


@pytest.mark.node
def test_down_leaves_nothing_of_a_node_with_running_pods() -> None:
    rules_before = helpers.host_rules()
    made = LocalCluster(_unique("gone"), ClusterOptions(mode="node")).up(owned=True)
    try:
        images.load(made, images.base_archive())
        pod = helpers.serving_pod("web")
        pod["spec"]["volumes"] = [{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "memory", "mountPath": "/m"}]
        helpers.create_pod(made, "default", pod)
        helpers.wait_ready(made, "default", "web")
        network = made.state.network
        containers = _container_ids(made)
        before = helpers.left_of(made, network, containers)
    finally:
        made.down()
    # The probe itself must see a running cluster, or an empty answer afterwards would prove nothing.
    assert all(before.values()), before
    after = helpers.left_of(made, network, containers)
    assert after == dict.fromkeys(after, NOTHING)
    assert helpers.host_rules() == rules_before
    assert not made.down()


@pytest.mark.node
def test_down_cleans_up_after_a_creator_that_was_killed_in_the_middle() -> None:
    name = _unique("killed")
    made = LocalCluster(name)
    command = [sys.executable, "-m", "localcluster", "up", "--mode=node", f"--name={name}"]
    folder = images.REPOSITORY / "tests" / "cluster"
    creator = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for("etcd and containerd to run", lambda: _alive(name, "containerd"), 60, interval=0.01)
        creator.kill()
        creator.wait()
        found = state.load(name)
        assert found is not None
        assert not found.ready
        assert helpers.left_of(made, found.network, [])["processes"]
    finally:
        creator.kill()
        creator.wait()
        made.down()
    after = helpers.left_of(made, found.network, [])
    assert after == dict.fromkeys(after, NOTHING)


def _alive(name: str, component: str) -> bool:
    found = state.load(name)
    return found is not None and component in found.components and found.components[component].alive


def test_a_process_that_was_started_but_not_recorded_is_ended_too() -> None:
    made = LocalCluster(_unique("lost")).up(owned=True)
    try:
        recorded = made.state
        scheduler = recorded.components["kube-scheduler"].process
        recorded.components["kube-scheduler"].pid = None
        recorded.save()
    finally:
        made.down()
    assert scheduler is not None
    assert not scheduler.alive()


def test_a_pid_that_now_belongs_to_another_process_is_left_alone() -> None:
    made = LocalCluster(_unique("reuse")).up(owned=True)
    bystander = subprocess.Popen(["sleep", "120"])
    try:
        recorded = made.state
        real = recorded.components["kube-scheduler"].process
        recorded.components["kube-scheduler"].pid = bystander.pid
        recorded.save()
        made.down()
        assert bystander.poll() is None
        assert real is not None
        assert not real.alive()
    finally:
        bystander.kill()
        bystander.wait()
        made.down()


def test_clusters_of_a_dead_owner_are_removed_and_those_of_a_living_one_stay(control_plane: LocalCluster) -> None:
    name = _unique("orphan")
    code = f"import os; from localcluster import LocalCluster; LocalCluster({name!r}).up(owned=True); os._exit(9)"
    folder = images.REPOSITORY / "tests" / "cluster"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False).returncode == 9
    orphan = LocalCluster(name)
    try:
        assert orphan.state.orphaned
        assert name in cluster.remove_orphans()
        assert not orphan.dir.exists()
        assert not control_plane.state.orphaned
        assert control_plane.api.get("/api/v1/namespaces/default")
    finally:
        orphan.down()


def test_up_is_idempotent_and_completes_what_died(control_plane: LocalCluster) -> None:
    before = {name: one.process for name, one in control_plane.state.components.items()}
    control_plane.up(owned=True)
    assert {name: one.process for name, one in control_plane.state.components.items()} == before
    scheduler = before["kube-scheduler"]
    assert scheduler is not None
    scheduler.signal(9)
    wait_for("the scheduler's death", lambda: not scheduler.alive(), 10)
    control_plane.up(owned=True)
    after = {name: one.process for name, one in control_plane.state.components.items()}
    assert after.pop("kube-scheduler") != before.pop("kube-scheduler")
    assert after == before


def test_up_refuses_a_running_cluster_with_other_options(control_plane: LocalCluster) -> None:
    other = LocalCluster(control_plane.name, ClusterOptions(gpus=1))
    with pytest.raises(ClusterError, match="other options"):
        other.up()
    assert cluster.attach(control_plane.name).options == control_plane.options


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a" * 21, "../a"])
def test_names_that_cannot_be_folders_and_namespaces_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cluster name"):
        LocalCluster(name)


def test_two_control_planes_side_by_side_know_nothing_of_each_other(control_plane: LocalCluster) -> None:
    with LocalCluster(_unique("side")) as second:
        assert not set(second.state.ports.values()) & set(control_plane.state.ports.values())
        second.api.create("/api/v1/namespaces", {"metadata": {"name": "only-here"}})
        assert control_plane.api.get_or_none("/api/v1/namespaces/only-here") is None
        with pytest.raises(ApiError, match="401"):
            Api(second.server, second.ca, control_plane.state.tokens["admin"]).get("/api/v1/namespaces")
    assert control_plane.api.get("/api/v1/namespaces/default")


def test_the_certificate_is_verified_against_the_clusters_own_authority(control_plane: LocalCluster) -> None:
    config = control_plane.kubeconfig.read_text()
    assert "certificate-authority-data" in config
    assert "insecure" not in config
    with LocalCluster(_unique("ca")) as other, pytest.raises(OSError, match="certificate verify failed"):
        Api(control_plane.server, other.ca, "").get("/version")


@pytest.mark.parametrize("component", ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"])
def test_objects_outlive_a_restart_of_each_component(
    control_plane: LocalCluster, namespace: str, component: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.api.create(maps, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
    before = control_plane.state.components[component].process
    control_plane.restart(component)
    assert control_plane.state.components[component].process != before
    assert control_plane.api.get(f"{maps}/kept")["data"] == {"a": "1"}
    # The whole chain works again: a pod is scheduled onto a simulated node and reported Ready.
    helpers.create_pod(control_plane, namespace, helpers.sleeping_pod("again"))
    helpers.wait_ready(control_plane, namespace, "again")


def test_a_stopped_component_stays_stopped_until_it_is_started(control_plane: LocalCluster) -> None:
    with control_plane.stopped("kube-apiserver"):
        assert not control_plane.state.components["kube-apiserver"].alive
        with pytest.raises(OSError, match="refused"):
            control_plane.api.get("/readyz")
    assert control_plane.api.get("/readyz") == "ok"
    with pytest.raises(ClusterError, match="has no component nosuch"):
        control_plane.stop("nosuch")


def test_after_compaction_old_revisions_are_gone(control_plane: LocalCluster, namespace: str) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    old = control_plane.api.create(maps, {"metadata": {"name": "one"}})["metadata"]["resourceVersion"]
    for number in range(3):
        control_plane.api.create(maps, {"metadata": {"name": f"later-{number}"}})
    assert control_plane.compact() > int(old)
    # The API server's own cache outlives a compaction; a restart makes it read from etcd.
    control_plane.restart("kube-apiserver")
    with pytest.raises(ApiError, match="410") as caught:
        control_plane.api.get(maps, resourceVersion=old, resourceVersionMatch="Exact", limit="500")
    assert caught.value.status == 410


def test_service_account_tokens_carry_only_their_own_rights(control_plane: LocalCluster, namespace: str) -> None:
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "default")
    since = audit.now()
    command = [f"--kubeconfig={kubeconfig}", "get", "configmaps"]
    with pytest.raises(ClusterError, match="forbidden"):
        control_plane.kubectl(*command)
    control_plane.kubectl(
        "-n", namespace, "create", "rolebinding", "v", "--clusterrole=view", f"--serviceaccount={namespace}:default"
    )
    assert "kube-root-ca.crt" in control_plane.kubectl(*command)
    user = f"system:serviceaccount:{namespace}:default"
    lists = [event for event in control_plane.audit_events(since) if event.user == user and event.verb == "list"]
    assert [event.status for event in lists if event.resource == "configmaps"] == [403, 200]
    assert all(event.user_agent.startswith("kubectl/") and event.namespace == namespace for event in lists)


def test_the_audit_log_tells_writes_with_subresource_and_skips_components(
    control_plane: LocalCluster, namespace: str
) -> None:
    since = audit.now()
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.api.create(maps, {"metadata": {"name": "audited"}})
    helpers.create_pod(control_plane, namespace, helpers.sleeping_pod("audited"))
    helpers.wait_ready(control_plane, namespace, "audited")
    events = control_plane.audit_events(since)
    writes = {
        (event.user, event.verb, event.resource, event.subresource, event.name) for event in events if event.is_write
    }
    assert ("admin", "create", "configmaps", "", "audited") in writes
    assert ("system:kube-scheduler", "create", "pods", "binding", "audited") in writes
    assert ("system:kwok", "patch", "pods", "status", "audited") in writes
    assert not [event for event in events if event.user == "system:kube-scheduler" and not event.is_write]
    # Other namespaces may still be going away: only the filter itself is of interest.
    assert control_plane.audit_events(audit.now() + timedelta(hours=1)) == []


def test_simulated_nodes_offer_gpus_and_refuse_too_many(control_plane: LocalCluster, namespace: str) -> None:
    limits = {"container": {"resources": {"limits": {"nvidia.com/gpu": "16"}}}}
    selector = {"nvidia.com/gpu.compute.major": "10"}
    for name in ("first", "second", "third"):
        pod = helpers.sleeping_pod(name, nodeSelector=selector, **limits)
        pod["spec"]["initContainers"] = [{"name": "side", "image": "x", "restartPolicy": "Always"}]
        helpers.create_pod(control_plane, namespace, pod)
    wait_for("two pods to be Ready and one to be refused", lambda: _placed(control_plane, namespace) == (2, 1), 60)
    pods = control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    side = next(pod for pod in pods if helpers.is_ready(pod))["status"]["initContainerStatuses"][0]
    assert side["ready"]
    assert "running" in side["state"]


def _placed(made: LocalCluster, namespace: str) -> tuple[int, int]:
    pods = made.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    conditions = [one for pod in pods for one in pod.get("status", {}).get("conditions", [])]
    refused = [one for one in conditions if one["type"] == "PodScheduled" and "Insufficient" in one.get("message", "")]
    return sum(helpers.is_ready(pod) for pod in pods), len(refused)


def test_state_survives_a_round_trip(control_plane: LocalCluster) -> None:
    found = control_plane.state
    assert asdict(found) == asdict(control_plane.state)
    process = found.components["etcd"].process
    assert isinstance(process, ProcessId)
    assert process.alive()
    assert not ProcessId(process.pid, process.start_ticks + 1).alive()
