"""What is asked when: old prefixes, the cycle of kinds, the token budget, unusable probes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.baseline import ATTEMPTS, OPTIONAL, Baseline
from dsv4_canary.budget import Budget
from dsv4_canary.library import AGES, CAPACITY, Entry, Library
from dsv4_canary.model import Mode, ProbeName
from dsv4_canary.schedule import CYCLE, Plan, Schedule, Situation

INTERVAL = 30.0


def entry(prefix: str, last: float = 0.0, peer: str = "a") -> Entry:
    return Entry(prefix, peer, 0, 2600, last)


# -- library


def test_a_prefix_comes_back_at_growing_ages_and_then_leaves() -> None:
    library = Library()
    library.add(entry("x"), 1)
    asked, now = [], 0.0
    while len(library):
        now += INTERVAL
        due = library.due("a", now, INTERVAL)
        if due is not None:
            asked.append(now / INTERVAL)
            library.asked(due, now)
    assert [round(b - a) for a, b in zip([0.0, *asked], asked, strict=False)] == list(AGES)


def test_the_furthest_prefix_goes_first_and_only_to_its_peer() -> None:
    library = Library()
    young, old = entry("young"), entry("old")
    for one in (young, old):
        library.add(one, 1)
    library.asked(old, 0.0)
    assert library.due("a", 1000.0, INTERVAL) is old
    assert library.due("b", 1000.0, INTERVAL) is None
    library.add(entry("any", peer=""), 1)
    found = library.due("b", 1000.0, INTERVAL)
    assert found is not None
    assert found.prefix == "any"


def test_old_enough_for_a_twin() -> None:
    library = Library()
    library.add(entry("x", last=0.0), 1)
    library.add(entry("y", last=100.0), 1)
    assert library.old("a", 200.0, INTERVAL) is None
    found = library.old("a", 1000.0, INTERVAL)
    assert found is not None
    assert found.prefix == "x"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 400)), max_size=300), st.integers(1, 40))
def test_the_library_is_bounded_and_shared(steps: list[tuple[int, int]], peers: int) -> None:
    library = Library()
    for number, (peer, wait) in enumerate(steps):
        now = float(number + wait)
        library.add(entry(str(number), now, f"p{peer % peers}"), peers)
        due = library.due(f"p{peer % peers}", now, 1.0)
        if due is not None:
            library.asked(due, now)
        assert len(library) <= CAPACITY
        held = Counter(one.peer for one in library._entries.values())
        assert max(held.values(), default=0) <= max(2, CAPACITY // peers)


def test_prefixes_of_peers_that_are_gone_are_forgotten() -> None:
    library = Library()
    for peer in ("a", "b", ""):
        library.add(entry("x" + peer, peer=peer), 2)
    library.keep_peers(["a"])
    assert len(library) == 2
    library.forget("a")
    assert len(library) == 1
    library.forget()
    assert len(library) == 0


def test_what_may_have_been_read_damaged_is_forgotten() -> None:
    library = Library()
    for prefix, peer in (("old-a", "a"), ("old-b", "b"), ("young-b", "b")):
        library.add(entry(prefix, peer=peer), 2)
    for prefix in ("old-a", "old-b"):
        kept = library.get(prefix)
        assert kept is not None
        library.asked(kept, 1.0)
    library.doubt("a")
    assert [library.get(prefix) is not None for prefix in ("old-a", "old-b", "young-b")] == [False, True, False]


# -- cycle


def situation(**changes: object) -> Situation:
    usual = Situation(
        peer="a",
        now=0.0,
        interval=INTERVAL,
        wanted=None,
        reload=False,
        affordable=lambda _prompts: True,
        usable=lambda _probe: True,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def schedule(seed: int = 1) -> Schedule:
    return Schedule("run", Library(), Library(), random.Random(seed))


def test_what_must_be_proved_is_an_echo_on_a_fresh_prefix() -> None:
    made = schedule()
    plans = [made.plan(situation(wanted=mode)) for mode in (Mode.FUNCTIONAL, Mode.STREAMED, Mode.STREAMED)]
    assert [(plan.probe, plan.mode) for plan in plans] == [
        (ProbeName.ECHO, Mode.FUNCTIONAL),
        (ProbeName.ECHO, Mode.STREAMED),
        (ProbeName.ECHO, Mode.STREAMED),
    ]
    assert len({plan.prefix for plan in plans}) == 3


def test_all_kinds_take_turns_and_both_modes() -> None:
    chats, drifts = Library(), Library()
    made = Schedule("run", chats, drifts, random.Random(1))
    seen: Counter[ProbeName] = Counter()
    modes = set()
    for step in range(240):
        now = step * INTERVAL
        plan = made.plan(situation(now=now))
        seen[plan.probe] += 1
        modes.add((plan.probe, plan.mode))
        library = drifts if plan.probe is ProbeName.DRIFT else chats
        if plan.entry is not None:
            if plan.probe is not ProbeName.TWIN:
                library.asked(plan.entry, now)
        elif plan.probe in (ProbeName.ECHO, ProbeName.DRIFT):
            library.add(entry(plan.prefix, now, ""), 1)
    assert set(seen) == set(ProbeName)
    assert 240 / len(CYCLE) * 2 < seen[ProbeName.ECHO]
    assert seen[ProbeName.REPEAT] > 40
    for probe in (ProbeName.ECHO, ProbeName.REPEAT, ProbeName.QUIET):
        assert {mode for name, mode in modes if name is probe} == set(Mode)


@pytest.mark.parametrize("peers", [1, 2, 3, 4, 5, 6, 12])
def test_every_peer_gets_every_kind_however_many_there_are(peers: int) -> None:
    made = schedule()
    seen: dict[str, Counter[ProbeName]] = {f"peer-{number}": Counter() for number in range(peers)}
    for _ in range(2 * len(CYCLE)):
        for peer, kinds in seen.items():
            kinds[made.plan(situation(peer=peer)).probe] += 1
    # Without old prefixes there is neither a repeat nor a twin to ask.
    for kinds in seen.values():
        assert set(kinds) == {ProbeName.ECHO, ProbeName.DRIFT, ProbeName.QUIET, ProbeName.PARITY}


def test_a_peer_of_which_nothing_is_known_is_asked_what_proves_it() -> None:
    made = schedule()
    plans = [made.plan(situation(known=False)) for _ in range(4)]
    assert {plan.probe for plan in plans} == {ProbeName.ECHO}
    assert {plan.mode for plan in plans} == set(Mode)


def test_a_peer_that_left_leaves_nothing_behind() -> None:
    made = schedule()
    for peer in ("a", "b"):
        made.plan(situation(peer=peer))
    made.keep_peers(["b", "c"])
    assert set(made._beats) == {"b"}


def test_pods_that_start_together_do_not_do_the_same() -> None:
    firsts = {schedule(seed).plan(situation()).probe for seed in range(40)}
    assert len(firsts) >= 4


def test_nothing_due_and_nothing_usable_leaves_the_echo() -> None:
    made = schedule()
    for _ in range(30):
        plan = made.plan(situation(usable=lambda probe: probe not in OPTIONAL))
        assert plan.probe is ProbeName.ECHO


def test_without_tokens_for_two_prompts_no_probe_sends_two() -> None:
    made = schedule()
    for _ in range(30):
        plan = made.plan(situation(affordable=lambda prompts: prompts == 1))
        assert plan.probe in (ProbeName.ECHO, ProbeName.QUIET)


def test_suspicion_asks_old_prefixes_first() -> None:
    chats = Library()
    chats.add(entry("x"), 1)
    made = Schedule("run", chats, Library(), random.Random(1))
    plan = made.plan(situation(now=1000.0, reload=True))
    assert (plan.probe, plan.prefix) == (ProbeName.REPEAT, "x")
    assert isinstance(made.plan(situation(now=0.0, reload=True)), Plan)


# -- budget


def test_budget_holds_over_time() -> None:
    budget = Budget(12_000)
    spent, now = 0.0, 0.0
    while now < 3600:
        wait = budget.wait(4000, now)
        now += wait
        if wait == 0.0:
            budget.spend(4000, now)
            spent += 4000
        now += 0.5
    assert 0.95 * 12_000 * 60 <= spent <= 12_000 * 62


@given(st.floats(100, 1e6), st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1000)), max_size=40))
def test_waiting_as_told_is_enough(rate: float, steps: list[tuple[float, float]]) -> None:
    budget, now = Budget(rate), 0.0
    for tokens, pause in steps:
        now += pause
        now += budget.wait(tokens, now)
        assert budget.wait(tokens, now) < 0.01
        budget.spend(tokens, now)


def test_a_smaller_budget_holds_at_once() -> None:
    budget = Budget(100_000)
    assert budget.wait(4000, 0.0) == 0
    budget.configure(600)
    assert budget.wait(1200, 0.0) == 0
    budget.spend(1200, 0.0)
    assert budget.wait(600, 0.0) == 60


def test_debt_is_bounded() -> None:
    budget = Budget(6_000)
    for _ in range(100):
        budget.spend(50_000, 0.0)
    assert budget.wait(4_000, 0.0) <= 100
    assert budget.wait(1e9, 0.0) == 180


# -- baseline


def test_a_probe_that_never_passes_is_unusable_and_tried_again_now_and_then() -> None:
    for probe in OPTIONAL:
        baseline = Baseline()
        for number in range(ATTEMPTS):
            assert not baseline.why(probe)
            baseline.failed(probe, f"p{number}", 2600 + number, f"peer{number % 2}", 2)
        assert "never passed" in baseline.why(probe)
        asked = [baseline.wanted(probe) for _ in range(60)]
        assert 1 <= sum(asked) <= 4
        baseline.passed(probe)
        assert not baseline.why(probe)
        assert baseline.wanted(probe)


def test_one_length_one_prefix_or_one_of_several_peers_is_not_enough() -> None:
    probe = ProbeName.QUIET
    same_length, same_prefix, one_peer = Baseline(), Baseline(), Baseline()
    for number in range(ATTEMPTS):
        same_length.failed(probe, f"p{number}", 2600, "a", 1)
        one_peer.failed(probe, f"p{number}", 2600 + number, "a", 3)
    for number in range(20):
        same_prefix.failed(probe, "p", 2600 + number, "a", 1)
    assert not same_length.why(probe)
    assert not same_prefix.why(probe)
    assert not one_peer.why(probe)
    for number in range(ATTEMPTS, 2 * ATTEMPTS):
        same_length.failed(probe, f"p{number}", 2600, "a", 1)
    assert same_length.why(probe), "a prompt whose length never varies"


def test_a_probe_that_has_passed_counts_for_ever() -> None:
    baseline = Baseline()
    assert not baseline.counts(ProbeName.DRIFT)
    baseline.passed(ProbeName.DRIFT)
    for number in range(50):
        baseline.failed(ProbeName.DRIFT, f"p{number}", 2600 + number, "a", 1)
    assert baseline.counts(ProbeName.DRIFT)
    assert not baseline.why(ProbeName.DRIFT)


def test_echo_has_no_baseline() -> None:
    baseline = Baseline()
    for probe in (ProbeName.ECHO, ProbeName.REPEAT, ProbeName.TWIN):
        for number in range(50):
            baseline.failed(probe, f"p{number}", 2600 + number, "a", 1)
        baseline.refused(probe, "whatever")
        assert not baseline.why(probe)
        assert baseline.counts(probe)
