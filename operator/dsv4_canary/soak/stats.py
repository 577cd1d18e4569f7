"""Statistics of counts: intervals, exact tests, sample sizes. Pure; standard library only.

All tests are on independent yes/no trials. Replies of one session are not independent of each other, so callers
count sessions, not replies, where they want a p-value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

CONFIDENCE = 0.95
"""Confidence of every interval in a report."""
ALPHA = 0.05
"""Two-sided p-value below which two arms are said to differ."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A proportion with its interval; all shares from 0 to 1. With no trials: share None, interval (0, 1)."""

    events: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        """Observed proportion."""
        return self.events / self.trials if self.trials else None

    def to_json(self) -> dict[str, object]:
        """Form of the report."""
        return {
            "events": self.events,
            "trials": self.trials,
            "share": self.share,
            "low": self.low,
            "high": self.high,
        }


def _check_counts(events: int, trials: int) -> None:
    if trials < 0 or not 0 <= events <= trials:
        raise ValueError(f"events = {events}, trials = {trials}: need 0 <= events <= trials")


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must be between 0 and 1, both excluded")


def wilson(events: int, trials: int, confidence: float = CONFIDENCE) -> Rate:
    """Wilson score interval without continuity correction (E. B. Wilson 1927). Raises ValueError on bad counts."""
    _check_counts(events, trials)
    _check_confidence(confidence)
    if trials == 0:
        return Rate(0, 0, 0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = events / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # At the ends the bound is exact; rounding must not push it past the observed share.
    low = 0.0 if events == 0 else max(0.0, centre - half)
    high = 1.0 if events == trials else min(1.0, centre + half)
    return Rate(events, trials, low, high)


class Alternative(StrEnum):
    """What the test is against the hypothesis that both rows have the same rate."""

    TWO_SIDED = "two-sided"
    GREATER = "greater"
    """The first row has the higher rate."""
    LESS = "less"


def fisher_exact(
    events_a: int, trials_a: int, events_b: int, trials_b: int, alternative: Alternative = Alternative.TWO_SIDED
) -> float:
    """P-value of Fisher's exact test on two proportions. Raises ValueError on bad counts.

    Two-sided is the sum over all tables at most as probable as the observed one. Probabilities are compared as
    integers, so ties are ties and no rounding enters before the last division.
    """
    _check_counts(events_a, trials_a)
    _check_counts(events_b, trials_b)
    total = events_a + events_b
    lowest, highest = max(0, total - trials_b), min(trials_a, total)
    weight = math.comb(trials_a, lowest) * math.comb(trials_b, total - lowest)
    weights = [weight]
    for k in range(lowest, highest):
        # C(a, k+1) C(b, t-k-1) from C(a, k) C(b, t-k): the quotient is whole.
        weight = weight * (trials_a - k) * (total - k) // ((k + 1) * (trials_b - total + k + 1))
        weights.append(weight)
    observed = events_a - lowest
    if alternative is Alternative.GREATER:
        chosen = sum(weights[observed:])
    elif alternative is Alternative.LESS:
        chosen = sum(weights[: observed + 1])
    else:
        chosen = sum(weight for weight in weights if weight <= weights[observed])
    return chosen / sum(weights)


@dataclass(frozen=True, slots=True)
class Effect:
    """How far apart two proportions are: B minus A, as shares."""

    difference: float
    low: float
    high: float
    odds_ratio: float
    """Odds of B over odds of A, with half an event added to every cell so that empty cells stay finite."""

    def to_json(self) -> dict[str, object]:
        """Form of the comparison."""
        return {"difference": self.difference, "low": self.low, "high": self.high, "oddsRatio": self.odds_ratio}


def effect(a: Rate, b: Rate) -> Effect | None:
    """Difference with Newcombe's hybrid score interval (R. G. Newcombe 1998, method 10); None without trials.

    The confidence is that of the two rates.
    """
    if a.share is None or b.share is None:
        return None
    difference = b.share - a.share
    low = difference - math.hypot(b.share - b.low, a.high - a.share)
    high = difference + math.hypot(b.high - b.share, a.share - a.low)
    odds_b = (b.events + 0.5) / (b.trials - b.events + 0.5)
    odds_a = (a.events + 0.5) / (a.trials - a.events + 0.5)
    return Effect(difference, max(-1.0, low), min(1.0, high), odds_b / odds_a)


def sessions_needed(share: float, confidence: float = CONFIDENCE) -> int:
    """Sessions that must run so that damage of that share shows at least once with that probability.

    Smallest n with 1 - (1 - share)^n >= confidence. Raises ValueError unless 0 < share <= 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share = {share}: must be above 0 and at most 1")
    _check_confidence(confidence)
    if share == 1:
        return 1
    n = max(1, math.ceil(math.log1p(-confidence) / math.log1p(-share)))
    # The logarithms may be off by one in the last place.
    while n > 1 and _shows(share, n - 1) >= confidence:
        n -= 1
    while _shows(share, n) < confidence:
        n += 1
    return n


def _shows(share: float, n: int) -> float:
    return -math.expm1(n * math.log1p(-share))


def smallest_visible(trials: int, confidence: float = CONFIDENCE) -> float:
    """Share that would have shown at least once in that many trials with that probability; 1 without trials."""
    _check_confidence(confidence)
    if trials <= 0:
        return 1.0
    return -math.expm1(math.log1p(-confidence) / trials)


def quantile(values: Sequence[float], q: float) -> float | None:
    """Quantile by linear interpolation (the usual default, type 7); None of nothing. ``q`` from 0 to 1."""
    if not 0 <= q <= 1:
        raise ValueError(f"q = {q}: must be from 0 to 1")
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    # Clamped: interpolation between close neighbours can round past them.
    return min(high, max(low, low + (high - low) * (place - below)))
