"""Evidence of corruption: what makes a verdict, what does not, and whose fault it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dsv4_canary.evidence import CLEAN_CONFIRM, Evidence, Level, Weight, weigh
from dsv4_canary.model import Cache, Role, Severity
from dsv4_canary.signatures import CATALOGUE

COLD, DEVICE, HOST = Cache.COLD, Cache.DEVICE, Cache.HOST
CLEAN, ODD, CORRUPT, AMBIGUOUS = Weight.CLEAN, Weight.ODD, Weight.CORRUPT, Weight.AMBIGUOUS
INTERVAL = 30.0


class Window:
    """Evidence with a running clock and names for prefixes."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.step = 0

    @property
    def now(self) -> float:
        return self.step * INTERVAL

    def add(self, cache: Cache, weight: Weight, count: int = 1, *, prefix: str = "", peer: str = "p") -> Level:
        for _ in range(count):
            self.step += 1
            self.evidence.add(cache, weight, prefix or str(self.step), peer, self.now)
        return self.level

    @property
    def level(self) -> Level:
        return self.evidence.judge(self.now, INTERVAL).level


def severities(*names: str) -> dict[str, Severity]:
    return {name: CATALOGUE[name].severity if name in CATALOGUE else Severity.CORRUPTION for name in names}


@pytest.mark.parametrize(
    ("failures", "weight"),
    [
        ({}, CLEAN),
        (severities("S13"), CLEAN),
        (severities("S15"), CORRUPT),
        (severities("S1", "S26"), CORRUPT),
        (severities("drift"), CORRUPT),
        (severities("S5"), Weight.BURST),
        (severities("S1"), ODD),
        (severities("S32"), ODD),
        *((severities(name), AMBIGUOUS) for name in ("S9", "S10", "S21")),
        (severities("S9", "S24"), AMBIGUOUS),
        (severities("S30"), None),
        (severities("S30", "S15"), CORRUPT),
        ({"timeout": Severity.TRANSPORT}, None),
        ({"S11": Severity.BUDGET}, None),
    ],
)
def test_weight_of_findings(failures: dict[str, Severity], weight: Weight | None) -> None:
    assert weigh(failures) is weight


def test_one_odd_reply_is_never_a_verdict() -> None:
    for weight in Weight:
        for cache in (COLD, DEVICE, HOST):
            window = Window()
            window.add(COLD, CLEAN, 100)
            window.add(HOST, CLEAN, 3)
            assert window.add(cache, weight) is Level.NONE


def test_damage_behind_reloaded_prefixes_alone_is_suspected_then_confirmed() -> None:
    window = Window()
    window.add(COLD, CLEAN, 40)
    window.add(HOST, CLEAN, 2)
    assert window.add(HOST, CORRUPT) is Level.NONE
    assert window.add(HOST, CORRUPT) is Level.SUSPECTED
    assert window.add(HOST, CORRUPT) is Level.CONFIRMED
    opinion = window.evidence.judge(window.now, INTERVAL)
    assert (opinion.cache, opinion.message) == (
        HOST,
        "answers behind prefixes reloaded from host memory are damaged, those behind fresh ones are not",
    )
    assert window.evidence.counts() == {HOST: (5, 3), DEVICE: (0, 0), COLD: (40, 0)}


def test_one_prefix_read_again_and_again_is_one_piece_of_evidence() -> None:
    window = Window()
    window.add(COLD, CLEAN, 40)
    assert window.add(HOST, CORRUPT, 20, prefix="same") is Level.NONE


def test_a_model_that_errs_on_fresh_prefixes_too_is_no_corruption() -> None:
    rng = random.Random(7)
    window = Window()
    for _ in range(1500):
        cache = rng.choice((COLD, COLD, DEVICE, HOST))
        assert window.add(cache, CORRUPT if rng.random() < 0.3 else CLEAN) is not Level.CONFIRMED


def test_any_wrong_answer_counts_once_reloaded_prefixes_bring_more_of_them() -> None:
    window = Window()
    window.add(COLD, CLEAN, 30)
    assert window.add(HOST, ODD, 2) is Level.NONE
    assert window.evidence.counts()[HOST] == (2, 0)
    assert window.add(HOST, ODD) is Level.SUSPECTED
    assert window.add(HOST, ODD) is Level.CONFIRMED
    assert window.evidence.counts()[HOST] == (4, 4)


def test_markup_and_prose_on_all_tiers_alike_is_the_parser() -> None:
    window = Window()
    for _ in range(40):
        for cache in (COLD, DEVICE, HOST):
            assert window.add(cache, ODD) is Level.NONE
            assert window.add(cache, CLEAN) is Level.NONE


def test_garbled_tags_count_in_bursts() -> None:
    window = Window()
    window.add(COLD, CLEAN, 60)
    window.add(DEVICE, CLEAN, 2)
    assert window.add(DEVICE, Weight.BURST) is Level.NONE
    assert window.evidence.counts()[DEVICE] == (3, 0)
    assert window.add(DEVICE, Weight.BURST) is Level.SUSPECTED
    assert window.evidence.counts()[DEVICE] == (4, 2)


def test_a_missing_call_is_evidence_when_the_fresh_one_came() -> None:
    for cold_passed, count in ((True, 3), (False, 0)):
        window = Window()
        window.add(COLD, CLEAN, 60)
        for _ in range(3):
            item = window.evidence.add(HOST, AMBIGUOUS, f"x{window.step}", "p", window.now)
            assert item is not None
            window.evidence.resolve(item, cold_passed=cold_passed)
            window.step += 1
        classed = sum(item.weight is CORRUPT for item in window.evidence._tiers[HOST].items)
        assert classed == count


def test_damage_whatever_the_cache_needs_a_better_past() -> None:
    always = Window()
    assert always.add(COLD, CORRUPT, 60) is Level.NONE, "the model, not the pair"
    turned = Window()
    turned.add(COLD, CLEAN, 40)
    assert turned.add(COLD, CORRUPT, 2) is Level.NONE
    turned.add(COLD, CORRUPT, 6)
    assert turned.level is Level.CONFIRMED
    assert turned.evidence.judge(turned.now, INTERVAL).cache is COLD


def test_a_verdict_stays_until_a_clean_stretch_and_does_not_come_back_by_itself() -> None:
    window = Window()
    window.add(COLD, CLEAN, 40)
    window.add(HOST, CORRUPT, 5)
    assert window.add(HOST, CLEAN, CLEAN_CONFIRM - 1) is Level.CONFIRMED
    assert window.add(HOST, CORRUPT) is Level.CONFIRMED
    assert window.add(HOST, CLEAN, CLEAN_CONFIRM - 1) is Level.CONFIRMED
    assert window.add(HOST, CLEAN) is Level.NONE
    assert window.add(HOST, CORRUPT) is Level.NONE, "what was evidence before is none now"
    assert window.add(HOST, CORRUPT) is not Level.CONFIRMED


def test_old_evidence_leaves() -> None:
    window = Window()
    window.add(COLD, CLEAN, 40)
    assert window.add(HOST, CORRUPT, 4) is Level.CONFIRMED
    window.step += 1000
    assert window.level is Level.NONE
    assert window.evidence.counts() == {HOST: (0, 0), DEVICE: (0, 0), COLD: (0, 0)}


def test_unknown_tier_says_nothing() -> None:
    assert Evidence().add(Cache.UNKNOWN, CORRUPT, "x", "p", 0.0) is None


@pytest.mark.parametrize(
    ("role", "cache", "bad", "good", "testable", "own"),
    [
        (Role.PREFILL, HOST, ("a",), (), "a", True),
        (Role.PREFILL, HOST, ("a", "b"), (), "ab", True),
        (Role.PREFILL, HOST, ("a",), ("b",), "ab", False),
        (Role.DECODE, HOST, ("a",), (), "a", False),
        (Role.DECODE, HOST, ("a",), ("b",), "ab", False),
        (Role.DECODE, HOST, ("a", "b"), (), "ab", True),
        (Role.DECODE, DEVICE, ("a", "b"), ("c",), "abc", False),
        (Role.DECODE, COLD, ("a",), (), "a", True),
        (Role.DECODE, COLD, ("a",), ("b",), "ab", False),
        (Role.PREFILL, COLD, ("a", "b"), (), "ab", True),
    ],
)
def test_whose_fault(
    role: Role, cache: Cache, bad: tuple[str, ...], good: tuple[str, ...], testable: str, own: bool
) -> None:
    window = Window()
    for peer in bad:
        window.add(cache, CORRUPT, 4, peer=peer)
    for peer in good:
        window.add(cache, CLEAN, 12, peer=peer)
    assert window.evidence.own_fault(role, cache, list(testable)) is own


def test_what_went_through_a_replaced_peer_is_forgotten() -> None:
    window = Window()
    window.add(COLD, CLEAN, 40, peer="sound")
    window.add(HOST, CORRUPT, 4, peer="gone")
    window.evidence.keep_peers(["sound"])
    assert window.evidence.counts() == {HOST: (0, 0), DEVICE: (0, 0), COLD: (40, 0)}
    window.evidence.forget("sound")
    assert window.evidence.counts()[COLD] == (0, 0)
    for role in Role:
        assert not window.evidence.own_fault(role, HOST, ["new"]), "without evidence there is no culprit"


STEP = st.tuples(st.sampled_from((COLD, DEVICE, HOST)), st.sampled_from(Weight))


@given(st.lists(STEP, max_size=80))
@hypothesis_settings(max_examples=60)
def test_counts_add_up_and_no_verdict_without_enough_prefixes(steps: list[tuple[Cache, Weight]]) -> None:
    window = Window()
    for cache, weight in steps:
        level = window.add(cache, weight)
        counts = window.evidence.counts()
        assert all(0 <= failures <= probes for probes, failures in counts.values())
        if level is not Level.NONE:
            assert sum(weight is not CLEAN for _, weight in steps) >= 2


def test_two_thousand_healthy_probes_bring_no_verdict() -> None:
    window = Window()
    rng = random.Random(3)
    for _ in range(2000):
        assert window.add(rng.choice((COLD, DEVICE, HOST)), CLEAN) is Level.NONE
