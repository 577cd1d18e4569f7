"""Whose fault a corrupted reply is: the engine under load, or the model's own slip. Pure.

Two kinds of evidence. The same question asked again, alone and with a prefix that no cache holds: right then means
that the load or the cache did the damage. And the baseline: what goes wrong with one request at a time goes wrong
without load. A reply that was not asked again is held against the baseline; where that does not excuse it, it counts
against the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.soak.record import Phase, Record, Verdict
from dsv4_canary.soak.stats import ALPHA, Alternative, fisher_exact


class Cause(StrEnum):
    """Attribution of one corrupted reply of the load."""

    ENGINE = "engine"
    """Asked again alone it came back right, or nothing excuses it."""
    MODEL = "model"
    """Also wrong without load, in the same way."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What the corrupted replies of the load come from."""

    causes: Mapping[tuple[int, int], Cause]
    """(session, round) -> cause."""
    asked_again: int = 0
    """Corrupted replies that were asked again and answered."""
    right_again: int = 0
    """Of these, those that came back right."""
    p_value: float | None = None
    """That the load has no more corrupted sessions than the baseline: Fisher's exact test, one-sided. None without a
    baseline."""
    engine_by_signature: Mapping[str, int] = field(default_factory=dict)
    model_by_signature: Mapping[str, int] = field(default_factory=dict)

    def count(self, cause: Cause) -> int:
        """Corrupted replies with that cause."""
        return sum(item is cause for item in self.causes.values())

    def sessions(self, cause: Cause) -> int:
        """Sessions that have at least one reply with that cause."""
        return len({session for (session, _), item in self.causes.items() if item is cause})


def attribute(records: Iterable[Record]) -> Attribution:
    """Attribute every corrupted reply of the load."""
    by_phase: dict[Phase, dict[tuple[int, int], Record]] = {phase: {} for phase in Phase}
    for record in records:
        by_phase[record.phase][record.session, record.round] = record
    load, baseline, again = by_phase[Phase.LOAD], by_phase[Phase.BASELINE], by_phase[Phase.REASK]
    excused = _excused(load.values(), baseline.values())
    causes: dict[tuple[int, int], Cause] = {}
    tables: dict[Cause, Counter[str]] = {cause: Counter() for cause in Cause}
    asked = right = 0
    for place, record in sorted(load.items()):
        if record.verdict is not Verdict.CORRUPTED:
            continue
        second = again.get(place)
        if second is not None and second.verdict in (Verdict.CLEAN, Verdict.CORRUPTED):
            asked += 1
            right += second.verdict is Verdict.CLEAN
            same = bool(record.corrupting & second.corrupting)
            cause = Cause.MODEL if same else Cause.ENGINE
        else:
            cause = Cause.MODEL if record.corrupting <= excused else Cause.ENGINE
        causes[place] = cause
        tables[cause].update(record.corrupting)
    return Attribution(
        causes, asked, right, _against_baseline(load.values(), baseline.values()), *map(dict, tables.values())
    )


def _judged(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.verdict is not Verdict.FAILED]


def _excused(load: Iterable[Record], baseline: Iterable[Record]) -> frozenset[str]:
    """Signatures seen in the baseline whose rate under load is not clearly above it."""
    load, baseline = _judged(load), _judged(baseline)
    under, alone = Counter[str](), Counter[str]()
    for table, records in ((under, load), (alone, baseline)):
        for record in records:
            table.update(record.corrupting)
    return frozenset(
        name
        for name in alone
        if fisher_exact(under[name], len(load), alone[name], len(baseline), Alternative.GREATER) >= ALPHA
    )


def corrupted_sessions(records: Iterable[Record]) -> tuple[int, int]:
    """(sessions with a corrupted reply, sessions with any reply that could be judged)."""
    judged = _judged(records)
    return (
        len({record.session for record in judged if record.verdict is Verdict.CORRUPTED}),
        len({record.session for record in judged}),
    )


def _against_baseline(load: Iterable[Record], baseline: Iterable[Record]) -> float | None:
    bad, trials = corrupted_sessions(load)
    bad_alone, alone = corrupted_sessions(baseline)
    if not trials or not alone:
        return None
    return fisher_exact(bad, trials, bad_alone, alone, Alternative.GREATER)
