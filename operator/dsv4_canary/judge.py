"""From what a pair did to what it means for this engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.classify import classify
from dsv4_canary.drift import finish_type
from dsv4_canary.expect import Expectation
from dsv4_canary.model import PeerOutcome, Reason, Role, Severity
from dsv4_canary.pair import Leg, LegKind, PairResult
from dsv4_canary.reply import Reply
from dsv4_canary.signatures import CATALOGUE


class Kind(StrEnum):
    """What one attempt showed."""

    PASS = "pass"  # noqa: S105 - an outcome
    FAIL = "fail"
    PEER_LOADING = "loading"
    PEER_UNREACHABLE = "unreachable"
    ENGINE_GONE = "engine"
    """This pod's own engine refused the connection; its health check will tell more."""
    BUSY = "busy"
    """No answer in time, and an engine had work waiting and got on with it; or turned away, since its queue is full."""
    PEER_WEDGED = "wedged"
    """No answer in time, and it is known that the peer is stuck and this engine is not."""
    UNUSABLE = "unusable"
    """The engine does not serve this kind of probe: nothing is proved and nothing accused."""

    @property
    def outcome(self) -> str:
        """Outcome of the metrics contract: a wedged peer is one that cannot be used."""
        return Kind.PEER_UNREACHABLE.value if self is Kind.PEER_WEDGED else self.value

    @property
    def conclusive(self) -> bool:
        """Says something about the pair."""
        return self in (Kind.PASS, Kind.FAIL)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One attempt, judged.

    ``reason`` and ``what`` are set for FAIL; ``what`` completes "tool call through X to Y ...".
    """

    kind: Kind
    reason: Reason | None = None
    what: str = ""
    failures: dict[str, Severity] = field(default_factory=dict)
    """Signature (S1 to S32), or timeout, transfer, rejected, cut, lost, drift -> severity. May hold warnings on
    PASS."""
    excerpt: str = ""
    overtaken: bool = False
    """Given up while an engine had work waiting and got on with it, whether or not that is still an excuse."""

    @property
    def peer_outcome(self) -> PeerOutcome:
        """What it says about the peer."""
        return {
            Kind.PASS: PeerOutcome.PASS,
            Kind.FAIL: PeerOutcome.FAIL,
            Kind.PEER_LOADING: PeerOutcome.LOADING,
            Kind.BUSY: PeerOutcome.BUSY,
            Kind.PEER_WEDGED: PeerOutcome.FAIL,
        }.get(self.kind, PeerOutcome.UNREACHABLE)

    @property
    def signatures(self) -> tuple[str, ...]:
        """The signatures of the catalogue among the failures."""
        return tuple(name for name in self.failures if name in CATALOGUE)

    @property
    def transport(self) -> bool:
        """Failed without a reply that could be read."""
        return self.kind is Kind.FAIL and Severity.TRANSPORT in self.failures.values()


def judge(result: PairResult, role: Role, expectation: Expectation) -> Judgement:
    """Judge one attempt from the point of view of the engine of ``role``."""
    if result.reply is not None:
        return _judge_reply(result.reply, expectation)
    return judge_silence(result, role)


def judge_generate(result: PairResult, role: Role) -> Judgement:
    """Judge one request to ``/generate`` that wants logprobs: PASS when decode answered, whatever it says.

    An engine that refuses the request (HTTP 4xx) does not serve logprobs or such token ids.
    """
    if result.decode.good:
        if finish_type(result.decode.body) == "abort":
            return _failure(Reason.TRANSFER_FAILED, "failed, decode aborted it", "transfer")
        return Judgement(Kind.PASS)
    refused = [
        leg.status
        for leg in (result.decode, result.prefill)
        if leg.kind is LegKind.ANSWERED and leg.status is not None and 400 <= leg.status < 500
    ]
    if refused:
        return Judgement(Kind.UNUSABLE, what=f"the engine refuses such requests with HTTP {refused[0]}")
    return judge_silence(result, role)


def judge_silence(result: PairResult, role: Role) -> Judgement:
    """Judge a request to which no reply came."""
    own, peer = result.leg(role), result.leg(role.other)
    if own.kind is LegKind.REFUSED:
        return Judgement(Kind.ENGINE_GONE)
    if _turns_away(own) or _turns_away(peer):
        return _TURNED_AWAY
    # A peer that is not there is no fault of this engine, whatever its own side made of it.
    if peer.kind is LegKind.REFUSED or (peer.kind is LegKind.ANSWERED and peer.status == 503):
        return Judgement(Kind.PEER_LOADING)
    if peer.kind in (LegKind.UNREACHABLE, LegKind.LOST):
        return Judgement(Kind.PEER_UNREACHABLE)
    return _judge_failure(result, role)


def _judge_failure(result: PairResult, role: Role) -> Judgement:
    """Both engines were there and no reply came."""
    if result.timed_out:
        return _failure(Reason.PROBE_TIMED_OUT, "did not come back in time", "timeout")
    refused = [
        f"{side.value} answered HTTP {leg.status}"
        for side, leg in ((Role.PREFILL, result.prefill), (Role.DECODE, result.decode))
        if leg.kind is LegKind.ANSWERED and not leg.good
    ]
    if not refused:
        return _failure(Reason.TRANSFER_FAILED, f"broke off, this {role.value} closed the connection", "lost")
    if any(_is_server_error(leg) for leg in (result.prefill, result.decode)):
        return _failure(Reason.TRANSFER_FAILED, f"failed, {' and '.join(refused)}", "transfer")
    return _failure(Reason.PROBE_FAILED, f"was rejected, {' and '.join(refused)}", "rejected", Severity.CONTRACT)


_FULL = 503
"""Status of an engine that loads, and of one whose queue is full (``--max-queued-requests``), which says so."""
_TURNED_AWAY = Judgement(Kind.BUSY, what="was turned away, the queue of an engine is full")


def _turns_away(leg: Leg) -> bool:
    return leg.kind is LegKind.ANSWERED and leg.status == _FULL and b"queue is full" in leg.body


def _is_server_error(leg: Leg) -> bool:
    return leg.status is not None and leg.status >= 500


def _judge_reply(reply: Reply, expectation: Expectation) -> Judgement:
    if reply.error is not None:
        if reply.error == str(_FULL):
            return _TURNED_AWAY
        if reply.error.startswith("4"):
            what = f"was rejected, decode sent error {reply.error[:3]}"
            return _failure(Reason.PROBE_FAILED, what, "rejected", Severity.CONTRACT)
        return _failure(Reason.TRANSFER_FAILED, "failed, decode sent an error instead of an answer", "transfer")
    if reply.finish_reason == "abort":
        return _failure(Reason.TRANSFER_FAILED, "failed, decode aborted it", "transfer")
    if not reply.complete:
        return _failure(Reason.PROBE_FAILED, "came back cut off or as no chat completion", "cut")
    result = classify(reply, expectation)
    if not result.failed:
        return Judgement(Kind.PASS, failures=dict(result.severities), excerpt=result.excerpt)
    first = _most_telling(result.severities)
    return Judgement(
        Kind.FAIL,
        Reason.PROBE_FAILED,
        f"{CATALOGUE[first].meaning} ({first})",
        dict(result.severities),
        result.excerpt,
    )


def _most_telling(severities: Mapping[str, Severity]) -> str:
    """The signature that the message names: corruption before others, then the catalogue's order; never a warning."""
    failing = [name for name in severities if not CATALOGUE[name].warns_only]
    corrupt = [name for name in failing if severities[name] is Severity.CORRUPTION]
    return (corrupt or failing)[0]


def _failure(reason: Reason, what: str, name: str, severity: Severity = Severity.TRANSPORT) -> Judgement:
    return Judgement(Kind.FAIL, reason, what, {name: severity})
