"""Drift: the same token ids asked again, output logprobs compared. Pure.

Works with every model and without a tokenizer. Damaged keys or values move logprobs long before any text breaks: on a
real SGLang 0.5.17 pair a race moved them by 0.63 to 1.18 nats with 4 to 8 of the top 20 tokens in common, where batch
composition and non-deterministic kernels moved them by up to 0.28 with 17 or more in common.
"""

from __future__ import annotations

import json
import math
import random
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUTPUT_TOKENS = 4
TOP = 20
LOWEST_ID, HIGHEST_ID = 1_000, 30_000
"""Ids that every vocabulary of the family has and that are no special tokens."""

FLOOR = 0.35
"""Least margin in nats: above all noise that was seen on a real engine (0.28)."""
CEILING = 0.7
"""Greatest margin in nats. Damage down to 0.63 was seen, with 8 of the top 20 in common: what is below the margin shows
by few tokens in common. Holds until enough noise was seen."""
_FACTOR = 1.5
"""Margin over the greatest noise seen."""
_ENOUGH = 5
"""Noise samples until the learnt margin holds."""
_KEPT = 50
_FEW_IN_COMMON = 10
"""Fewer of the top 20 in common than this is drift whatever the deviation; noise leaves 17 or more."""
_NOISY, _NOISY_SAMPLES = 0.25, 12
"""Share of noise samples above the ceiling, of at least so many, from which an engine is too noisy for this probe."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Output of one request: token ids, and per token the top logprobs by token id, in nats."""

    ids: tuple[int, ...]
    tops: tuple[Mapping[int, float], ...]
    cached: int | None = field(default=None, compare=False)
    """Prompt tokens that came from a cache. The rest was computed, in a shape that follows from how many they are."""

    def same_shape(self, cached: int | None) -> bool:
        """Would an answer with so many cached prompt tokens have been computed as this one was?

        Only such answers are equal on a sound engine: other chunks and shapes round otherwise, by 1.1 nats in a case
        that was seen.
        """
        return bool(cached) and self.cached == cached


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far two readings of one prompt are apart."""

    nats: float
    """Greatest difference of a logprob over the compared tokens."""
    common: int
    """Top tokens in common, at the compared token where that is the least share."""
    top: int
    """Top tokens that were listed there."""

    def beyond(self, margin: float) -> bool:
        """More than noise explains."""
        few = self.top * _FEW_IN_COMMON / TOP
        return self.nats > margin or self.common < few


def drift_ids(seed: str, count: int) -> list[int]:
    """Pseudo-random token ids; the same seed and count always give the same ids."""
    rng = random.Random(f"dsv4-canary-drift/{seed}")  # noqa: S311 - must be reproducible
    return [rng.randrange(LOWEST_ID, HIGHEST_ID + 1) for _ in range(count)]


def drift_body(seed: str, count: int) -> dict[str, Any]:
    """Body for ``/generate``, without the bootstrap fields."""
    return {
        "input_ids": drift_ids(seed, count),
        "sampling_params": {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS},
        "return_logprob": True,
        "top_logprobs_num": TOP,
        # Output tokens only: logprobs of the prompt would keep the engine from using its cache.
        "logprob_start_len": -1,
        "rid": f"dsv4-canary-{secrets.token_hex(8)}",
    }


def read_output(data: bytes, cached: int | None = None) -> Reading | None:
    """Read the answer of ``/generate``; None when it carries no usable logprobs. ``cached``: cached prompt tokens."""
    try:
        body = json.loads(data)
        meta = body["meta_info"]
        ids = tuple(int(item) for item in body["output_ids"])
        tops = tuple(_top(row) for row in meta["output_top_logprobs"])
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return None
    count = min(len(ids), len(tops))
    if not any(tops[:count]):
        return None
    return Reading(ids[:count], tops[:count], cached)


def _top(row: Any) -> dict[int, float]:
    found = {int(token): float(logprob) for logprob, token, *_ in row or ()}
    if not all(math.isfinite(value) for value in found.values()):
        raise ValueError("logprob is not finite")
    return found


def usage_of(data: bytes) -> tuple[int | None, int | None]:
    """(prompt tokens, completion tokens) of an answer of ``/generate``."""
    try:
        meta = json.loads(data)["meta_info"]
        return int(meta["prompt_tokens"]), int(meta["completion_tokens"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None, None


def finish_type(data: bytes) -> str | None:
    """Finish reason of an answer of ``/generate``, such as ``stop``, ``length`` or ``abort``."""
    try:
        kind = json.loads(data)["meta_info"]["finish_reason"]["type"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return kind if isinstance(kind, str) else None


def compare(first: Reading, second: Reading) -> Deviation:
    """Compare two readings of one prompt, up to and with the first token in which they differ: what follows it
    answers different texts."""
    nats, common, top = 0.0, 1, 1
    for step in range(min(len(first.ids), len(second.ids))):
        a, b = first.tops[step], second.tops[step]
        if a and b:
            nats = max(nats, _difference(a, b))
            shared, listed = len(a.keys() & b.keys()), min(len(a), len(b))
            if shared * top <= common * listed:
                common, top = shared, listed
        if first.ids[step] != second.ids[step]:
            break
    return Deviation(nats, common, top)


def _difference(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Greatest difference. A token that only one side lists is at most as probable on the other as the least there."""
    greatest = max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=0.0)
    for mine, theirs in ((a, b), (b, a)):
        least = min(theirs.values())
        greatest = max(greatest, *(value - least for token, value in mine.items() if token not in theirs), 0.0)
    return greatest


@dataclass(slots=True)
class Noise:
    """Margin learnt from repeats out of the device's cache against each other, where nothing is reloaded.

    Deterministic engines show 0 and get the floor; noisy ones get half as much again as the greatest noise, at most
    the ceiling.
    """

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, deviation: Deviation) -> None:
        """Take the deviation of one such repeat."""
        self.seen.append(deviation.nats)

    @property
    def margin(self) -> float:
        """Deviation in nats beyond which a repeat counts as damaged."""
        if len(self.seen) < _ENOUGH:
            return CEILING
        return min(CEILING, max(FLOOR, _FACTOR * max(self.seen)))

    @property
    def known(self) -> bool:
        """Enough was seen to tell an engine that is too noisy from one that is damaged."""
        return len(self.seen) >= _NOISY_SAMPLES

    @property
    def too_noisy(self) -> bool:
        """Equal requests differ by more than damage would: the probe says nothing on this engine."""
        loud = sum(1 for nats in self.seen if nats > CEILING)
        return self.known and loud >= _NOISY * len(self.seen)
