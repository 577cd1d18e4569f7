"""The pod of one engine: the engine container, its canary, its volumes and where it may run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from dsv4_operator.api.constants import (
    BOOTSTRAP_PORT,
    CANARY_PORT,
    CONTAINER_ENGINE,
    ENGINE_PORT,
    Role,
)
from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.desired.canary import build_canary_container, settings_name
from dsv4_operator.desired.context import DesiredContext, labels
from dsv4_operator.desired.overlay import apply_overlay
from dsv4_operator.engine.command import MODEL_MOUNT, EnvEntry, render_command

USER_ID: Final = 65532
CACHE_MOUNT: Final = "/cache"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
STARTUP_PERIOD_SECONDS: Final = 5
PRESTOP_SECONDS: Final = 8
"""The pod leaves the workers file at once and smg drains five seconds; requests that still arrive are accepted."""
GRACE_MARGIN_SECONDS: Final = 30

_COMPUTE_CAPABILITY: Final = {
    Architecture.BLACKWELL: (("10", "12"), None),
    Architecture.SM100: (("10",), "0"),
    Architecture.SM103: (("10",), "3"),
    Architecture.SM120: (("12",), "0"),
}
"""Values of the labels nvidia.com/gpu.compute.major and .minor (NVIDIA GPU feature discovery)."""


def build_engine_pod_template(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """The pod template of an engine role, with the user's overlay."""
    template = apply_overlay(
        {
            "metadata": {"labels": labels(ctx.name, role, ctx.fingerprint)},
            "spec": _pod_spec(ctx, role),
        },
        ctx.role_spec(role).pod_template,
    )
    # Last, since node selector terms are or-ed: one more of them must not open nodes without the accelerator.
    template["spec"]["affinity"] = _on_accelerator(ctx, template["spec"].get("affinity"))
    return template


def _pod_spec(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    role_spec, network = ctx.role_spec(role), ctx.spec.network
    spec: dict[str, Any] = {
        "serviceAccountName": f"{ctx.name}-engine",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRESTOP_SECONDS + ctx.spec.rollout.drain_seconds + GRACE_MARGIN_SECONDS,
        "securityContext": _pod_security(ctx),
        "containers": [_engine_container(ctx, role)],
        "volumes": _volumes(ctx, role),
    }
    if ctx.spec.canary.enabled:
        spec["initContainers"] = [build_canary_container(ctx, role)]
    if network.host_network:
        spec["hostNetwork"] = True
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if network.host_ipc:
        spec["hostIPC"] = True
    if role_spec.affinity:
        spec["affinity"] = copy.deepcopy(role_spec.affinity)
    if role_spec.node_selector:
        spec["nodeSelector"] = dict(role_spec.node_selector)
    if role_spec.priority_class_name:
        spec["priorityClassName"] = role_spec.priority_class_name
    if ctx.spec.engine.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in ctx.spec.engine.image_pull_secrets]
    spec["tolerations"] = [
        {"key": ctx.spec.accelerator.resource_name, "operator": "Exists", "effect": "NoSchedule"},
        *role_spec.tolerations,
    ]
    return spec


def _asks_for_rdma(ctx: DesiredContext) -> bool:
    return bool(ctx.spec.network.devices) or ctx.spec.network.rdma_resource is not None


def _pod_security(ctx: DesiredContext) -> dict[str, Any]:
    # Registering memory with an HCA needs IPC_LOCK, and Kubernetes gives added capabilities to root alone.
    if _asks_for_rdma(ctx):
        return {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 0, "fsGroup": USER_ID}
    return {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
    }


def _on_accelerator(ctx: DesiredContext, affinity: Any) -> dict[str, Any]:
    """The accelerator's node affinity, and-ed into every term of the user's own.

    Parts of a wrong type count as absent: the API server never sees them, and nothing of ours depends on them.
    """
    majors, minor = _COMPUTE_CAPABILITY[ctx.spec.accelerator.architecture]
    expressions: list[dict[str, Any]] = [
        {"key": "nvidia.com/gpu.compute.major", "operator": "In", "values": list(majors)}
    ]
    if minor is not None:
        expressions.append({"key": "nvidia.com/gpu.compute.minor", "operator": "In", "values": [minor]})
    result = _mapping(affinity)
    node = _mapping(result.get("nodeAffinity"))
    required = _mapping(node.get(_REQUIRED))
    terms = [_mapping(term) for term in _sequence(required.get("nodeSelectorTerms"))] or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*_sequence(term.get("matchExpressions")), *expressions]} for term in terms
    ]
    node[_REQUIRED] = required
    return {**result, "nodeAffinity": node}


def _mapping(value: Any) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _engine_container(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    command = render_command(ctx.spec, ctx.release, role)
    ports = [{"name": "http", "containerPort": ENGINE_PORT[role], "protocol": "TCP"}]
    if role is Role.PREFILL:
        ports.append({"name": "bootstrap", "containerPort": BOOTSTRAP_PORT, "protocol": "TCP"})
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if _asks_for_rdma(ctx):
        capabilities["add"] = ["IPC_LOCK"]
    container: dict[str, Any] = {
        "name": CONTAINER_ENGINE,
        "image": ctx.images.engine,
        "imagePullPolicy": ctx.spec.engine.image_pull_policy,
        "command": command.argv[:3],
        "args": command.argv[3:],
        "env": _environment(command.env),
        "ports": ports,
        "startupProbe": {
            # In PD /health proves one forward, never a transfer; it takes one to twenty seconds to answer.
            "httpGet": {"path": "/health", "port": ENGINE_PORT[role]},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 25,
            "failureThreshold": -(-ctx.spec.rollout.progress_deadline_seconds // STARTUP_PERIOD_SECONDS),
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PRESTOP_SECONDS}}},
        "resources": _resources(ctx, role),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": capabilities,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": CACHE_MOUNT},
        ],
    }
    source = ctx.spec.model.source
    if source.hugging_face is None:
        container["volumeMounts"].append({"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True})
    if ctx.spec.canary.enabled:
        # The sidecar alone can tell a wedged engine from a busy one; it says no only after ten dead minutes.
        container["livenessProbe"] = {
            "httpGet": {"path": "/livez", "port": CANARY_PORT[role]},
            "periodSeconds": 30,
            "timeoutSeconds": 5,
            "failureThreshold": 10,
        }
    else:
        container["readinessProbe"] = {
            "httpGet": {"path": ctx.release.ready_endpoint, "port": ENGINE_PORT[role]},
            "periodSeconds": 10,
            "timeoutSeconds": 25,
            "failureThreshold": 3,
        }
    return container


def _environment(entries: list[EnvEntry]) -> list[dict[str, Any]]:
    """The command's variables, and a home that can be written to unless the user named one."""
    home = [] if any(entry.name == "HOME" for entry in entries) else [{"name": "HOME", "value": CACHE_MOUNT}]
    return [*(_env(entry) for entry in entries), *home]


def _env(entry: EnvEntry) -> dict[str, Any]:
    if entry.field_path is not None:
        return {
            "name": entry.name,
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": entry.field_path}},
        }
    if entry.secret is not None:
        return {
            "name": entry.name,
            "valueFrom": {"secretKeyRef": {"name": entry.secret.name, "key": entry.secret.key}},
        }
    return {"name": entry.name, "value": entry.value or ""}


def _resources(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    role_spec = ctx.role_spec(role)
    requests: dict[str, str] = {ctx.spec.accelerator.resource_name: str(role_spec.gpus)}
    if ctx.spec.network.rdma_resource is not None:
        requests[ctx.spec.network.rdma_resource.name] = str(ctx.spec.network.rdma_resource.count)
    limits = dict(requests)
    if role_spec.cpu is not None:
        requests["cpu"] = role_spec.cpu
    if role_spec.memory is not None:
        requests["memory"] = role_spec.memory
        limits["memory"] = role_spec.memory
    return {"requests": requests, "limits": limits}


def _volumes(ctx: DesiredContext, role: Role) -> list[dict[str, Any]]:
    source = ctx.spec.model.source
    cache: dict[str, Any] = {"name": "cache", "emptyDir": {}}
    volumes: list[dict[str, Any]] = [
        # Memory-backed: counted against the memory limit, and always bounded.
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": ctx.role_spec(role).shared_memory}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if source.hugging_face is not None and source.hugging_face.cache is not None:
        cache = {"name": "cache", "persistentVolumeClaim": {"claimName": source.hugging_face.cache.name}}
    elif source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        volumes.append({"name": "model", "persistentVolumeClaim": claim})
    elif source.host_path is not None:
        volumes.append({"name": "model", "hostPath": {"path": source.host_path.path, "type": "Directory"}})
    volumes.append(cache)
    if ctx.spec.canary.enabled:
        volumes.append({"name": "canary-settings", "configMap": {"name": settings_name(ctx.name)}})
    return volumes
