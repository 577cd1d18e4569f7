"""The worker list: tables after what smg was seen to do, and rules that hold whatever happens."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.desired.workers import Worker, workers_file
from dsv4_operator.plan.membership import (
    LINGER_SECONDS,
    READD_SECONDS,
    Candidate,
    MembershipPlan,
    plan_membership,
    router_differences,
)

NOW = 1000.0


def worker(number: int, role: Role = Role.PREFILL, uid: str = "") -> Worker:
    return Worker.of_pod(uid or f"uid-{number}", f"10.0.0.{number}", role)


P1, P2 = worker(1), worker(2)
D1 = worker(5, Role.DECODE)


def ready(*workers: Worker) -> list[Candidate]:
    return [Candidate(w, ready=True) for w in workers]


def failing(*workers: Worker) -> list[Candidate]:
    return [Candidate(w, ready=False) for w in workers]


def leaving(w: Worker, since: float, is_ready: bool = True) -> Candidate:
    return Candidate(w, ready=is_ready, leaving_for=since)


def plan(
    current: list[Worker],
    candidates: list[Candidate],
    *,
    removed: dict[str, float] | None = None,
    in_routers: tuple[Worker, ...] = (),
    now: float = NOW,
) -> MembershipPlan:
    return plan_membership(current, removed or {}, candidates, frozenset(w.url for w in in_routers), now)


# -- one table row per failure that was seen in front of rolling engines


def test_a_pod_enters_only_after_its_canary_passed() -> None:
    assert plan([], failing(P1) + ready(D1)).workers == (D1,)
    assert plan([D1], ready(P1, D1)).workers == (P1, D1)


def test_a_pod_whose_canary_fails_goes_at_once() -> None:
    result = plan([P1, P2, D1], failing(P1) + ready(P2, D1))
    assert result.workers == (P2, D1)
    assert result.removed == {P1.url: NOW}
    assert result.empties == ()


def test_a_pod_that_vanished_goes_at_once() -> None:
    assert plan([P1, P2, D1], ready(P2, D1)).workers == (P2, D1)


def test_a_deleted_pod_stays_until_its_successor_is_ready_in_a_router() -> None:
    """Add first: removed before the new one is taken up, requests found no worker."""
    before = plan([P1, D1], [leaving(P1, 1.0), *ready(P2, D1)], in_routers=(P1, D1))
    assert before.workers == (P1, P2, D1)
    assert before.look_again == 1.0
    after = plan([P1, P2, D1], [leaving(P1, 2.0), *ready(P2, D1)], in_routers=(P1, P2, D1))
    assert after.workers == (P2, D1)
    assert after.look_again is None
    assert after.removed == {P1.url: NOW}


def test_a_deleted_pod_goes_when_its_engine_stops_accepting() -> None:
    assert plan([P1, P2], [leaving(P1, LINGER_SECONDS), *ready(P2)], in_routers=(P1,)).workers == (P2,)
    nearly = plan([P1, P2], [leaving(P1, LINGER_SECONDS - 0.25), *ready(P2)], in_routers=(P1,))
    assert nearly.workers == (P1, P2)
    assert nearly.look_again == pytest.approx(0.25)


def test_a_deleted_pod_that_is_not_ready_does_not_linger() -> None:
    assert plan([P1, P2], [leaving(P1, 0.0, is_ready=False), *ready(P2)]).workers == (P2,)


def test_a_deleted_pod_never_enters() -> None:
    assert plan([P2], [leaving(P1, 0.0), *ready(P2)]).workers == (P2,)


def test_a_successor_of_the_other_role_is_none() -> None:
    assert plan([P1, D1], [leaving(P1, 0.0), *ready(D1)], in_routers=(D1,)).workers == (P1, D1)


def test_one_that_leaves_itself_is_no_successor() -> None:
    """Whatever the order in which pods are listed."""
    both = [leaving(P1, 1.0), leaving(P2, 1.0)]
    for candidates in (both, both[::-1]):
        assert plan([P1, P2], candidates, in_routers=(P1, P2)).workers == (P1, P2)


def test_an_address_does_not_come_back_inside_the_routers_drain() -> None:
    """smg lost a worker that was listed again within its five seconds and one period (6.8 s seen)."""
    removed = {P1.url: NOW - 4}
    early = plan([P2, D1], ready(P1, P2, D1), removed=removed)
    assert early.workers == (P2, D1)
    assert early.look_again == pytest.approx(6.0)
    assert early.removed == removed
    late = plan([P2, D1], ready(P1, P2, D1), removed={P1.url: NOW - READD_SECONDS})
    assert late.workers == (P1, P2, D1)
    assert late.removed == {}


def test_a_clock_that_was_set_back_keeps_nobody_out() -> None:
    """Or another replica of the operator leads, on a node whose clock is behind."""
    removed = {P1.url: NOW + 3600}
    assert plan([P2, D1], ready(P1, P2, D1), removed=removed).workers == (P1, P2, D1)


def test_the_ten_seconds_are_not_shortened_by_rounding() -> None:
    left_at = 1000.04
    removed = plan([P1, P2], ready(P2), now=left_at).removed
    assert removed[P1.url] >= left_at
    assert plan([P2], ready(P1, P2), removed=dict(removed), now=left_at + READD_SECONDS - 0.001).workers == (P2,)


def test_the_last_of_a_role_is_named_before_it_goes() -> None:
    assert plan([P1, D1], failing(P1) + ready(D1)).empties == ("prefill",)
    assert plan([P1, D1], []).empties == ("prefill", "decode")
    assert plan([P1], failing(P1)).empties == ("prefill",), "decode had none before"
    assert plan([], failing(P1)).empties == ()
    assert plan([P1, D1], ready(P2, D1)).empties == ()


def test_a_new_pod_at_a_listed_address_replaces_it_in_place() -> None:
    heir = worker(1, uid="heir")
    result = plan([P1, D1], ready(heir, D1))
    assert result.workers == (heir, D1)
    assert result.removed == {}, "the address never left"


def test_an_address_is_never_listed_twice() -> None:
    """smg refuses the whole file over a duplicate, and keeps its old list."""
    heir = worker(1, uid="heir")
    for candidates in (ready(P1, heir), ready(heir, P1), [leaving(P1, 0.5), *ready(heir)]):
        for current in ([P1], [heir], [P1, D1]):
            result = plan(current, candidates)
            assert len({w.url for w in result.workers}) == len(result.workers)
    assert plan([P1], ready(heir, P1)).workers == (P1,), "the choice does not flip"
    assert plan([heir], ready(heir, P1)).workers == (heir,)


def test_nothing_changes_when_nothing_changed() -> None:
    removed = {"http://10.0.0.9:30000": 1.0}
    result = plan([P1, D1], ready(P1, D1), removed=removed, in_routers=(P1, D1))
    assert result.workers == (P1, D1)
    assert result.removed == removed, "forgetting alone is no reason to write"
    assert not result.changes([D1, P1])
    assert result.changes([P1])


def test_departures_are_forgotten_with_the_next_change() -> None:
    removed = {"http://10.0.0.9:30000": NOW - 11, "http://10.0.0.8:30000": NOW - 9}
    assert plan([P1], ready(P1, P2), removed=removed).removed == {"http://10.0.0.8:30000": NOW - 9}


def test_router_differences_in_words() -> None:
    assert router_differences([P1, D1], {P1.url: "prefill", D1.url: "decode"}) == []
    assert router_differences([P1, P2, D1], {P2.url: "decode", D1.url: "decode", "http://x:1": "prefill"}) == [
        f"{P1.url} is missing",
        "http://x:1 should not be there",
        f"{P2.url} is listed as decode, wanted prefill",
    ]


# -- whatever happens

WORKERS = st.builds(
    worker, st.integers(1, 4), st.sampled_from(ENGINE_ROLES), st.sampled_from(["", "other"]).map(lambda uid: uid)
)
CANDIDATES = st.lists(
    st.builds(Candidate, WORKERS, st.booleans(), st.none() | st.floats(0, 60)), max_size=7, unique_by=lambda c: c.worker
)


@settings(max_examples=400)
@given(
    st.lists(WORKERS, max_size=5, unique_by=lambda w: w.url),
    CANDIDATES,
    st.dictionaries(st.integers(1, 4).map(lambda n: worker(n).url), st.floats(900, 1000), max_size=3),
    st.sets(st.integers(1, 4).map(lambda n: worker(n).url)),
    st.randoms(use_true_random=False),
)
def test_rules(
    current: list[Worker],
    candidates: list[Candidate],
    removed: dict[str, float],
    in_routers: set[str],
    rng: random.Random,
) -> None:
    result = plan_membership(current, removed, candidates, in_routers, NOW)
    listed = set(result.workers)
    ready_now = {c.worker for c in candidates if c.ready}
    assert listed <= ready_now, "a pod that is not Ready is never listed"
    for entered in listed - set(current):
        assert next(c for c in candidates if c.worker == entered).leaving_for is None
        assert NOW - removed.get(entered.url, 0) >= READD_SECONDS, "no address back within ten seconds"
    assert len({w.url for w in listed}) == len(listed)
    for role in ENGINE_ROLES:
        had, has = (any(w.role is role for w in workers) for workers in (current, listed))
        assert (role.value in result.empties) is (had and not has)
    for gone in {w.url for w in current} - {w.url for w in listed}:
        assert result.removed[gone] >= NOW
    assert result.look_again is None or result.look_again > 0
    shuffled = candidates[:]
    rng.shuffle(shuffled)
    assert plan_membership(current[::-1], removed, shuffled, in_routers, NOW) == result
    again = plan_membership(result.workers, result.removed, candidates, in_routers, NOW)
    settled = plan_membership(again.workers, again.removed, candidates, in_routers, NOW)
    assert settled.workers == again.workers, "it settles"
    assert settled.removed == again.removed


@settings(max_examples=200)
@given(st.lists(WORKERS, max_size=5, unique_by=lambda w: w.url), st.floats(0, 1e6))
def test_time_alone_writes_nothing(current: list[Worker], passed: float) -> None:
    removed = {"http://10.0.0.9:30000": NOW}
    result = plan_membership(current, removed, ready(*current), {w.url for w in current}, NOW + passed)
    assert set(result.workers) == set(current)
    assert result.removed == removed
    assert result.look_again is None


# -- a router that behaves as smg was seen to, and a world that rolls


@dataclass
class Router:
    """Takes the whole file or nothing; a new worker is ready after one check; one that returns in its drain is lost."""

    workers: dict[str, float] = field(default_factory=dict)
    drained: dict[str, float] = field(default_factory=dict)

    def read(self, text: str, now: float) -> None:
        urls = [entry["url"] for entry in json.loads(text)["workers"]]
        assert len(urls) == len(set(urls)), "smg rejects the whole file"
        for url in urls:
            if url not in self.workers:
                assert now - self.drained.get(url, -1e9) >= READD_SECONDS, "smg loses this one"
                self.workers[url] = now
        for url in set(self.workers) - set(urls):
            del self.workers[url]
            self.drained[url] = now

    def ready(self, now: float) -> set[str]:
        return {url for url, since in self.workers.items() if now - since >= 2.0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["fail", "pass", "delete", "vanish"])), max_size=25))
def test_a_rolling_world(events: list[tuple[int, str]]) -> None:
    """Pods fail, recover and are replaced at the same addresses; every second a pass."""
    router, now = Router(), 0.0
    current: list[Worker] = []
    removed: dict[str, float] = {}
    pods: dict[int, list[Any]] = {n: [0, True, None] for n in range(4)}  # generation, ready, deleted at
    for event in [*events, *[None] * 30]:
        if event is not None:
            number, kind = event
            pod = pods[number]
            if kind in ("fail", "pass"):
                pod[1] = kind == "pass"
            elif kind == "delete":
                pod[2] = now
            else:
                pods[number] = [pod[0] + 1, False, None]
        for number, pod in pods.items():
            if pod[2] is not None and now - pod[2] > 8:
                pods[number] = [pod[0] + 1, False, None]
        candidates = [
            Candidate(
                worker(n, ENGINE_ROLES[n % 2], uid=f"{n}-{generation}"),
                bool(is_ready),
                None if deleted is None else now - deleted,
            )
            for n, (generation, is_ready, deleted) in pods.items()
        ]
        result = plan_membership(current, removed, candidates, router.ready(now), now)
        router.read(workers_file(result.workers), now)
        current, removed = list(result.workers), dict(result.removed)
        assert set(current) <= {c.worker for c in candidates if c.ready}
        now += 1.0
    assert {w.id for w in current} == {
        f"{n}-{g}" for n, (g, is_ready, deleted) in pods.items() if is_ready and deleted is None
    }
