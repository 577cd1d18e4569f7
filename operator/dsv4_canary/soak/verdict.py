"""What a soak has shown, as one word, one sentence and an exit status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dsv4_canary.soak.attribution import Attribution, Cause, corrupted_sessions
from dsv4_canary.soak.record import Record, Verdict
from dsv4_canary.soak.settings import SoakSettings
from dsv4_canary.soak.stats import smallest_visible, wilson

_UNFIT = 0.5
"""Share of corrupted baseline sessions from which the endpoint is broken without load."""

EXIT_CLEAN = 0
EXIT_CORRUPTED = 1
EXIT_USAGE = 2
EXIT_UNUSABLE = 3
EXIT_INTERRUPTED = 130


class RunVerdict(StrEnum):
    """Outcome of a run."""

    CLEAN = "clean"
    SLIPS = "slips"
    """Wrong replies, all of which come back wrong without load as well and seldom: the model's own."""
    CORRUPTED = "corrupted"
    UNUSABLE = "unusable"
    """The endpoint brought no reply, was lost, or failed too often to prove anything."""
    NOTHING = "nothing"
    """Stopped before the load brought a reply."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome and what to say about it."""

    verdict: RunVerdict
    sentence: str
    notes: tuple[str, ...] = ()


def exit_status(verdict: RunVerdict, *, interrupted: bool) -> int:
    """Exit status of a run. An interrupted one says so whatever it found."""
    if interrupted:
        return EXIT_INTERRUPTED
    return {
        RunVerdict.CLEAN: EXIT_CLEAN,
        RunVerdict.SLIPS: EXIT_CLEAN,
        RunVerdict.CORRUPTED: EXIT_CORRUPTED,
    }.get(verdict, EXIT_UNUSABLE)


def decide(
    settings: SoakSettings,
    baseline: Sequence[Record],
    load: Sequence[Record],
    attribution: Attribution,
    *,
    lost: bool,
) -> RunOutcome:
    """Judge a run, finished or not."""
    bad, sessions = corrupted_sessions(load)
    bad_alone, alone = corrupted_sessions(baseline)
    rate = wilson(bad, sessions)
    failed = sum(item.failure is not None for item in load)
    notes = tuple(_failure_notes(load, failed, lost=lost))
    if bad_alone and bad_alone / alone >= _UNFIT:
        text = (
            f"{bad_alone} of {alone} sessions are corrupted with one request at a time: the endpoint damages calls "
            "without load. Look at tool parser, chat template and checkpoint first."
        )
        return RunOutcome(RunVerdict.CORRUPTED, text, notes)
    engine = attribution.count(Cause.ENGINE)
    if engine:
        text = (
            f"{bad} of {sessions} sessions corrupted ({percent(rate.share)}, 95 % interval {percent(rate.low)} to "
            f"{percent(rate.high)}); {engine} of {len(attribution.causes)} corrupted replies are put on the engine."
        )
        return RunOutcome(RunVerdict.CORRUPTED, text, notes)
    if not load:
        if lost:
            text = "The endpoint was lost in the baseline: the last requests all brought no reply."
            return RunOutcome(RunVerdict.UNUSABLE, text, notes)
        return RunOutcome(RunVerdict.NOTHING, "Stopped before the load brought a reply.", notes)
    if not sessions:
        return RunOutcome(RunVerdict.UNUSABLE, f"None of {len(load)} requests under load brought a reply.", notes)
    if lost:
        text = f"The endpoint was lost: the last requests all brought no reply ({failed} of {len(load)} in all)."
        return RunOutcome(RunVerdict.UNUSABLE, text, notes)
    if failed > len(load) * settings.max_failed / 100:
        text = (
            f"{failed} of {len(load)} requests brought no reply, more than {settings.max_failed:g} %: too many to "
            "prove anything, though no reply that came was damaged by the engine."
        )
        return RunOutcome(RunVerdict.UNUSABLE, text, notes)
    if attribution.causes:
        text = (
            f"{len(attribution.causes)} wrong replies in {bad} of {sessions} sessions, all slips of the model: they "
            "are wrong without load as well."
        )
        return RunOutcome(RunVerdict.SLIPS, text, notes)
    text = (
        f"No corruption in {sessions} sessions. Damage of {percent(smallest_visible(sessions))} of sessions or more "
        "would have shown with 95 % probability."
    )
    return RunOutcome(RunVerdict.CLEAN, text, notes)


def percent(share: float | None) -> str:
    """A share for people: two significant digits below 10 %, and never 0 for what is not 0."""
    if share is None:
        return "-"
    value = 100 * share
    if value == 0 or value >= 10:
        return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"
    return f"{value:.2g} %"


def _failure_notes(load: Sequence[Record], failed: int, *, lost: bool) -> list[str]:
    notes = []
    if failed:
        notes.append(f"{failed} of {len(load)} requests under load brought no whole reply.")
    if lost:
        notes.append("The run ended early: too many requests in a row brought no reply.")
    damaged_parts = sum(item.failure is not None and item.verdict is Verdict.CORRUPTED for item in load)
    if damaged_parts:
        notes.append(f"{damaged_parts} replies that broke off were damaged before that and count as corrupted.")
    return notes
