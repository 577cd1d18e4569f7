"""Which live children are no longer wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dsv4_operator.api.constants import LABEL_FINGERPRINT, LABEL_ROLE, Role

ChildKey = tuple[str, str, str]
"""(apiVersion, kind, name): children of a deployment live in its namespace."""

PRUNED_KINDS = frozenset(
    {
        "ConfigMap",
        "Deployment",
        "LeaderWorkerSet",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
    }
)
"""Kinds that the operator deletes. Pods go with their workloads, the router key with its owner."""


def child_key(obj: Mapping[str, Any]) -> ChildKey:
    """Identity of a child inside its namespace."""
    return (obj["apiVersion"], obj["kind"], obj["metadata"]["name"])


def is_owned(obj: Mapping[str, Any], owner_uid: str) -> bool:
    """Whether the object's controller is the deployment with this uid."""
    references = obj["metadata"].get("ownerReferences") or []
    return any(reference.get("controller") and reference.get("uid") == owner_uid for reference in references)


def plan_pruning(
    live: Iterable[Mapping[str, Any]],
    wanted: Collection[ChildKey],
    owner_uid: str,
    kept_fingerprints: Collection[str],
    fingerprints_with_router_pods: Collection[str],
) -> list[Mapping[str, Any]]:
    """Children to delete, workloads of routers before those of engines.

    Only objects that this very deployment controls are named. A generation that is kept but not the spec's own keeps
    all it has; one that leaves loses its router first and the rest when no router pod is left.
    """
    doomed = []
    for obj in live:
        if obj["kind"] not in PRUNED_KINDS or child_key(obj) in wanted or not is_owned(obj, owner_uid):
            continue
        labels = obj["metadata"].get("labels") or {}
        fingerprint = labels.get(LABEL_FINGERPRINT)
        if fingerprint in kept_fingerprints:
            continue
        is_router_workload = labels.get(LABEL_ROLE) == Role.ROUTER and obj["kind"] == "Deployment"
        if fingerprint in fingerprints_with_router_pods and not is_router_workload:
            continue
        doomed.append(obj)
    return sorted(doomed, key=lambda obj: (obj["kind"] != "Deployment", *child_key(obj)))
