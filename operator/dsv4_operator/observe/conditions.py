"""Each condition as one small decision: (type, status, reason, message) from an observation.

Messages hold no times and no counts that move by themselves: text that changed in every pass would write status in
every pass. The message of Ready is the first thing that holds it back, down to the failing check and pod.
"""

from __future__ import annotations

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1.conditions import ConditionType, Reason
from dsv4_operator.api.v1alpha1.status import BlameKind
from dsv4_operator.observe.blame import Charge
from dsv4_operator.observe.observation import Observation
from dsv4_operator.observe.pods import PodView
from dsv4_operator.policy import refusals

Decision = tuple[str, str, str, str]
"""(type, status, reason, message)"""

_ROLE_CONDITION = {
    Role.PREFILL: ConditionType.PREFILL_AVAILABLE,
    Role.DECODE: ConditionType.DECODE_AVAILABLE,
}


_BLAME_REASONS = frozenset(
    {
        Reason.CANARY_FAILING,
        Reason.ENGINE_WEDGED,
        Reason.CORRUPTION,
        Reason.GUARD_MISSING,
        Reason.BAD_LINK,
        Reason.FABRIC_FAILING,
    }
)


def decide_conditions(seen: Observation) -> list[Decision]:
    """All conditions, Ready first."""
    config = _config_valid(seen)
    roles = [_role_available(seen, role) for role in ENGINE_ROLES]
    router = _router_available(seen)
    canary = _canary_passing(seen)
    degraded = _degraded(seen)
    # What holds a pair back is named by its cause: a culprit before the pods that fail because of it.
    accused = [canary] if seen.charges(BlameKind.POD, BlameKind.FABRIC) else []
    own = [degraded] if degraded[2] not in _BLAME_REASONS else []
    ready = _ready(seen, [config, *own, *accused, *roles, canary, router])
    return [ready, config, *roles, router, canary, _progressing(seen), degraded]


def _ready(seen: Observation, others: list[Decision]) -> Decision:
    """True when a pair whose canary passes is behind a Ready router (or simply exists, when there is no router)."""
    fingerprint = seen.serving
    pair = fingerprint and all(any(p.ready for p in seen.pods_of(fingerprint, role)) for role in ENGINE_ROLES)
    router_wanted = seen.spec is None or seen.spec.router.enabled
    routed = not router_wanted or any(p.ready for p in seen.pods_of(fingerprint, Role.ROUTER))
    unproved = seen.spec is not None and not seen.spec.canary.enabled
    if pair and routed:
        message = (
            "a pair whose canary passes serves through the router" if router_wanted else "a pair passes its canary"
        )
        if unproved:
            message = "engines answer, but the canary is disabled: nothing proves that KV arrives"
        return (ConditionType.READY, "True", Reason.SERVING, message)
    paused = seen.spec is not None and seen.spec.paused
    for kind, status, cause, message in others:
        if cause in (Reason.CANARY_DISABLED, Reason.ROUTER_DISABLED):
            continue  # as the user wants it, so it holds nothing back
        bad = status == "True" if kind == ConditionType.DEGRADED else status != "True"
        if bad and message:
            return (ConditionType.READY, "False", Reason.PAUSED if paused else Reason.NOT_SERVING, message)
    if _no_engine_wanted(seen):
        return (ConditionType.READY, "False", Reason.NOT_SERVING, _no_engine(seen))
    return (ConditionType.READY, "False", Reason.NOT_SERVING, "waiting for the first pass to complete")


def _config_valid(seen: Observation) -> Decision:
    kind = ConditionType.CONFIG_VALID
    if seen.spec_problems:
        text = "; ".join(f"{path}: {message}" for path, message in seen.spec_problems)
        return (kind, "False", Reason.INVALID_SPEC, text)
    refused = refusals(seen.findings)
    if refused:
        text = "; ".join(f"{f.path}: {f.message} [{f.rule}]" for f in refused)
        return (kind, "False", Reason.REFUSED_BY_POLICY, text)
    return (kind, "True", Reason.VALID, "policy refuses nothing in this spec")


def _waiting_pod(seen: Observation, role: Role, fingerprint: str) -> PodView | None:
    pods = sorted(
        seen.pods_of(fingerprint, role), key=lambda p: (not p.unschedulable, seen.accusation(p) is None, p.name)
    )
    return next((pod for pod in pods if not pod.ready), None)


def _sentence(seen: Observation, pod: PodView) -> str:
    accusation = seen.accusation(pod)
    if accusation is not None:
        return accusation.message
    report = seen.reports.get(pod.uid)
    if report is not None and report.message and not report.ready and pod.engine_started:
        return f"pod {pod.name}: {'canary: ' if report.reachable else ''}{report.message}"
    return f"pod {pod.name}: {pod.waits_for or 'starting'}"


def _role_available(seen: Observation, role: Role) -> Decision:
    kind = _ROLE_CONDITION[role]
    fingerprint = seen.shown
    workload = seen.workloads.get((fingerprint, role))
    if workload is None:
        return (kind, "False", Reason.NOT_CREATED, f"no {role.value} workload exists")
    ready = sum(pod.ready for pod in seen.pods_of(fingerprint, role))
    if ready >= workload.desired:
        return (kind, "True", Reason.ALL_READY, f"every {role.value} pod is Ready")
    waiting = _waiting_pod(seen, role, fingerprint)
    message = _sentence(seen, waiting) if waiting is not None else f"{role.value} pods are missing"
    return (kind, "False", Reason.PODS_NOT_READY, message)


def _router_available(seen: Observation) -> Decision:
    kind = ConditionType.ROUTER_AVAILABLE
    if seen.spec is not None and not seen.spec.router.enabled:
        return (kind, "False", Reason.ROUTER_DISABLED, "spec.router.enabled is false")
    if seen.router_drift:
        return (kind, "False", Reason.ROUTER_DRIFT, "; ".join(seen.router_drift))
    fingerprint = seen.shown
    routers = seen.pods_of(fingerprint, Role.ROUTER)
    if any(pod.ready for pod in routers):
        return (kind, "True", Reason.ALL_READY, "a router is Ready and has workers of both roles")
    if not routers:
        return (kind, "False", Reason.NOT_CREATED, "no router pod exists")
    pod = min(routers, key=lambda p: p.name)
    if pod.waits_for not in ("", "starting"):
        return (kind, "False", Reason.PODS_NOT_READY, f"pod {pod.name}: {pod.waits_for}")
    return (kind, "False", Reason.NO_WORKERS, "the router waits for a prefill and a decode whose canary passes")


def _canary_passing(seen: Observation) -> Decision:
    kind = ConditionType.CANARY_PASSING
    if seen.spec is not None and not seen.spec.canary.enabled:
        return (kind, "Unknown", Reason.CANARY_DISABLED, "spec.canary.enabled is false: Ready proves nothing")
    fingerprint = seen.shown
    pods = [pod for role in ENGINE_ROLES for pod in seen.pods_of(fingerprint, role)]
    charges = seen.charges(BlameKind.POD, BlameKind.LINK, BlameKind.FABRIC)
    if charges:
        return (kind, "False", charges[0].reason, _joined(charges))
    for pod in pods:
        report = seen.reports.get(pod.uid)
        if report is not None and report.failing:
            suspected = [charge.message for charge in seen.charges(BlameKind.UNDECIDED)]
            return (kind, "False", Reason.CANARY_FAILING, "; ".join([_sentence(seen, pod), *suspected]))
    for pod in pods:
        report = seen.reports.get(pod.uid)
        if not pod.ready and pod.engine_started and report is not None and not report.reachable:
            return (kind, "Unknown", Reason.CANARY_UNREACHABLE, f"pod {pod.name}: {report.message}")
    waiting = next((pod for pod in pods if not pod.ready), None)
    if waiting is not None or not pods:
        message = _sentence(seen, waiting) if waiting is not None else _no_engine(seen)
        return (kind, "Unknown", Reason.CANARY_PENDING, message)
    return (kind, "True", Reason.CANARY_PASSED, "every engine's canary passes")


def _no_engine(seen: Observation) -> str:
    return "spec.replicas is 0: no engine is wanted" if _no_engine_wanted(seen) else "no engine pod exists"


def _no_engine_wanted(seen: Observation) -> bool:
    return seen.spec is not None and seen.spec.replicas == 0


def _progressing(seen: Observation) -> Decision:
    kind = ConditionType.PROGRESSING
    if seen.spec is not None and seen.spec.paused:
        return (kind, "Unknown", Reason.PAUSED, "spec.paused is true")
    if not seen.desired or seen.plan is None:
        return (kind, "False", Reason.UP_TO_DATE, "the spec is not valid; nothing is changed")
    workloads = [view for (fp, _), view in seen.workloads.items() if fp == seen.desired]
    if any(view.deadline_exceeded for view in workloads):
        late = next(view for view in workloads if view.deadline_exceeded)
        waiting = _waiting_pod(seen, late.role, seen.desired)
        detail = f": {_sentence(seen, waiting)}" if waiting is not None else ""
        return (kind, "False", Reason.DEADLINE_EXCEEDED, f"{late.role.value} made no progress in time{detail}")
    if seen.serving != seen.desired:
        message = f"generation {seen.desired} comes up; {seen.serving} serves until it is whole"
        return (kind, "True", Reason.NEW_GENERATION, message)
    rolling = sorted(view.role.value for view in workloads if not view.settled)
    whole = all(
        sum(p.ready for p in seen.pods_of(seen.desired, role)) >= view.desired
        for role in ENGINE_ROLES
        if (view := seen.workloads.get((seen.desired, role))) is not None
    )
    if rolling:
        return (kind, "True", Reason.ROLLING_ROLE, f"pods of {' and '.join(rolling)} are created or replaced")
    if not whole or not workloads:
        return (kind, "True", Reason.STARTING, "pods are starting")
    return (kind, "False", Reason.UP_TO_DATE, "every pod is of the newest template")


def _degraded(seen: Observation) -> Decision:
    kind = ConditionType.DEGRADED
    if seen.faults:
        first = seen.faults[0]
        return (kind, "True", first.reason, "; ".join(fault.message for fault in seen.faults))
    if seen.router_drift:
        return (kind, "True", Reason.ROUTER_DRIFT, "; ".join(seen.router_drift))
    stuck = next((pod for pod in seen.pods if pod.unschedulable and not pod.is_leaving), None)
    if stuck is not None:
        return (kind, "True", Reason.NO_CAPACITY, f"pod {stuck.name} cannot be scheduled: {stuck.unschedulable}")
    # A generation that comes up counts too: nobody but people can repair it yet.
    charges = [c for fp in sorted(seen.blame) for c in seen.blame[fp] if c.kind is not BlameKind.UNDECIDED]
    if charges:
        return (kind, "True", charges[0].reason, _joined(charges))
    return (kind, "False", Reason.AS_EXPECTED, "nothing known to be wrong")


def _joined(charges: list[Charge]) -> str:
    return "; ".join(charge.message for charge in charges)
