"""A probe that got no answer: fault, busy, or a stuck peer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsv4_canary.engine_view import EngineSample
from dsv4_canary.expect import Expectation
from dsv4_canary.judge import Judgement, Kind, judge, judge_silence
from dsv4_canary.model import PeerOutcome, Role
from dsv4_canary.pair import Leg, LegKind, PairResult
from dsv4_canary.reply import Reply
from dsv4_canary.settings import parse_settings
from dsv4_canary.timeout import Allowance, Look, explain, patience

OPEN, DONE = Leg(LegKind.OPEN), Leg(LegKind.ANSWERED, 200)
P, D = Role.PREFILL, Role.DECODE
IDLE = EngineSample(0.0, running=0, queued=0, generation_tokens=100, decode_tokens=100, prefill_tokens=50_000)
LATER = replace(IDLE, time=30.0)
STUCK = Look(IDLE, replace(LATER, running=1))
STILL = Look(IDLE, LATER)
COMPUTING = Look(IDLE, replace(LATER, prefill_tokens=90_000.0, running=1))
QUEUE = Look(IDLE, replace(LATER, prefill_tokens=60_000.0, queued=3))
LOST = Look(IDLE, replace(LATER, prefill_tokens=90_000.0, prefill_inflight=2))
LOADED = Look(IDLE, replace(LATER, decode_tokens=900.0, generation_tokens=800.0, running=200, decode_prealloc=4))
GENERATING = Look(IDLE, replace(LATER, decode_tokens=900.0, running=3))


def looked_at(
    role: Role,
    prefill_leg: Leg,
    prefill: Look,
    decode: Look,
    *,
    wedged: str = "",
    own: bool = False,
    late: bool = False,
) -> Judgement:
    result = PairResult(prefill_leg, OPEN, None, timed_out=True, seconds=30.0)
    mine, theirs = (prefill, decode) if role is P else (decode, prefill)
    return explain(
        judge_silence(result, role),
        result,
        role,
        mine,
        theirs,
        peer_wedged=wedged,
        own_wedged=own,
        prompt_tokens=4000,
        excused=not late,
    )


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(
    ("leg", "prefill", "decode", "kind"),
    [
        (OPEN, STILL, STILL, Kind.FAIL),
        (OPEN, LOST, STILL, Kind.FAIL),
        (OPEN, COMPUTING, STILL, Kind.BUSY),
        (OPEN, QUEUE, STILL, Kind.BUSY),
        (OPEN, STILL, LOADED, Kind.BUSY),
        (OPEN, STILL, GENERATING, Kind.FAIL),
        (DONE, STILL, LOADED, Kind.BUSY),
        (OPEN, Look(), Look(), Kind.FAIL),
        (OPEN, Look(None, LATER), Look(IDLE, None), Kind.FAIL),
    ],
)
def test_busy_needs_work_that_waits_and_progress(role: Role, leg: Leg, prefill: Look, decode: Look, kind: Kind) -> None:
    assert looked_at(role, leg, prefill, decode).kind is kind
    assert looked_at(role, leg, prefill, decode, late=True).kind is not Kind.BUSY, "no excuse for ever"


def test_decode_that_has_its_kv_and_stands_still_is_not_the_prefills_fault() -> None:
    assert looked_at(P, DONE, STILL, STUCK).kind is Kind.PEER_WEDGED
    assert looked_at(P, OPEN, STILL, STUCK).kind is Kind.FAIL
    assert looked_at(D, DONE, STILL, STUCK).kind is Kind.FAIL
    assert looked_at(P, DONE, STILL, Look()).kind is Kind.FAIL, "decode's metrics cannot be read"


@pytest.mark.parametrize("role", list(Role))
def test_a_wedged_peer_is_the_cause_unless_this_engine_is_wedged_too(role: Role) -> None:
    found = looked_at(role, OPEN, STILL, STILL, wedged="requests run, but the engine generates no token")
    assert found.kind is Kind.PEER_WEDGED
    assert found.kind.outcome == "unreachable"
    assert found.peer_outcome is PeerOutcome.FAIL
    assert "requests run" in found.what
    assert looked_at(role, OPEN, STILL, STILL, wedged="x", own=True).kind is Kind.FAIL


def test_only_timeouts_are_explained() -> None:
    result = PairResult(DONE, Leg(LegKind.ANSWERED, 500), None, timed_out=False, seconds=1.0)
    failed = judge_silence(result, P)
    found = explain(failed, result, P, QUEUE, LOADED, peer_wedged="x", own_wedged=False, prompt_tokens=1, excused=True)
    assert found is failed


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("side", list(Role))
def test_a_full_queue_is_no_fault(role: Role, side: Role) -> None:
    full = Leg(LegKind.ANSWERED, 503, b'{"object":"error","message":"The request queue is full.","code":503}')
    legs = (full, OPEN) if side is P else (OPEN, full)
    result = PairResult(*legs, None, timed_out=False, seconds=2.0)
    assert judge_silence(result, role).kind is Kind.BUSY
    for late in (False, True):
        found = explain(
            judge_silence(result, role),
            result,
            role,
            STILL,
            STILL,
            peer_wedged="",
            own_wedged=False,
            prompt_tokens=4000,
            excused=not late,
        )
        assert (found.kind, found.transport) == ((Kind.FAIL, True) if late else (Kind.BUSY, False))
    starts = PairResult(*(replace(leg, body=b"") for leg in legs), None, timed_out=False, seconds=2.0)
    assert judge_silence(starts, role).kind is (Kind.FAIL if side is role else Kind.PEER_LOADING)
    streamed = PairResult(DONE, DONE, Reply(error="503"), timed_out=False, seconds=2.0)
    assert judge(streamed, role, Expectation()).kind is Kind.BUSY


def test_patience_grows_with_the_settings() -> None:
    assert patience(10, 5) == 120
    assert patience(60, 30) == 300


@pytest.mark.parametrize("late", [False, True])
def test_being_overtaken_is_told_whether_or_not_it_is_an_excuse(late: bool) -> None:
    assert looked_at(P, OPEN, QUEUE, STILL, late=late).overtaken
    assert looked_at(P, DONE, STILL, LOADED, late=late).overtaken
    assert not looked_at(P, OPEN, STILL, STILL, late=late).overtaken
    assert not looked_at(D, OPEN, LOST, STILL, late=late).overtaken
    assert not looked_at(P, OPEN, STILL, STILL, wedged="x", late=late).overtaken


SETTINGS, _ = parse_settings('{"version": 1, "model": "m"}')


def test_probes_are_given_up_early_once_quick_ones_have_passed() -> None:
    allowance = Allowance(0.0)
    assert allowance.limit(SETTINGS, 0.0) == 60.0, "nothing is known yet"
    assert allowance.limit(SETTINGS, 1.0) == 30.0
    assert allowance.limit(SETTINGS, 5.0) == 40.0
    assert allowance.limit(SETTINGS, 40.0) == 60.0
    assert allowance.limit(replace(SETTINGS, interval=1.0), 0.1) == 5.0


def test_an_overtaken_probe_gives_the_next_ones_all_the_time_until_one_passes() -> None:
    allowance = Allowance(0.0)
    allowance.overtaken(30.0, SETTINGS, 60.0)
    for now in (120.0, 190.0, 1000.0):
        assert allowance.limit(SETTINGS, 1.0) == 60.0
        allowance.overtaken(60.0, SETTINGS, now)
        allowance.nobody_busy(now)
    allowance.renew(1100.0)
    assert allowance.limit(SETTINGS, 1.0) == 30.0
    allowance.overtaken(60.0, SETTINGS, 1200.0)
    assert allowance.limit(SETTINGS, 1.0) == 30.0, "one that had all its time tells nothing of too short a time"


def test_the_excuse_begins_with_the_first_probe_of_full_length_and_grows_by_one_at_most() -> None:
    def ends(*overtaken: float) -> float:
        """Seconds since the last pass until which busy is an excuse, after probes that were given up early then."""
        allowance = Allowance(1000.0)
        for at in overtaken:
            allowance.overtaken(30.0, SETTINGS, 1000.0 + at)
        return max(at for at in range(2000) if allowance.excused(SETTINGS, 1000.0 + at))

    assert ends() == 300
    assert ends(45.0) == 345
    assert ends(45.0, 90.0, 200.0, 300.0) == 345
    assert ends(290.0) == 360, "a prefill that drops requests under load is not excused for twice the time"
    assert ends(310.0) == 300, "what is over stays over"
