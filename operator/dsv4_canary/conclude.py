"""From a set of probes to one sentence: what it proved, what it did not, and where to look. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.attempt import ProbeResult
from dsv4_canary.judge import Kind
from dsv4_canary.model import Cache, ProbeName, Severity
from dsv4_canary.signatures import CATALOGUE, order

TURNED_AWAY = "was turned away with HTTP 429"


class Conclusion(StrEnum):
    """What a set of probes comes to."""

    PASS = "pass"  # noqa: S105 - a conclusion
    FAIL = "fail"
    NOTHING = "nothing"
    """No probe was conclusive: nobody to ask, or everybody busy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``message`` is a sentence; ``notes`` are what it does not cover, and hints where to look."""

    conclusion: Conclusion
    message: str
    notes: tuple[str, ...] = ()
    tiers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Cache tier -> (conclusive probes, failed ones)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What else was seen of the engines meanwhile, by role."""

    wedges: Mapping[str, str] = field(default_factory=dict)
    """Role -> message of its wedge."""
    hicache: bool = False
    stopped: str = ""
    """Why the set ended early; empty when it did not."""
    bootstrap: str = ""
    """Where decode was told to find the prefill's registry; empty without a pair."""


def conclude(results: Sequence[ProbeResult], seen: Seen) -> Verdict:
    """Say what the results come to."""
    judged = [result for result in results if result.judgement.kind in (Kind.PASS, Kind.FAIL)]
    failed = [result for result in judged if result.judgement.kind is Kind.FAIL]
    tiers = _tiers(judged)
    notes = _notes(results, judged, seen)
    if not judged:
        return Verdict(Conclusion.NOTHING, _nothing(results), notes, tiers)
    if not failed:
        return Verdict(Conclusion.PASS, f"{len(judged)} of {len(judged)} probes came back right", notes, tiers)
    message = f"{len(failed)} of {len(judged)} probes failed: {_reason(judged, failed)}"
    return Verdict(Conclusion.FAIL, message, (*_hints(judged, failed, seen), *notes), tiers)


def _tiers(judged: Sequence[ProbeResult]) -> dict[str, tuple[int, int]]:
    total = Counter(result.cache for result in judged if _answered(result))
    bad = Counter(r.cache for r in judged if r.judgement.kind is Kind.FAIL and _answered(r))
    return {cache.value: (total[cache], bad[cache]) for cache in Cache if total[cache]}


def _answered(result: ProbeResult) -> bool:
    """A reply came, right or wrong; a rejected request (HTTP 4xx) has none."""
    return not result.judgement.transport and "rejected" not in result.judgement.failures


def _nothing(results: Sequence[ProbeResult]) -> str:
    kinds = {result.judgement.kind for result in results}
    if Kind.ENGINE_GONE in kinds:
        return "nothing was proved: the engine refuses connections"
    if Kind.PEER_LOADING in kinds:
        return "nothing was proved: the prefill does not serve yet"
    if kinds & {Kind.PEER_UNREACHABLE, Kind.PEER_WEDGED}:
        return "nothing was proved: the prefill cannot be reached"
    if any(result.judgement.what == TURNED_AWAY for result in results):
        return "nothing was proved: the endpoint turns requests away with HTTP 429; try again later"
    if Kind.BUSY in kinds:
        return "nothing was proved: no answer in time, but the engines are at work; try again or raise --timeout"
    if Kind.UNUSABLE in kinds:
        return "nothing was proved: the engine does not serve the probes that were asked for"
    return "nothing was proved: no probe ran"


def _reason(judged: Sequence[ProbeResult], failed: Sequence[ProbeResult]) -> str:
    damaged = [result for result in failed if _answered(result)]
    if not damaged:
        # What is said of one call, of many: only "was rejected" has a number.
        said = _most_common([result.judgement.what for result in failed])
        return "tool calls " + ("were" + said.removeprefix("was") if said.startswith("was ") else said)
    tiers = _only_cached(judged)
    if tiers:
        return (
            f"prompts from the {' and '.join(tiers)} cache came back damaged and cold ones did not, "
            "which speaks for index keys or KV of cached prefixes"
        )
    return "tool calls " + _most_common([result.judgement.what for result in damaged])


def _only_cached(judged: Sequence[ProbeResult]) -> list[str]:
    """Tiers with damaged replies, when replies to cold prompts are there and none of them is damaged."""
    answered = [result for result in judged if _answered(result)]
    bad = {result.cache for result in answered if result.judgement.kind is Kind.FAIL}
    cold = any(result.cache is Cache.COLD for result in answered)
    return sorted(cache.value for cache in bad) if cold and bad <= {Cache.DEVICE, Cache.HOST} else []


def _most_common(texts: Sequence[str]) -> str:
    counted = Counter(text for text in texts if text)
    return counted.most_common(1)[0][0] if counted else "did not come back right"


def _hints(judged: Sequence[ProbeResult], failed: Sequence[ProbeResult], seen: Seen) -> list[str]:
    """Where to look, the gravest first."""
    hints = [f"{role}: {message}" for role, message in seen.wedges.items()]
    silent = all(result.judgement.transport for result in failed)
    if silent:
        if seen.bootstrap and not seen.wedges:
            hints.append(
                f"decode was told to find the prefill at {seen.bootstrap}; give --bootstrap-host if it cannot there"
            )
        return hints
    if _only_cached(judged):
        hints.append(
            "look at what waits for reloaded index keys: the guard of the gated image, the early send of cached "
            "prefixes, HiCache itself"
        )
    else:
        hints += [f"{name}: look at {CATALOGUE[name].accuses}" for name in _telling(failed)[:3]]
    if any("drift" in result.judgement.failures for result in failed):
        hints.append("drift: the same prompt got other probabilities; look at index keys, KV and transfer")
    if len(failed) < 3:
        hints.append("one odd reply proves nothing; repeat with --rounds 5")
    return hints


def _telling(failed: Sequence[ProbeResult]) -> list[str]:
    """Signatures of the failed probes: corruption first, then in the catalogue's order."""
    found = {
        (severity is not Severity.CORRUPTION, order(name), name)
        for result in failed
        for name, severity in result.judgement.failures.items()
        if name in CATALOGUE and not CATALOGUE[name].warns_only
    }
    return [name for _, _, name in sorted(found)]


def _notes(results: Sequence[ProbeResult], judged: Sequence[ProbeResult], seen: Seen) -> tuple[str, ...]:
    notes = []
    if seen.stopped:
        notes.append(seen.stopped)
    busy = sum(1 for result in results if result.judgement.kind is Kind.BUSY)
    if busy and judged:
        notes.append(f"{busy} probes got no answer in time while the engines were at work; they count neither way")
    unusable = {r.probe.value: r.judgement.what for r in results if r.judgement.kind is Kind.UNUSABLE}
    notes += [f"{name}: could not be used, {why}" for name, why in unusable.items()]
    answered = [result for result in judged if _answered(result)]
    if not answered:
        return tuple(notes)
    caches = {result.cache for result in answered}
    repeated = any(result.probe in (ProbeName.REPEAT, ProbeName.TWIN) for result in answered)
    if repeated and caches == {Cache.UNKNOWN}:
        notes.append("the engine does not say what came from a cache; start it with --enable-cache-report")
    elif repeated and not caches & {Cache.DEVICE, Cache.HOST}:
        notes.append("no prompt came from a cache, so cached prefixes are not proved")
    if seen.hicache and Cache.HOST not in caches:
        notes.append("no prompt was loaded back from host memory, so HiCache is not proved; that needs load, see soak")
    return tuple(notes)
