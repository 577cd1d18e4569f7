"""Live generations as plan.generations needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsv4_operator.api.constants import ENGINE_ROLES, LABEL_FINGERPRINT, Role
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.workloads import WorkloadView
from dsv4_operator.plan.generations import GenerationView


def fingerprint_pointed_at(name: str, children: Iterable[Mapping[str, Any]]) -> str | None:
    """Fingerprint in the selector of the deployment's stable Service, which has its `name`."""
    for child in children:
        if child["kind"] == "Service" and child["metadata"]["name"] == name:
            fingerprint: str | None = (child["spec"].get("selector") or {}).get(LABEL_FINGERPRINT)
            return fingerprint
    return None


def generation_ready(
    fingerprint: str,
    pods: Sequence[PodView],
    workloads: Mapping[tuple[str, Role], WorkloadView],
    router_enabled: bool,
) -> bool:
    """Whether a generation is whole: every wanted engine Ready (so its canary passed), and a Ready router in front."""
    for role in ENGINE_ROLES:
        workload = workloads.get((fingerprint, role))
        if workload is None or _ready(pods, fingerprint, role) < workload.desired:
            return False
    if not router_enabled:
        return True
    engines_wanted = any(workloads[fingerprint, role].desired for role in ENGINE_ROLES)
    return _ready(pods, fingerprint, Role.ROUTER) > 0 or not engines_wanted


def view_generations(
    pods: Sequence[PodView], workloads: Mapping[tuple[str, Role], WorkloadView], router_enabled: bool
) -> list[GenerationView]:
    """Every generation that has engines."""
    since: dict[str, str] = {}
    for (fingerprint, role), workload in workloads.items():
        if role in ENGINE_ROLES:
            since[fingerprint] = min(since.get(fingerprint, workload.since), workload.since)
    return [
        GenerationView(
            fingerprint,
            since=when,
            whole=generation_ready(fingerprint, pods, workloads, router_enabled),
            answers=all(_ready(pods, fingerprint, role) for role in ENGINE_ROLES),
        )
        for fingerprint, when in since.items()
    ]


def _ready(pods: Iterable[PodView], fingerprint: str, role: Role) -> int:
    return sum(p.ready and not p.is_leaving for p in pods if p.fingerprint == fingerprint and p.role is role)
