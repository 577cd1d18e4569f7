"""Comparing answers of a model without a tokenizer: by bits where requests run alone, by a margin where they do not."""

from __future__ import annotations

import random
from typing import Any

MARGIN = 0.5
"""Logprob difference above which answers differ for real. Batch composition alone moved them by up to 0.28, damage by
0.69 and more."""
COMMON = 12
"""Of the top 20 tokens, how many equal answers share at least; 17 and more were seen for equal, 4 or 5 for damaged."""


def tokens(seed: int, count: int) -> list[int]:
    """`count` random token ids."""
    source = random.Random(seed)
    return [source.randrange(3, 32768) for _ in range(count)]


def top(answer: dict[str, Any], position: int) -> dict[int, float]:
    """token -> logprob of the top tokens at an output position."""
    rows = answer["meta_info"].get("output_top_logprobs") or []
    return {row[1]: row[0] for row in rows[position]} if position < len(rows) and rows[position] else {}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether tokens and all top logprobs are equal to the bit."""
    rows = [
        [[(row[0], row[1]) for row in position] for position in answer["meta_info"]["output_top_logprobs"] if position]
        for answer in (one, other)
    ]
    return one["output_ids"] == other["output_ids"] and rows[0] == rows[1]


def distance(one: dict[str, Any], other: dict[str, Any], position: int) -> tuple[float | None, int]:
    """(largest logprob difference over common top tokens, how many are common) at an output position."""
    a, b = top(one, position), top(other, position)
    common = [abs(a[token] - b[token]) for token in a if token in b]
    return (round(max(common), 3) if common else None, len(common))


def damaged(reference: dict[str, Any], answer: dict[str, Any], first: int = 0) -> bool:
    """Whether an answer differs by more than the company that its request kept, in two positions from `first` on.

    A position counts only while the tokens before it are equal.
    """
    equal = [reference["output_ids"][:count] == answer["output_ids"][:count] for count in (first, first + 1)]
    positions = [position for position, comparable in zip((first, first + 1), equal, strict=True) if comparable]
    return any(
        gap is None or gap > MARGIN or common < COMMON
        for gap, common in (distance(reference, answer, position) for position in positions)
    )
