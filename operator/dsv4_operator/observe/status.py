"""From what was observed in a pass to the whole status: conditions, figures, generations, findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dsv4_operator.api.constants import (
    ENGINE_ROLES,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    Role,
)
from dsv4_operator.api.v1alpha1.conditions import Condition
from dsv4_operator.api.v1alpha1.status import (
    BlameStatus,
    DSV4DeploymentStatus,
    FindingStatus,
    GenerationState,
    GenerationStatus,
    RoleStatus,
)
from dsv4_operator.observe.conditions import decide_conditions
from dsv4_operator.observe.observation import Observation

_MOST_FINDINGS: Final = 128
"""As many as the schema takes; refusals come first."""
_MOST_CHARGES: Final = 16
_MOST_PODS: Final = 64


def build_status(seen: Observation, previous: Sequence[Condition], now: str) -> DSV4DeploymentStatus:
    """The status to write. `previous` are the live conditions (for transition times), `now` is RFC 3339."""
    spec = seen.spec
    return DSV4DeploymentStatus(
        observed_generation=seen.generation,
        conditions=_with_times(decide_conditions(seen), previous, seen.generation, now),
        replicas=_units(seen),
        selector=f"{LABEL_DEPLOYMENT}={seen.name},{LABEL_ROLE} in (decode,prefill)",
        prefill=_role_status(seen, Role.PREFILL),
        decode=_role_status(seen, Role.DECODE),
        endpoint=(
            f"http://{seen.name}.{seen.namespace}.svc.{seen.cluster_domain}:{spec.router.service.port}"
            if spec is not None and spec.router.enabled and seen.serving
            else ""
        ),
        fingerprint=seen.serving,
        generations=_generations(seen),
        findings=[
            FindingStatus(rule=f.rule, action=f.action.value, path=f.path, message=f.message[:4096])
            for f in seen.findings[:_MOST_FINDINGS]
        ],
        blame=_blame(seen),
    )


def _blame(seen: Observation) -> list[BlameStatus]:
    """Of the generation that serves first."""
    return [
        BlameStatus(kind=c.kind, reason=c.reason.value, pods=list(c.pods[:_MOST_PODS]), message=c.message[:4096])
        for fingerprint in sorted(seen.blame, key=lambda fp: (fp != seen.shown, fp))
        for c in seen.blame[fingerprint]
    ][:_MOST_CHARGES]


def _with_times(
    decided: Sequence[tuple[str, str, str, str]], previous: Sequence[Condition], generation: int, now: str
) -> list[Condition]:
    before = {condition.type: condition for condition in previous}
    conditions = []
    for kind, status, reason, message in decided:
        old = before.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else now
        values: dict[str, Any] = {"type": kind, "status": status, "reason": reason, "message": message[:4096]}
        conditions.append(Condition(**values, last_transition_time=since, observed_generation=generation))
    return conditions


def _fingerprints(seen: Observation) -> list[str]:
    known = {fp for fp, _ in seen.workloads} | ({seen.desired} if seen.desired else set())
    return sorted(known, key=lambda fp: (fp != seen.serving, fp != seen.desired, fp))


def _role_status(seen: Observation, role: Role) -> RoleStatus:
    """Of the generation that serves; while nothing serves, of the one that comes up."""
    workload = seen.workloads.get((seen.shown, role))
    ready = sum(pod.ready for pod in seen.pods_of(seen.shown, role))
    desired = workload.desired if workload is not None else 0
    newest = seen.workloads.get((seen.desired, role)) if seen.desired else workload
    return RoleStatus(
        desired=desired,
        ready=ready,
        updated=newest.updated if newest is not None else 0,
        summary=f"{ready}/{desired}",
    )


def _units(seen: Observation) -> int:
    if seen.spec is None or not seen.serving:
        return 0
    counts = []
    for role in ENGINE_ROLES:
        workload = seen.workloads.get((seen.serving, role))
        per_unit = (seen.spec.prefill if role is Role.PREFILL else seen.spec.decode).replicas
        counts.append((workload.existing if workload is not None else 0) // per_unit)
    return min(counts)


def _generations(seen: Observation) -> list[GenerationStatus]:
    if seen.plan is None:
        return []
    result = []
    for fingerprint in _fingerprints(seen):
        state = seen.plan.states.get(fingerprint, GenerationState.LEAVING)
        ready = {role: sum(p.ready for p in seen.pods_of(fingerprint, role)) for role in ENGINE_ROLES}
        units = min(ready.values())
        if seen.spec is not None:
            units = min(
                ready[Role.PREFILL] // seen.spec.prefill.replicas, ready[Role.DECODE] // seen.spec.decode.replicas
            )
        reason = {
            GenerationState.SERVING: "the stable Service points at it",
            GenerationState.STARTING: "comes up; serves when every canary passes",
            GenerationState.LEAVING: "replaced; its router drains, then its engines go",
        }[state]
        result.append(GenerationStatus(fingerprint=fingerprint, state=state, units=units, reason=reason))
    return result[:16]
