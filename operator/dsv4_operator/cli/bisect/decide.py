"""What to run next, and when enough is known. Pure: results so far in, next step or conclusion out.

An arm is looked at after every batch. Against the given setting, by Fisher's exact test (one-sided: the arm is better):

* cured: no session shows the fault, and that is no chance;
* reduced: fewer sessions show it, and that is no chance;
* same: sessions show it, and no more batches could make it reduced, or none are left;
* undecided: no session shows it, and chance could do that.

The level is shared among all looks (`Plan.alpha`). The given setting itself stops once an arm without any fault could
be told from it. That it stops on its own count makes its rate a little too high; the level is not corrected for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.soak.stats import Alternative, fisher_exact
from dsv4_operator.cli.bisect.factors import Factor
from dsv4_operator.cli.bisect.outcome import Batch, Counts, Measure, candidates, counts
from dsv4_operator.cli.bisect.plan import AGAIN, ALL_SAFE, GIVEN, Arm, Plan


class ArmVerdict(StrEnum):
    """What an arm has shown."""

    CURED = "cured"
    REDUCED = "reduced"
    SAME = "same"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


class Outcome(StrEnum):
    """How a bisection ended."""

    CLEAN = "clean"
    NAMED = "named"
    """At least one factor cures alone: the fault needs all that cure."""
    SEVERAL = "several"
    """No single factor cures, all together do."""
    ELSEWHERE = "elsewhere"
    """All factors at their safe values, and the fault is still there."""
    RARE = "rare"
    """The fault is there, but too seldom for the sessions allowed."""
    UNDECIDED = "undecided"
    NOT_RUN = "not run"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """Batches of an arm so far; `failed` says why it cannot be run."""

    batches: tuple[Batch, ...] = ()
    failed: str | None = None


Results = Mapping[str, ArmResult]


@dataclass(frozen=True, slots=True)
class Judged:
    """An arm's verdict and the numbers behind it."""

    verdict: ArmVerdict
    counts: Counts
    p_value: float | None = None
    """That the arm is as bad as the given setting: Fisher, one-sided."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """All that is known at the end."""

    outcome: Outcome
    measure: Measure | None = None
    given: Counts | None = None
    arms: dict[str, Judged] = field(default_factory=dict)
    alone: tuple[Factor, ...] = ()
    """Factors that bring the fault alone, all others safe."""
    again: Judged | None = None
    why: str = ""

    def with_verdict(self, plan: Plan, verdict: ArmVerdict) -> tuple[Factor, ...]:
        """Factors whose single-factor arm has the verdict."""
        return tuple(
            arm.factor
            for arm in plan.singles
            if arm.factor is not None and arm.name in self.arms and self.arms[arm.name].verdict is verdict
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Run one more batch of an arm."""

    arm: Arm


Step = Run | Conclusion


def better(arm: Counts, given: Counts) -> float:
    """P-value that the arm is no better than the given setting."""
    return fisher_exact(arm.bad, arm.sessions, given.bad, given.sessions, Alternative.LESS)


def judge(arm: Counts, given: Counts, alpha: float, batches: int) -> Judged | None:
    """The arm's verdict, None when another batch could change it."""
    if arm.looks == 0:
        return None
    if arm.sessions == 0:
        return Judged(ArmVerdict.UNDECIDED, arm)  # it brings no reply at all: more of the same would not help
    more = arm.looks < batches
    p_value = better(arm, given)
    if p_value <= alpha:
        return Judged(ArmVerdict.REDUCED if arm.bad else ArmVerdict.CURED, arm, p_value)
    if arm.bad == 0:
        return None if more else Judged(ArmVerdict.UNDECIDED, arm, p_value)
    # Half the rate or less may still turn out to be a reduction; more than that is no cure, and that is the question.
    if more and 2 * arm.bad * given.sessions <= given.bad * arm.sessions:
        return None
    return Judged(ArmVerdict.SAME, arm, p_value)


def given_measure(plan: Plan, batches: tuple[Batch, ...]) -> Measure | Outcome | None:
    """Which fault the given setting shows clearly enough; an outcome when it will not; None: run another batch."""
    last = len(batches) >= plan.limits.batches
    largest = plan.limits.batches * plan.limits.sessions
    found = candidates(batches)
    for measure in found:
        shown = counts(batches, measure)
        reach = Counts(0, largest if last else shown.sessions, 1)
        if better(reach, shown) <= plan.alpha:
            return measure
    if not last:
        return None
    if any(measure is not Measure.WRONG for measure in found):
        return Outcome.RARE
    return Outcome.CLEAN if any(batch.sessions for batch in batches) else Outcome.NOT_RUN


def next_step(plan: Plan, results: Results) -> Step:
    """The next batch to run, or what is known."""
    step = _next(plan, results)
    limit = plan.limits.max_gpu_hours
    if isinstance(step, Run) and limit is not None and spent(plan, results, step.arm) > limit:
        partial = conclude(plan, results)
        why = f"the next batch ({step.arm.name}) would go beyond {limit:g} GPU-hours"
        return Conclusion(Outcome.BUDGET, partial.measure, partial.given, partial.arms, why=why)
    return step


def spent(plan: Plan, results: Results, more: Arm | None = None) -> float:
    """GPU-hours by the estimates, with one more batch of an arm."""
    runs = {name: len(result.batches) for name, result in results.items()}
    if more is not None:
        runs[more.name] = runs.get(more.name, 0) + 1
    arms = {arm.name: arm for arm in (plan.given, *plan.singles, plan.all_safe, *plan.alone(), plan.again)}
    return sum(plan.gpu_hours(arms[name], count) for name, count in runs.items() if name in arms)


def _next(plan: Plan, results: Results) -> Step:
    given = results.get(GIVEN, ArmResult())
    if given.failed is not None:
        return Conclusion(Outcome.NOT_RUN, why=given.failed)
    measure = given_measure(plan, given.batches)
    if measure is None:
        return Run(plan.given)
    if isinstance(measure, Outcome):
        return conclude(plan, results)
    base = counts(given.batches, measure)
    cured = False
    for arm in plan.singles:
        found = _judged(results, arm, base, measure, plan.alpha, plan.limits.batches)
        if found is None:
            return Run(arm)
        cured = cured or found.verdict is ArmVerdict.CURED
        if cured and plan.limits.stop_at_cure:
            break
    for arm in _second(plan, results, base, measure, cured=cured):
        if _judged(results, arm, base, measure, plan.alpha_extra, plan.limits.batches) is None:
            return Run(arm)
    return conclude(plan, results)


def _second(plan: Plan, results: Results, base: Counts, measure: Measure, *, cured: bool) -> tuple[Arm, ...]:
    """Arms after the single factors, as far as they are worth running now."""
    if cured:
        return (plan.again,) if plan.limits.recheck else ()
    if len(plan.singles) < 2:
        return ()
    together = _judged(results, plan.all_safe, base, measure, plan.alpha_extra, plan.limits.batches)
    if together is not None and together.verdict is ArmVerdict.CURED:
        return (plan.all_safe, *plan.alone())
    return (plan.all_safe,)


def _judged(results: Results, arm: Arm, given: Counts, measure: Measure, alpha: float, batches: int) -> Judged | None:
    result = results.get(arm.name, ArmResult())
    found = counts(result.batches, measure)
    if result.failed is not None:
        return Judged(ArmVerdict.NOT_RUN, found)
    return judge(found, given, alpha, batches)


def conclude(plan: Plan, results: Results) -> Conclusion:
    """What the results say, finished or not."""
    given = results.get(GIVEN, ArmResult())
    measure = given_measure(plan, given.batches)
    if measure is None:
        return Conclusion(Outcome.UNDECIDED, why="the given setting was not soaked to its end")
    if isinstance(measure, Outcome):
        shown = (candidates(given.batches) or [Measure.CORRUPTION])[0]
        if measure is Outcome.CLEAN:
            shown = Measure.CORRUPTION
        return Conclusion(measure, shown, counts(given.batches, shown))
    base = counts(given.batches, measure)
    arms: dict[str, Judged] = {}
    for arm in (*plan.singles, plan.all_safe, *plan.alone()):
        alpha = plan.alpha if arm in plan.singles else plan.alpha_extra
        found = _judged(results, arm, base, measure, alpha, plan.limits.batches) if arm.name in results else None
        if found is not None:
            arms[arm.name] = found
    again = None
    if AGAIN in results:
        again = _judged(results, plan.again, base, measure, plan.alpha_extra, plan.limits.batches)
    alone = tuple(
        arm.factor
        for arm in plan.alone()
        if arm.factor is not None
        and arm.name in arms
        and arms[arm.name].verdict in (ArmVerdict.SAME, ArmVerdict.REDUCED)
    )
    return Conclusion(_outcome(plan, arms), measure, base, arms, alone, again)


def _outcome(plan: Plan, arms: Mapping[str, Judged]) -> Outcome:
    verdicts = [arms[arm.name].verdict for arm in plan.singles if arm.name in arms]
    if ArmVerdict.CURED in verdicts:
        return Outcome.NAMED
    together = arms.get(ALL_SAFE)
    if together is not None and together.verdict is ArmVerdict.CURED:
        return Outcome.SEVERAL
    unclear = (ArmVerdict.UNDECIDED, ArmVerdict.NOT_RUN)
    if together is not None and together.verdict not in unclear:
        return Outcome.ELSEWHERE
    if len(plan.singles) == 1 and verdicts and verdicts[0] not in unclear:
        return Outcome.ELSEWHERE
    return Outcome.UNDECIDED
