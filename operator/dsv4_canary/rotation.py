"""Whom to probe next, with which prefix, and when. Pure; randomness is injected.

Peers rotate: never tried first, then the one tried longest ago; among equals a per-pod random order, so that
many pods that start together do not all choose the same peer. With each peer the prefix alternates between
new and repeated, so that both a cold and a cached prefill are covered; with the mode, that gives a cycle of
four.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from dsv4_canary.model import Mode

STARTUP_RETRY = 1.0
"""Seconds between attempts until the first verdict, and while the engine or every peer is loading."""
MIN_RETRY = 1.0
JITTER = 0.1


@dataclass(slots=True)
class _Track:
    tie: float
    last_try: float = float("-inf")
    probes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How to probe a chosen peer. ``seed`` decides the prompt's prefix."""

    mode: Mode
    seed: str


class Rotation:
    """Order of peers and of probe variants. ``run`` makes this sidecar's prefixes unlike any other's."""

    def __init__(self, run: str, rng: random.Random | None = None) -> None:
        self._run = run
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tracks: dict[str, _Track] = {}

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

    def plan(self, peer: str, wanted: Mode | None) -> Plan:
        """Variant of the next probe with this peer. ``wanted`` overrides the mode, not the prefix.

        Cycle: new prefix whole, repeated streamed, new streamed, repeated whole.
        """
        track = self._tracks.setdefault(peer, _Track(self._rng.random()))
        step = track.probes
        track.probes += 1
        mode = Mode.STREAMED if step % 4 in (1, 2) else Mode.FUNCTIONAL
        return Plan(wanted or mode, f"{self._run}/{peer}/{step // 2}")

    def fresh_prefix(self, peer: str) -> None:
        """Make the next probe with this peer start cold after a failure: one bad prefix is not asked twice."""
        track = self._tracks.get(peer)
        if track is not None:
            track.probes += track.probes % 2

    def first_delay(self) -> float:
        """Seconds to wait before the very first attempt."""
        return self._rng.uniform(0.0, STARTUP_RETRY)

    def delay(self, *, ready: bool, became_ready: bool, failing: bool, conclusive: bool, interval: float) -> float:
        """Seconds until the next attempt.

        ``conclusive``: the last attempt passed or failed. ``failing``: the last conclusive probe failed.
        """
        if became_ready:
            # Pods of one rollout become ready together: spread their steady beat over the interval.
            return self._rng.uniform(0.3, 1.0) * interval
        if ready and not failing:
            # An absent peer is looked for sooner, so that its return is noticed.
            return self._spread(interval if conclusive else max(MIN_RETRY, interval / 3))
        if failing:
            return self._spread(max(MIN_RETRY, interval / 3))
        if conclusive:
            return 0.0  # one mode has passed, the other is due at once
        return self._spread(STARTUP_RETRY)

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)
