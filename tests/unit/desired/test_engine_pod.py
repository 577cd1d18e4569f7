"""What is inside an engine's pod: security, resources, volumes, probes, placement."""

from __future__ import annotations

from typing import Any

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.constants import CANARY_PORT, ENGINE_PORT, Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext
from dsv4_operator.desired.engine_pod import build_engine_pod_template
from dsv4_operator.desired.engine_workload import build_engine_workload
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE

BOTH = (Role.PREFILL, Role.DECODE)
RDMA = {"network": {"rdmaResource": {"name": "rdma/hca", "count": 2}}}
HUB: dict[str, Any] = {"model": {"source": {"huggingFace": {"cache": {"name": "weights"}}}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def context(patch: dict[str, Any] | None = None) -> DesiredContext:
    spec = parse_deployment(merged(minimal("pair"), {"spec": patch or {}})).spec
    images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
    return DesiredContext("pair", "ns", "uid", spec, images, DEFAULT_RELEASE)


def pod(patch: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> dict[str, Any]:
    spec: dict[str, Any] = build_engine_pod_template(context(patch), role)["spec"]
    return spec


def engine(patch: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> dict[str, Any]:
    (container,) = (c for c in pod(patch, role)["containers"] if c["name"] == "engine")
    return container  # type: ignore[no-any-return]


def canary(patch: dict[str, Any] | None = None, role: Role = Role.PREFILL) -> dict[str, Any]:
    (container,) = pod(patch, role)["initContainers"]
    return container  # type: ignore[no-any-return]


# -- security


@pytest.mark.parametrize("role", BOTH)
def test_without_rdma_nothing_runs_as_root(role: Role) -> None:
    security = pod(role=role)["securityContext"]
    assert security == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    assert engine(role=role)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


@pytest.mark.parametrize("patch", [RDMA, {"network": {"devices": ["mlx5_0"]}}])
def test_rdma_adds_ipc_lock_and_no_more(patch: dict[str, Any]) -> None:
    assert engine(patch)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "readOnlyRootFilesystem": True,
    }
    security = pod(patch)["securityContext"]
    assert security["runAsUser"] == 0, "Kubernetes gives added capabilities to root alone"
    assert "runAsNonRoot" not in security
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("patch", [None, RDMA])
def test_the_canary_is_never_root(patch: dict[str, Any] | None) -> None:
    security = canary(patch)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 65532
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True


def test_no_token_no_service_links_own_account() -> None:
    spec = pod()
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["serviceAccountName"] == "pair-engine"


@pytest.mark.parametrize("field", ["hostNetwork", "hostIPC"])
def test_host_namespaces_only_when_asked(field: str) -> None:
    assert field not in pod()
    asked = pod({"network": {field: True}})
    assert asked[field] is True
    assert asked.get("dnsPolicy") == ("ClusterFirstWithHostNet" if field == "hostNetwork" else None)
    assert {"hostNetwork", "hostIPC", "hostPID"} & asked.keys() == {field}


def test_everything_writable_is_a_volume() -> None:
    paths = {mount["mountPath"] for mount in engine()["volumeMounts"]}
    assert paths == {"/dev/shm", "/tmp", "/cache"}
    assert {"name": "HOME", "value": "/cache"} in engine()["env"]


def test_a_home_of_the_user_wins_and_stands_once() -> None:
    for where in ("engine", "prefill"):
        env = engine({where: {"env": [{"name": "HOME", "value": "/tmp/me"}]}})["env"]
        assert [variable for variable in env if variable["name"] == "HOME"] == [{"name": "HOME", "value": "/tmp/me"}]


# -- resources and volumes


def test_resources() -> None:
    assert engine()["resources"] == {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}}
    patch = RDMA | {
        "accelerator": {"resourceName": "nvidia.com/b300"},
        "prefill": {"gpus": 8, "cpu": 16, "memory": "1024Mi"},
    }
    assert engine(patch)["resources"] == {
        "requests": {"nvidia.com/b300": "8", "rdma/hca": "2", "cpu": "16", "memory": "1024Mi"},
        "limits": {"nvidia.com/b300": "8", "rdma/hca": "2", "memory": "1024Mi"},
    }
    assert "memory" not in engine(patch, Role.DECODE)["resources"]["limits"]


def volumes(patch: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    return {volume.pop("name"): volume for volume in pod(patch)["volumes"]}


def test_shared_memory_is_bounded() -> None:
    assert volumes()["shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}
    assert volumes({"prefill": {"sharedMemory": "1Gi"}})["shm"]["emptyDir"]["sizeLimit"] == "1Gi"


def test_weights() -> None:
    claim = {"persistentVolumeClaim": {"claimName": "w", "path": "p"}, "huggingFace": None}
    host = {"hostPath": {"path": "/data"}, "huggingFace": None}
    assert volumes({"model": {"source": claim}})["model"] == {
        "persistentVolumeClaim": {"claimName": "w", "readOnly": True}
    }
    assert volumes({"model": {"source": host}})["model"] == {"hostPath": {"path": "/data", "type": "Directory"}}
    for source in (claim, host):
        mount = {"name": "model", "mountPath": "/model", "readOnly": True}
        assert mount in engine({"model": {"source": source}})["volumeMounts"]
        assert volumes({"model": {"source": source}})["cache"] == {"emptyDir": {}}
    assert "model" not in volumes()
    assert volumes(HUB)["cache"] == {"persistentVolumeClaim": {"claimName": "weights"}}


# -- probes


@pytest.mark.parametrize("role", BOTH)
def test_readiness_is_the_canarys(role: Role) -> None:
    assert "readinessProbe" not in engine(role=role)
    assert engine(role=role)["livenessProbe"]["httpGet"] == {"path": "/livez", "port": CANARY_PORT[role]}
    assert canary(role=role)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": CANARY_PORT[role]}
    assert canary(role=role)["restartPolicy"] == "Always"
    assert "startupProbe" not in canary(role=role), "kubelets forget and invent it"
    assert "livenessProbe" not in canary(role=role)


@pytest.mark.parametrize("role", BOTH)
def test_without_canary_the_engine_answers_for_itself(role: Role) -> None:
    off = {"canary": {"enabled": False}}
    assert "initContainers" not in pod(off, role)
    assert "livenessProbe" not in engine(off, role)
    assert engine(off, role)["readinessProbe"]["httpGet"] == {"path": "/ready", "port": ENGINE_PORT[role]}
    assert "canary-settings" not in {volume["name"] for volume in pod(off, role)["volumes"]}


@pytest.mark.parametrize("deadline", [5400, 5401, 60])
def test_a_cold_start_may_take_the_whole_deadline(deadline: int) -> None:
    patch = {"rollout": {"progressDeadlineSeconds": deadline}}
    probe = engine(patch)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= deadline
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) < deadline
    assert build_engine_workload(context(patch), Role.PREFILL)["spec"]["progressDeadlineSeconds"] == deadline


def test_draining_ends_before_the_kill() -> None:
    for seconds in (0, 300):
        spec = pod({"rollout": {"drainSeconds": seconds}})
        sleep = engine()["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert spec["terminationGracePeriodSeconds"] == sleep + seconds + 30
    assert sleep > 5, "smg drains five seconds"


def test_the_canary_knows_its_pair() -> None:
    for role, own, peer in ((Role.PREFILL, 30000, 30010), (Role.DECODE, 30010, 30000)):
        env = {variable["name"]: variable.get("value") for variable in canary(role=role)["env"]}
        assert env["DSV4_CANARY_ROLE"] == role.value
        assert env["DSV4_CANARY_ENGINE_URL"] == f"http://127.0.0.1:{own}"
        assert env["DSV4_CANARY_PEER_PORT"] == str(peer)
        fingerprint = context().fingerprint
        assert env["DSV4_CANARY_PEER_HOST"] == f"pair-{fingerprint}-{role.peer.value}.ns.svc.cluster.local"
        assert env["DSV4_CANARY_FINGERPRINT"] == fingerprint


# -- placement


def terms(patch: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod(patch)["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return found


def expression(key: str, *values: str) -> dict[str, Any]:
    return {"key": f"nvidia.com/gpu.compute.{key}", "operator": "In", "values": list(values)}


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("Blackwell", [expression("major", "10", "12")]),
        ("SM100", [expression("major", "10"), expression("minor", "0")]),
        ("SM103", [expression("major", "10"), expression("minor", "3")]),
        ("SM120", [expression("major", "12"), expression("minor", "0")]),
    ],
)
def test_accelerator(architecture: str, expected: list[dict[str, Any]]) -> None:
    assert terms({"accelerator": {"architecture": architecture}}) == [{"matchExpressions": expected}]


ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
RACK = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
MAJOR = expression("major", "10", "12")
POD_AFFINITY = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "kubernetes.io/hostname"}]}}
USERS = {**POD_AFFINITY, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}, RACK]}}}
ANDED = [{"matchExpressions": [ZONE, MAJOR]}, {**RACK, "matchExpressions": [MAJOR]}]


@pytest.mark.parametrize("through", [{"affinity": USERS}, {"podTemplate": {"spec": {"affinity": USERS}}}])
def test_affinity_of_the_user_is_anded_term_by_term(through: dict[str, Any]) -> None:
    assert terms({"prefill": through}) == ANDED
    assert pod({"prefill": through})["affinity"]["podAntiAffinity"] == POD_AFFINITY["podAntiAffinity"]


def test_a_preference_of_the_user_stays() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": RACK}]}
    affinity = pod({"prefill": {"affinity": {"nodeAffinity": preferred}}})["affinity"]
    assert affinity["nodeAffinity"] == {**preferred, REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [MAJOR]}]}}


@pytest.mark.parametrize(
    "affinity",
    [
        {"nodeAffinity": None},
        {"nodeAffinity": "x"},
        {"nodeAffinity": {REQUIRED: None}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [None, "x"]}}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": None}]}}},
    ],
)
def test_odd_affinity_breaks_nothing(affinity: dict[str, Any]) -> None:
    for term in terms({"prefill": {"affinity": affinity}}):
        assert MAJOR in term["matchExpressions"]


def test_the_users_own_objects_are_not_changed() -> None:
    ctx = context({"prefill": {"affinity": USERS}})
    before = ctx.spec.model_dump_json()
    build_engine_pod_template(ctx, Role.PREFILL)
    assert ctx.spec.model_dump_json() == before


def test_placement_fields() -> None:
    patch = {
        "engine": {"imagePullSecrets": [{"name": "pull"}]},
        "prefill": {
            "nodeSelector": {"a": "b"},
            "priorityClassName": "high",
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        },
    }
    spec = pod(patch)
    assert spec["nodeSelector"] == {"a": "b"}
    assert spec["priorityClassName"] == "high"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert spec["tolerations"] == [gpu, {"key": "dedicated", "operator": "Exists"}]
    assert {"nodeSelector", "priorityClassName"}.isdisjoint(pod(patch, Role.DECODE))


@pytest.mark.parametrize(
    ("units", "per_unit", "surge", "unavailable", "expected"),
    [
        (1, 1, 1, 0, (1, {"maxSurge": 1, "maxUnavailable": 0})),
        (3, 2, 1, 0, (6, {"maxSurge": 2, "maxUnavailable": 0})),
        (2, 3, 0, 1, (6, {"maxSurge": 0, "maxUnavailable": 3})),
        (0, 2, 1, 1, (0, {"maxSurge": 2, "maxUnavailable": 1})),
        (1, 1, 0, 1, (1, {"maxSurge": 0, "maxUnavailable": 1})),
        (1, 2, 0, 1, (2, {"maxSurge": 0, "maxUnavailable": 1})),
        (1, 3, 0, 1, (3, {"maxSurge": 0, "maxUnavailable": 2})),
        (2, 2, 1, 9, (4, {"maxSurge": 2, "maxUnavailable": 3})),
    ],
)
def test_units_become_pods_and_of_several_one_stays(
    units: int, per_unit: int, surge: int, unavailable: int, expected: tuple[int, dict[str, int]]
) -> None:
    patch = {
        "replicas": units,
        "prefill": {"replicas": per_unit},
        "rollout": {"maxSurge": surge, "maxUnavailable": unavailable},
    }
    one = build_engine_workload(context(patch), Role.PREFILL)["spec"]
    several = build_engine_workload(context(merged(patch, {"prefill": {"nodes": 2}})), Role.PREFILL)["spec"]
    assert (one["replicas"], one["strategy"]["rollingUpdate"]) == expected
    assert (several["replicas"], several["rolloutStrategy"]["rollingUpdateConfiguration"]) == expected
    assert several["leaderWorkerTemplate"]["size"] == 2


def test_only_the_leader_has_a_canary_and_ports() -> None:
    template = build_engine_workload(context({"decode": {"nodes": 2}}), Role.DECODE)["spec"]["leaderWorkerTemplate"]
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    assert leader["spec"]["initContainers"][0]["name"] == "canary"
    assert "initContainers" not in worker["spec"]
    (container,) = worker["spec"]["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & container.keys()
    assert container["args"] == leader["spec"]["containers"][0]["args"]
    assert "canary-settings" not in {volume["name"] for volume in worker["spec"]["volumes"]}
    assert "serving.dsv4.dev/role" not in worker["metadata"]["labels"], "Services must not meet workers"


# -- the guard


@pytest.mark.parametrize("role", BOTH)
@pytest.mark.parametrize(
    ("patch", "index_k"),
    [({"indexK": {"dtype": "BF16"}}, "bf16"), ({"network": {"checksum": True}}, "fp8"), ({}, None)],
)
def test_the_sidecar_waits_for_the_guard_where_it_is_needed(
    patch: dict[str, Any], index_k: str | None, role: Role
) -> None:
    environment = {entry["name"]: entry.get("value") for entry in canary(patch, role)["env"]}
    assert environment.get("DSV4_CANARY_REQUIRE_GUARD") == index_k


def test_index_k_makes_another_generation() -> None:
    assert context({"indexK": {"dtype": "BF16"}}).fingerprint != context().fingerprint
