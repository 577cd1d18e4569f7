"""Peers of a sidecar: who counts as testable, and what is told of each."""

from __future__ import annotations

from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import EngineState, Mode, PeerOutcome, Reason, Role, Severity
from dsv4_canary.peer_book import PeerBook
from dsv4_canary.verdict import Failure, VerdictMachine

A, B = "10.1.0.1", "10.1.0.2"
WRONG = Judgement(Kind.FAIL, Reason.PROBE_FAILED, "came back as prose (S10)", {"S10": Severity.CONTRACT})


class Setting:
    """A book with two peers, beside a ready machine."""

    def __init__(self) -> None:
        self.addresses: list[str] = [A, B]
        self.metrics = Metrics("decode", "f")
        self.machine = VerdictMachine(Role.DECODE, "peers", 3, 90.0)
        self.machine.engine(EngineState.HEALTHY, 0.0)
        self.book = PeerBook(Role.DECODE, "peers", self.resolve, self.machine, self.metrics)

    async def resolve(self, _host: str) -> list[str]:
        return self.addresses

    async def ready(self) -> None:
        await self.book.find(60.0)
        for mode in Mode:
            self.machine.passed(mode, A)

    def fails_with(self, peer: str, times: int) -> None:
        for _ in range(times):
            self.machine.failed(Mode.FUNCTIONAL, Failure(Reason.PROBE_FAILED, peer, "x"))
            self.book.failed(self.book.states[peer], WRONG)
            self.book.tell()


async def test_a_busy_peer_keeps_failures_with_another_from_counting() -> None:
    made = Setting()
    await made.ready()
    made.book.untested(made.book.states[B], Judgement(Kind.BUSY, what="busy"))
    made.fails_with(A, 6)
    assert made.machine.verdict.ready
    assert made.book.states[B].to_json()["outcome"] == "Busy"
    assert b'peer_result{peer="10.1.0.2"} -3.0' in made.metrics.render()


async def test_wedged_and_absent_peers_do_not() -> None:
    for kind in (Kind.PEER_WEDGED, Kind.PEER_LOADING, Kind.PEER_UNREACHABLE):
        made = Setting()
        await made.ready()
        if kind is Kind.PEER_WEDGED:
            made.book.untested(made.book.states[B], Judgement(kind, what="wedged"))
        else:
            made.book.away(made.book.states[B], kind)
        made.fails_with(A, 3)
        assert not made.machine.verdict.ready, kind


async def test_what_is_told_of_a_peer() -> None:
    made = Setting()
    await made.ready()
    peer = made.book.states[A]
    made.book.passed(peer, Judgement(Kind.PASS))
    assert (peer.outcome, peer.consecutive_failures, peer.message) == (PeerOutcome.PASS, 0, "passes")
    made.book.failed(peer, WRONG)
    made.book.failed(peer, WRONG)
    told = peer.to_json()
    assert (told["consecutiveFailures"], told["signatures"]) == (2, ["S10"])
    assert told["message"] == "came back as prose (S10)"
    assert told["lastSuccessTime"] is not None
    assert told["failingSince"] is not None
    made.book.away(peer, Kind.PEER_UNREACHABLE)
    assert peer.to_json()["failingSince"] is None
    assert (peer.outcome, peer.consecutive_failures, peer.message) == (PeerOutcome.UNREACHABLE, 0, "cannot be reached")


async def test_a_pass_out_of_a_cache_refutes_silence_but_no_wrong_answer() -> None:
    made = Setting()
    await made.ready()
    peer = made.book.states[A]
    made.book.passed(peer, Judgement(Kind.PASS), fresh=False)
    assert (peer.outcome, peer.last_success_time) == (PeerOutcome.PASS, None)
    made.book.failed(peer, WRONG)
    began = peer.failing_since
    made.book.passed(peer, Judgement(Kind.PASS), fresh=False)
    assert (peer.outcome, peer.consecutive_failures, peer.message) == (PeerOutcome.FAIL, 1, WRONG.what)
    made.book.failed(peer, WRONG)
    assert (peer.consecutive_failures, peer.failing_since) == (2, began)
    made.book.passed(peer, Judgement(Kind.PASS))
    assert (peer.outcome, peer.consecutive_failures, peer.failing_since) == (PeerOutcome.PASS, 0, None)
    silence = Judgement(Kind.FAIL, Reason.TRANSFER_FAILED, "no answer", {"timeout": Severity.TRANSPORT})
    made.book.failed(peer, silence)
    made.book.passed(peer, Judgement(Kind.PASS), fresh=False)
    assert peer.outcome is PeerOutcome.PASS


async def test_a_wrong_answer_that_was_refuted_says_nothing_of_a_later_wedge() -> None:
    made = Setting()
    await made.ready()
    peer = made.book.states[A]
    made.book.failed(peer, WRONG)
    made.book.passed(peer, Judgement(Kind.PASS))
    made.book.untested(peer, Judgement(Kind.PEER_WEDGED, what="wedged"))
    made.book.passed(peer, Judgement(Kind.PASS), fresh=False)
    assert (peer.outcome, peer.message) == (PeerOutcome.PASS, "passes")


async def test_peers_come_and_go_and_a_failed_lookup_changes_nothing() -> None:
    made = Setting()
    await made.ready()
    made.book.passed(made.book.states[A], Judgement(Kind.PASS))
    made.addresses = [A, "10.1.0.3"]
    await made.book.find(60.0)
    assert list(made.book.states) == [A, "10.1.0.3"]
    assert made.book.states[A].outcome is PeerOutcome.PASS

    async def down(_host: str) -> list[str]:
        raise OSError("name server down")

    made.book._resolve = down
    await made.book.find(60.0)
    assert list(made.book.states) == [A, "10.1.0.3"]
    assert b"dsv4_canary_peer_lookup_errors_total 1.0" in made.metrics.render()
