"""A role's workload (Deployment or LeaderWorkerSet) as status needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_operator.api.constants import LABEL_FINGERPRINT, LABEL_ROLE, Role


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Figures in pods (in groups of pods for a LeaderWorkerSet)."""

    fingerprint: str
    role: Role
    desired: int
    existing: int
    updated: int
    ready: int
    settled: bool
    """Whether its controller has seen the newest template and no old pod is left."""
    deadline_exceeded: bool
    since: str = ""
    """When it was made, RFC 3339."""


def view_workloads(children: Iterable[Mapping[str, Any]]) -> dict[tuple[str, Role], WorkloadView]:
    """Workloads by fingerprint and role."""
    views: dict[tuple[str, Role], WorkloadView] = {}
    for obj in children:
        labels = obj["metadata"].get("labels") or {}
        if obj["kind"] not in ("Deployment", "LeaderWorkerSet") or labels.get(LABEL_ROLE) not in set(Role):
            continue
        view = _view(obj, labels.get(LABEL_FINGERPRINT, ""), Role(labels[LABEL_ROLE]))
        views[view.fingerprint, view.role] = view
    return views


def _view(obj: Mapping[str, Any], fingerprint: str, role: Role) -> WorkloadView:
    status, desired = obj.get("status") or {}, int(obj["spec"].get("replicas", 1))
    # LeaderWorkerSets have told no observedGeneration for long (kubernetes-sigs/lws): absence says nothing there.
    unknown = obj["metadata"].get("generation", 0) if obj["kind"] == "LeaderWorkerSet" else 0
    seen = int(status.get("observedGeneration", unknown)) >= int(obj["metadata"].get("generation", 0))
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    existing, updated = int(status.get("replicas", 0)), int(status.get("updatedReplicas", 0))
    return WorkloadView(
        fingerprint=fingerprint,
        role=role,
        desired=desired,
        existing=existing,
        updated=updated,
        ready=int(status.get("readyReplicas", 0)),
        settled=seen and updated >= desired and existing <= desired,
        deadline_exceeded=conditions.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded",
        since=obj["metadata"].get("creationTimestamp", ""),
    )
