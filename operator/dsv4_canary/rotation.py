"""Whom to probe next, through which data-parallel rank, and when. Pure; randomness is injected.

Peers rotate: never tried first, then the one tried longest ago; among equals a per-pod random order, so that
many pods that start together do not all choose the same peer.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

STARTUP_RETRY = 1.0
"""Seconds between attempts until the first verdict, and while the engine or every peer is loading, at first."""
STARTUP_RETRY_MOST = 5.0
"""The same after a while: a model can load for three quarters of an hour."""
MIN_RETRY = 1.0
JITTER = 0.1
_GROWTH = 1.2


@dataclass(slots=True)
class _Track:
    tie: float
    last_try: float = float("-inf")


class Rotation:
    """Order of peers and ranks, and the beat."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tracks: dict[str, _Track] = {}
        self._ranks: dict[str, int] = {}
        self._waited = 0

    def order(self, peers: Collection[str]) -> list[str]:
        """Peers in the order in which they are due; forgets those that are gone."""
        for gone in self._tracks.keys() - set(peers):
            del self._tracks[gone]
        for peer in peers:
            if peer not in self._tracks:
                self._tracks[peer] = _Track(self._rng.random())
        return sorted(peers, key=lambda peer: (self._tracks[peer].last_try, self._tracks[peer].tie))

    def tried(self, peer: str, now: float) -> None:
        """The peer was looked at, whether or not it could be probed."""
        if peer in self._tracks:
            self._tracks[peer].last_try = now

    def rank(self, prefill: str, ranks: int) -> int:
        """The prefill's data-parallel rank that is next, each in turn; ``ranks``: how many it has."""
        first = self._ranks.setdefault(prefill, self._rng.randrange(1024))
        self._ranks[prefill] = first + 1
        return first % max(1, ranks)

    def first_delay(self) -> float:
        """Seconds to wait before the very first attempt."""
        return self._rng.uniform(0.0, STARTUP_RETRY)

    def delay(
        self, *, ready: bool, became_ready: bool, hurried: bool, conclusive: bool, interval: float, proving: bool = True
    ) -> float:
        """Seconds until the next attempt.

        ``conclusive``: the last attempt passed or failed. ``hurried``: a failure is to be confirmed or refuted.
        ``proving``: a mode has yet to pass; without one a pod that is not Ready waits for something else than probes.
        """
        self._waited = 0 if conclusive or ready else self._waited + 1
        if became_ready:
            # Pods of one rollout become ready together: spread their steady beat over the interval.
            return self._rng.uniform(0.3, 1.0) * interval
        if ready and not hurried:
            # An absent peer is looked for sooner, so that its return is noticed.
            return self._spread(interval if conclusive else max(MIN_RETRY, interval / 3))
        if hurried or (conclusive and not proving):
            return self._spread(max(MIN_RETRY, interval / 3))
        if conclusive:
            return 0.0  # one mode has passed, the other is due at once
        return self._spread(min(STARTUP_RETRY_MOST, STARTUP_RETRY * _GROWTH**self._waited))

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)
