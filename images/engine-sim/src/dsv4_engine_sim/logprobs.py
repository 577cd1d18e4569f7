"""Output distributions: a deterministic function of the tokens that were read, step by step.

Every step has `CANDIDATES` candidate tokens. Which ones they are follows from the last tokens of the prompt and the
output so far (a model's next words hang on what stands close by); how probable they are follows from a digest of
everything that was read. So bytes that are lost or stale move the whole list clearly while the text may still be right,
and the same bytes give the same bits. What was read is what index-K led to, since the digest is made from it.

A prompt of plain token numbers has no words to answer with: the most probable candidate is taken, as greedy decoding
does. Otherwise the model's word is the most probable one.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

CANDIDATES = 128
"""As many as a pair can hand over per token (upstream ``MetadataBuffers``, ``max_top_logprobs_num``)."""
VOCABULARY = range(1000, 30000)
"""Token ids of the candidates."""
_NEAR = 16
"""Tokens at the end of the prompt from which the candidates follow."""
_SPREAD = 3.0
"""Other candidates' logits lie between plus and minus this."""
_BEST, _BEST_SPREAD = 5.0, 2.0
"""The first candidate's logit, and how far it moves with what was read: usually the greatest, not always."""


@dataclass(frozen=True, slots=True)
class Step:
    """One output token: its log-probability in nats, and all candidates, most probable first."""

    token: int
    logprob: float
    top: tuple[tuple[float, int], ...]


def _pack(ids: Sequence[int]) -> bytes:
    return struct.pack(f">{len(ids)}Q", *ids)


def _units(seed: bytes, count: int) -> list[float]:
    """`count` numbers between -1 and 1 that follow from `seed`."""
    raw = hashlib.shake_128(seed).digest(4 * count)
    return [2.0 * value / 0xFFFFFFFF - 1.0 for value in struct.unpack(f">{count}I", raw)]


def _single(value: float) -> float:
    """As a 32-bit float, like upstream's tensors."""
    rounded: float = struct.unpack(">f", struct.pack(">f", value))[0]
    return rounded


class Distribution:
    """The steps of one reply to the prompt `read`.

    `noise` is the greatest difference in nats between two equal requests; where in that range a request lies follows
    from `salt` (its room), as the make-up of a batch decides it in a real engine.
    """

    def __init__(self, read: Sequence[int], *, noise: float = 0.0, salt: int = 0) -> None:
        self._digest = hashlib.blake2b(_pack(read), digest_size=16).digest()
        self._context = hashlib.blake2b(_pack(read[-_NEAR:]), digest_size=16)
        self._noise = noise / 2
        self._salt = salt.to_bytes(16, "big", signed=True)

    def step(self, token: int | None = None) -> Step:
        """The next step, and the reply grows by its token: `token`, or the most probable candidate when None."""
        context = self._context.digest()
        ids = _candidates(context)
        moved = _units(self._digest + context, CANDIDATES)
        logits = [_BEST + _BEST_SPREAD * moved[0], *(_SPREAD * unit for unit in moved[1:])]
        if self._noise:
            jitter = _units(self._salt + context, CANDIDATES)
            logits = [logit + self._noise * unit for logit, unit in zip(logits, jitter, strict=True)]
        if token is not None:
            if token in ids:
                ids[ids.index(token)] = ids[0]
            ids[0] = token
            logits[0] = max(logits[0], max(logits[1:]) + 0.1)
        total = math.log(sum(map(math.exp, logits)))
        ranked = sorted(
            ((_single(logit - total), number) for logit, number in zip(logits, ids, strict=True)),
            key=lambda pair: (-pair[0], pair[1]),
        )
        best = ranked[0]
        self.follow(best[1])
        return Step(best[1], best[0], tuple(ranked))

    def follow(self, token: int) -> None:
        """The reply grows by a token that was chosen elsewhere."""
        self._context.update(_pack([token]))


def _candidates(context: bytes) -> list[int]:
    """Different token ids that follow from what stands before them."""
    found: dict[int, None] = {}
    block = 0
    while len(found) < CANDIDATES:
        raw = hashlib.shake_128(context + bytes([block])).digest(4 * CANDIDATES)
        for value in struct.unpack(f">{CANDIDATES}I", raw):
            found.setdefault(VOCABULARY.start + value % len(VOCABULARY))
        block += 1
    return list(found)[:CANDIDATES]
