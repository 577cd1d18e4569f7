"""The report of a soak as one JSON object, made from the records alone. Pure.

Everything in it can be made again from the journal. Shares are from 0 to 1, times in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4_canary.model import Cache, Severity
from dsv4_canary.signatures import CATALOGUE, order, worst
from dsv4_canary.soak import verdict as verdicts
from dsv4_canary.soak.attribution import Attribution, Cause, attribute, corrupted_sessions
from dsv4_canary.soak.record import Failure, Phase, Record, Verdict
from dsv4_canary.soak.settings import SoakSettings
from dsv4_canary.soak.stats import quantile, smallest_visible, wilson

VERSION = 1
_BINS = 40
_SHORT_PROMPT = 2048
"""Tokens up to which every index key is selected (512 entries over 4:1 compressed keys): damaged ones cannot show."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended, beside what its records say."""

    interrupted: bool = False
    lost: bool = False
    in_flight: int = 0
    starts: tuple[float, ...] = ()
    finished_at: float = 0.0


def build(settings: SoakSettings, records: Iterable[Record], ending: Ending) -> dict[str, Any]:
    """Report of all records."""
    records = sorted(records, key=lambda item: item.at)
    by_phase = {phase: [item for item in records if item.phase is phase] for phase in Phase}
    attribution = attribute(records)
    planned = {
        Phase.BASELINE: settings.baseline * settings.rounds,
        Phase.LOAD: settings.sessions * settings.rounds,
        Phase.REASK: len(by_phase[Phase.REASK]),
    }
    clock = ActiveClock(records, ending.starts)
    phases = {phase.value: _phase(by_phase[phase], planned[phase], clock) for phase in Phase}
    load = by_phase[Phase.LOAD]
    outcome = verdicts.decide(settings, by_phase[Phase.BASELINE], load, attribution, lost=ending.lost)
    return {
        "version": VERSION,
        "kind": "dsv4-soak",
        "settings": settings.header(),
        "startedAt": _iso_or_none(ending.starts[:1]),
        "starts": len(ending.starts),
        "finishedAt": round(ending.finished_at, 3),
        "interrupted": ending.interrupted,
        "endpointLost": ending.lost,
        "inFlightWhenStopped": ending.in_flight,
        "verdict": outcome.verdict.value,
        "sentence": outcome.sentence,
        "notes": [*outcome.notes, *_notes(load, settings)],
        "phases": phases,
        "attribution": _attribution(attribution),
        "smallestVisible": smallest_visible(corrupted_sessions(load)[1]),
        "series": _series(load, clock),
    }


def _iso_or_none(starts: Sequence[float]) -> float | None:
    return round(starts[0], 3) if starts else None


class ActiveClock:
    """Seconds that the run was at work until a moment: the time between a stop and a resume does not count."""

    def __init__(self, records: Iterable[Record], starts: Sequence[float]) -> None:
        self._starts = sorted(starts)
        spans: dict[int, tuple[float, float]] = {}
        for item in records:
            part = self._part(item)
            begin, end = spans.get(part, (item.at, item.at))
            spans[part] = min(begin, item.at), max(end, item.at + item.seconds)
        self._shift: dict[int, float] = {}
        done = 0.0
        for part, (begin, end) in sorted(spans.items()):
            self._shift[part] = done - begin
            done += end - begin

    def _part(self, item: Record) -> int:
        return bisect_right(self._starts, item.at)

    def sent(self, item: Record) -> float:
        """When a request was sent."""
        return item.at + self._shift[self._part(item)]

    def ended(self, item: Record) -> float:
        """When it ended."""
        return self.sent(item) + item.seconds


def _phase(records: Sequence[Record], planned: int, clock: ActiveClock) -> dict[str, Any]:
    judged = [item for item in records if item.verdict is not Verdict.FAILED]
    corrupted = [item for item in records if item.verdict is Verdict.CORRUPTED]
    bad_sessions, sessions = corrupted_sessions(records)
    seconds = max(map(clock.ended, records), default=0.0) - min(map(clock.sent, records), default=0.0)
    generated = sum(item.completion_tokens or 0 for item in records)
    return {
        "planned": planned,
        "recorded": len(records),
        "notDone": planned - len(records),
        "verdicts": {verdict.value: sum(item.verdict is verdict for item in records) for verdict in Verdict},
        "sessions": len({item.session for item in records}),
        "corruptedSessions": wilson(bad_sessions, sessions).to_json(),
        "failedSessions": wilson(
            len({item.session for item in records if item.failure is not None}),
            len({item.session for item in records}),
        ).to_json(),
        "corruptedReplies": wilson(len(corrupted), len(judged)).to_json(),
        "failedReplies": wilson(sum(item.failure is not None for item in records), len(records)).to_json(),
        "failures": _counted(item.failure for item in records),
        "statuses": dict(Counter(str(item.status) for item in records if item.status not in (None, 200)).most_common()),
        "details": [text for text, _ in Counter(item.detail for item in records if item.detail).most_common(5)],
        "signatures": _signatures(records),
        "byRound": [_round(number, records) for number in sorted({item.round for item in records})],
        "byCache": _by_cache(judged),
        "byTool": {
            tool: wilson(
                sum(item.verdict is Verdict.CORRUPTED for item in judged if item.tool == tool),
                sum(item.tool == tool for item in judged),
            ).to_json()
            for tool in sorted({item.tool for item in judged})
        },
        "byStream": {
            name: wilson(
                sum(item.verdict is Verdict.CORRUPTED for item in judged if item.stream is streamed),
                sum(item.stream is streamed for item in judged),
            ).to_json()
            for name, streamed in (("streamed", True), ("whole", False))
        },
        "latency": {
            "all": _times([item.seconds for item in _answered(records)]),
            "streamed": _times([item.seconds for item in _answered(records) if item.stream]),
            "whole": _times([item.seconds for item in _answered(records) if not item.stream]),
            "firstByte": _times([item.first_byte for item in _answered(records) if item.first_byte is not None]),
        },
        "histogram": _histogram([item.seconds for item in _answered(records)]),
        "promptTokens": _times([item.prompt_tokens for item in records if item.prompt_tokens is not None]),
        "tokens": {
            "prompt": sum(item.prompt_tokens or 0 for item in records),
            "cached": sum(item.cached_tokens or 0 for item in records),
            "completion": generated,
        },
        "seconds": round(seconds, 3),
        "tokensPerSecond": round(generated / seconds, 2) if seconds > 0 else 0.0,
    }


def _answered(records: Iterable[Record]) -> list[Record]:
    return [item for item in records if item.failure is None]


def _counted(failures: Iterable[Failure | None]) -> dict[str, int]:
    table = Counter(failure for failure in failures if failure is not None)
    return {failure.value: table[failure] for failure in Failure if table[failure]}


def _signatures(records: Iterable[Record]) -> dict[str, Any]:
    replies: Counter[str] = Counter()
    sessions: dict[str, set[int]] = {}
    severities: dict[str, list[Severity]] = {}
    excerpts: dict[str, str] = {}
    for record in records:
        for name, severity in record.signatures.items():
            replies[name] += 1
            sessions.setdefault(name, set()).add(record.session)
            severities.setdefault(name, []).append(severity)
            excerpts.setdefault(name, record.excerpt)
    return {
        name: {
            "replies": replies[name],
            "sessions": len(sessions[name]),
            "severity": (worst(severities[name]) or CATALOGUE[name].severity).value,
            "meaning": CATALOGUE[name].meaning,
            "warnsOnly": CATALOGUE[name].warns_only,
            "excerpt": excerpts[name],
        }
        for name in sorted(replies, key=order)
    }


def _round(number: int, records: Iterable[Record]) -> dict[str, Any]:
    mine = [item for item in records if item.round == number]
    judged = [item for item in mine if item.verdict is not Verdict.FAILED]
    return {
        "round": number,
        "replies": len(mine),
        "failed": sum(item.failure is not None for item in mine),
        "corrupted": wilson(sum(item.verdict is Verdict.CORRUPTED for item in judged), len(judged)).to_json(),
        "latency": _times([item.seconds for item in _answered(mine)]),
        "promptTokens": _times([item.prompt_tokens for item in mine if item.prompt_tokens is not None]),
    }


def _by_cache(judged: Sequence[Record]) -> dict[str, Any]:
    # A count of 0 may be left out by the server: once one was seen, a missing one is 0.
    reported = any(item.cached_tokens is not None for item in judged)
    table: dict[str, list[bool]] = {}
    for item in judged:
        if item.cached_tokens is None and not reported:
            label = Cache.UNKNOWN.value
        else:
            label = "cached" if item.cached_tokens else Cache.COLD.value
        table.setdefault(label, []).append(item.verdict is Verdict.CORRUPTED)
    return {label: wilson(sum(table[label]), len(table[label])).to_json() for label in sorted(table)}


def _times(values: Sequence[float]) -> dict[str, float | int | None]:
    names = (("min", 0.0), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
    found = {name: quantile(values, q) for name, q in names}
    rounded = {name: None if value is None else round(value, 4) for name, value in found.items()}
    return {"count": len(values), **rounded}


def _histogram(values: Sequence[float]) -> dict[str, Any]:
    """Counts in equal bins from 0 to the largest value."""
    if not values:
        return {"binSeconds": 0.0, "counts": []}
    width = max(*values, 1e-3) / _BINS
    counts = [0] * _BINS
    for value in values:
        counts[min(_BINS - 1, int(value / width))] += 1
    return {"binSeconds": width, "counts": counts}


def _series(load: Sequence[Record], clock: ActiveClock) -> dict[str, Any]:
    """The load over time: replies by the moment at which they ended, in equal bins."""
    if not load:
        return {"binSeconds": 0.0, "bins": []}
    start = min(map(clock.sent, load))
    ends = [(clock.ended(item) - start, item) for item in load]
    width = max(*(end for end, _ in ends), 1e-3) / _BINS
    bins = [{verdict.value: 0 for verdict in Verdict} for _ in range(_BINS)]
    for end, item in ends:
        bins[min(_BINS - 1, max(0, int(end / width)))][item.verdict.value] += 1
    return {"binSeconds": width, "bins": bins}


def _attribution(found: Attribution) -> dict[str, Any]:
    return {
        "engine": found.count(Cause.ENGINE),
        "model": found.count(Cause.MODEL),
        "engineSessions": found.sessions(Cause.ENGINE),
        "askedAgain": found.asked_again,
        "rightAgain": found.right_again,
        "loadAboveBaselineP": found.p_value,
        "engineBySignature": _ordered(found.engine_by_signature),
        "modelBySignature": _ordered(found.model_by_signature),
    }


def _ordered(table: Mapping[str, int]) -> dict[str, int]:
    return {name: table[name] for name in sorted(table, key=order)}


def _notes(load: Sequence[Record], settings: SoakSettings) -> list[str]:
    """What a reader must know to trust the numbers."""
    notes = []
    longest = max((item.prompt_tokens or 0 for item in load), default=0)
    if 0 < longest <= _SHORT_PROMPT:
        notes.append(
            f"The longest prompt had {longest} tokens. Up to {_SHORT_PROMPT} every index key is selected, so damaged "
            "index keys cannot show: raise --shared-ctx."
        )
    budget = sum(item.verdict is Verdict.BUDGET for item in load)
    if budget:
        notes.append(
            f"{budget} replies ran into the limit of {settings.max_tokens} tokens and are not counted as corrupted."
        )
    if load and all(item.cached_tokens is None for item in load):
        notes.append(
            "The endpoint reports no cached tokens, so damage cannot be told by cache (--enable-cache-report)."
        )
    return notes
