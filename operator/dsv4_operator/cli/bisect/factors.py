"""The factors of a setting, and what is safe of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Factor(StrEnum):
    """One thing that can be changed. The order is that of the arms: what costs users least to run with comes last."""

    HICACHE = "hicache"
    INDEX_K = "index-k"
    EARLY_SEND = "early-send"
    OVERLAP = "overlap"
    TOPOLOGY = "topology"
    IMAGE = "image"


@dataclass(frozen=True, slots=True)
class Setting:
    """What an arm runs with."""

    index_k: str
    """FP8, BF16 or FP4."""
    hicache: bool
    overlap: bool
    early_send: bool
    pair: bool
    """Prefill and decode apart; else one server."""
    image: str

    def value(self, factor: Factor) -> str:
        """The factor's value, for people."""
        return {
            Factor.HICACHE: "on" if self.hicache else "off",
            Factor.INDEX_K: self.index_k.lower(),
            Factor.EARLY_SEND: "on" if self.early_send else "off",
            Factor.OVERLAP: "on" if self.overlap else "off",
            Factor.TOPOLOGY: "prefill/decode" if self.pair else "one server",
            Factor.IMAGE: self.image or "the operator's default",
        }[factor]


def safer(setting: Setting, factor: Factor, safe_image: str | None) -> Setting | None:
    """The setting with one factor at its safe value; None where it is safe already or no safe value is known."""
    changed = {
        Factor.HICACHE: lambda: replace(setting, hicache=False),
        Factor.INDEX_K: lambda: replace(setting, index_k="FP8"),
        # One server sends nothing to anybody.
        Factor.EARLY_SEND: lambda: replace(setting, early_send=False) if setting.pair else setting,
        Factor.OVERLAP: lambda: replace(setting, overlap=False),
        Factor.TOPOLOGY: lambda: replace(setting, pair=False),
        Factor.IMAGE: lambda: replace(setting, image=safe_image or setting.image),
    }[factor]()
    return None if changed == setting else changed


def safest(setting: Setting, factors: Iterable[Factor], safe_image: str | None) -> Setting:
    """The setting with all of the factors at their safe values."""
    for factor in factors:
        setting = safer(setting, factor, safe_image) or setting
    return setting


def why_no_factor(setting: Setting, factor: Factor) -> str:
    """Why `safer` has nothing to offer."""
    if factor is Factor.IMAGE:
        return "no image known to be good was given (--safe-image)"
    return f"{setting.value(factor)} already"


def as_given(base: Setting, given: Setting, factor: Factor) -> Setting:
    """`base` with one factor as in `given`."""
    return {
        Factor.HICACHE: lambda: replace(base, hicache=given.hicache),
        Factor.INDEX_K: lambda: replace(base, index_k=given.index_k),
        Factor.EARLY_SEND: lambda: replace(base, early_send=given.early_send),
        Factor.OVERLAP: lambda: replace(base, overlap=given.overlap),
        Factor.TOPOLOGY: lambda: replace(base, pair=given.pair),
        Factor.IMAGE: lambda: replace(base, image=given.image),
    }[factor]()
