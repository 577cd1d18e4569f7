"""The workload of an engine role: a Deployment for one-node engines, a LeaderWorkerSet for several nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsv4_operator.api.constants import ANNOTATION_INPUTS, Role
from dsv4_operator.desired.context import DesiredContext, selector
from dsv4_operator.desired.engine_pod import build_engine_pod_template


def build_engine_workload(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """The Deployment or LeaderWorkerSet of a role in the current generation."""
    if ctx.role_spec(role).nodes > 1:
        return _leader_worker_set(ctx, role)
    return _deployment(ctx, role)


def _metadata(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    inputs = json.dumps(ctx.fingerprint_inputs, sort_keys=True, separators=(",", ":"))
    metadata = ctx.metadata(ctx.generation_name(role.value), role, generation=True)
    return {**metadata, "annotations": {ANNOTATION_INPUTS: inputs}}


def read_fingerprint_inputs(workload: Mapping[str, Any]) -> dict[str, str]:
    """The digests of fingerprint inputs that a workload was made with; empty when it says none."""
    try:
        found = json.loads((workload["metadata"].get("annotations") or {}).get(ANNOTATION_INPUTS, "{}"))
    except ValueError:
        return {}
    return {str(path): str(digest) for path, digest in found.items()} if isinstance(found, dict) else {}


def engine_replicas(ctx: DesiredContext, role: Role) -> int:
    """Engines of the role: units times engines per unit."""
    return ctx.spec.replicas * ctx.role_spec(role).replicas


def rolling_update(ctx: DesiredContext, role: Role) -> dict[str, int]:
    """maxSurge and maxUnavailable of a role in engines, from the rollout's figures in units.

    Of several engines one stays: the only unit holds all engines of the role. The only engine of a role may go, since
    without a surge nothing could replace it; Kubernetes refuses 0 for both.
    """
    rollout, per_unit = ctx.spec.rollout, ctx.role_spec(role).replicas
    most = max(engine_replicas(ctx, role) - 1, 1)
    return {
        "maxSurge": rollout.max_surge * per_unit,
        "maxUnavailable": min(rollout.max_unavailable * per_unit, most),
    }


def _deployment(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(ctx, role),
        "spec": {
            "replicas": engine_replicas(ctx, role),
            "selector": {"matchLabels": selector(ctx.name, role, ctx.fingerprint)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(ctx, role)},
            # The default of ten minutes would call a cold start of 45 minutes a failure.
            "progressDeadlineSeconds": ctx.spec.rollout.progress_deadline_seconds,
            "revisionHistoryLimit": 3,
            "template": build_engine_pod_template(ctx, role),
        },
    }


def _leader_worker_set(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """LeaderWorkerSet v1 (kubernetes-sigs/lws api/leaderworkerset/v1); the leader alone carries canary and ports."""
    template = build_engine_pod_template(ctx, role)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(ctx, role),
        "spec": {
            "replicas": engine_replicas(ctx, role),
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": rolling_update(ctx, role),
            },
            "leaderWorkerTemplate": {
                "size": ctx.role_spec(role).nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": template,
                "workerTemplate": _worker(template),
            },
        },
    }


def _worker(template: dict[str, Any]) -> dict[str, Any]:
    """The leader's template without canary, probes and service labels: workers have no HTTP endpoint of their own."""
    spec = {key: value for key, value in template["spec"].items() if key != "initContainers"}
    probes = ("startupProbe", "livenessProbe", "readinessProbe", "ports")
    spec["containers"] = [
        {key: value for key, value in container.items() if key not in probes} for container in spec["containers"]
    ]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume.get("name") != "canary-settings"]
    labels = {key: value for key, value in template["metadata"]["labels"].items() if not key.endswith("/role")}
    return {"metadata": {**template["metadata"], "labels": labels}, "spec": spec}
