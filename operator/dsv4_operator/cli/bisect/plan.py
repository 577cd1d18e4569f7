"""The arms of a bisection, their order, and what they cost. Pure.

Every arm moves towards safety: the setting as given, then one factor at a time at its safe value. No two arms run at
the same time, so the GPUs of one unit suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dsv4_canary.soak.stats import ALPHA
from dsv4_operator.cli.bisect.factors import Factor, Setting, as_given, safer, safest, why_no_factor

GIVEN: Final = "given"
AGAIN: Final = "given-again"
ALL_SAFE: Final = "all-safe"


class Kind(StrEnum):
    """What an arm is for."""

    GIVEN = "given"
    SINGLE = "single"
    """One factor at its safe value."""
    ALL_SAFE = "all-safe"
    """All factors at their safe values: asked only when no single one cures."""
    ALONE = "alone"
    """All safe but one factor: asked only when all together cure."""
    AGAIN = "again"
    """As given once more, at the end: the fault must still be there."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One deployment to soak."""

    name: str
    kind: Kind
    setting: Setting
    factor: Factor | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a bisection. Minutes are estimates and matter for the GPU-hours alone."""

    sessions: int = 80
    """Of one batch."""
    batches: int = 3
    """Of one arm, at most."""
    gpus_pair: int = 2
    gpus_alone: int = 1
    startup_minutes: float = 20.0
    batch_minutes: float = 10.0
    max_gpu_hours: float | None = None
    stop_at_cure: bool = False
    recheck: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be run, in order."""

    given: Arm
    singles: tuple[Arm, ...]
    limits: Limits
    safe_image: str | None = None
    skipped: dict[Factor, str] = field(default_factory=dict)
    """Factors without an arm, and why."""

    @property
    def alpha(self) -> float:
        """Level of one look at one single-factor arm: 0.05 shared among all looks at all of them (Bonferroni)."""
        return ALPHA / max(1, len(self.singles) * self.limits.batches)

    @property
    def alpha_extra(self) -> float:
        """Level of one look at an arm that is a question of its own: all safe, one alone, given again."""
        return ALPHA / self.limits.batches

    @property
    def all_safe(self) -> Arm:
        """All factors of the plan at their safe values."""
        factors = [arm.factor for arm in self.singles if arm.factor is not None]
        return Arm(ALL_SAFE, Kind.ALL_SAFE, safest(self.given.setting, factors, self.safe_image))

    @property
    def again(self) -> Arm:
        """The given setting once more."""
        return Arm(AGAIN, Kind.AGAIN, self.given.setting)

    def alone(self) -> tuple[Arm, ...]:
        """All safe but one factor, for each factor."""
        base = self.all_safe.setting
        return tuple(
            Arm(f"only-{arm.factor}", Kind.ALONE, as_given(base, self.given.setting, arm.factor), arm.factor)
            for arm in self.singles
            if arm.factor is not None
        )

    def gpus(self, arm: Arm) -> int:
        """GPUs that the arm holds."""
        return self.limits.gpus_pair if arm.setting.pair else self.limits.gpus_alone

    def gpu_hours(self, arm: Arm, batches: int) -> float:
        """Estimate for one start and that many batches."""
        return self.gpus(arm) * (self.limits.startup_minutes + batches * self.limits.batch_minutes) / 60

    def bounds(self) -> tuple[float, float]:
        """GPU-hours: at least (one batch an arm, a clear answer), at most (all arms, all batches)."""
        fewest = [self.given, *self.singles, *([self.again] if self.limits.recheck else [])]
        most = [self.given, *self.singles, *self._second()]
        return (
            sum(self.gpu_hours(arm, 1) for arm in fewest),
            sum(self.gpu_hours(arm, self.limits.batches) for arm in most),
        )

    def most_batches(self) -> int:
        """No bisection runs more batches than this."""
        return (1 + len(self.singles) + len(self._second())) * self.limits.batches

    def _second(self) -> list[Arm]:
        """The longer of the two ways on after the single factors."""
        combined = [self.all_safe, *self.alone()] if len(self.singles) > 1 else []
        return combined or ([self.again] if self.limits.recheck else [])


def make_plan(
    given: Setting,
    limits: Limits,
    *,
    safe_image: str | None = None,
    factors: Sequence[Factor] = tuple(Factor),
    impossible: dict[Factor, str] | None = None,
) -> Plan:
    """The plan for a setting. `impossible`: factors that cannot be changed here, and why."""
    singles: list[Arm] = []
    skipped: dict[Factor, str] = {}
    for factor in Factor:
        if factor not in factors:
            skipped[factor] = "not asked for"
            continue
        if factor in (impossible or {}):
            skipped[factor] = (impossible or {})[factor]
            continue
        changed = safer(given, factor, safe_image)
        if changed is None:
            skipped[factor] = why_no_factor(given, factor)
            continue
        singles.append(Arm(f"{factor}-{_suffix(factor)}", Kind.SINGLE, changed, factor))
    return Plan(Arm(GIVEN, Kind.GIVEN, given), tuple(singles), limits, safe_image, skipped)


def _suffix(factor: Factor) -> str:
    return {Factor.INDEX_K: "fp8", Factor.TOPOLOGY: "one-server", Factor.IMAGE: "safe"}.get(factor, "off")
