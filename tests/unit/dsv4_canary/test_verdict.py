"""Verdict: when a pod is ready, when it stops being so, and what it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.model import EngineState, Mode, Reason, Role
from dsv4_canary.verdict import Failure, VerdictMachine

F, S = Mode.FUNCTIONAL, Mode.STREAMED
PEER = "10.1.0.5"
BAD = Failure(Reason.PROBE_FAILED, PEER, "came back without a call and without text (S9)")


def machine(role: Role = Role.DECODE) -> VerdictMachine:
    made = VerdictMachine(role, "peers", failure_threshold=3, absence=90.0)
    made.engine(EngineState.HEALTHY, 0.0)
    return made


def ready_machine() -> VerdictMachine:
    made = machine()
    made.passed(F, PEER)
    made.passed(S, PEER)
    assert made.verdict.ready
    return made


def test_first_readiness_needs_both_modes() -> None:
    made = machine()
    assert made.verdict.reason is Reason.PROBING
    made.passed(F, PEER)
    made.passed(F, PEER)
    assert not made.verdict.ready
    assert made.next_mode is S
    made.passed(S, PEER)
    assert (made.verdict.ready, made.verdict.reason) == (True, Reason.PASSING)
    assert made.next_mode is None


def test_nothing_is_proved_while_the_engine_loads() -> None:
    made = VerdictMachine(Role.PREFILL, "peers", 3, 90.0)
    assert (made.verdict.ready, made.verdict.reason) == (False, Reason.ENGINE_LOADING)
    made.engine(EngineState.LOADING, 3000.0)
    assert made.refused_for(3000.0) == 0


def test_threshold_of_failures_in_a_row_and_recovery() -> None:
    made = ready_machine()
    for _ in range(2):
        made.failed(F, BAD)
        assert made.verdict.ready
        assert made.next_mode is F
    made.failed(F, BAD)
    verdict = made.verdict
    assert (verdict.ready, verdict.reason) == (False, Reason.PROBE_FAILED)
    assert verdict.message == (
        "tool call through prefill 10.1.0.5 to this decode came back without a call and without text (S9)"
    )
    made.passed(F, PEER)
    assert not made.verdict.ready
    made.passed(S, PEER)
    assert made.verdict.ready
    assert made.consecutive_failures == 0


def test_a_mode_that_always_fails_is_not_excused_by_the_other() -> None:
    made = ready_machine()
    for _ in range(3):
        made.failed(S, BAD)
        made.passed(F, PEER)
    assert not made.verdict.ready


def test_failures_now_and_then_do_not_count() -> None:
    made = ready_machine()
    made.peers([PEER])
    for _ in range(20):
        made.failed(F, BAD)
        made.passed(F, PEER)
        made.passed(S, PEER)
        assert made.verdict.ready


def test_every_other_failure_counts_and_is_forgiven_only_after_a_row_of_passes() -> None:
    made = ready_machine()
    made.peers([PEER])
    for _ in range(10):
        made.failed(F, BAD)
        made.failed(S, BAD)
        made.passed(F, PEER)
        made.passed(S, PEER)
    for _ in range(2):  # with the last two, twice the threshold
        assert not made.verdict.ready
        made.passed(F, PEER)
        made.passed(S, PEER)
    assert made.verdict.ready


def test_a_peer_that_passes_excuses_the_one_that_fails() -> None:
    made = ready_machine()
    made.peers([PEER, "10.1.0.6"])
    for _ in range(20):
        made.failed(F, BAD)
        made.failed(F, BAD)
        made.passed(F, "10.1.0.6")
        made.passed(S, "10.1.0.6")
        assert made.verdict.ready


def test_failing_with_every_testable_peer_withdraws_and_not_before() -> None:
    made = ready_machine()
    peers = [PEER, "10.1.0.6", "10.1.0.7"]
    made.peers(peers)
    for _ in range(5):
        made.failed(F, BAD)
    made.failed(F, Failure(Reason.PROBE_FAILED, peers[1], "x"))
    assert made.verdict.ready, "the third was not tried"
    made.peers(peers, [peers[2]])
    made.failed(F, BAD)
    assert not made.verdict.ready, "the third cannot be tried"


def test_five_of_many_peers_are_as_good_as_all() -> None:
    made = ready_machine()
    peers = [f"10.1.1.{number}" for number in range(40)]
    made.peers(peers)
    for number in range(4):
        made.failed(F, Failure(Reason.PROBE_FAILED, peers[number], "x"))
        assert made.verdict.ready
    made.failed(F, Failure(Reason.PROBE_FAILED, peers[4], "x"))
    assert not made.verdict.ready


def test_known_faults_of_the_engine_go_first_and_proof_is_anew() -> None:
    made = ready_machine()
    made.own_fault(Reason.ENGINE_WEDGED, "stuck")
    assert (made.verdict.ready, made.verdict.reason, made.verdict.message) == (False, Reason.ENGINE_WEDGED, "stuck")
    made.passed(F, PEER)
    made.passed(S, PEER)
    assert not made.verdict.ready
    assert made.next_mode is None, "old prefixes are asked too, or corruption would never be seen to end"
    made.own_fault(Reason.ENGINE_WEDGED, "stuck")
    made.own_fault(None)
    made.passed(F, PEER)
    assert made.verdict.ready
    made.own_fault(Reason.CORRUPTION, "damaged")
    made.own_fault(None)
    made.passed(F, PEER)
    assert not made.verdict.ready
    made.engine(EngineState.LOADING, 1.0)
    assert made.verdict.reason is Reason.ENGINE_LOADING


def test_wedged_peers_are_no_usable_peers() -> None:
    made = ready_machine()
    made.no_usable_peer(Reason.NO_PEER, 100.0, "PeerWedged: nobody")
    made.no_usable_peer(Reason.NO_PEER, 191.0, "PeerWedged: nobody")
    assert made.verdict.message == "PeerWedged: nobody"
    made = ready_machine()
    made.no_usable_peer(Reason.NO_PEER, 100.0)
    made.tested()
    made.no_usable_peer(Reason.NO_PEER, 191.0)
    assert made.verdict.ready


def test_failure_before_first_readiness_is_told_at_once() -> None:
    made = machine()
    made.failed(F, BAD)
    assert made.verdict.reason is Reason.PROBE_FAILED


def test_message_follows_reason_not_rotation() -> None:
    made = ready_machine()
    for _ in range(3):
        made.failed(F, BAD)
    before = made.verdict
    made.failed(F, Failure(Reason.PROBE_FAILED, "10.1.0.6", "came back as prose without a call (S10)"))
    assert made.verdict == before
    made.failed(F, Failure(Reason.PROBE_TIMED_OUT, "10.1.0.6", "did not come back in time"))
    assert made.verdict.reason is Reason.PROBE_TIMED_OUT
    made.peers(["10.1.0.9"])
    made.failed(F, Failure(Reason.PROBE_TIMED_OUT, "10.1.0.9", "did not come back in time"))
    assert "10.1.0.9" in made.verdict.message


def test_absent_peers_are_no_failure_but_end_readiness_after_the_window() -> None:
    made = ready_machine()
    made.no_usable_peer(Reason.NO_PEER, 100.0)
    made.no_usable_peer(Reason.NO_PEER, 190.0)
    assert made.verdict.ready
    assert made.consecutive_failures == 0
    made.no_usable_peer(Reason.NO_PEER, 190.1)
    assert (made.verdict.ready, made.verdict.reason) == (False, Reason.NO_PEER)
    made.passed(F, PEER)
    assert not made.verdict.ready
    made.passed(S, PEER)
    assert made.verdict.ready


def test_a_probe_ends_the_absence() -> None:
    made = ready_machine()
    made.no_usable_peer(Reason.PEER_LOADING, 100.0)
    made.passed(F, PEER)
    made.no_usable_peer(Reason.PEER_LOADING, 191.0)
    assert made.verdict.ready


def test_loading_peer_gives_no_first_readiness() -> None:
    made = machine(Role.PREFILL)
    for now in range(10_000):
        made.no_usable_peer(Reason.PEER_LOADING, float(now))
    assert (made.verdict.ready, made.verdict.reason) == (False, Reason.PEER_LOADING)
    assert "decode" in made.verdict.message


def test_dead_engine_is_not_ready_at_once_and_proves_itself_anew() -> None:
    made = ready_machine()
    made.engine(EngineState.UNHEALTHY, 10.0)
    assert made.verdict.ready
    made.engine(EngineState.UNREACHABLE, 20.0)
    assert (made.verdict.ready, made.verdict.reason) == (False, Reason.ENGINE_UNREACHABLE)
    assert made.refused_for(700.0) == 680
    made.engine(EngineState.LOADING, 710.0)
    assert made.refused_for(720.0) == 0
    made.engine(EngineState.HEALTHY, 800.0)
    made.passed(F, PEER)
    assert not made.verdict.ready
    made.passed(S, PEER)
    assert made.verdict.ready


EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from(Mode)),
    st.tuples(st.just("fail"), st.sampled_from(Mode)),
    st.tuples(st.just("absent"), st.sampled_from((Reason.NO_PEER, Reason.PEER_LOADING))),
    st.tuples(st.just("engine"), st.sampled_from(EngineState)),
    st.tuples(st.just("own"), st.sampled_from((None, Reason.ENGINE_WEDGED, Reason.CORRUPTION, Reason.GUARD_MISSING))),
)


@given(st.lists(EVENTS, max_size=60))
def test_ready_only_with_standing_proof(events: list[tuple[str, object]]) -> None:
    made = VerdictMachine(Role.DECODE, "peers", 3, 90.0)
    proof: set[object] = set()
    row = {F: 0, S: 0}
    own: object = None
    gone = True
    for step, (kind, detail) in enumerate(events):
        now = step * 20.0
        if kind == "pass":
            assert isinstance(detail, Mode)
            made.passed(detail, PEER)
            if not gone:
                proof.add(detail)
                row[detail] = 0
        elif kind == "fail":
            assert isinstance(detail, Mode)
            made.failed(detail, BAD)
            row[detail] += not gone
        elif kind == "own":
            assert detail is None or isinstance(detail, Reason)
            if detail is not None and detail is not own:
                proof.clear()
            own = detail
            made.own_fault(detail, "why")
        elif kind == "absent":
            assert isinstance(detail, Reason)
            made.no_usable_peer(detail, now)
        else:
            assert isinstance(detail, EngineState)
            made.engine(detail, now)
            gone = detail in (EngineState.LOADING, EngineState.UNREACHABLE)
            if gone:
                proof.clear()
                row = {F: 0, S: 0}
                own = None
        verdict = made.verdict
        if verdict.ready:
            assert proof == {F, S}
            assert max(row.values()) < 3
            assert own is None
            assert verdict.reason is Reason.PASSING
            assert not gone
        else:
            assert verdict.reason is not Reason.PASSING
