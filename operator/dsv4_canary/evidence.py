"""Evidence of corruption: what the window of recent probes shows, per cache tier. Pure; time is passed in.

One odd reply proves nothing. What counts:

- Corruption class: S15, S25 to S29, drift beyond the margin, S5 when it comes more than once.
- S9, S10 and S21 on a cached prefix when the same was right on a fresh prefix straight after.
- Any wrong answer, when cached prefixes bring significantly more of them than fresh ones.

Warm tiers (device, host) are tested against the cold one, one-sided, by Fisher's exact test; the cold tier's latest
probes against its earlier ones. A verdict needs several different prefixes beside a small p-value, because the same
prefix damaged in a cache is one piece of evidence however often it is read. The p-values are small because the test is
repeated with every probe. A verdict once given stays until a clean stretch of the same tier, or until its evidence has
left the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dsv4_canary.model import Cache, Role, Severity
from dsv4_canary.signatures import CATALOGUE
from dsv4_canary.soak.stats import Alternative, fisher_exact

TIERS = (Cache.HOST, Cache.DEVICE, Cache.COLD)
"""Tiers that are judged, the most telling first."""
WINDOW = 200
"""Probes kept of each tier."""
AGE_INTERVALS = 480
"""Intervals after which a probe leaves the window: four hours with the default."""
SUSPECT, CONFIRM = 2, 3
"""Different prefixes with corruption-class evidence that a verdict on a warm tier needs."""
RATE_SUSPECT, RATE_CONFIRM = 3, 4
"""The same for wrong answers of any kind, and for the cold tier."""
P_SUSPECT, P_CONFIRM = 0.02, 0.002
P_RATE_SUSPECT, P_RATE_CONFIRM = 0.01, 0.001
CLEAN_SUSPECT, CLEAN_CONFIRM = 6, 12
"""Clean probes of the tier in a row that end a verdict."""
_RECENT = 20
"""Cold probes that are tested against the earlier ones."""
_REFERENCE = 20
"""Earlier cold probes without which the cold tier is never called corrupt."""
_CONCENTRATED = 0.05

_CLASS = frozenset({"S15", "S25", "S26", "S27", "S28", "S29", "drift"})
_AMBIGUOUS = frozenset({"S9", "S10", "S21"})
_BURST = "S5"
_NO_EVIDENCE = frozenset({"S30"})
"""Says that whole and streamed output are read differently: the parser's affair, whatever the tier."""


class Level(StrEnum):
    """Verdict on corruption. Part of the ``/status`` contract: never rename a value."""

    NONE = "None"
    SUSPECTED = "Suspected"
    CONFIRMED = "Confirmed"

    @property
    def number(self) -> int:
        """Value of the metric."""
        return list(Level).index(self)


class Weight(StrEnum):
    """What one answer says about corruption."""

    CLEAN = "clean"
    ODD = "odd"
    """Wrong, in a way that alone accuses parser, template or model."""
    AMBIGUOUS = "ambiguous"
    """The call is missing: to be asked again on a fresh prefix."""
    BURST = "burst"
    """A garbled tag: evidence when it is not the only one."""
    CORRUPT = "corrupt"


def weigh(failures: Mapping[str, Severity]) -> Weight | None:
    """Weight of one answer's findings; None when it says nothing (transport, token limit)."""
    if any(severity in (Severity.TRANSPORT, Severity.BUDGET) for severity in failures.values()):
        return None
    found = {
        name for name in failures if name not in _NO_EVIDENCE and not (name in CATALOGUE and CATALOGUE[name].warns_only)
    }
    if not found:
        return Weight.CLEAN if not failures.keys() & _NO_EVIDENCE else None
    if found & _CLASS:
        return Weight.CORRUPT
    if _BURST in found:
        return Weight.BURST
    return Weight.AMBIGUOUS if found & _AMBIGUOUS else Weight.ODD


@dataclass(slots=True, eq=False)
class Item:
    """One answer in the window. ``weight`` changes from ambiguous to corrupt or odd once it was asked again."""

    time: float
    prefix: str
    peer: str
    weight: Weight
    drift: bool = False
    """From logprobs, not from a text."""

    @property
    def wrong(self) -> bool:
        """Not clean."""
        return self.weight is not Weight.CLEAN


@dataclass(frozen=True, slots=True)
class Opinion:
    """Verdict as of now. ``message``: one sentence without counts; empty without a verdict."""

    level: Level = Level.NONE
    cache: Cache | None = None
    message: str = ""


@dataclass(slots=True)
class _Tier:
    items: deque[Item] = field(default_factory=lambda: deque(maxlen=WINDOW))
    level: Level = Level.NONE
    clean: int = 0
    inflated: bool = False
    """More wrong answers of any kind than behind fresh prefixes: each of them is evidence then."""

    def classed(self) -> list[Item]:
        """Answers whose own findings are corruption class."""
        bursts = sum(item.weight is Weight.BURST for item in self.items)
        weights = {Weight.CORRUPT, Weight.BURST} if bursts > 1 else {Weight.CORRUPT}
        return [item for item in self.items if item.weight in weights]

    def wrong(self) -> list[Item]:
        """Answers that are not clean."""
        return [item for item in self.items if item.wrong]

    def evidence(self) -> list[Item]:
        """All that counts against the tier."""
        return self.wrong() if self.inflated else self.classed()


_MEANING = {
    Cache.HOST: "answers behind prefixes reloaded from host memory are damaged, those behind fresh ones are not",
    Cache.DEVICE: "answers behind prefixes cached on the device are damaged, those behind fresh ones are not",
    Cache.COLD: "answers are damaged that were right before, whatever the cache",
}


class Evidence:
    """Window of one sidecar."""

    def __init__(self) -> None:
        self._tiers = {cache: _Tier() for cache in TIERS}

    def add(
        self, cache: Cache, weight: Weight, prefix: str, peer: str, now: float, *, drift: bool = False
    ) -> Item | None:
        """Take one answer; None when its tier is not known, so that it says nothing."""
        tier = self._tiers.get(cache)
        if tier is None:
            return None
        item = Item(now, prefix, peer, weight, drift)
        tier.items.append(item)
        tier.clean = 0 if item.wrong else tier.clean + 1
        return item

    def resolve(self, item: Item, *, cold_passed: bool) -> None:
        """An ambiguous answer was asked again on a fresh prefix."""
        item.weight = Weight.CORRUPT if cold_passed else Weight.ODD

    def forget(self, peer: str | None = None) -> None:
        """Another process answers now, or answers as that peer: what the former did is no evidence against it."""
        if peer is None:
            self._tiers = {cache: _Tier() for cache in TIERS}
        else:
            self._keep(lambda item: item.peer != peer)

    def forget_drift(self) -> None:
        """Logprobs say nothing on this engine, nor did they before that was known."""
        self._keep(lambda item: not item.drift)

    def keep_peers(self, peers: Collection[str]) -> None:
        """Forget answers through peers that are gone."""
        self._keep(lambda item: item.peer in peers)

    def _keep(self, wanted: Callable[[Item], bool]) -> None:
        for tier in self._tiers.values():
            kept = [item for item in tier.items if wanted(item)]
            if len(kept) != len(tier.items):
                tier.items = deque(kept, maxlen=WINDOW)

    def judge(self, now: float, interval: float) -> Opinion:
        """Verdict with all that is in the window."""
        for tier in self._tiers.values():
            while tier.items and now - tier.items[0].time > AGE_INTERVALS * interval:
                tier.items.popleft()
        for cache, tier in self._tiers.items():
            self._settle(tier, self._test(cache, tier))
        worst = max(self._tiers.values(), key=lambda tier: tier.level.number).level
        if worst is Level.NONE:
            return Opinion()
        cache = next(cache for cache in TIERS if self._tiers[cache].level is worst)
        return Opinion(worst, cache, _MEANING[cache])

    @staticmethod
    def _settle(tier: _Tier, seen: Level) -> None:
        """Hysteresis."""
        if seen.number >= tier.level.number:
            tier.level = seen
            return
        needed = CLEAN_CONFIRM if tier.level is Level.CONFIRMED else CLEAN_SUSPECT
        if tier.clean >= needed or not any(item.wrong for item in tier.items):
            tier.level = Level.NONE

    def _test(self, cache: Cache, tier: _Tier) -> Level:
        needed = CLEAN_CONFIRM if tier.level is Level.CONFIRMED else CLEAN_SUSPECT
        if tier.level is not Level.NONE and tier.clean >= needed:
            # Healed: what was evidence until now is none against what follows.
            kept = list(tier.items)[-tier.clean :]
            tier.items.clear()
            tier.items.extend(kept)
            tier.inflated = False
            return Level.NONE
        return self._test_cold(tier) if cache is Cache.COLD else self._test_warm(tier)

    def _test_warm(self, tier: _Tier) -> Level:
        cold = self._tiers[Cache.COLD]
        trials, control = len(tier.items), len(cold.items)
        classed, wrong = tier.classed(), tier.wrong()
        prefixes, p = _prefixes(classed), _greater(len(classed), trials, len(cold.classed()), control)
        failing, p_rate = _prefixes(wrong), _greater(len(wrong), trials, len(cold.wrong()), control)
        tier.inflated = failing >= RATE_SUSPECT and p_rate < P_RATE_SUSPECT
        if (prefixes >= CONFIRM and p < P_CONFIRM) or (failing >= RATE_CONFIRM and p_rate < P_RATE_CONFIRM):
            return Level.CONFIRMED
        return Level.SUSPECTED if tier.inflated or (prefixes >= SUSPECT and p < P_SUSPECT) else Level.NONE

    def _test_cold(self, tier: _Tier) -> Level:
        classed = tier.classed()
        marks = [item in classed for item in tier.items]
        recent, earlier = marks[-_RECENT:], marks[:-_RECENT]
        if len(earlier) < _REFERENCE:
            return Level.NONE
        prefixes = _prefixes(item for item in list(tier.items)[-_RECENT:] if item in classed)
        p = _greater(sum(recent), len(recent), sum(earlier), len(earlier))
        if prefixes >= RATE_CONFIRM and p < P_CONFIRM:
            return Level.CONFIRMED
        return Level.SUSPECTED if prefixes >= RATE_SUSPECT and p < P_SUSPECT else Level.NONE

    def counts(self) -> dict[Cache, tuple[int, int]]:
        """(probes, those of them that are evidence of corruption) of each tier."""
        return {cache: (len(tier.items), len(tier.evidence())) for cache, tier in self._tiers.items()}

    def own_fault(self, role: Role, cache: Cache, testable: Collection[str]) -> bool:
        """Is this engine the culprit of what the tier shows, rather than some peer?

        Caches live on prefill. So damage behind cached prefixes accuses prefill: this one, unless it comes with some
        decodes alone; never a decode, unless it comes with every one of several prefills. Damage whatever the cache
        accuses an engine that has it with every peer; with a single peer both are suspect.
        """
        tier = self._tiers[cache]
        corrupt = tier.evidence() or tier.wrong()
        if not corrupt:
            return False  # whoever gave the evidence is gone, and the verdict goes with the next probe
        bad = {item.peer for item in corrupt}
        if cache is not Cache.COLD and role is Role.DECODE:
            return len(bad) > 1 and bad >= set(testable)
        with_bad = sum(1 for item in tier.items if item.peer in bad)
        others = sum(1 for item in tier.items if item.peer in testable and item.peer not in bad)
        return not others or _greater(len(corrupt), with_bad, 0, others) >= _CONCENTRATED


def _prefixes(items: Iterable[Item]) -> int:
    return len({item.prefix for item in items})


def _greater(events_a: int, trials_a: int, events_b: int, trials_b: int) -> float:
    """P-value of the first share being greater; 1 when one side has no trials."""
    if not trials_a or not trials_b or not events_a:
        return 1.0
    return fisher_exact(events_a, trials_a, events_b, trials_b, Alternative.GREATER)
