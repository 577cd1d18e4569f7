"""Planner and decider of bisect, with idealised arms: the hidden fault is named, and the bounds hold."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.cli.bisect.decide import (
    ArmResult,
    ArmVerdict,
    Conclusion,
    Outcome,
    Run,
    conclude,
    judge,
    next_step,
    spent,
)
from dsv4_operator.cli.bisect.factors import Factor, Setting
from dsv4_operator.cli.bisect.outcome import Batch, Counts, Measure
from dsv4_operator.cli.bisect.plan import Arm, Limits, Plan, make_plan
from dsv4_operator.cli.bisect.report import build, exit_status_of, text
from dsv4_operator.cli.bisect.sentence import culprit, cures, patch, sentence

GIVEN = Setting(index_k="BF16", hicache=True, overlap=True, early_send=True, pair=True, image="suspect")
World = Callable[[Setting], tuple[int, int]]
"""A setting's corrupted and silent sessions in a batch of 80."""


def risky(setting: Setting) -> set[Factor]:
    """Factors that stand as in the given setting."""
    return {
        factor
        for factor, at_risk in (
            (Factor.INDEX_K, setting.index_k == "BF16"),
            (Factor.HICACHE, setting.hicache),
            (Factor.OVERLAP, setting.overlap),
            (Factor.EARLY_SEND, setting.early_send),
            (Factor.TOPOLOGY, setting.pair),
            (Factor.IMAGE, setting.image == "suspect"),
        )
        if at_risk
    }


def needing(*combinations: set[Factor], corrupted: int = 14) -> World:
    """Corrupts where every factor of one combination is as given."""
    return lambda setting: (corrupted if any(c <= risky(setting) for c in combinations) else 0, 0)


def batch(corrupted: int, silent: int = 0, sessions: int = 80) -> Batch:
    return Batch(sessions - silent, corrupted, corrupted, sessions, silent, "x")


def play(plan: Plan, world: World) -> tuple[Conclusion, list[str], dict[str, ArmResult]]:
    """Run to the conclusion: what it is, the arms in the order of their batches, all results."""
    results: dict[str, ArmResult] = {}
    ran: list[str] = []
    while isinstance(step := next_step(plan, results), Run):
        old = results.get(step.arm.name, ArmResult())
        results[step.arm.name] = ArmResult((*old.batches, batch(*world(step.arm.setting))))
        ran.append(step.arm.name)
        assert len(ran) <= plan.most_batches()
    return step, ran, results


def full_plan(**limits: object) -> Plan:
    return make_plan(GIVEN, dataclasses.replace(Limits(), **limits), safe_image="good")  # type: ignore[arg-type]


def test_order_and_one_change_at_a_time() -> None:
    plan = full_plan()
    assert [arm.factor for arm in plan.singles] == list(Factor)
    for arm in plan.singles:
        assert risky(GIVEN) - risky(arm.setting) == {arm.factor}
    assert risky(plan.all_safe.setting) == set()
    for arm in plan.alone():
        assert arm.factor is not None
        # Early send needs a pair: alone, on one server, it is nothing.
        assert risky(arm.setting) == {arm.factor}


def test_what_is_safe_already_is_left_out_with_the_reason() -> None:
    safe = Setting("FP8", hicache=False, overlap=True, early_send=False, pair=True, image="x")
    plan = make_plan(safe, Limits())
    assert [arm.factor for arm in plan.singles] == [Factor.OVERLAP, Factor.TOPOLOGY]
    assert plan.skipped[Factor.INDEX_K] == "fp8 already"
    assert "--safe-image" in plan.skipped[Factor.IMAGE]


FAULTS = {
    "index-K reads during HiCache loads": {Factor.INDEX_K, Factor.HICACHE, Factor.IMAGE},
    "early send of prefixes that a HiCache load is still filling": {Factor.EARLY_SEND, Factor.HICACHE, Factor.TOPOLOGY},
    "early send without the fence of the running forward": {Factor.EARLY_SEND, Factor.OVERLAP, Factor.TOPOLOGY},
    "the overlapped scheduler": {Factor.OVERLAP},
    "the image": {Factor.IMAGE},
    "the transfer between prefill and decode": {Factor.TOPOLOGY},
}


@pytest.mark.parametrize(("name", "needs"), FAULTS.items())
def test_each_mechanism_has_its_name(name: str, needs: set[Factor]) -> None:
    plan = full_plan()
    found, ran, _ = play(plan, needing(needs))
    assert found.outcome is Outcome.NAMED
    assert set(found.with_verdict(plan, ArmVerdict.CURED)) == needs
    assert culprit(plan, found) == name
    # Given, six arms, given again: one batch each is enough for 14 of 80 against none.
    assert len(ran) == 8


@settings(max_examples=60, deadline=None)
@given(
    needs=st.sets(st.sampled_from(list(Factor)), min_size=1),
    share=st.floats(0.1, 0.9),
    seed=st.integers(0, 2**16),
    batches=st.integers(2, 4),
)
def test_one_hidden_fault_of_any_combination_is_named(
    needs: set[Factor], share: float, seed: int, batches: int
) -> None:
    """Rates from 10 % on, drawn: every factor that the fault needs cures, and no other one does."""
    rng = random.Random(seed)

    def world(setting: Setting) -> tuple[int, int]:
        return sum(rng.random() < share for _ in range(80)) if needs <= risky(setting) else 0, 0

    plan = full_plan(batches=batches)
    found, ran, _ = play(plan, world)
    assert found.outcome is Outcome.NAMED
    assert set(found.with_verdict(plan, ArmVerdict.CURED)) == needs
    assert len(ran) <= plan.most_batches()
    assert set(cures(plan, found)) == needs


@settings(max_examples=40, deadline=None)
@given(
    corrupted=st.integers(0, 80),
    silent=st.integers(0, 80),
    batches=st.integers(1, 4),
    hours=st.floats(0.1, 30),
    seed=st.integers(0, 1000),
)
def test_whatever_arms_show_the_bounds_hold(corrupted: int, silent: int, batches: int, hours: float, seed: int) -> None:
    rng = random.Random(seed)
    plan = full_plan(batches=batches, max_gpu_hours=hours)

    def world(_setting: Setting) -> tuple[int, int]:
        mute = rng.randint(0, silent)
        return rng.randint(0, min(corrupted, 80 - mute)), mute

    found, _, results = play(plan, world)
    assert all(len(result.batches) <= batches for result in results.values())
    assert spent(plan, results) <= hours
    report = build(plan, results, found, seed=1)
    assert exit_status_of(report) in (0, 1, 3, 4)
    assert text(report)


def test_a_clean_setting_says_what_it_could_have_seen() -> None:
    plan = full_plan()
    found, ran, _ = play(plan, needing())
    assert found.outcome is Outcome.CLEAN
    assert ran == ["given"] * 3
    assert sentence(plan, found).startswith("Clean at 240 sessions; could have seen 1.2 % with 95 % probability.")


def test_two_causes_are_said_to_be_two() -> None:
    plan = full_plan()
    found, _, _ = play(plan, needing({Factor.OVERLAP}, {Factor.HICACHE}))
    assert found.outcome is Outcome.SEVERAL
    assert set(found.alone) == {Factor.OVERLAP, Factor.HICACHE}
    assert "more than one cause" in sentence(plan, found)
    assert cures(plan, found) == ()


def test_two_combinations_are_not_claimed_to_be_told_apart() -> None:
    plan = full_plan()
    found, _, results = play(plan, needing({Factor.OVERLAP, Factor.TOPOLOGY}, {Factor.HICACHE, Factor.INDEX_K}))
    assert (found.outcome, found.alone) == (Outcome.SEVERAL, ())
    assert "cannot tell apart" in sentence(plan, found)
    assert exit_status_of(build(plan, results, found, seed=1)) == 4


def test_a_fault_of_no_factor_is_elsewhere() -> None:
    plan = full_plan()
    found, _, results = play(plan, lambda _setting: (14, 0))
    assert found.outcome is Outcome.ELSEWHERE
    assert "look for the cause elsewhere" in sentence(plan, found)
    assert exit_status_of(build(plan, results, found, seed=1)) == 4


def test_silence_is_bisected_as_silence() -> None:
    plan = full_plan()
    found, _, _ = play(plan, lambda setting: (0, 80 if setting.overlap else 0))
    assert (found.outcome, found.measure) == (Outcome.NAMED, Measure.SILENCE)
    assert culprit(plan, found) == "the overlapped scheduler stalls"
    assert patch(plan, Factor.OVERLAP) == {"spec": {"overlapSchedule": "Disabled"}}


def test_a_reduction_is_no_cure() -> None:
    """The incident: HiCache off cures, one server has 2 % instead of 18 %."""

    def world(setting: Setting) -> tuple[int, int]:
        if not setting.hicache or setting.index_k == "FP8":
            return 0, 0
        return (14 if setting.pair else 2), 0

    plan = full_plan()
    found, _, _ = play(plan, world)
    assert found.with_verdict(plan, ArmVerdict.CURED) == (Factor.HICACHE, Factor.INDEX_K)
    assert found.with_verdict(plan, ArmVerdict.REDUCED) == (Factor.TOPOLOGY,)
    assert culprit(plan, found) == "index-K reads during HiCache loads"
    said = sentence(plan, found)
    assert "needs HiCache on and index-K in bf16, all together" in said
    assert "One server instead of a pair makes it rarer and does not cure it." in said


def test_a_fault_that_fades_is_not_passed_off_as_cured() -> None:
    plan = full_plan()
    seen: list[str] = []

    def world(setting: Setting) -> tuple[int, int]:
        seen.append("")
        return (14 if len(seen) == 1 else 0), 0

    found, _, _ = play(plan, world)
    assert found.again is not None
    assert found.again.verdict is ArmVerdict.CURED
    assert "did not show it again" in sentence(plan, found)


def test_a_rare_fault_asks_for_more_sessions() -> None:
    plan = full_plan()
    found, ran, _ = play(plan, lambda _setting: (1, 0))
    assert found.outcome is Outcome.RARE
    assert ran == ["given"] * 3
    assert "Raise --batches or --sessions." in sentence(plan, found)


def test_an_arm_that_cannot_start_stops_no_other() -> None:
    plan = full_plan(recheck=False)
    results = {"given": ArmResult((batch(14),)), "hicache-off": ArmResult((), "no GPUs")}
    step = next_step(plan, results)
    assert isinstance(step, Run)
    assert step.arm.factor is Factor.INDEX_K
    assert conclude(plan, results).arms["hicache-off"].verdict is ArmVerdict.NOT_RUN


def test_the_given_setting_that_cannot_start_ends_it() -> None:
    plan = full_plan()
    found = next_step(plan, {"given": ArmResult((), "no GPUs")})
    assert isinstance(found, Conclusion)
    assert (found.outcome, found.why) == (Outcome.NOT_RUN, "no GPUs")


def test_stop_at_the_first_cure() -> None:
    plan = full_plan(stop_at_cure=True, recheck=False)
    found, ran, _ = play(plan, needing({Factor.HICACHE, Factor.INDEX_K}))
    assert ran == ["given", "hicache-off"]
    assert cures(plan, found) == (Factor.HICACHE,)
    assert "Not tried: index-K in fp8" in sentence(plan, found)


def test_gpu_hours() -> None:
    plan = full_plan(gpus_pair=8, gpus_alone=4, startup_minutes=30, batch_minutes=15, batches=2)
    # Seven pairs (given, five factors, given again) and one server, 45 minutes each.
    assert plan.bounds()[0] == pytest.approx((7 * 8 + 4) * 45 / 60)
    assert plan.gpu_hours(plan.given, 2) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("arm", "verdict"),
    [
        (Counts(0, 80, 1), ArmVerdict.CURED),
        (Counts(1, 80, 1), ArmVerdict.REDUCED),
        (Counts(14, 80, 1), ArmVerdict.SAME),
        (Counts(5, 80, 1), None),  # may become a reduction
        (Counts(8, 160, 2), ArmVerdict.REDUCED),
        (Counts(0, 10, 1), None),
        (Counts(0, 10, 3), ArmVerdict.UNDECIDED),
        (Counts(0, 0, 0), None),
        (Counts(0, 0, 1), ArmVerdict.UNDECIDED),  # no reply at all
    ],
)
def test_verdicts(arm: Counts, verdict: ArmVerdict | None) -> None:
    judged = judge(arm, Counts(20, 120, 1), 0.003, 3)
    assert (judged.verdict if judged else None) == verdict


def test_false_cures_are_rare() -> None:
    """An arm with the fault of the given setting is called cured or reduced in far less than one of 100 plans."""
    rng = random.Random(7)
    plan = full_plan()
    wrong = 0
    for _ in range(400):
        results = {"given": ArmResult((batch(sum(rng.random() < 0.18 for _ in range(80))),))}
        arm: Arm = plan.singles[0]
        while True:
            step = next_step(plan, results)
            if not isinstance(step, Run) or step.arm.name not in ("given", arm.name):
                break
            old = results.get(step.arm.name, ArmResult())
            fresh = batch(sum(rng.random() < 0.18 for _ in range(80)))
            results[step.arm.name] = ArmResult((*old.batches, fresh))
        judged = conclude(plan, results).arms.get(arm.name)
        wrong += judged is not None and judged.verdict in (ArmVerdict.CURED, ArmVerdict.REDUCED)
    assert wrong <= 8
