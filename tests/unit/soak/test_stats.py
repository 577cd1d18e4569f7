"""Statistics: textbook values, and laws that hold for all counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.soak.stats import (
    Alternative,
    effect,
    fisher_exact,
    quantile,
    sessions_needed,
    smallest_visible,
    wilson,
)

TRIALS = st.integers(0, 60)


@st.composite
def arm(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(TRIALS)
    return draw(st.integers(0, trials)), trials


def test_textbook_values() -> None:
    # Wilson: Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29.
    for events, trials, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        rate = wilson(events, trials)
        assert (rate.low, rate.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    # Fisher: the lady tasting tea, and her neighbour table.
    assert fisher_exact(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert fisher_exact(3, 4, 1, 4, Alternative.GREATER) == pytest.approx(17 / 70)
    assert fisher_exact(4, 4, 0, 4) == pytest.approx(2 / 70)
    # Newcombe's method 10, example (a) of his 1998 paper: 56/70 - 48/80.
    found = effect(wilson(48, 80), wilson(56, 70))
    assert found is not None
    assert (found.difference, found.low, found.high) == (
        pytest.approx(0.2),
        pytest.approx(0.0524, abs=5e-5),
        pytest.approx(0.3339, abs=5e-5),
    )


def test_sessions_needed() -> None:
    assert sessions_needed(0.01) == 299
    assert sessions_needed(0.02) == 149
    assert sessions_needed(0.5, 0.5) == 1
    assert sessions_needed(1.0) == 1
    # What 80 clean sessions exclude is little more than 3/80 (the rule of three).
    assert smallest_visible(80) == pytest.approx(0.0368, abs=5e-5)
    assert smallest_visible(0) == 1.0


@given(share=st.floats(1e-6, 1.0), confidence=st.floats(0.01, 0.999))
def test_sessions_needed_is_the_smallest(share: float, confidence: float) -> None:
    n = sessions_needed(share, confidence)
    assert n >= 1
    if share < 1:
        assert -math.expm1(n * math.log1p(-share)) >= confidence
        assert n == 1 or -math.expm1((n - 1) * math.log1p(-share)) < confidence


@given(arm())
def test_wilson_holds_the_observed_share(counts: tuple[int, int]) -> None:
    rate = wilson(*counts)
    assert 0 <= rate.low <= rate.high <= 1
    if rate.share is None:
        assert (rate.low, rate.high) == (0, 1)
    else:
        assert rate.low <= rate.share <= rate.high
        mirrored = wilson(counts[1] - counts[0], counts[1])
        assert mirrored.low == pytest.approx(1 - rate.high)


@given(arm(), arm())
def test_fisher_laws(a: tuple[int, int], b: tuple[int, int]) -> None:
    p = fisher_exact(*a, *b)
    assert 0 < p <= 1
    assert p == fisher_exact(*b, *a)
    assert p == fisher_exact(a[1] - a[0], a[1], b[1] - b[0], b[1])
    greater, less = fisher_exact(*a, *b, Alternative.GREATER), fisher_exact(*a, *b, Alternative.LESS)
    assert greater + less >= 1  # the observed table is in both
    assert greater == fisher_exact(*b, *a, Alternative.LESS)


@given(arm(), arm())
def test_effect_laws(a: tuple[int, int], b: tuple[int, int]) -> None:
    found = effect(wilson(*a), wilson(*b))
    if found is None:
        assert not (a[1] and b[1])
        return
    assert -1 <= found.low <= found.difference <= found.high <= 1
    back = effect(wilson(*b), wilson(*a))
    assert back is not None
    assert back.low == pytest.approx(-found.high)
    assert back.odds_ratio == pytest.approx(1 / found.odds_ratio)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_quantile_lies_within(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found is not None
    assert min(values) <= found <= max(values)
    assert quantile([], q) is None
    assert quantile([1, 2, 3, 4], 0.5) == 2.5


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: wilson(5, 4), "events"),
        (lambda: wilson(-1, 4), "events"),
        (lambda: wilson(1, 4, 1.0), "confidence"),
        (lambda: fisher_exact(1, 2, 3, 2), "events"),
        (lambda: sessions_needed(0.0), "share"),
        (lambda: quantile([1.0], 2), "q"),
    ],
)
def test_bad_counts_are_refused(call, named: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=named):
        call()


def test_large_tables_stay_exact_and_quick() -> None:
    p = fisher_exact(40, 4000, 90, 4000)
    assert 0 < p < 1e-4
