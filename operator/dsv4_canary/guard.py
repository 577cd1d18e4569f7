"""Marker of the gated engine image: what ``dsv4_guard_info`` says, and whether it is what the pod must have. Pure.

The image's plugin exports ``dsv4_guard_info{version,release,index_k,process} 1`` from every process that it guards:
``api`` (HTTP) and ``scheduler``. An engine without the plugin has no such series, so an unguarded index-K in bf16
cannot pass for a guarded one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SERIES = "dsv4_guard_info"
PROCESSES = ("api", "scheduler")


@dataclass(frozen=True, slots=True)
class GuardInfo:
    """Marker as the engine shows it, all ranks together."""

    processes: frozenset[str]
    """Processes that carry the marker."""
    index_k: frozenset[str]
    """Index-K formats that they name; more than one is a fault."""
    version: str | None = None
    """Version of the plugin; the lowest text when processes disagree."""
    release: str | None = None
    """SGLang release that the plugin found."""

    @property
    def complete(self) -> bool:
        """Every process that must carry the marker does."""
        return self.processes >= set(PROCESSES)

    @property
    def format(self) -> str | None:
        """The index-K format, None when processes disagree."""
        return next(iter(self.index_k)) if len(self.index_k) == 1 else None


@dataclass(frozen=True, slots=True)
class GuardState:
    """What the sidecar reports of the marker."""

    required: bool
    present: bool
    """The marker is complete, and its index-K format is the required one, if one is required."""
    index_k: str | None
    version: str | None
    message: str
    """One sentence; empty when nothing is required or all is well."""

    @property
    def missing(self) -> bool:
        """The pod must not serve."""
        return self.required and not self.present

    def to_json(self) -> dict[str, object]:
        """Form of the ``/status`` contract."""
        return {
            "required": self.required,
            "present": self.present,
            "indexK": self.index_k,
            "version": self.version,
            "message": self.message,
        }


def read_guard(series: Iterable[tuple[Mapping[str, str], float]]) -> GuardInfo | None:
    """Marker out of the labels and values of its series; None when there is none with a value above 0."""
    shown = [labels for labels, value in series if value > 0]
    if not shown:
        return None

    def values(label: str) -> list[str]:
        return sorted({labels[label] for labels in shown if labels.get(label)})

    versions, releases = values("version"), values("release")
    return GuardInfo(
        processes=frozenset(values("process")),
        index_k=frozenset(values("index_k")),
        version=versions[0] if versions else None,
        release=releases[0] if releases else None,
    )


def check(required: str | None, info: GuardInfo | None, *, readable: bool = True) -> GuardState:
    """Compare the marker with the required index-K format (``fp8``, ``bf16``), None when none is required.

    ``readable``: False when the engine's metrics could not be read at all; the marker then counts as absent.
    """
    index_k, version = (info.format, info.version) if info else (None, None)
    fault = _fault(required, info, readable)
    return GuardState(
        required=required is not None,
        present=not fault,
        index_k=index_k,
        version=version,
        message=fault if required is not None else "",
    )


def _fault(required: str | None, info: GuardInfo | None, readable: bool) -> str:
    wanted = f"index-K in {required or 'any format'} is required"
    if not readable:
        return f"{wanted}, but the engine's /metrics cannot be read, so its guard cannot be seen; pass --enable-metrics"
    if info is None:
        return (
            f"{wanted}, but the engine does not carry the guard ({SERIES} is missing from its metrics); "
            "use the gated image and set SGLANG_PLUGINS=dsv4_guard"
        )
    absent = [name for name in PROCESSES if name not in info.processes]
    if absent:
        return (
            f"{wanted}, but the guard is not active in the engine's {' and '.join(absent)} process; "
            "look for its line in the engine's log"
        )
    if len(info.index_k) != 1:
        return (
            f"{wanted}, but the engine's processes name different formats: {', '.join(sorted(info.index_k)) or 'none'}"
        )
    if required is not None and info.format != required:
        return f"{wanted}, but the engine's guard says {info.format}; set DSV4_INDEX_K_DTYPE={required}"
    return ""
