"""What a probe means to which no answer came in time: a fault, an engine with too much to do, or a stuck peer; and how
long one may take. Pure; time is passed in.

Compares what both engines' metrics showed before the probe and after it. Busy needs both: work that waits, and
progress. Progress alone is not enough, since an engine whose transfers are lost still computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsv4_canary.engine_view import EngineSample, answered, progressed
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.model import Reason, Role, Severity
from dsv4_canary.pair import PairResult
from dsv4_canary.settings import Settings

PATIENCE = 120.0
"""Seconds without any passing probe for which an engine is excused as busy, at least; ``patience`` gives the rest."""

_LEAST_TIMEOUT = 5.0
_SLOWER = 8.0
"""A probe may take so many times the slowest recent one, and an interval, before it is given up."""


def patience(timeout: float, interval: float) -> float:
    """Seconds since the last passing probe after which busy is no excuse any more: a dropped probe on a loaded engine
    looks the same."""
    return max(PATIENCE, 5 * timeout, 10 * interval)


class Allowance:
    """How long the next probe may take, and whether busy is still an excuse."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._full = False

    def limit(self, settings: Settings, slowest: float) -> float:
        """Longest time of the next probe. ``slowest``: greatest time of a recent passing one, 0 when there is none.

        Once probes have passed, one that takes far longer than they did is given up early: a pair that hangs is to be
        noticed within the interval.
        """
        if not slowest or self._full:
            return settings.timeout
        return min(settings.timeout, max(settings.interval, _LEAST_TIMEOUT, _SLOWER * slowest))

    def excused(self, settings: Settings, now: float) -> bool:
        """Busy is still an excuse."""
        return now - self._since <= patience(settings.timeout, settings.interval)

    def overtaken(self, limit: float, settings: Settings, now: float) -> None:
        """A probe was given up after ``limit`` seconds, and an engine had work waiting and got on with it.

        When that was before ``timeoutSeconds``, those that follow have all of it until one passes. Given up early again
        and again, none could show how long answers take now, and every pod of an overloaded deployment would leave.
        """
        if self._full or limit >= settings.timeout:
            return
        self._full = True
        if self.excused(settings, now):
            # The excuse is for probes of full length. It grows by one of them at most, since a prefill that drops
            # requests under load has it too.
            self._since = min(now, self._since + settings.timeout)

    def nobody_busy(self, now: float) -> None:
        """Nobody was there who could have been busy for too long."""
        self._since = now

    def renew(self, now: float) -> None:
        """A probe passed, or the own engine has just come up."""
        self._since, self._full = now, False


@dataclass(frozen=True, slots=True)
class Look:
    """One engine before and after a probe; None where its metrics could not be read."""

    before: EngineSample | None = None
    after: EngineSample | None = None

    def progressed(self) -> bool:
        """It computed or generated meanwhile."""
        return self.before is not None and self.after is not None and progressed(self.before, self.after)

    def answered(self) -> bool:
        """It gave tokens out meanwhile."""
        return self.before is not None and self.after is not None and answered(self.before, self.after)

    def transfers_wait(self) -> bool:
        """Computed prompts wait for their transfer."""
        return bool(self.after is not None and self.after.prefill_inflight)

    def work_waits(self) -> bool:
        """Requests wait for their turn: in the queue, or for KV memory."""
        after = self.after
        return after is not None and bool(after.queued or after.decode_prealloc)

    def computes(self, prompt_tokens: int) -> bool:
        """It computed more than the probe's own prompt."""
        if self.before is None or self.after is None or self.after.prefill_tokens is None:
            return False
        rise = self.after.prefill_tokens - (self.before.prefill_tokens or 0.0)
        return self.progressed() and rise > 2 * prompt_tokens


def explain(
    judgement: Judgement,
    result: PairResult,
    role: Role,
    own: Look,
    peer: Look,
    *,
    peer_wedged: str,
    own_wedged: bool,
    prompt_tokens: int,
    excused: bool,
) -> Judgement:
    """Judge a timed-out probe again in the light of both engines' metrics, and end the excuse of one that was turned
    away; others stay as they are.

    ``peer_wedged``: what the peer's wedge detector says, empty when nothing. ``excused``: busy is still an excuse.
    """
    if judgement.kind is Kind.BUSY and not excused:
        return Judgement(Kind.FAIL, Reason.TRANSFER_FAILED, judgement.what, {"transfer": Severity.TRANSPORT})
    if not result.timed_out or judgement.kind is not Kind.FAIL:
        return judgement
    prefill, decode = (own, peer) if role is Role.PREFILL else (peer, own)
    if result.prefill.good:
        busy = decode.answered() and decode.work_waits()
    else:
        # The request is still with prefill. Where computed prompts wait for their transfer it may be among them.
        computing = prefill.computes(prompt_tokens) and not prefill.transfers_wait()
        busy = (prefill.progressed() and prefill.work_waits()) or computing
        busy = busy or (decode.answered() and decode.work_waits())
    if busy and excused:
        what = "did not come back in time, an engine had work waiting and got on with it"
        return Judgement(Kind.BUSY, what=what, overtaken=True)
    if peer_wedged and not own_wedged:
        return Judgement(Kind.PEER_WEDGED, what=f"did not come back, the peer is wedged: {peer_wedged}")
    if role is Role.PREFILL and result.prefill.good and decode.after is not None and not decode.progressed():
        return Judgement(Kind.PEER_WEDGED, what="did not come back, decode got its KV and generates nothing")
    return replace(judgement, overtaken=busy)
