"""Which probe comes next. Pure; randomness is injected, time is passed in.

Until the pod is Ready, while a failure is looked into, and with a peer of which nothing is known yet: echo probes on
fresh prefixes, in the mode that is needed. After that a fixed cycle of kinds for each peer, entered at a random place,
so that pods that became Ready together do not do the same at the same time. (One cycle for all peers would fall into
step with their number: of two or four, some would never be asked an echo.) A turn whose probe cannot be asked now (no
prefix is due, the probe is unusable, the token budget does not allow two prompts) takes the next kind of the cycle; in
the end there is always the echo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

from dsv4_canary.library import Entry, Library
from dsv4_canary.model import Mode, ProbeName

CYCLE = (
    ProbeName.ECHO,
    ProbeName.REPEAT,
    ProbeName.DRIFT,
    ProbeName.ECHO,
    ProbeName.REPEAT,
    ProbeName.QUIET,
    ProbeName.DRIFT,
    ProbeName.ECHO,
    ProbeName.TWIN,
    ProbeName.REPEAT,
    ProbeName.DRIFT,
    ProbeName.PARITY,
)
PROMPTS = {ProbeName.TWIN: 2, ProbeName.PARITY: 2, ProbeName.DRIFT: 2}
"""Prompts that a probe sends, where they are more than one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn's probe with a chosen peer."""

    probe: ProbeName
    mode: Mode
    prefix: str
    entry: Entry | None = None
    """The old prefix that is asked again; None: a fresh one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the choice depends on."""

    peer: str
    now: float
    interval: float
    wanted: Mode | None
    """Mode that must be proved or looked into: then an echo is asked. None: free choice."""
    reload: bool
    """Old prefixes are wanted above all: corruption is suspected, or its end is to be seen."""
    affordable: Callable[[int], bool]
    """May so many prompts be sent now?"""
    usable: Callable[[ProbeName], bool]
    known: bool = True
    """Whether a probe with the peer has shown anything since it was last away."""


@dataclass(slots=True)
class _Beat:
    """Where a peer's cycle stands."""

    place: int
    streamed: bool = False


class Schedule:
    """Position in the cycle, and names for fresh prefixes that no cache has seen. ``run``: unlike any other pod's."""

    def __init__(self, run: str, chats: Library, drifts: Library, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._run = run
        self._chats, self._drifts = chats, drifts
        self._beats: dict[str, _Beat] = {}
        self._fresh = 0

    def keep_peers(self, peers: Collection[str]) -> None:
        """Forget where the cycles of all other peers stood."""
        self._beats = {peer: beat for peer, beat in self._beats.items() if peer in peers}

    def plan(self, situation: Situation) -> Plan:
        """The next probe with the peer."""
        if situation.wanted is not None:
            return self._echo(situation.wanted)
        if situation.reload:
            for probe in (ProbeName.REPEAT, ProbeName.DRIFT):
                plan = self._old(probe, situation) if situation.usable(probe) else None
                if plan is not None:
                    return plan
        if not situation.known:
            return self._echo(self._turn(situation))
        beat = self._beat(situation)
        for _ in CYCLE:
            probe = CYCLE[beat.place]
            beat.place = (beat.place + 1) % len(CYCLE)
            plan = self._try(probe, situation)
            if plan is not None:
                return plan
        return self._echo(self._turn(situation))

    def _try(self, probe: ProbeName, situation: Situation) -> Plan | None:
        if not situation.affordable(PROMPTS.get(probe, 1)) and probe is not ProbeName.ECHO:
            return None
        if not situation.usable(probe):
            return None
        if probe is ProbeName.ECHO:
            return self._echo(self._turn(situation))
        if probe in (ProbeName.REPEAT, ProbeName.TWIN):
            return self._old(probe, situation)
        if probe is ProbeName.DRIFT:
            return self._old(probe, situation) or Plan(probe, Mode.FUNCTIONAL, self._name())
        mode = self._turn(situation) if probe is ProbeName.QUIET else Mode.FUNCTIONAL
        return Plan(probe, mode, self._name())

    def _old(self, probe: ProbeName, situation: Situation) -> Plan | None:
        library = self._drifts if probe is ProbeName.DRIFT else self._chats
        find = library.old if probe is ProbeName.TWIN else library.due
        entry = find(situation.peer, situation.now, situation.interval)
        if entry is None:
            return None
        mode = self._turn(situation) if probe is ProbeName.REPEAT else Mode.FUNCTIONAL
        return Plan(probe, mode, entry.prefix, entry)

    def _echo(self, mode: Mode) -> Plan:
        return Plan(ProbeName.ECHO, mode, self._name())

    def _beat(self, situation: Situation) -> _Beat:
        if situation.peer not in self._beats:
            self._beats[situation.peer] = _Beat(self._rng.randrange(len(CYCLE)))
        return self._beats[situation.peer]

    def _turn(self, situation: Situation) -> Mode:
        beat = self._beat(situation)
        beat.streamed = not beat.streamed
        return Mode.STREAMED if beat.streamed else Mode.FUNCTIONAL

    def _name(self) -> str:
        self._fresh += 1
        return f"{self._run}/{self._fresh}"
