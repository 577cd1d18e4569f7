"""Which generation serves: single decisions, and a fake world in which the planner runs until all is quiet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.api.constants import ENGINE_ROLES, LABEL_FINGERPRINT, LABEL_ROLE, Role
from dsv4_operator.api.v1alpha1.status import GenerationState
from dsv4_operator.desired.workers import Worker
from dsv4_operator.plan.generations import GenerationView, hold, plan_generations, serving_without_pointer
from dsv4_operator.plan.membership import Candidate, plan_membership
from dsv4_operator.plan.pruning import child_key, plan_pruning

A, B, C = "aaaa", "bbbb", "cccc"
STARTING, SERVING, LEAVING = GenerationState.STARTING, GenerationState.SERVING, GenerationState.LEAVING


@pytest.mark.parametrize(
    ("desired", "pointed_at", "existing", "ready", "serving", "switched", "states"),
    [
        pytest.param(A, None, [], {}, A, False, {A: STARTING}, id="first, nothing exists"),
        pytest.param(A, A, [A], {A: False}, A, False, {A: STARTING}, id="first comes up"),
        pytest.param(A, A, [A], {A: True}, A, False, {A: SERVING}, id="steady"),
        pytest.param(B, A, [A], {A: True}, A, False, {A: SERVING, B: STARTING}, id="new one wanted"),
        pytest.param(B, A, [A, B], {A: True, B: False}, A, False, {A: SERVING, B: STARTING}, id="new one comes up"),
        pytest.param(B, A, [A, B], {A: False, B: False}, A, False, {A: SERVING, B: STARTING}, id="neither is whole"),
        pytest.param(B, A, [A, B], {A: True, B: True}, B, True, {A: LEAVING, B: SERVING}, id="switch"),
        pytest.param(B, A, [A, B], {A: False, B: True}, B, True, {A: LEAVING, B: SERVING}, id="old broke, switch"),
        pytest.param(B, B, [A, B], {A: True, B: True}, B, False, {A: LEAVING, B: SERVING}, id="old goes"),
        pytest.param(
            B, B, [A, B], {A: True, B: False}, B, False, {A: LEAVING, B: STARTING}, id="no way back by itself"
        ),
        pytest.param(B, B, [B], {B: True}, B, False, {B: SERVING}, id="old gone"),
        pytest.param(C, A, [A, B], {A: True}, A, False, {A: SERVING, B: LEAVING, C: STARTING}, id="spec changed twice"),
        pytest.param(A, A, [A, B], {A: True}, A, False, {A: SERVING, B: LEAVING}, id="taken back"),
        pytest.param(B, A, [B], {B: False}, B, True, {B: STARTING}, id="what served is gone"),
    ],
)
def test_decision(
    desired: str,
    pointed_at: str | None,
    existing: list[str],
    ready: dict[str, bool],
    serving: str,
    switched: bool,
    states: dict[str, GenerationState],
) -> None:
    plan = plan_generations(desired, pointed_at, existing, ready)
    assert (plan.serving, plan.switched, dict(plan.states)) == (serving, switched, states)
    assert plan.leaving == {fp for fp, state in states.items() if state is LEAVING}


def view(fingerprint: str, since: int, whole: bool = False, answers: bool = False) -> GenerationView:
    return GenerationView(fingerprint, f"2026-11-30T00:00:{since:02}Z", whole, answers)


@pytest.mark.parametrize(
    ("generations", "serving"),
    [
        pytest.param([], None, id="nothing exists"),
        pytest.param([view(B, 2)], B, id="the only one"),
        pytest.param([view(B, 2), view(A, 1, answers=True)], A, id="the one that answers, whole or not"),
        pytest.param([view(B, 2, answers=True), view(A, 1)], B, id="the newer one, when it alone answers"),
        pytest.param([view(B, 2), view(A, 1)], A, id="nobody answers: the oldest"),
        pytest.param([view(B, 2, True, True), view(A, 1, False, True)], B, id="the whole one"),
        pytest.param([view(B, 2, True, True), view(A, 1, True, True)], A, id="both whole: the oldest"),
    ],
)
def test_what_serves_where_no_service_says_so(generations: list[GenerationView], serving: str | None) -> None:
    assert serving_without_pointer(generations) == serving


def test_a_switch_that_was_not_carried_out_leaves_all_in_place() -> None:
    plan = plan_generations(B, A, [A, B, C], {A: True, B: True})
    assert plan.leaving == {A, C}
    held = hold(plan, A)
    assert (held.serving, held.switched) == (A, False)
    assert held.states == {A: SERVING, B: STARTING, C: LEAVING}
    assert hold(plan, B) is plan
    assert hold(plan, None) is plan
    assert hold(plan, "gone") is plan


@dataclass
class World:
    """Live objects as reconcile sees them: per generation engines, a router, a worker list; and the Service."""

    pointed_at: str | None = None
    engines: dict[str, dict[str, bool]] = field(default_factory=dict)
    """fingerprint -> pod name -> Ready"""
    workloads: set[str] = field(default_factory=set)
    router_workloads: set[str] = field(default_factory=set)
    router_pods: dict[str, bool] = field(default_factory=dict)
    lists: dict[str, list[Worker]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def whole(self, fp: str) -> bool:
        return fp in self.workloads and all(self.engines[fp].values()) and self.router_pods.get(fp, False)

    def existing(self) -> set[str]:
        return self.workloads | self.router_workloads | set(self.lists)

    def objects(self) -> list[dict[str, Any]]:
        found = [obj("Deployment", f"{fp}-{role}", fp, role) for fp in self.workloads for role in ENGINE_ROLES]
        found += [obj("Deployment", f"{fp}-router", fp, Role.ROUTER) for fp in self.router_workloads]
        found += [obj("ConfigMap", f"{fp}-workers", fp, Role.ROUTER) for fp in self.lists]
        return found

    def reconcile(self, desired: str) -> None:
        """One pass: decide, membership, apply, prune - the order of reconcile.py."""
        ready = {fp: self.whole(fp) for fp in self.existing() | {desired}}
        plan = plan_generations(desired, self.pointed_at, self.existing(), ready)
        if self.pointed_at is not None and plan.serving != self.pointed_at and self.pointed_at in self.existing():
            assert ready[plan.serving], "the Service moves only to a generation that is whole"
        assert self.pointed_at not in plan.leaving or plan.serving != self.pointed_at
        for fp in sorted(self.existing() | {desired}):
            pods = self.engines.get(fp, {})
            candidates = [
                Candidate(Worker(f"http://{name}", ENGINE_ROLES[n % 2], name), is_ready)
                for n, (name, is_ready) in enumerate(sorted(pods.items()))
            ]
            self.lists[fp] = list(plan_membership(self.lists.get(fp, []), {}, candidates, (), 0.0).workers)
            assert {w.id.split("/")[0] for w in self.lists[fp]} <= {fp}, "two fingerprints never share a router"
        if plan.serving != self.pointed_at:
            self.log.append(f"point {plan.serving}")
        self.pointed_at = plan.serving
        if desired not in self.workloads:
            self.workloads.add(desired)
            self.engines[desired] = {f"{desired}/p": False, f"{desired}/d": False}
            self.log.append(f"create {desired}")
        self.router_workloads.add(desired)
        wanted = {child_key(o) for o in self.objects() if o["metadata"]["labels"][LABEL_FINGERPRINT] == desired}
        with_pods = set(self.router_pods) & plan.leaving
        for doomed in plan_pruning(self.objects(), wanted, "owner", {plan.serving} - {desired}, with_pods):
            self.delete(dict(doomed), with_pods)

    def delete(self, doomed: dict[str, Any], with_pods: set[str]) -> None:
        fp, role = doomed["metadata"]["labels"][LABEL_FINGERPRINT], doomed["metadata"]["labels"][LABEL_ROLE]
        assert fp != self.pointed_at, "what serves is never removed"
        if doomed["kind"] == "ConfigMap":
            assert fp not in with_pods, "a router keeps its file while it drains"
            del self.lists[fp]
        elif role == Role.ROUTER:
            self.router_workloads.discard(fp)
            self.log.append(f"remove router {fp}")
        else:
            assert fp not in self.router_pods, "engines stay while a router of theirs has requests"
            if fp in self.workloads:
                self.log.append(f"remove engines {fp}")
            self.workloads.discard(fp)

    def advance(self, broken: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """What controllers and kubelets do between two passes."""
        for fp in list(self.engines):
            if fp not in self.workloads:
                del self.engines[fp]
            elif fp not in broken:
                self.engines[fp] = dict.fromkeys(self.engines[fp], True)
        for fp in list(self.router_pods):
            if fp not in self.router_workloads:
                del self.router_pods[fp]
        for fp in self.router_workloads:
            roles = {w.role for w in self.lists.get(fp, [])}
            self.router_pods[fp] = roles == set(ENGINE_ROLES)

    def settle(self, desired: str, broken: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        for _ in range(30):
            before = (
                self.pointed_at,
                self.existing(),
                dict(self.router_pods),
                {k: dict(v) for k, v in self.engines.items()},
            )
            self.reconcile(desired)
            self.advance(broken)
            if before == (self.pointed_at, self.existing(), self.router_pods, self.engines):
                return
        raise AssertionError("it never settles")


def obj(kind: str, name: str, fp: str | None, role: Role | None, owner: str = "owner") -> dict[str, Any]:
    labels = {LABEL_FINGERPRINT: fp, LABEL_ROLE: role}
    return {
        "apiVersion": "apps/v1" if kind == "Deployment" else "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {key: value for key, value in labels.items() if value is not None},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
    }


def test_one_change() -> None:
    world = World()
    world.settle(A)
    assert world.log == ["point aaaa", "create aaaa"]
    world.log.clear()
    world.settle(B)
    assert world.log == ["create bbbb", "point bbbb", "remove router aaaa", "remove engines aaaa"]
    assert world.existing() == {B}


def test_a_broken_generation_leaves_the_old_one_serving() -> None:
    world = World()
    world.settle(A)
    world.settle(B, broken={B})
    assert world.pointed_at == A
    assert world.whole(A)
    world.log.clear()
    world.settle(A, broken={B})
    assert world.existing() == {A}
    assert "point" not in " ".join(world.log), "traffic never moved"


def test_a_second_change_before_the_first_is_done() -> None:
    world = World()
    world.settle(A)
    world.settle(B, broken={B})
    world.log.clear()
    world.settle(C)
    assert world.pointed_at == C
    assert world.existing() == {C}
    assert world.log.index("point cccc") < world.log.index("remove engines aaaa")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), st.sets(st.sampled_from([A, B, C])), st.integers(1, 6)), max_size=8)
)
def test_any_history(history: list[tuple[str, set[str], int]]) -> None:
    """Specs change at any moment, generations break and recover; `World` asserts the rules in every pass."""
    world = World()
    served = False
    for desired, broken, passes in history:
        for _ in range(passes):
            world.reconcile(desired)
            world.advance(broken)
            served = served or world.whole(world.pointed_at or "")
    world.settle(A)
    assert world.pointed_at == A
    assert world.existing() == {A}
    assert world.whole(A)


# -- pruning


def names(found: list[Any]) -> list[str]:
    return [o["metadata"]["name"] for o in found]


FOREIGN = [
    obj("Deployment", "other-owner", B, Role.PREFILL, owner="other"),
    {
        **obj("Deployment", "no-owner", B, Role.PREFILL),
        "metadata": {"name": "no-owner", "labels": {LABEL_FINGERPRINT: B}},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "owned-not-controlled", "ownerReferences": [{"uid": "owner"}]},
    },
    obj("Secret", "router-key", None, Role.ROUTER),
    obj("Pod", "pod", B, Role.PREFILL),
    obj("ReplicaSet", "set", B, Role.PREFILL),
    obj("PersistentVolumeClaim", "claim", B, Role.PREFILL),
]


def test_only_what_is_ours_is_pruned() -> None:
    assert plan_pruning(FOREIGN, [], "owner", (), ()) == []


def test_what_is_wanted_or_kept_stays() -> None:
    live = [
        obj("Service", "stable", None, None),
        obj("Deployment", "a", A, Role.PREFILL),
        obj("Service", "a", A, Role.PREFILL),
    ]
    assert plan_pruning(live, [child_key(live[0])], "owner", {A}, ()) == []
    assert names(plan_pruning(live, [], "owner", {A}, ())) == ["stable"]
    assert names(plan_pruning(live, [child_key(live[0])], "owner", (), ())) == ["a", "a"]


def test_a_key_is_more_than_a_name() -> None:
    service, deployment = obj("Service", "x", A, Role.PREFILL), obj("Deployment", "x", A, Role.PREFILL)
    assert plan_pruning([service, deployment], [child_key(service)], "owner", (), ()) == [deployment]


def test_a_leaving_router_first_and_the_rest_when_its_pods_are_gone() -> None:
    live = [
        obj("ConfigMap", "b-workers", B, Role.ROUTER),
        obj("PodDisruptionBudget", "b-router", B, Role.ROUTER),
        obj("Deployment", "b-prefill", B, Role.PREFILL),
        obj("LeaderWorkerSet", "b-decode", B, Role.DECODE),
        obj("Service", "b-prefill", B, Role.PREFILL),
        obj("Deployment", "b-router", B, Role.ROUTER),
    ]
    assert names(plan_pruning(live, [], "owner", (), {B})) == ["b-router"]
    assert sorted(names(plan_pruning(live, [], "owner", (), ()))) == sorted(names(live))
    assert names(plan_pruning(live, [], "owner", (), ()))[:2] == ["b-prefill", "b-router"], "workloads first"


def test_objects_without_labels_break_nothing() -> None:
    bare = obj("ConfigMap", "bare", None, None)
    del bare["metadata"]["labels"]
    assert plan_pruning([bare], [], "owner", (), ()) == [bare]
