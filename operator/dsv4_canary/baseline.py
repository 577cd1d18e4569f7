"""Which probes this checkpoint, template and parser can pass at all. Pure.

A probe that never passed on a fresh prefix, though it was asked with several prefixes, at several lengths (exact
retrieval fails on sound models at some: vllm-project/vllm#55927) and through several peers, says something about the
model, not about the pair: it is unusable, which is told and not alarmed about. One pass proves the contrary for good:
from then on its failures count.

The echo probe has no baseline. A pair on which it cannot pass is never Ready: without one passing tool call nothing is
proved, and a default that lets it serve would fail open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsv4_canary.model import ProbeName

OPTIONAL = (ProbeName.PARITY, ProbeName.DRIFT, ProbeName.QUIET)
"""Probes that may become unusable. Repeat and twin ask what echo asks, so a model that passes one passes the others."""
ATTEMPTS = 4
"""Failures on fresh prefixes, each with another one, until a probe that never passed is unusable."""
_LENGTHS = 2
"""Different remainders modulo 4 of the prompt's length among them."""
_RETRY = 20
"""Every so many turns of an unusable probe it is tried again."""


@dataclass(slots=True)
class _Record:
    passed: bool = False
    prefixes: set[str] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)
    peers: set[str] = field(default_factory=set)
    why: str = ""
    skipped: int = 0


class Baseline:
    """Usability of the optional probes."""

    def __init__(self) -> None:
        self._records = {name: _Record() for name in OPTIONAL}

    def passed(self, probe: ProbeName) -> None:
        """It can be passed: usable from now on."""
        record = self._records.get(probe)
        if record is not None:
            record.passed, record.why, record.skipped = True, "", 0

    def failed(self, probe: ProbeName, prefix: str, length: int | None, peer: str, peers: int) -> None:
        """It brought a wrong answer on a fresh prefix. ``length``: prompt tokens; ``peers``: how many there are."""
        record = self._records.get(probe)
        if record is None or record.passed:
            return
        record.prefixes.add(prefix)
        record.lengths.add((length or 0) % 4)
        record.peers.add(peer)
        enough = len(record.prefixes) >= ATTEMPTS and len(record.peers) >= min(2, peers)
        if enough and (len(record.lengths) >= _LENGTHS or len(record.prefixes) >= 2 * ATTEMPTS):
            record.why = "it has never passed here, on fresh prefixes of several lengths"

    def refused(self, probe: ProbeName, why: str) -> None:
        """The engine does not serve it."""
        record = self._records.get(probe)
        if record is not None:
            record.why = why

    def counts(self, probe: ProbeName) -> bool:
        """A failure of it says something about the pair: it has passed before, or has no baseline."""
        record = self._records.get(probe)
        return record is None or record.passed

    def why(self, probe: ProbeName) -> str:
        """Why it is unusable; empty when it is usable."""
        record = self._records.get(probe)
        return record.why if record else ""

    def wanted(self, probe: ProbeName) -> bool:
        """May it be asked now? An unusable one only every so often."""
        record = self._records.get(probe)
        if record is None or not record.why:
            return True
        record.skipped += 1
        if record.skipped < _RETRY:
            return False
        record.skipped = 0
        return True

    def forget(self) -> None:
        """Another process answers now: nothing is known of it."""
        self._records = {name: _Record() for name in OPTIONAL}
