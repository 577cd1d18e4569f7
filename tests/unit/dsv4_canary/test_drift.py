"""Drift: reading logprobs, comparing them, learning how much noise there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.drift import (
    CEILING,
    FLOOR,
    Deviation,
    Noise,
    Reading,
    compare,
    drift_body,
    drift_ids,
    finish_type,
    read_output,
    usage_of,
)

TOPS = st.dictionaries(st.integers(1000, 1100), st.floats(-20, 0), min_size=1, max_size=20)
READINGS = st.lists(st.tuples(st.integers(1000, 1100), TOPS), min_size=1, max_size=4).map(
    lambda rows: Reading(tuple(token for token, _ in rows), tuple(top for _, top in rows))
)


def reading(*rows: dict[int, float]) -> Reading:
    """Greedy: the output token is the first of its row."""
    return Reading(tuple(max(row, key=lambda token: row[token]) for row in rows), rows)


def top(first: int = 0, shift: float = 0.0) -> dict[int, float]:
    return {first + token: -0.5 * token + shift for token in range(20)}


def answer(**changes: Any) -> bytes:
    meta = {
        "output_top_logprobs": [[[-0.1, 7, None], [-2.0, 8, None]], [[-0.2, 9, None]]],
        "prompt_tokens": 2600,
        "completion_tokens": 2,
        "finish_reason": {"type": "length"},
    }
    return json.dumps({"output_ids": [7, 9], "meta_info": meta | changes}).encode()


def test_ids_are_reproducible_and_plain_tokens() -> None:
    ids = drift_ids("a", 2600)
    assert ids == drift_ids("a", 2600) != drift_ids("b", 2600)
    assert all(1000 <= token <= 30000 for token in ids)
    body = drift_body("a", 2600)
    assert (len(body["input_ids"]), body["return_logprob"], body["top_logprobs_num"]) == (2600, True, 20)
    assert body["sampling_params"] == {"temperature": 0, "max_new_tokens": 4}


def test_reading_an_answer() -> None:
    assert read_output(answer()) == Reading((7, 9), ({7: -0.1, 8: -2.0}, {9: -0.2}))
    assert usage_of(answer()) == (2600, 2)
    assert finish_type(answer()) == "length"
    # The first token is prefill's and may come without its alternatives.
    assert read_output(answer(output_top_logprobs=[None, [[-0.2, 9, None]]])) == Reading((7, 9), ({}, {9: -0.2}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"output_ids": [1], "meta_info": {}}',
        answer(output_top_logprobs=None),
        answer(output_top_logprobs=[]),
        answer(output_top_logprobs=[None, None]),
        answer(output_top_logprobs=[[["x", 1, None]]]),
        answer(output_top_logprobs=[[[float("nan"), 1, None]]]),
    ],
)
def test_an_answer_without_usable_logprobs(data: bytes) -> None:
    assert read_output(data) is None


@given(st.binary(max_size=200))
def test_random_bytes_are_no_answer(data: bytes) -> None:
    assert read_output(data) is None
    assert finish_type(data) is None
    assert usage_of(data) == (None, None)


@given(READINGS)
def test_equal_readings_do_not_deviate(one: Reading) -> None:
    found = compare(one, one)
    assert found.nats == 0
    assert not found.beyond(FLOOR)


@given(READINGS, READINGS)
def test_comparison_is_symmetric(one: Reading, other: Reading) -> None:
    assert compare(one, other) == compare(other, one)


def test_noise_and_damage_as_seen_on_a_real_engine() -> None:
    one = reading(top())
    noise = reading({token: value + 0.28 * (-1) ** token for token, value in top().items()})
    assert compare(one, noise).nats == pytest.approx(0.28)
    assert not compare(one, noise).beyond(FLOOR)
    damage = reading(top(shift=0.8))
    assert compare(one, damage).beyond(CEILING)
    others = reading(top(first=15))
    found = compare(one, others)
    assert (found.common, found.top) == (5, 20)
    assert found.beyond(CEILING)


def test_a_token_that_one_side_does_not_list_is_at_most_as_probable_as_the_least_there() -> None:
    listed = reading(top())
    without_the_first = reading({token: value for token, value in top().items() if token})
    assert compare(listed, without_the_first).nats == pytest.approx(9.5)
    without_the_last = reading({token: value for token, value in top().items() if token < 19})
    assert compare(listed, without_the_last).nats == 0


def test_few_in_common_is_drift_at_any_margin() -> None:
    assert Deviation(0.0, 9, 20).beyond(CEILING)
    assert not Deviation(0.0, 10, 20).beyond(CEILING)
    assert not Deviation(0.0, 2, 3).beyond(CEILING), "an engine that gives three tokens only"


def test_only_as_many_cached_tokens_make_the_same_shape() -> None:
    assert read_output(answer(), 2560) == read_output(answer())
    device = read_output(answer(), 2560)
    assert device is not None
    assert [device.same_shape(cached) for cached in (2560, 2048, 0, None)] == [True, False, False, False]
    cold = read_output(answer(), 0)
    assert cold is not None
    assert not cold.same_shape(0)


def test_nothing_is_compared_behind_the_first_difference() -> None:
    first = Reading((1, 2), ({1: -0.70, 2: -0.71}, {5: -0.1}))
    second = Reading((2, 9), ({1: -0.71, 2: -0.70}, {6: -9.0}))
    assert compare(first, second).nats == pytest.approx(0.01)


def test_margin_is_learnt_between_floor_and_ceiling() -> None:
    noise = Noise()
    assert noise.margin == CEILING
    for _ in range(5):
        noise.add(Deviation(0.0, 20, 20))
    assert noise.margin == FLOOR
    noise.add(Deviation(0.3, 20, 20))
    assert noise.margin == pytest.approx(0.45)
    noise.add(Deviation(5.0, 20, 20))
    assert noise.margin == CEILING
    assert not noise.too_noisy


def test_an_engine_whose_equal_requests_differ_too_much_is_too_noisy() -> None:
    noise = Noise()
    for number in range(12):
        assert not noise.too_noisy
        noise.add(Deviation(0.9 if number % 3 == 0 else 0.1, 20, 20))
    assert noise.too_noisy
