"""The conclusion in words: what the fault needs, which mechanism that fits, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dsv4_canary.soak.stats import smallest_visible
from dsv4_canary.soak.verdict import percent
from dsv4_operator.cli.bisect.decide import ArmVerdict, Conclusion, Judged, Outcome
from dsv4_operator.cli.bisect.factors import Factor, Setting
from dsv4_operator.cli.bisect.outcome import Counts, Measure
from dsv4_operator.cli.bisect.plan import Plan

_NEEDS: Final = {
    Factor.HICACHE: "HiCache on",
    Factor.EARLY_SEND: "early send of cached prefixes",
    Factor.OVERLAP: "the overlapped scheduler",
    Factor.TOPOLOGY: "prefill and decode apart",
    Factor.IMAGE: "this image",
}
_SAFE: Final = {
    Factor.HICACHE: "HiCache off",
    Factor.INDEX_K: "index-K in fp8",
    Factor.EARLY_SEND: "early send off",
    Factor.OVERLAP: "the overlapped scheduler off",
    Factor.TOPOLOGY: "one server instead of a pair",
    Factor.IMAGE: "the safe image",
}
_CHEAPEST: Final = (
    Factor.IMAGE,
    Factor.EARLY_SEND,
    Factor.OVERLAP,
    Factor.HICACHE,
    Factor.INDEX_K,
    Factor.TOPOLOGY,
)
"""What costs users least comes first: a better image keeps everything, HiCache off costs all prefix reuse, fp8 costs
recall on long contexts, and one server gives up the disaggregation."""


def needs(factor: Factor, given: Setting) -> str:
    """The factor as given, as something that the fault needs."""
    return f"index-K in {given.index_k.lower()}" if factor is Factor.INDEX_K else _NEEDS[factor]


def listed(words: Sequence[str], last: str = "and") -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else ""


def culprit(plan: Plan, found: Conclusion) -> str:
    """The mechanism that the cures fit, in a few words; empty where nothing is named."""
    if found.outcome is not Outcome.NAMED:
        return ""
    cured = set(found.with_verdict(plan, ArmVerdict.CURED))
    helped = cured | set(found.with_verdict(plan, ArmVerdict.REDUCED))
    software = cured - {Factor.IMAGE}
    if found.measure is Measure.SILENCE:
        if software == {Factor.OVERLAP}:
            return "the overlapped scheduler stalls"
        return "a stall that " + listed([needs(item, plan.given.setting) for item in cured]) + " bring about"
    if Factor.EARLY_SEND in cured:
        if Factor.OVERLAP in cured:
            return "early send without the fence of the running forward"
        if Factor.HICACHE in cured:
            return "early send of prefixes that a HiCache load is still filling"
        return "early send of cached prefixes"
    if Factor.HICACHE in cured:
        return "index-K reads during HiCache loads" if Factor.INDEX_K in helped else "reads during HiCache loads"
    if Factor.OVERLAP in cured:
        return "the overlapped scheduler"
    if Factor.INDEX_K in cured:
        return f"index-K in {plan.given.setting.index_k.lower()}"
    if Factor.TOPOLOGY in cured:
        return "the transfer between prefill and decode"
    return "the image"


def sentence(plan: Plan, found: Conclusion) -> str:
    """What was found, in one or a few sentences."""
    given, fault = found.given, _fault(found.measure)
    if found.outcome is Outcome.NOT_RUN:
        return f"The given setting could not be run: {found.why or 'it brought no reply'}."
    if given is None:
        return f"Nothing is known yet: {found.why}."
    if found.outcome is Outcome.CLEAN:
        return (
            f"Clean at {given.sessions} sessions; could have seen {percent(smallest_visible(given.sessions))} with "
            "95 % probability. There is nothing to bisect: raise the load, or take the traffic that showed the fault."
        )
    rate = _rate(given)
    if found.outcome is Outcome.RARE:
        return (
            f"{fault} in {rate}: too seldom to tell arms apart with {plan.limits.batches} batches of "
            f"{plan.limits.sessions} sessions. Raise --batches or --sessions."
        )
    if found.outcome is Outcome.BUDGET:
        return f"{fault} in {rate}. Stopped: {found.why}. {_partly(plan, found)}".strip()
    if found.outcome is Outcome.ELSEWHERE:
        return (
            f"{fault} in {rate}; {listed([arm.factor.value for arm in plan.singles if arm.factor])} at "
            "their safe values do not cure it: look for the cause elsewhere, such as one bad pod, node or link, "
            "checkpoint, chat template or tool parser."
        )
    if found.outcome is Outcome.SEVERAL:
        text = f"{fault} in {rate}; no single change cures it, all together do: it has more than one cause."
        if found.alone:
            alone = listed([needs(item, plan.given.setting) for item in found.alone])
            text += f" Each of these brings it alone, with all else safe: {alone}."
        else:
            text += " No factor brings it alone: at least two combinations do, which single changes cannot tell apart."
        return text
    if found.outcome is Outcome.UNDECIDED:
        return f"{fault} in {rate}; no cure is proved. {_partly(plan, found)}".strip()
    return _named(plan, found, fault, rate)


def _named(plan: Plan, found: Conclusion, fault: str, rate: str) -> str:
    cured = found.with_verdict(plan, ArmVerdict.CURED)
    all_needed = listed([needs(item, plan.given.setting) for item in cured])
    name = culprit(plan, found)
    parts = [f"{name[:1].upper()}{name[1:]}: the fault ({fault[:1].lower()}{fault[1:]} in {rate})"]
    if len(cured) == 1:
        parts[0] += f" needs {all_needed}; {_SAFE[cured[0]]} alone cures it."
    else:
        parts[0] += f" needs {all_needed}, all together; each of these alone cures it: "
        parts[0] += listed([_SAFE[item] for item in cured], "or") + "."
    text = " ".join([*parts, _partly(plan, found)]).strip()
    if found.again is not None and found.again.verdict in (ArmVerdict.CURED, ArmVerdict.UNDECIDED):
        text += (
            " But the given setting, run once more at the end, did not show it again "
            f"({found.again.counts.bad} of {found.again.counts.sessions}): the cures may be chance; repeat."
        )
    elif plan.limits.recheck and (found.again is None or found.again.verdict is ArmVerdict.NOT_RUN):
        text += " The given setting was not run again at the end, so that the fault is still there is not shown."
    return text


def _partly(plan: Plan, found: Conclusion) -> str:
    said = []
    for verdict, text in (
        (ArmVerdict.REDUCED, "makes it rarer and does not cure it"),
        (ArmVerdict.SAME, "makes no difference that shows"),
        (ArmVerdict.UNDECIDED, "stays open: too few sessions, or no reply"),
        (ArmVerdict.NOT_RUN, "could not be run"),
    ):
        factors = found.with_verdict(plan, verdict)
        if factors:
            words = listed([_SAFE[item] for item in factors], "or")
            said.append(f"{words[0].upper()}{words[1:]} {text}.")
    not_run = [arm.factor for arm in plan.singles if arm.factor and arm.name not in found.arms]
    if not_run:
        said.append(f"Not tried: {listed([_SAFE[item] for item in not_run])}.")
    return " ".join(said)


def _fault(measure: Measure | None) -> str:
    return {
        Measure.CORRUPTION: "Corruption",
        Measure.WRONG: "Wrong replies with and without load",
        Measure.SILENCE: "Requests without a reply",
        None: "A fault",
    }[measure]


def _rate(found: Counts) -> str:
    share = found.bad / found.sessions if found.sessions else None
    return f"{found.bad} of {found.sessions} sessions, {percent(share)}"


def cures(plan: Plan, found: Conclusion) -> tuple[Factor, ...]:
    """Factors that cure alone, the one in front that costs users least."""
    cured = found.with_verdict(plan, ArmVerdict.CURED)
    return tuple(factor for factor in _CHEAPEST if factor in cured)


def patch(plan: Plan, factor: Factor) -> dict[str, Any] | None:
    """The change of the spec that sets the factor to its safe value; None where the spec has no field for it."""
    patches: dict[Factor, dict[str, Any]] = {
        Factor.HICACHE: {"spec": {"hiCache": {"enabled": False}}},
        Factor.INDEX_K: {"spec": {"indexK": {"dtype": "FP8"}}},
        Factor.OVERLAP: {"spec": {"overlapSchedule": "Disabled"}},
        Factor.IMAGE: {"spec": {"engine": {"image": plan.safe_image}}},
    }
    return patches.get(factor)


def advice(plan: Plan, factor: Factor) -> str:
    """What to do about a factor, for people."""
    if factor is Factor.EARLY_SEND:
        return "Turn early send off on prefill: SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX=0."
    if factor is Factor.TOPOLOGY:
        return "Serve from one server until the transfer path is repaired; a DSV4Deployment has no field for that."
    kept = ""
    if Factor.IMAGE in plan.skipped and factor in (Factor.HICACHE, Factor.INDEX_K, Factor.OVERLAP):
        kept = " An image without the fault would keep it: give one by --safe-image and run again."
    cost = {
        Factor.HICACHE: "It costs all prefix reuse.",
        Factor.INDEX_K: "It costs recall on long contexts.",
        Factor.OVERLAP: "It costs some throughput.",
    }
    return cost.get(factor, "") + kept


def explain(judged: Judged, given: Counts) -> str:
    """An arm's verdict with what it rests on."""
    if judged.verdict is ArmVerdict.CURED:
        return f"cured (would have seen {percent(smallest_visible(judged.counts.sessions))})"
    if judged.verdict is ArmVerdict.UNDECIDED and judged.counts.sessions:
        return f"undecided (0 of {judged.counts.sessions} is too few against {_rate(given)})"
    return judged.verdict.value
