"""What one batch of an arm has shown, taken from the report of its soak. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

MOSTLY = 0.1
"""Share of sessions with a request without reply from which silence is a symptom and no accident."""


class Measure(StrEnum):
    """Which fault is bisected; the given setting decides."""

    CORRUPTION = "corruption"
    """Sessions with a reply that is put on the engine."""
    WRONG = "wrong replies"
    """Sessions with any wrong reply: most are wrong when asked again alone, too."""
    SILENCE = "requests without a reply"
    """Sessions with a request that brought no whole reply."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Counts of one soak, in sessions."""

    sessions: int
    """With at least one reply that could be judged."""
    corrupted: int
    wrong: int
    attempted: int
    silent: int
    verdict: str
    seconds: float = 0.0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Form of the state file."""
        return asdict(self)


def batch_from_json(value: Mapping[str, Any]) -> Batch:
    """Back from the state file. Raises KeyError."""
    return Batch(**{item.name: value[item.name] for item in fields(Batch)})


def batch_of(report: Mapping[str, Any]) -> Batch:
    """Counts of a soak's report."""
    load = report["phases"]["load"]
    wrong = load["corruptedSessions"]
    return Batch(
        sessions=wrong["trials"],
        corrupted=min(wrong["events"], report["attribution"]["engineSessions"]),
        wrong=wrong["events"],
        attempted=load["failedSessions"]["trials"],
        silent=load["failedSessions"]["events"],
        verdict=report["verdict"],
        seconds=load["seconds"],
        seed=int(report["settings"]["seed"]),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Sessions that show the fault, of all that could."""

    bad: int
    sessions: int
    looks: int


def counts(batches: Iterable[Batch], measure: Measure) -> Counts:
    """The batches of one arm added up."""
    found = list(batches)
    if measure is Measure.SILENCE:
        return Counts(sum(b.silent for b in found), sum(b.attempted for b in found), len(found))
    bad = sum(b.corrupted if measure is Measure.CORRUPTION else b.wrong for b in found)
    return Counts(bad, sum(b.sessions for b in found), len(found))


def candidates(batches: Iterable[Batch]) -> list[Measure]:
    """Faults that the batches of the given setting show at all, the one to look at first in front."""
    found = list(batches)
    corrupted, wrong, silent = (counts(found, measure) for measure in Measure)
    result = []
    if corrupted.bad and 2 * corrupted.bad >= wrong.bad:
        result.append(Measure.CORRUPTION)
    elif wrong.bad:
        result.append(Measure.WRONG)
    if silent.bad > MOSTLY * silent.sessions:
        result.append(Measure.SILENCE)
    return result
