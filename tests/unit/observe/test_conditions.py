"""For each situation the exact message of Ready, and that nothing in status moves by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import merged, minimal
from dsv4_canary import model as canary_model
from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1 import Condition, ConditionType, DSV4DeploymentSpec, Reason, parse_deployment
from dsv4_operator.api.v1alpha1.status import BlameKind, GenerationState
from dsv4_operator.observe.blame import Charge
from dsv4_operator.observe.conditions import decide_conditions
from dsv4_operator.observe.generations import generation_ready
from dsv4_operator.observe.observation import Fault, Observation
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.reports import FAILING_REASONS, CanaryReport, read_report, unreachable
from dsv4_operator.observe.status import build_status
from dsv4_operator.observe.workloads import WorkloadView
from dsv4_operator.plan.generations import GenerationPlan, plan_generations
from dsv4_operator.policy import Action, Finding

OLD, NEW = "0ld00000", "0new0000"
P, D, R = Role.PREFILL, Role.DECODE, Role.ROUTER


def spec_of(patch: dict[str, Any] | None = None) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal("pair"), {"spec": patch or {}})).spec


def pod(role: Role, fingerprint: str = OLD, **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "name": f"pair-{fingerprint}-{role.value}-x",
        "uid": f"{fingerprint}-{role.value}",
        "role": role,
        "fingerprint": fingerprint,
        "ip": "10.0.0.1",
        "ready": True,
        "engine_started": True,
        "waits_for": "",
        "unschedulable": "",
        "delete_requested_at": None,
        "workers_digest": "",
    }
    return PodView(**(values | changes))


def not_ready(role: Role, waits_for: str, fingerprint: str = OLD, *, started: bool = False, **changes: Any) -> PodView:
    return pod(role, fingerprint, ready=False, engine_started=started, waits_for=waits_for, **changes)


def workload(role: Role, fingerprint: str = OLD, **changes: Any) -> WorkloadView:
    values: dict[str, Any] = {
        "fingerprint": fingerprint,
        "role": role,
        "desired": 1,
        "existing": 1,
        "updated": 1,
        "ready": 1,
        "settled": True,
        "deadline_exceeded": False,
    }
    return WorkloadView(**(values | changes))


def workloads(*fingerprints: str, **changes: Any) -> dict[tuple[str, Role], WorkloadView]:
    return {(fp, role): workload(role, fp, **changes) for fp in fingerprints for role in (P, D, R)}


def seen(**changes: Any) -> Observation:
    """A deployment that serves, with `changes`."""
    values: dict[str, Any] = {
        "name": "pair",
        "namespace": "ns",
        "generation": 4,
        "spec": spec_of(),
        "pods": [pod(P), pod(D), pod(R)],
        "workloads": workloads(OLD),
        "plan": plan_generations(OLD, OLD, [OLD], {OLD: True}),
        "desired": OLD,
    }
    return Observation(**(values | changes))


def report(reason: str, message: str, *, ready: bool = False) -> CanaryReport:
    return read_report({"ready": ready, "reason": reason, "message": message})


def charge(kind: BlameKind, reason: Reason, *roles: Role, message: str = "why") -> Charge:
    return Charge(kind, reason, tuple(pod(role).name for role in roles), message)


REFUSED = Finding("unknown-release", Action.REFUSE, "spec.engine.release", "unknown; set it")
NAMES = {role: pod(role).name for role in (P, D, R)}
SERVES = "a pair whose canary passes serves through the router"
NO_WORKERS = "the router waits for a prefill and a decode whose canary passes"
STARTED = not_ready(P, "its canary has not passed", started=True)
STARTED_DECODE = not_ready(D, "its canary has not passed", started=True)
LOADING = not_ready(P, "the engine is starting")
IDLE_ROUTER = not_ready(R, "starting")
ROUTERLESS = spec_of({"router": {"enabled": False}})
BLIND = spec_of({"canary": {"enabled": False}})
ZERO = {"replicas": 0}
NO_PODS: dict[str, Any] = {
    "pods": [IDLE_ROUTER],
    "workloads": workloads(OLD, desired=0, existing=0, updated=0, ready=0),
}

CRASHES = "container engine: CrashLoopBackOff, last exit Error with code 1"

SITUATIONS: list[Any] = [
    # -- it serves
    pytest.param(seen(), "True", "Serving", SERVES, id="serves"),
    pytest.param(
        seen(spec=ROUTERLESS, pods=[pod(P), pod(D)]), "True", "Serving", "a pair passes its canary", id="no router"
    ),
    pytest.param(
        seen(spec=BLIND),
        "True",
        "Serving",
        "engines answer, but the canary is disabled: nothing proves that KV arrives",
        id="no canary",
    ),
    pytest.param(
        seen(spec=None, spec_problems=[("spec.x", "unknown field")], desired="", plan=None), "False", "NotServing",
        "spec.x: unknown field", id="invalid, nothing runs",
    ),
    pytest.param(
        seen(spec=None, spec_problems=[("spec.x", "unknown field")], desired=""), "True", "Serving", SERVES,
        id="invalid, but the old pair serves",
    ),
    pytest.param(
        seen(findings=[REFUSED], desired="", plan=None, pods=[], workloads={}), "False", "NotServing",
        "spec.engine.release: unknown; set it [unknown-release]", id="refused",
    ),
    pytest.param(
        seen(pods=[pod(P), replace(LOADING, uid="2", name="b"), pod(D), pod(R)]),
        "True", "Serving", SERVES, id="one of two prefills suffices",
    ),
    pytest.param(
        seen(router_drift=["router r: http://x is missing"]), "True", "Serving", SERVES, id="drift stops no traffic"
    ),
    # -- what holds it back, from the outside in
    pytest.param(
        seen(plan=None, pods=[], workloads={}), "False", "NotServing", "no prefill workload exists", id="first pass"
    ),
    pytest.param(
        seen(faults=[Fault(Reason.NAME_CONFLICT, "Service pair exists and is not ours")], pods=[IDLE_ROUTER]),
        "False", "NotServing", "Service pair exists and is not ours", id="name taken",
    ),
    pytest.param(
        seen(faults=[Fault(Reason.API_MISSING, "LeaderWorkerSet is not installed")], pods=[], workloads={}),
        "False", "NotServing", "LeaderWorkerSet is not installed", id="API missing",
    ),
    pytest.param(
        seen(pods=[
            not_ready(P, "cannot be scheduled: no node is available: x", unschedulable="no node is available: x"),
            not_ready(D, "the engine is starting"), IDLE_ROUTER,
        ]),
        "False", "NotServing", f"pod {NAMES[P]} cannot be scheduled: no node is available: x", id="no capacity",
    ),
    pytest.param(
        seen(pods=[not_ready(P, "container engine: ImagePullBackOff (x:1)"), not_ready(D, "starting"), IDLE_ROUTER]),
        "False", "NotServing", f"pod {NAMES[P]}: container engine: ImagePullBackOff (x:1)", id="image",
    ),
    pytest.param(
        seen(pods=[not_ready(P, "the engine is starting"), not_ready(D, "the engine is starting"), IDLE_ROUTER]),
        "False", "NotServing", f"pod {NAMES[P]}: the engine is starting", id="loading",
    ),
    pytest.param(
        seen(pods=[pod(P), not_ready(D, CRASHES), IDLE_ROUTER]),
        "False", "NotServing", f"pod {NAMES[D]}: {CRASHES}",
        id="decode crashes",
    ),
    pytest.param(
        seen(
            pods=[not_ready(P, "its canary has not passed", started=True), not_ready(D, "its canary has not passed",
                  started=True), IDLE_ROUTER],
            reports={f"{OLD}-prefill": report("TransferFailed", "no KV arrived at decode"),
                     f"{OLD}-decode": report("TransferFailed", "no KV arrived from prefill")},
        ),
        "False", "NotServing", f"pod {NAMES[P]}: canary: no KV arrived at decode", id="transfer broken",
    ),
    pytest.param(
        seen(
            pods=[not_ready(P, "its canary has not passed", started=True), pod(D), IDLE_ROUTER],
            reports={f"{OLD}-prefill": unreachable("its canary does not answer: timeout")},
        ),
        "False", "NotServing", f"pod {NAMES[P]}: its canary does not answer: timeout", id="canary unreachable",
    ),
    pytest.param(
        seen(pods=[pod(P, delete_requested_at=1.0), pod(D), pod(R)]),
        "False", "NotServing", "prefill pods are missing", id="the only prefill leaves",
    ),
    pytest.param(
        seen(pods=[pod(P), pod(D), IDLE_ROUTER]), "False", "NotServing", NO_WORKERS, id="router has no workers yet"
    ),
    pytest.param(
        seen(pods=[pod(P), pod(D), not_ready(R, "container router: ImagePullBackOff (r:1)")]),
        "False", "NotServing", f"pod {NAMES[R]}: container router: ImagePullBackOff (r:1)", id="router image",
    ),
    pytest.param(seen(pods=[pod(P), pod(D)]), "False", "NotServing", "no router pod exists", id="no router pod"),
    pytest.param(
        seen(spec=BLIND, pods=[pod(P), pod(D), IDLE_ROUTER]), "False", "NotServing", NO_WORKERS,
        id="a disabled canary holds nothing back",
    ),
    pytest.param(
        seen(spec=spec_of(ZERO), **NO_PODS), "False", "NotServing", "spec.replicas is 0: no engine is wanted", id="zero"
    ),
    pytest.param(
        seen(spec=spec_of(ZERO | {"canary": {"enabled": False}, "router": {"enabled": False}}), **NO_PODS),
        "False", "NotServing", "spec.replicas is 0: no engine is wanted", id="zero of nothing",
    ),
    pytest.param(
        seen(spec=spec_of({"paused": True}), pods=[not_ready(P, "the engine is starting"), pod(D), IDLE_ROUTER]),
        "False", "Paused", f"pod {NAMES[P]}: the engine is starting", id="paused",
    ),
    pytest.param(seen(spec=spec_of({"paused": True})), "True", "Serving", SERVES, id="paused and serving"),
    # -- blame
    pytest.param(
        seen(
            pods=[STARTED, not_ready(D, "its canary has not passed", started=True), IDLE_ROUTER],
            reports={f"{OLD}-prefill": report("ProbeTimedOut", "no answer"),
                     f"{OLD}-decode": report("EngineWedged", "no token came")},
            blame={OLD: [charge(BlameKind.POD, Reason.ENGINE_WEDGED, D, message="decode pod x is wedged")]},
        ),
        "False", "NotServing", "decode pod x is wedged", id="the wedged decode, not the prefill that fails with it",
    ),
    pytest.param(
        seen(
            pods=[STARTED, not_ready(D, "its canary has not passed", started=True), IDLE_ROUTER],
            reports={f"{OLD}-prefill": report("ProbeTimedOut", "no answer")},
            blame={OLD: [charge(BlameKind.UNDECIDED, Reason.CANARY_FAILING, P, D)]},
        ),
        "False", "NotServing", f"pod {NAMES[P]}: canary: no answer", id="undecided: the check",
    ),
    pytest.param(
        seen(blame={OLD: [charge(BlameKind.LINK, Reason.BAD_LINK, P, D)]}),
        "True", "Serving", SERVES, id="a bad link stops no traffic",
    ),
    pytest.param(
        seen(pods=[LOADING, pod(D), IDLE_ROUTER], blame={OLD: [charge(BlameKind.LINK, Reason.BAD_LINK, P, D)]}),
        "False", "NotServing", f"pod {NAMES[P]}: the engine is starting", id="a bad link is not what holds it back",
    ),
    # -- two generations
    pytest.param(
        seen(
            plan=plan_generations(NEW, OLD, [OLD, NEW], {OLD: True}), desired=NEW, workloads=workloads(OLD, NEW),
            pods=[pod(P), pod(D), pod(R), not_ready(P, "the engine is starting", NEW)],
        ),
        "True", "Serving", SERVES, id="the old one serves while the new one comes up",
    ),
    pytest.param(
        seen(
            plan=plan_generations(NEW, OLD, [OLD, NEW], {}), desired=NEW, workloads=workloads(OLD, NEW),
            pods=[pod(P), not_ready(D, "the engine is starting"), pod(R), pod(P, NEW), pod(D, NEW)],
        ),
        "False", "NotServing", f"pod {NAMES[D]}: the engine is starting", id="another generation's pods do not count",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("observation", "status", "reason", "message"), SITUATIONS)
def test_ready(observation: Observation, status: str, reason: str, message: str) -> None:
    decided = decide_conditions(observation)
    assert decided[0] == (ConditionType.READY, status, reason, message)
    assert [kind for kind, *_ in decided] == list(ConditionType)
    for _, state, why, text in decided:
        assert state in ("True", "False", "Unknown")
        assert why in set(Reason)
        assert text
        assert "\n" not in text


def condition(observation: Observation, kind: ConditionType) -> tuple[str, str, str]:
    (found,) = (entry[1:] for entry in decide_conditions(observation) if entry[0] == kind)
    return found


@pytest.mark.parametrize(
    ("observation", "kind", "expected"),
    [
        (seen(), "ConfigValid", ("True", "Valid", "policy refuses nothing in this spec")),
        (
            seen(findings=[REFUSED, replace(REFUSED, path="spec.z"), replace(REFUSED, action=Action.WARN)]),
            "ConfigValid",
            (
                "False",
                "RefusedByPolicy",
                "spec.engine.release: unknown; set it [unknown-release]; spec.z: unknown; set it [unknown-release]",
            ),
        ),
        (seen(), "PrefillAvailable", ("True", "AllReady", "every prefill pod is Ready")),
        (seen(), "RouterAvailable", ("True", "AllReady", "a router is Ready and has workers of both roles")),
        (
            seen(router_drift=["a", "b"]),
            "RouterAvailable",
            ("False", "RouterDrift", "a; b"),
        ),
        (seen(router_drift=["a", "b"]), "Degraded", ("True", "RouterDrift", "a; b")),
        (
            seen(spec=ROUTERLESS),
            "RouterAvailable",
            ("False", "RouterDisabled", "spec.router.enabled is false"),
        ),
        (seen(), "CanaryPassing", ("True", "CanaryPassed", "every engine's canary passes")),
        (
            seen(spec=BLIND),
            "CanaryPassing",
            ("Unknown", "CanaryDisabled", "spec.canary.enabled is false: Ready proves nothing"),
        ),
        (
            seen(pods=[LOADING, pod(D), pod(R)], reports={f"{OLD}-prefill": report("EngineLoading", "loading")}),
            "CanaryPassing",
            ("Unknown", "CanaryPending", f"pod {NAMES[P]}: the engine is starting"),
        ),
        (
            seen(pods=[STARTED, pod(D), pod(R)], reports={f"{OLD}-prefill": report("ProbeFailed", "wrong answer")}),
            "CanaryPassing",
            ("False", "CanaryFailing", f"pod {NAMES[P]}: canary: wrong answer"),
        ),
        (
            seen(pods=[STARTED, pod(D), pod(R)], reports={f"{OLD}-prefill": report("NoPeer", "no decode is found")}),
            "CanaryPassing",
            ("Unknown", "CanaryPending", f"pod {NAMES[P]}: canary: no decode is found"),
        ),
        (
            seen(pods=[STARTED, pod(D), pod(R)], reports={f"{OLD}-prefill": unreachable("no answer")}),
            "CanaryPassing",
            ("Unknown", "CanaryUnreachable", f"pod {NAMES[P]}: no answer"),
        ),
        (seen(), "Progressing", ("False", "UpToDate", "every pod is of the newest template")),
        (
            seen(workloads=workloads(OLD, settled=False)),
            "Progressing",
            ("True", "RollingRole", "pods of decode and prefill and router are created or replaced"),
        ),
        (seen(pods=[LOADING, pod(D), pod(R)]), "Progressing", ("True", "Starting", "pods are starting")),
        (
            seen(pods=[LOADING, pod(D)], workloads=workloads(OLD) | {(OLD, P): workload(P, deadline_exceeded=True)}),
            "Progressing",
            (
                "False",
                "ProgressDeadlineExceeded",
                f"prefill made no progress in time: pod {NAMES[P]}: the engine is starting",
            ),
        ),
        (
            seen(plan=plan_generations(NEW, OLD, [OLD, NEW], {OLD: True}), desired=NEW),
            "Progressing",
            ("True", "NewGeneration", f"generation {NEW} comes up; {OLD} serves until it is whole"),
        ),
        (seen(spec=spec_of({"paused": True})), "Progressing", ("Unknown", "Paused", "spec.paused is true")),
        (
            seen(desired=""),
            "Progressing",
            ("False", "UpToDate", "the spec is not valid; nothing is changed"),
        ),
        (seen(), "Degraded", ("False", "AsExpected", "nothing known to be wrong")),
        (
            seen(faults=[Fault(Reason.APPLY_REJECTED, "a"), Fault(Reason.NAME_CONFLICT, "b")]),
            "Degraded",
            ("True", "ApplyRejected", "a; b"),
        ),
    ],
)
def test_condition(observation: Observation, kind: str, expected: tuple[str, str, str]) -> None:
    assert condition(observation, ConditionType(kind)) == expected


@pytest.mark.parametrize("reason", [Reason.ENGINE_WEDGED, Reason.CORRUPTION, Reason.GUARD_MISSING])
def test_a_pod_that_is_to_blame(reason: Reason) -> None:
    observation = seen(
        pods=[pod(P), STARTED_DECODE, pod(R)],
        reports={f"{OLD}-decode": report(reason.value, "the verdict")},
        blame={OLD: [charge(BlameKind.POD, reason, D, message="decode pod x: why")]},
    )
    assert condition(observation, ConditionType.CANARY_PASSING) == ("False", reason, "decode pod x: why")
    assert condition(observation, ConditionType.DEGRADED) == ("True", reason, "decode pod x: why")
    assert condition(observation, ConditionType.DECODE_AVAILABLE) == ("False", "PodsNotReady", "decode pod x: why")


def test_the_culprit_is_named_before_another_pod_of_its_role() -> None:
    observation = seen(
        pods=[pod(P), replace(STARTED_DECODE, name="a", uid="a"), STARTED_DECODE, pod(R)],
        workloads=workloads(OLD, desired=2),
        blame={OLD: [charge(BlameKind.POD, Reason.CANARY_FAILING, D)]},
    )
    assert condition(observation, ConditionType.DECODE_AVAILABLE) == ("False", "PodsNotReady", "why")


def test_undecided_blame_is_said_where_the_canary_fails_and_degrades_nothing() -> None:
    observation = seen(
        pods=[STARTED, pod(D), pod(R)],
        reports={f"{OLD}-prefill": report("ProbeFailed", "wrong answer")},
        blame={OLD: [charge(BlameKind.UNDECIDED, Reason.CANARY_FAILING, P, D)]},
    )
    message = f"pod {NAMES[P]}: canary: wrong answer; why"
    assert condition(observation, ConditionType.CANARY_PASSING) == ("False", "CanaryFailing", message)
    assert condition(observation, ConditionType.DEGRADED)[0] == "False"


def test_blame_in_a_generation_that_comes_up_degrades_and_touches_nothing_else() -> None:
    observation = seen(blame={NEW: [charge(BlameKind.FABRIC, Reason.FABRIC_FAILING, P, D)]})
    assert condition(observation, ConditionType.DEGRADED) == ("True", "FabricFailing", "why")
    assert condition(observation, ConditionType.CANARY_PASSING)[0] == "True"
    assert [b.kind for b in build_status(observation, [], "2026-11-29T10:00:00Z").blame] == ["Fabric"]


def test_reasons_of_the_canary_are_its_own() -> None:
    assert set(canary_model.Reason) >= FAILING_REASONS


# -- nothing moves by itself

TEXTS = st.sampled_from(["", "starting", "the engine is starting", "container engine: CrashLoopBackOff"])
PODS = st.builds(
    lambda role, fp, ready, started, waits, stuck, number: pod(
        role,
        fp,
        uid=str(number),
        name=f"pod-{number}",
        ready=ready,
        engine_started=started,
        waits_for="" if ready else waits,
        unschedulable="" if ready or not stuck else "no node",
    ),
    st.sampled_from([P, D, R]),
    st.sampled_from([OLD, NEW]),
    st.booleans(),
    st.booleans(),
    TEXTS,
    st.booleans(),
    st.integers(0, 9),
)
SPECS = st.sampled_from([spec_of(), BLIND, ROUTERLESS, spec_of({"paused": True}), spec_of(ZERO), None])
PLANS = st.none() | st.builds(
    lambda desired, pointed, ready: plan_generations(desired, pointed, [OLD, NEW], {OLD: ready, NEW: not ready}),
    st.sampled_from([OLD, NEW]),
    st.sampled_from([None, OLD, NEW]),
    st.booleans(),
)
REPORTS = st.dictionaries(
    st.integers(0, 9).map(str),
    st.builds(
        report,
        st.sampled_from([*FAILING_REASONS, "NoPeer", "Passing"]),
        st.sampled_from(["", "m"]),
        ready=st.booleans(),
    ),
)


def timed(reports: dict[str, CanaryReport], pods: list[PodView], hours: float) -> dict[str, Any]:
    """The same facts, told at another time."""
    told = {
        uid: read_report(
            {
                "ready": r.ready,
                "reason": r.reason,
                "message": r.message,
                "lastSuccessTime": hours * 3600,
                "consecutiveFailures": int(hours),
                "history": [{"time": hours}],
            }
        )
        for uid, r in reports.items()
    }
    later = [replace(p, delete_requested_at=p.delete_requested_at and p.delete_requested_at + hours) for p in pods]
    return {"reports": told, "pods": later}


@settings(max_examples=300, deadline=None)
@given(SPECS, st.lists(PODS, max_size=6, unique_by=lambda p: p.uid), REPORTS, PLANS, st.floats(1, 99), st.floats(1, 99))
def test_time_alone_changes_nothing(
    spec: DSV4DeploymentSpec | None,
    pods: list[PodView],
    reports: dict[str, CanaryReport],
    plan: GenerationPlan | None,
    first: float,
    second: float,
) -> None:
    base: dict[str, Any] = {
        "spec": spec,
        "plan": plan,
        "desired": NEW if spec else "",
        "workloads": workloads(OLD, NEW),
    }
    before, after = (seen(**base, **timed(reports, pods, hours)) for hours in (first, second))
    assert decide_conditions(before) == decide_conditions(after)
    written = build_status(before, [], "2026-11-29T10:00:00Z")
    assert build_status(after, written.conditions, "2026-11-29T11:11:11Z") == written
    assert decide_conditions(before)[0][3]


# -- the whole status


def test_status() -> None:
    status = build_status(seen(), [], "2026-11-29T10:00:00Z")
    assert (status.observed_generation, status.replicas, status.fingerprint) == (4, 1, OLD)
    assert status.endpoint == "http://pair.ns.svc.cluster.local:80"
    assert status.selector == "serving.dsv4.dev/deployment=pair,serving.dsv4.dev/role in (decode,prefill)"
    assert (status.prefill.summary, status.decode.summary) == ("1/1", "1/1")
    assert [(g.fingerprint, g.state, g.units) for g in status.generations] == [(OLD, GenerationState.SERVING, 1)]
    assert all(c.observed_generation == 4 for c in status.conditions)


def test_transition_times_move_with_the_status_alone() -> None:
    first = build_status(seen(), [], "2026-11-29T10:00:00Z")
    loading = seen(pods=[LOADING, pod(D), pod(R)])
    second = build_status(loading, first.conditions, "2026-11-29T11:00:00Z")
    times = {c.type: c.last_transition_time for c in second.conditions}
    assert times["Ready"] == times["PrefillAvailable"] == "2026-11-29T11:00:00Z"
    assert times["ConfigValid"] == times["DecodeAvailable"] == "2026-11-29T10:00:00Z"
    crashed = seen(pods=[replace(LOADING, waits_for="container engine: CrashLoopBackOff"), pod(D), pod(R)])
    third = build_status(crashed, second.conditions, "2026-11-29T12:00:00Z")
    (ready,) = (c for c in third.conditions if c.type == "Ready")
    assert ready.message.endswith("CrashLoopBackOff")
    assert ready.last_transition_time == "2026-11-29T11:00:00Z", "another message is no transition"


def test_status_does_not_need_its_own_past() -> None:
    nonsense = [Condition(type="Ready", status="Unknown", reason="X", last_transition_time="1999-01-01T00:00:00Z")]
    now = "2026-11-29T10:00:00Z"
    assert build_status(seen(), nonsense, now) == build_status(seen(), [], now)


def test_generations_serving_first() -> None:
    status = build_status(
        seen(
            plan=plan_generations(NEW, OLD, [OLD, NEW, "2zzz"], {OLD: True}),
            desired=NEW,
            workloads=workloads("2zzz", OLD, NEW),
            pods=[pod(P), pod(D), pod(R), pod(P, NEW)],
        ),
        [],
        "2026-11-29T10:00:00Z",
    )
    assert [(g.fingerprint, g.state.value, g.units) for g in status.generations] == [
        (OLD, "Serving", 1),
        (NEW, "Starting", 0),
        ("2zzz", "Leaving", 0),
    ]
    assert status.fingerprint == OLD
    assert status.prefill.updated == 1


def test_as_much_as_the_schema_takes() -> None:
    """A status that the schema refuses is never written, and then nobody learns why."""
    many = [replace(REFUSED, path=f"spec.engine.extraArgs[{n}]", message="m" * 5000) for n in range(400)]
    long = [("spec", "x" * 9000)]
    generations = [f"{n:08x}" for n in range(40)]
    status = build_status(
        seen(
            findings=many,
            spec_problems=long,
            workloads=workloads(OLD, *generations),
            plan=plan_generations(OLD, OLD, [OLD, *generations], {}),
            blame={OLD: [Charge(BlameKind.FABRIC, Reason.FABRIC_FAILING, ("p" * 253,) * 99, "m" * 9000)] * 40},
        ),
        [],
        "2026-11-29T10:00:00Z",
    )
    assert len(status.findings) == 128
    assert len(status.generations) == 16
    assert (len(status.blame), len(status.blame[0].pods)) == (16, 64)
    assert status.generations[0].fingerprint == OLD


def test_no_endpoint_without_router_or_traffic() -> None:
    now = "2026-11-29T10:00:00Z"
    assert build_status(seen(spec=ROUTERLESS), [], now).endpoint == ""
    assert build_status(seen(plan=None), [], now).endpoint == ""
    assert build_status(seen(spec=None), [], now).replicas == 0


@pytest.mark.parametrize(
    ("existing", "per_unit", "units"),
    [((4, 2), (2, 1), 2), ((4, 1), (2, 1), 1), ((3, 2), (2, 1), 1), ((0, 2), (2, 1), 0)],
)
def test_units(existing: tuple[int, int], per_unit: tuple[int, int], units: int) -> None:
    spec = spec_of({"prefill": {"replicas": per_unit[0]}, "decode": {"replicas": per_unit[1]}})
    found = {
        (OLD, P): workload(P, existing=existing[0]),
        (OLD, D): workload(D, existing=existing[1]),
    }
    assert build_status(seen(spec=spec, workloads=found), [], "2026-11-29T10:00:00Z").replicas == units


# -- whole generations


@pytest.mark.parametrize(
    ("pods", "router", "whole"),
    [
        ([pod(P), pod(D), pod(R)], True, True),
        ([pod(P), pod(D), IDLE_ROUTER], True, False),
        ([pod(P), pod(D)], True, False),
        ([pod(P), pod(D)], False, True),
        ([pod(P), not_ready(D, "x"), pod(R)], True, False),
        ([pod(P), pod(D, delete_requested_at=1.0), pod(R)], True, False),
        ([pod(P), pod(D), pod(R, delete_requested_at=1.0)], True, False),
        ([pod(P), pod(D, NEW), pod(R)], True, False),
        ([], True, False),
    ],
)
def test_whole(pods: list[PodView], router: bool, whole: bool) -> None:
    assert generation_ready(OLD, pods, workloads(OLD), router) is whole


def test_whole_means_every_wanted_pod() -> None:
    two = {(OLD, role): workload(role, desired=2) for role in ENGINE_ROLES}
    pods = [pod(P), pod(D), pod(R)]
    assert not generation_ready(OLD, pods, two, True)
    assert generation_ready(OLD, [*pods, pod(P, uid="2"), pod(D, uid="2")], two, True)
    assert not generation_ready(OLD, pods, {(OLD, P): workload(P)}, True), "decode has no workload yet"


def test_nothing_wanted_is_whole() -> None:
    none = {(OLD, role): workload(role, desired=0) for role in ENGINE_ROLES}
    assert generation_ready(OLD, [IDLE_ROUTER], none, True)
