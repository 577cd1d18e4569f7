"""Attribution and verdict: engine and model are told apart, and what proves nothing says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import comb

import pytest

from dsv4_canary.model import Severity
from dsv4_canary.signatures import CATALOGUE
from dsv4_canary.soak.attribution import Cause, attribute
from dsv4_canary.soak.record import Failure, Phase, Record
from dsv4_canary.soak.runner import chosen_again
from dsv4_canary.soak.settings import SoakSettings
from dsv4_canary.soak.verdict import RunOutcome, RunVerdict, decide, exit_status, percent

SETTINGS = SoakSettings(endpoint="http://e", tag="t", model="m", sessions=40, rounds=2)


def one(phase: Phase, session: int, *names: str, number: int = 1, failure: Failure | None = None) -> Record:
    return Record(
        phase=phase,
        session=session,
        round=number,
        group="g",
        stream=False,
        tool="probe_echo",
        at=float(session),
        seconds=1.0,
        failure=failure,
        signatures={name: CATALOGUE[name].severity for name in names},
    )


def clean(phase: Phase, sessions: Iterable[int]) -> list[Record]:
    return [one(phase, session, number=number) for session in sessions for number in (1, 2)]


def judged(records: list[Record], *, lost: bool = False) -> RunOutcome:
    by = {phase: [item for item in records if item.phase is phase] for phase in Phase}
    return decide(SETTINGS, by[Phase.BASELINE], by[Phase.LOAD], attribute(records), lost=lost)


QUIET = clean(Phase.BASELINE, range(8))


def test_right_when_asked_again_alone_is_the_engine() -> None:
    records = [*QUIET, *clean(Phase.LOAD, range(30)), one(Phase.LOAD, 31, "S9"), one(Phase.REASK, 31)]
    found = attribute(records)
    assert found.causes == {(31, 1): Cause.ENGINE}
    assert (found.asked_again, found.right_again) == (1, 1)
    assert judged(records).verdict is RunVerdict.CORRUPTED


def test_wrong_in_the_same_way_alone_is_the_model() -> None:
    records = [*QUIET, *clean(Phase.LOAD, range(30)), one(Phase.LOAD, 31, "S10"), one(Phase.REASK, 31, "S10")]
    assert attribute(records).causes == {(31, 1): Cause.MODEL}
    assert judged(records).verdict is RunVerdict.SLIPS
    # Wrong in another way alone excuses nothing.
    other = [*records[:-1], one(Phase.REASK, 31, "S15")]
    assert attribute(other).causes == {(31, 1): Cause.ENGINE}


def test_without_a_second_answer_the_baseline_decides() -> None:
    load = [*clean(Phase.LOAD, range(30)), one(Phase.LOAD, 31, "S14")]
    assert attribute([*QUIET, *load]).causes == {(31, 1): Cause.ENGINE}
    slip = one(Phase.BASELINE, 9, "S14")
    assert attribute([*QUIET, slip, *load]).causes == {(31, 1): Cause.MODEL}
    # One failed attempt to ask again decides nothing.
    again = one(Phase.REASK, 31, failure=Failure.TIMEOUT)
    assert attribute([*QUIET, slip, *load, again]).causes == {(31, 1): Cause.MODEL}
    # Far more of it under load than alone: the baseline excuses it no more.
    many = [one(Phase.LOAD, 40 + n, "S14") for n in range(30)]
    assert set(attribute([*QUIET, slip, *load, *many]).causes.values()) == {Cause.ENGINE}


def test_a_signature_that_the_baseline_never_saw_is_not_excused_by_one_that_it_did() -> None:
    records = [*QUIET, one(Phase.BASELINE, 9, "S14"), *clean(Phase.LOAD, range(9)), one(Phase.LOAD, 31, "S14", "S26")]
    assert attribute(records).causes == {(31, 1): Cause.ENGINE}


def test_load_against_baseline() -> None:
    load = [one(Phase.LOAD, n, "S15") for n in range(20)] + clean(Phase.LOAD, range(20, 40))
    p_value = attribute([*QUIET, *load]).p_value
    assert p_value is not None
    assert p_value == pytest.approx(comb(40, 20) / comb(48, 20))  # no less extreme: all 20 in the load
    assert attribute(load).p_value is None


def test_an_endpoint_that_damages_calls_without_load_is_no_slip() -> None:
    records = [one(Phase.BASELINE, n, "S1") for n in range(8)]
    records += [one(phase, n, "S1") for n in range(20) for phase in (Phase.LOAD, Phase.REASK)]
    found = judged(records)
    assert found.verdict is RunVerdict.CORRUPTED
    assert "without load" in found.sentence


def test_failures_prove_nothing() -> None:
    failed = [one(Phase.LOAD, n, number=2, failure=Failure.TIMEOUT) for n in range(20)]
    assert judged([*QUIET, *clean(Phase.LOAD, range(40)), *failed[:8]]).verdict is RunVerdict.CLEAN
    found = judged([*QUIET, *clean(Phase.LOAD, range(20)), *failed])
    assert found.verdict is RunVerdict.UNUSABLE
    assert "10 %" in found.sentence
    assert judged([*QUIET, *failed]).verdict is RunVerdict.UNUSABLE
    assert judged([*QUIET, *clean(Phase.LOAD, range(40))], lost=True).verdict is RunVerdict.UNUSABLE
    assert judged([], lost=True).verdict is RunVerdict.UNUSABLE
    assert judged(QUIET).verdict is RunVerdict.NOTHING
    # Corruption that was found stays found, whatever came after it.
    broken = [*QUIET, one(Phase.LOAD, 31, "S15"), *failed]
    assert judged(broken, lost=True).verdict is RunVerdict.CORRUPTED


def test_budget_is_no_corruption() -> None:
    tight = dataclasses.replace(one(Phase.LOAD, 31), signatures={"S11": Severity.BUDGET})
    assert judged([*QUIET, *clean(Phase.LOAD, range(30)), tight]).verdict is RunVerdict.CLEAN


def test_exit_status() -> None:
    by_verdict = {verdict: exit_status(verdict, interrupted=False) for verdict in RunVerdict}
    assert by_verdict == {
        RunVerdict.CLEAN: 0,
        RunVerdict.SLIPS: 0,
        RunVerdict.CORRUPTED: 1,
        RunVerdict.UNUSABLE: 3,
        RunVerdict.NOTHING: 3,
    }
    assert {exit_status(verdict, interrupted=True) for verdict in RunVerdict} == {130}


def test_asked_again_covers_sessions_first() -> None:
    corrupted = [one(Phase.LOAD, n, "S9", number=k) for n in (3, 1, 2) for k in (2, 1)]
    chosen = chosen_again([*corrupted, *clean(Phase.LOAD, (5,))], 4)
    assert [(item.session, item.round) for item in chosen] == [(1, 1), (2, 1), (3, 1), (1, 2)]


def test_percent() -> None:
    shares = (None, 0.0, 1.0, 0.18, 0.0225, 0.0004, 0.99999)
    assert [percent(share) for share in shares] == ["-", "0 %", "100 %", "18.0 %", "2.2 %", "0.04 %", "100.0 %"]
