"""What the sidecar keeps of its probes: history, evidence, baseline, old prefixes, noise, metrics. No I/O."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence

from dsv4_canary.attempt import ProbeResult
from dsv4_canary.baseline import OPTIONAL, Baseline
from dsv4_canary.drift import CEILING, Noise
from dsv4_canary.evidence import Evidence, Item, Opinion, Weight, weigh
from dsv4_canary.judge import Kind
from dsv4_canary.library import Entry, Library
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Cache, HistoryEntry, ProbeName
from dsv4_canary.schedule import Plan

_HISTORY = 20
_NONCES = 64
TOP_K_REACH = 2_048
"""Prompt tokens up to which sparse attention selects every key, so that damaged index keys cannot show."""
HOST_SILENCE = 300
"""Intervals without a probe out of the host tier after which the canary says that it does not see it."""
WARM = (Cache.DEVICE, Cache.HOST)


class Recorder:
    """Memory of one sidecar."""

    def __init__(self, metrics: Metrics, shared_cache: bool) -> None:
        """``shared_cache``: all probes go through one prefill, so any peer finds what was asked before."""
        self.metrics = metrics
        self.history: deque[HistoryEntry] = deque(maxlen=_HISTORY)
        self.nonces: deque[str] = deque(maxlen=_NONCES)
        self.evidence = Evidence()
        self.baseline = Baseline()
        self.noise = Noise()
        self.chats = Library()
        self.drifts = Library()
        self.opinion = Opinion()
        self.cached_reported = False
        self.last_success: float | None = None
        self.slowest = 0.0
        """Greatest time of a recent passing probe, in seconds."""
        self._shared_cache = shared_cache
        self._chat_tokens: int | None = None
        self._last_host: float | None = None

    def forget(self) -> None:
        """The own engine is another process now."""
        self.evidence.forget()
        # At once, and not with the next probe: an engine can load for long, and is not corrupt meanwhile.
        self.opinion = Opinion()
        self.metrics.corruption(self.opinion.level, self.evidence.counts())
        self.baseline.forget()
        self.noise = Noise()
        self.chats.forget()
        self.drifts.forget()
        self.slowest = 0.0

    def keep_peers(self, addresses: Collection[str]) -> None:
        """Forget what hangs on peers that are gone."""
        self.chats.keep_peers(addresses)
        self.drifts.keep_peers(addresses)
        if not self._shared_cache:
            self.evidence.keep_peers(addresses)

    def peer_gone(self, address: str) -> None:
        """A peer is loading or cannot be reached: another process will answer there."""
        self.drifts.forget(address)
        if not self._shared_cache:
            self.chats.forget(address)
            self.evidence.forget(address)

    def estimate(self, prompt_tokens: int) -> int:
        """Tokens that one prompt of that least length will cost, as far as is known."""
        return max(prompt_tokens, self._chat_tokens or 0)

    def record(
        self, plan: Plan, result: ProbeResult, peer: str, peers: int, rank: int, prompt_tokens: int
    ) -> Item | None:
        """Take one result. Returns the item of the window when the same is to be asked again on a fresh prefix."""
        self._count(result, peer)
        if result.nonce:
            self.nonces.append(result.nonce)
        if not result.judgement.kind.conclusive:
            if result.judgement.kind is Kind.UNUSABLE:
                self.baseline.refused(result.probe, result.judgement.what)
            return None
        self._know(result, peer, peers)
        self._keep(plan, result, peer, peers, rank, prompt_tokens)
        return self._weigh(result, peer)

    def _count(self, result: ProbeResult, peer: str) -> None:
        metrics, kind = self.metrics, result.judgement.kind
        metrics.attempt(result.probe.value, kind.outcome, result.cache)
        metrics.cost(result.prompt_tokens, result.completion_tokens)
        self.cached_reported |= result.cached_tokens is not None
        if result.probe is not ProbeName.DRIFT and result.prompt_tokens is not None:
            self._chat_tokens = result.prompt_tokens
            metrics.prompt_tokens.set(result.prompt_tokens)
        if not kind.conclusive:
            return
        now = time.time()
        if kind is Kind.PASS:
            self.last_success = now
            metrics.last_success.set(now)
            # Falls slowly: one quick answer does not make the next slow one a failure.
            self.slowest = max(result.seconds, 0.9 * self.slowest)
        if result.cache is Cache.HOST:
            self._last_host = time.monotonic()
        metrics.findings(result.judgement.failures, result.cache)
        metrics.conclusive(result.probe.value, result.seconds)
        if result.deviation is not None:
            if result.like_with_like and result.cache is Cache.DEVICE:
                self.noise.add(result.deviation)
                if self.noise.too_noisy:
                    self.evidence.forget_drift()
            metrics.drift(result.cache if result.like_with_like else Cache.COLD, result.deviation.nats)
        self.history.append(
            HistoryEntry(
                now,
                result.probe.value,
                peer,
                result.judgement.peer_outcome,
                result.cache,
                result.judgement.signatures,
                result.seconds,
                result.judgement.excerpt,
            )
        )

    def _know(self, result: ProbeResult, peer: str, peers: int) -> None:
        """Baseline of the optional probes."""
        if result.probe not in OPTIONAL or result.judgement.transport:
            return
        if result.judgement.kind is Kind.FAIL:
            if result.probe is ProbeName.DRIFT and result.cache is Cache.HOST:
                return  # what comes from the host's memory is what the probe is there to accuse
            self.baseline.failed(result.probe, result.prefix, result.prompt_tokens, peer, peers)
        elif result.probe is ProbeName.QUIET or result.judged_parity or _agrees(result):
            self.baseline.passed(result.probe)

    def _keep(self, plan: Plan, result: ProbeResult, peer: str, peers: int, rank: int, prompt_tokens: int) -> None:
        """Library of old prefixes."""
        now, passed = time.monotonic(), result.judgement.kind is Kind.PASS
        library = self.drifts if result.probe is ProbeName.DRIFT else self.chats
        # The second request of a fresh drift probe finds the entry that the first one made.
        entry = plan.entry or (library.get(result.prefix) if result.deviation is not None else None)
        if entry is None:
            if passed and result.probe in (ProbeName.ECHO, ProbeName.DRIFT):
                shared = self._shared_cache and result.probe is ProbeName.ECHO
                fresh = Entry(result.prefix, "" if shared else peer, rank, prompt_tokens, now, first=result.reading)
                library.add(fresh, peers)
        elif passed:
            if result.reading is not None and result.cache is Cache.DEVICE:
                entry.device = result.reading
            if plan.entry is not None:
                library.asked(entry, now)
        elif result.judgement.transport:
            entry.last = now
        else:
            # The same damage read again would be no new evidence.
            library.drop(entry)

    def _weigh(self, result: ProbeResult, peer: str) -> Item | None:
        """Evidence of corruption."""
        weight = weigh(result.judgement.failures)
        # An answer that could not have been found wrong is no trial.
        no_trial = result.probe is ProbeName.DRIFT and not result.like_with_like and weight is Weight.CLEAN
        if weight is None or no_trial or result.judgement.transport:
            return None
        if weight is not Weight.CLEAN and not self.baseline.counts(result.probe):
            return None
        drift = result.probe is ProbeName.DRIFT
        if drift and (self.noise.too_noisy or (result.cache is Cache.DEVICE and not self.noise.known)):
            return None  # noise looks the same, until it is known how much of it there is
        item = self.evidence.add(result.cache, weight, result.prefix, peer, time.monotonic(), drift=drift)
        ask_again = weight is Weight.AMBIGUOUS and result.cache in WARM
        return item if ask_again else None

    def judge(self, interval: float) -> Opinion:
        """Renew the verdict on corruption."""
        self.opinion = self.evidence.judge(time.monotonic(), interval)
        self.metrics.corruption(self.opinion.level, self.evidence.counts())
        self.metrics.drift_margin.set(self.noise.margin)
        for probe in ProbeName:
            self.metrics.usable(probe, not self.why_unusable(probe))
        return self.opinion

    def why_unusable(self, probe: ProbeName) -> str:
        """Why a probe says nothing here; empty when it does."""
        if probe is ProbeName.DRIFT and self.noise.too_noisy:
            return "equal requests differ by more than damage would"
        return self.baseline.why(probe)

    def wanted(self, probe: ProbeName) -> bool:
        """May the probe be asked now?"""
        return self.baseline.wanted(probe) and not (probe is ProbeName.DRIFT and self.noise.too_noisy)

    def blind(
        self, *, metrics_unreadable: bool, hicache: bool, alive_since: float | None, interval: float
    ) -> list[str]:
        """What the canary cannot see. ``alive_since``: monotonic seconds since when the engine serves."""
        found: list[str] = []
        if alive_since is not None:
            if self.why_unusable(ProbeName.DRIFT) and not self.cached_reported:
                found.append("probe")
            since = max(alive_since, self._last_host or alive_since)
            if hicache and time.monotonic() - since > HOST_SILENCE * interval:
                found.append("host")
            if metrics_unreadable:
                found.append("metrics")
            if self._chat_tokens is not None and self._chat_tokens <= TOP_K_REACH:
                found.append("length")
        self.metrics.blind(found)
        return found

    def probes_json(self) -> list[dict[str, object]]:
        """Usability of every kind, for ``/status``."""
        whys = {probe: self.why_unusable(probe) for probe in ProbeName}
        return [{"name": probe.value, "usable": not why, "why": why} for probe, why in whys.items()]

    def corruption_json(self) -> dict[str, object]:
        """Verdict on corruption, for ``/status``."""
        counts = self.evidence.counts()
        return {
            "verdict": self.opinion.level.value,
            "cache": self.opinion.cache.value if self.opinion.cache else None,
            "message": self.opinion.message,
            "window": {cache.value: {"probes": n, "failures": k} for cache, (n, k) in sorted(counts.items())},
        }


def _agrees(result: ProbeResult) -> bool:
    """A drift that was compared, and with little deviation even if it was computed otherwise."""
    return result.deviation is not None and not result.deviation.beyond(CEILING)


def proves(result: ProbeResult) -> bool:
    """A tool call as echo asks it: its pass or failure says whether the pair works."""
    return result.probe in (ProbeName.ECHO, ProbeName.REPEAT, ProbeName.TWIN, ProbeName.PARITY)


def tokens(results: Sequence[ProbeResult], estimate: int) -> float:
    """What a turn has cost; an unanswered request counts as estimated."""
    return float(sum(result.tokens or estimate for result in results))
