"""What the operator says of a deployment: its conditions in situations of pods, by its own decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crd_cases import merged, minimal
from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1 import Reason, parse_deployment
from dsv4_operator.api.v1alpha1.status import BlameKind
from dsv4_operator.observe.blame import Charge
from dsv4_operator.observe.conditions import decide_conditions
from dsv4_operator.observe.observation import Observation
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.workloads import WorkloadView
from dsv4_operator.plan.generations import plan_generations
from dsv4_operator.policy import Action, Finding

Conditions = Mapping[str, str]
"""Type to status."""

OLD, NEW = "f1", "f2"
PREFILL, DECODE, ROUTER = Role.PREFILL, Role.DECODE, Role.ROUTER


def pod(role: Role, waits_for: str = "", *, leaving: bool = False, fingerprint: str = OLD) -> PodView:
    """A pod; Ready unless it waits for something."""
    return PodView(
        name=f"demo-{fingerprint}-{role.value}-x",
        uid=f"{fingerprint}-{role.value}-{waits_for}",
        role=role,
        fingerprint=fingerprint,
        ip="10.0.0.1",
        ready=not waits_for,
        engine_started=not waits_for,
        waits_for=waits_for,
        unschedulable=waits_for.partition("scheduled: ")[2],
        delete_requested_at=1.0 if leaving else None,
        workers_digest="",
    )


def workload(role: Role, fingerprint: str, desired: int) -> WorkloadView:
    """A role's workload that wants so many pods."""
    return WorkloadView(fingerprint, role, desired, desired, desired, desired, settled=True, deadline_exceeded=False)


def says(*pods: PodView, spec: dict[str, Any] | None = None, wanted: int = 1, **more: Any) -> Conditions:
    """The conditions of a deployment with these pods that wants `wanted` of each role, `spec` laid over the sample."""
    seen: dict[str, Any] = {
        "name": "demo",
        "namespace": "llm",
        "generation": 1,
        "spec": parse_deployment(merged(minimal("demo"), {"spec": {"replicas": wanted} | (spec or {})})).spec,
        "pods": pods,
        "workloads": {(OLD, role): workload(role, OLD, wanted) for role in ENGINE_ROLES},
        "plan": plan_generations(OLD, OLD, [OLD], {OLD: True}),
        "desired": OLD,
    }
    return {kind: status for kind, status, *_ in decide_conditions(Observation(**(seen | more)))}


WAITING_ROUTER = pod(ROUTER, "starting")
LOADING = {role: pod(role, "the engine is starting") for role in ENGINE_ROLES}
PAIR = (pod(PREFILL), pod(DECODE))
NO_ROOM = "cannot be scheduled: no node is available: Insufficient nvidia.com/gpu"
PAUSED = {"paused": True}
NO_CANARY = {"canary": {"enabled": False}}
ZERO: dict[str, Any] = {"wanted": 0}
REFUSED = Finding("unknown-release", Action.REFUSE, "spec.engine.release", "unknown; set it")

SERVES = says(*PAIR, pod(ROUTER))
LOADS = says(*LOADING.values(), WAITING_ROUTER)
DECODE_LOADS = says(pod(PREFILL, "its canary has not passed"), LOADING[DECODE], WAITING_ROUTER)
ROUTER_CANNOT_START = says(*PAIR, pod(ROUTER, "container router: ImagePullBackOff (r:1)"))
ROUTER_GONE = says(*PAIR)
AT_ZERO = says(WAITING_ROUTER, **ZERO)
UNPROVED = says(*PAIR, pod(ROUTER), spec=NO_CANARY)
BAD_LINK = {OLD: [Charge(BlameKind.LINK, Reason.BAD_LINK, (PAIR[0].name, PAIR[1].name), "they fail together")]}
