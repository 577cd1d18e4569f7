"""Prefixes that were asked before and will be asked again, at growing ages. Pure; bounded; time is passed in.

A prefix comes back from the device's cache when it is asked again soon, and from the host's when other traffic has
pushed it out meanwhile. How long that takes depends on the load, so each prefix is asked again after 1, 10, 60 and 240
intervals (5 minutes, half an hour and two hours with the default), each time counted from the last, and then dropped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dsv4_canary.drift import Reading

AGES = (1, 10, 60, 240)
"""Intervals between one request for a prefix and the next."""
OLD = 10
"""Intervals without a request from which a prefix counts as old enough for a twin."""
CAPACITY = 24
"""Prefixes kept of each kind, over all peers."""
_LEAST_PER_PEER = 2
_SLACK = 0.5
"""Intervals by which a prefix may be early: the beat is not exact."""


@dataclass(slots=True)
class Entry:
    """One prefix. Times in monotonic seconds."""

    prefix: str
    peer: str
    """Peer through which it must be asked; empty when any will do."""
    rank: int
    """Data-parallel rank of the prefill that has it."""
    prompt_tokens: int
    last: float
    step: int = 0
    first: Reading | None = None
    """Drift: the first reading, and the one from the device's cache, if there was one."""
    device: Reading | None = None


class Library:
    """Prefixes of one kind."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry, peers: int) -> bool:
        """Keep a prefix that was just asked for the first time; False when there is no room.

        Room is shared out among ``peers``, so that the first peers do not take it all. Entries leave after their last
        age, never to make room: a library that drops the oldest would never see one old.
        """
        share = max(_LEAST_PER_PEER, self._capacity // max(1, peers)) if entry.peer else self._capacity
        mine = sum(1 for other in self._entries.values() if other.peer == entry.peer)
        if len(self._entries) >= self._capacity or mine >= share:
            return False
        self._entries[entry.prefix] = entry
        return True

    def due(self, peer: str, now: float, interval: float) -> Entry | None:
        """The prefix that should be asked through this peer now: the furthest in its ages, of those the oldest."""
        due = [
            entry
            for entry in self._entries.values()
            if entry.peer in ("", peer) and now - entry.last >= (AGES[entry.step] - _SLACK) * interval
        ]
        return max(due, key=lambda entry: (entry.step, -entry.last), default=None)

    def old(self, peer: str, now: float, interval: float) -> Entry | None:
        """The prefix that has not been asked for longest, if that is long."""
        old = [
            entry for entry in self._entries.values() if entry.peer in ("", peer) and now - entry.last >= OLD * interval
        ]
        return min(old, key=lambda entry: entry.last, default=None)

    def asked(self, entry: Entry, now: float) -> None:
        """The prefix was asked again. After its last age it is dropped."""
        entry.last = now
        entry.step += 1
        if entry.step >= len(AGES):
            self.drop(entry)

    def get(self, prefix: str) -> Entry | None:
        """The prefix of that name, if it is kept."""
        return self._entries.get(prefix)

    def drop(self, entry: Entry) -> None:
        """Forget a prefix."""
        self._entries.pop(entry.prefix, None)

    def keep_peers(self, peers: Collection[str]) -> None:
        """Forget prefixes that need a peer that is gone."""
        for entry in list(self._entries.values()):
            if entry.peer and entry.peer not in peers:
                self.drop(entry)

    def doubt(self, peer: str) -> None:
        """Answers through this peer were wrong: its prefixes, and any that was asked only once, may have been read or
        kept damaged. A sound answer would be taken for a damaged one later."""
        for entry in list(self._entries.values()):
            if entry.peer == peer or entry.step == 0:
                self.drop(entry)

    def forget(self, peer: str | None = None) -> None:
        """The prefill lost its cache: forget its prefixes, or all."""
        for entry in list(self._entries.values()):
            if peer is None or entry.peer == peer:
                self.drop(entry)
