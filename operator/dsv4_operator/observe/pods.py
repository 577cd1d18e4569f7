"""A pod as the operator needs it, and one sentence on what it waits for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dsv4_operator.api.constants import (
    ANNOTATION_WORKERS,
    CANARY_PORT,
    CONTAINER_CANARY,
    CONTAINER_ENGINE,
    LABEL_FINGERPRINT,
    LABEL_ROLE,
    ROUTER_PORT,
    Role,
)
from dsv4_operator.desired.workers import Worker
from dsv4_operator.plan.membership import Candidate

_NO_NODES = re.compile(r"^0/\d+ nodes are available: (.*?)\.?(?: no new claims .*| preemption: .*)?$", re.DOTALL)
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff"})
"""The kubelet goes back and forth between the two with every try."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One engine or router pod.

    `waits_for` says in one sentence, without changing figures, why the pod is not Ready (empty when it is).
    `delete_requested_at` is in unix seconds.
    """

    name: str
    uid: str
    role: Role
    fingerprint: str
    ip: str
    ready: bool
    engine_started: bool
    waits_for: str
    unschedulable: str
    delete_requested_at: float | None
    workers_digest: str

    @property
    def is_leaving(self) -> bool:
        """Whether its deletion was asked for."""
        return self.delete_requested_at is not None

    @property
    def canary_url(self) -> str:
        """Where its sidecar answers /status."""
        return f"http://{_host(self.ip)}:{CANARY_PORT[self.role]}/status"

    @property
    def router_url(self) -> str:
        """Where a router pod answers /workers."""
        return f"http://{_host(self.ip)}:{ROUTER_PORT}/workers"

    def candidate(self, now: float) -> Candidate | None:
        """The pod for membership; None while it has no address."""
        if not self.ip or self.role is Role.ROUTER:
            return None
        leaving_for = None if self.delete_requested_at is None else max(0.0, now - self.delete_requested_at)
        return Candidate(Worker.of_pod(self.uid, self.ip, self.role), self.ready, leaving_for)


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip


def view_pod(pod: Mapping[str, Any]) -> PodView | None:
    """The view of a live pod; None for a pod without our role label, and for one that has ended for good."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    if labels.get(LABEL_ROLE) not in set(Role) or status.get("phase") in ("Succeeded", "Failed"):
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    ready = conditions.get("Ready", {}).get("status") == "True"
    containers = {
        container["name"]: container
        for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    }
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = _scheduler_reasons(str(scheduled.get("message", ""))) if _is_unschedulable(scheduled) else ""
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        role=Role(labels[LABEL_ROLE]),
        fingerprint=labels.get(LABEL_FINGERPRINT, ""),
        ip=status.get("podIP", ""),
        ready=ready,
        engine_started=bool(containers.get(CONTAINER_ENGINE, {}).get("started")),
        waits_for="" if ready else _waits_for(unschedulable, containers),
        unschedulable=unschedulable,
        delete_requested_at=_delete_requested_at(metadata),
        workers_digest=(metadata.get("annotations") or {}).get(ANNOTATION_WORKERS, ""),
    )


def _is_unschedulable(scheduled: Mapping[str, Any]) -> bool:
    return scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def _scheduler_reasons(message: str) -> str:
    """The scheduler's reasons without its counts, which change with every node, and sorted, since it sorts by count.

    "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: ..." becomes
    "no node is available: Insufficient nvidia.com/gpu, node(s) were unschedulable". Other texts stay as they are.
    """
    match = _NO_NODES.match(message)
    if match is None:
        return message or "the scheduler gives no reason"
    reasons = sorted({re.sub(r"^\d+ ", "", reason) for reason in re.split(r", (?=\d)", match.group(1)) if reason})
    return f"no node is available: {', '.join(reasons)}"


def _delete_requested_at(metadata: Mapping[str, Any]) -> float | None:
    """deletionTimestamp lies in the future: it is the request plus the grace period."""
    deadline = metadata.get("deletionTimestamp")
    if deadline is None:
        return None
    grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return datetime.fromisoformat(deadline.replace("Z", "+00:00")).timestamp() - grace


def _waits_for(unschedulable: str, containers: Mapping[str, Mapping[str, Any]]) -> str:
    if unschedulable:
        return f"cannot be scheduled: {unschedulable}"
    for name, container in containers.items():
        problem = _container_problem(container)
        if problem:
            return f"container {name}: {problem}"
    engine, canary = containers.get(CONTAINER_ENGINE), containers.get(CONTAINER_CANARY)
    if engine is not None and not engine.get("started"):
        return "the engine is starting"
    if canary is not None and not canary.get("ready"):
        return "its canary has not passed"
    return "starting"


def _container_problem(container: Mapping[str, Any]) -> str:
    """Texts of the kubelet carry back-off times, so only reasons and exit codes are taken."""
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return ""
    if reason in _PULLING:
        return f"ImagePullBackOff ({container.get('image', 'no image')})"
    last = (container.get("lastState") or {}).get("terminated") or {}
    if last:
        return f"{reason}, last exit {last.get('reason', 'unknown')} with code {last.get('exitCode', '?')}"
    return f"{reason} ({container.get('image', 'no image')})"
