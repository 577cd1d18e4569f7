"""The report of a bisection as a JSON object, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4_canary.soak.markdown import p_text, rate_text
from dsv4_canary.soak.stats import effect, wilson
from dsv4_operator.cli.bisect.decide import ArmResult, Conclusion, Judged, Outcome, Results, spent
from dsv4_operator.cli.bisect.factors import Factor
from dsv4_operator.cli.bisect.outcome import MOSTLY, Counts, Measure, counts
from dsv4_operator.cli.bisect.plan import AGAIN, GIVEN, Arm, Plan
from dsv4_operator.cli.bisect.sentence import advice, culprit, cures, explain, patch, sentence
from dsv4_operator.cli.output import yaml_text

VERSION: Final = 1


def exit_status_of(report: Mapping[str, Any]) -> int:
    """Exit status of the command. Several causes that were not told apart are no named factor."""
    if report["outcome"] == Outcome.SEVERAL:
        return 1 if report["aloneEnough"] else 4
    return {Outcome.CLEAN: 0, Outcome.NAMED: 1, Outcome.ELSEWHERE: 4}.get(report["outcome"], 3)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan: arms in order, factors left out, GPU-hours."""
    fewest, most = plan.bounds()
    return {
        "arms": [_arm_json(plan, arm) for arm in (plan.given, *plan.singles)],
        "leftOut": {factor.value: why for factor, why in plan.skipped.items()},
        "sessions": plan.limits.sessions,
        "batches": plan.limits.batches,
        "gpuHours": {"least": round(fewest, 2), "most": round(most, 2)},
        "levelOfOneLook": plan.alpha,
    }


def _arm_json(plan: Plan, arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "changed": arm.factor.value if arm.factor else None,
        "setting": {factor.value: arm.setting.value(factor) for factor in Factor},
        "gpus": plan.gpus(arm),
        "gpuHours": {
            "least": round(plan.gpu_hours(arm, 1), 2),
            "most": round(plan.gpu_hours(arm, plan.limits.batches), 2),
        },
    }


def plan_text(plan: Plan) -> str:
    """The plan for people."""
    fewest, most = plan.bounds()
    lines = ["Arms, one at a time, each a deployment of its own that is removed before the next:"]
    for number, arm in enumerate((plan.given, *plan.singles), 1):
        change = "as given" if arm.factor is None else f"{arm.factor}: {arm.setting.value(arm.factor)}"
        least, longest = plan.gpu_hours(arm, 1), plan.gpu_hours(arm, plan.limits.batches)
        lines.append(f"  {number}. {change:34} {plan.gpus(arm)} GPUs, {least:.1f} to {longest:.1f} GPU-hours")
    given = plan.given.setting
    lines.append("given: " + ", ".join(f"{factor} {given.value(factor)}" for factor in Factor))
    lines += [f"not changed: {factor}: {why}" for factor, why in plan.skipped.items()]
    lines += [
        f"A batch is {plan.limits.sessions} sessions; an arm gets 1 to {plan.limits.batches} and stops once decided.",
        "If one change cures, the given setting is run once more; if none does, all changes together, then each factor "
        "alone.",
        f"GPU-hours by the estimates: {fewest:.1f} to {most:.1f}, free GPUs needed at a time: "
        f"{max(plan.gpus(arm) for arm in (plan.given, *plan.singles))}.",
    ]
    return "\n".join(lines) + "\n"


def build(plan: Plan, results: Results, found: Conclusion, *, seed: int, interrupted: bool = False) -> dict[str, Any]:
    """The report."""
    cured = cures(plan, found)
    return {
        "kind": "dsv4-bisection",
        "version": VERSION,
        "outcome": found.outcome.value,
        "culprit": culprit(plan, found) or None,
        "sentence": sentence(plan, found),
        "measure": found.measure.value if found.measure else None,
        "interrupted": interrupted,
        "seed": seed,
        "given": {item.value: plan.given.setting.value(item) for item in Factor},
        "arms": [_row(plan, arm, results, found) for arm in _arms(plan) if arm.name in results],
        "notes": _notes(plan, results, found, interrupted=interrupted),
        "leftOut": {item.value: why for item, why in plan.skipped.items()},
        "aloneEnough": [item.value for item in found.alone],
        "safe": _cure(plan, cured[0]) if cured else None,
        "alsoSafe": [_cure(plan, factor) for factor in cured[1:]],
        "gpuHours": round(spent(plan, results), 2),
        "levelOfOneLook": plan.alpha,
    }


def _notes(plan: Plan, results: Results, found: Conclusion, *, interrupted: bool) -> list[str]:
    """What a reader must know to trust the verdicts."""
    notes = ["Interrupted: what follows is what was known then; --resume goes on."] if interrupted else []
    if found.measure is None or found.measure is Measure.SILENCE:
        return notes
    for arm in _arms(plan):
        silent = counts(results[arm.name].batches, Measure.SILENCE) if arm.name in results else Counts(0, 0, 0)
        if arm.name != GIVEN and silent.bad > MOSTLY * silent.sessions:
            notes.append(
                f"{arm.name}: {silent.bad} of {silent.sessions} sessions had requests without a reply, so it saw less "
                "load than the others; its verdict may come from that."
            )
    return notes


def _cure(plan: Plan, factor: Factor) -> dict[str, Any]:
    return {"factor": factor.value, "patch": patch(plan, factor), "advice": advice(plan, factor)}


def _arms(plan: Plan) -> tuple[Arm, ...]:
    return (plan.given, *plan.singles, plan.all_safe, *plan.alone(), plan.again)


def _row(plan: Plan, arm: Arm, results: Results, found: Conclusion) -> dict[str, Any]:
    result: ArmResult = results[arm.name]
    judged: Judged | None = found.again if arm.name == AGAIN else found.arms.get(arm.name)
    here = Counts(0, 0, 0) if found.measure is None else counts(result.batches, found.measure)
    rate = wilson(here.bad, here.sessions)
    base = found.given
    distance = effect(wilson(base.bad, base.sessions), rate) if base and arm.name != GIVEN else None
    return {
        "name": arm.name,
        "changed": arm.factor.value if arm.factor else None,
        "verdict": judged.verdict.value if judged else None,
        "why": explain(judged, base) if judged and base else "",
        "sessions": rate.to_json(),
        "pValue": judged.p_value if judged else None,
        "difference": distance.to_json() if distance else None,
        "batches": [batch.to_json() for batch in result.batches],
        "failed": result.failed,
    }


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [report["sentence"], ""]
    lines += [f"  {'arm':22}{'sessions with ' + (report['measure'] or 'a fault'):44}{'p':>14}  verdict"]
    for row in report["arms"]:
        said = row["failed"] or row["why"] or row["verdict"] or ""
        lines.append(f"  {row['name']:22}{rate_text(row['sessions']):44}{p_text(row['pValue']):>14}  {said}")
    lines += [f"  not changed: {name}: {why}" for name, why in report["leftOut"].items()]
    lines += [f"  note: {note}" for note in report["notes"]]
    if report["safe"]:
        lines += ["", f"Safe setting ({report['safe']['factor']}). {report['safe']['advice']}".rstrip()]
        if report["safe"]["patch"]:
            lines.append(yaml_text([report["safe"]["patch"]]).removeprefix("---\n").rstrip())
    lines += [f"Or {item['factor']}. {item['advice']}".rstrip() for item in report["alsoSafe"]]
    lines += [
        "",
        f"p: Fisher's exact test against the given setting, one-sided; cured and reduced need "
        f"{p_text(report['levelOfOneLook'])} or less (0.05 shared among all looks). Intervals: Wilson, 95 %. Sessions "
        "of one group share a prefix, so intervals are a little too narrow.",
    ]
    return "\n".join(lines) + "\n"


def markdown(report: dict[str, Any]) -> str:
    """The report for an issue."""
    lines = ["# Bisection", "", report["sentence"], ""]
    lines += [f"| arm | sessions with {report['measure'] or 'a fault'} | p | verdict |", "|---|---|---|---|"]
    for row in report["arms"]:
        said = row["failed"] or row["why"] or row["verdict"] or ""
        lines.append(f"| {row['name']} | {rate_text(row['sessions'])} | {p_text(row['pValue'])} | {said} |")
    lines += ["", *(f"- not changed: {name}: {why}" for name, why in report["leftOut"].items())]
    lines += [f"- note: {note}" for note in report["notes"]]
    if report["safe"]:
        lines += ["", f"Safe setting: {report['safe']['factor']}. {report['safe']['advice']}"]
        if report["safe"]["patch"]:
            lines += ["", "```yaml", yaml_text([report["safe"]["patch"]]).removeprefix("---\n").rstrip(), "```"]
        lines += ["", *(f"- or {item['factor']}. {item['advice']}".rstrip() for item in report["alsoSafe"])]
    return "\n".join(lines) + "\n"
