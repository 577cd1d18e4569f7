"""The statistics against scipy's, on 1,000 random tables. scipy is needed by tests only; without it this fails."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import fisher_exact as scipy_fisher

from dsv4_canary.soak.stats import Alternative, fisher_exact, quantile, wilson


def tables(count: int) -> list[tuple[int, int, int, int]]:
    rng = random.Random(20260512)
    found = []
    for _ in range(count):
        # Small, large and lopsided tables alike; rates from none to all.
        trials_a, trials_b = (rng.randrange(1, rng.choice((6, 40, 400))) for _ in range(2))
        shape = rng.choice((0.0, 0.02, 0.2, 0.5, 1.0))
        events = (sum(rng.random() < shape * rng.random() for _ in range(trials)) for trials in (trials_a, trials_b))
        events_a, events_b = events
        found.append((events_a, trials_a, events_b, trials_b))
    return found


def test_fisher_on_1000_tables() -> None:
    for events_a, trials_a, events_b, trials_b in tables(1000):
        table = [[events_a, trials_a - events_a], [events_b, trials_b - events_b]]
        for alternative in Alternative:
            mine = fisher_exact(events_a, trials_a, events_b, trials_b, alternative)
            theirs = float(scipy_fisher(table, alternative=alternative.value).pvalue)
            assert mine == pytest.approx(theirs, rel=1e-8, abs=1e-15), (table, alternative)


def test_wilson_on_1000_tables() -> None:
    for events, trials, _, _ in tables(1000):
        for confidence in (0.9, 0.95, 0.999):
            mine = wilson(events, trials, confidence)
            theirs = binomtest(events, trials).proportion_ci(confidence, method="wilson")
            assert (mine.low, mine.high) == (
                pytest.approx(float(theirs.low), abs=1e-9),
                pytest.approx(float(theirs.high), abs=1e-9),
            )


def test_quantile() -> None:
    rng = random.Random(5)
    for _ in range(200):
        values = [rng.random() * 10 for _ in range(rng.randrange(1, 40))]
        for q in (0.0, 0.5, 0.95, rng.random(), 1.0):
            assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)))
