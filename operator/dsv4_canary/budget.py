"""Token budget: how many tokens the probes of one pod may cost per minute. Pure; time is passed in.

A leaky bucket that holds what two minutes allow. What a probe costs is known only afterwards, so the bucket may go
below zero and the next probes wait until it has filled again.
"""

from __future__ import annotations

_MINUTES = 2.0


class Budget:
    """Tokens that may be spent."""

    def __init__(self, per_minute: float) -> None:
        self._rate = per_minute / 60.0
        self._level = per_minute * _MINUTES
        self._time: float | None = None

    def configure(self, per_minute: float) -> None:
        """Take a changed budget."""
        self._rate = per_minute / 60.0
        self._level = min(self._level, per_minute * _MINUTES)

    def spend(self, tokens: float, now: float) -> None:
        """A probe has cost so much. Debt is bounded by what a minute allows: the canary is never silent for long."""
        self._fill(now)
        self._level = max(self._level - tokens, -60.0 * self._rate)

    def wait(self, tokens: float, now: float) -> float:
        """Seconds until so many tokens may be spent; 0 when they may be now."""
        self._fill(now)
        # A probe that costs more than the bucket holds waits for a full one, not for ever.
        wanted = min(tokens, self._rate * 60.0 * _MINUTES)
        return max(0.0, (wanted - self._level) / self._rate)

    def _fill(self, now: float) -> None:
        if self._time is not None:
            self._level = min(self._rate * 60.0 * _MINUTES, self._level + (now - self._time) * self._rate)
        self._time = now
