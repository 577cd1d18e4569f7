"""The peers of one sidecar: who they are, what the last attempts showed, whether they can be tested."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from dsv4_canary.engine_watch import PeerWatch
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import PeerOutcome, PeerState, Reason, Role
from dsv4_canary.verdict import VerdictMachine

log = logging.getLogger("dsv4_canary")

_ABSENCE = {
    Kind.PEER_LOADING: "does not serve yet",
    Kind.PEER_UNREACHABLE: "cannot be reached",
}


class PeerBook:
    """Peers by address."""

    def __init__(
        self,
        role: Role,
        host: str,
        resolve: Callable[[str], Awaitable[list[str]]],
        machine: VerdictMachine,
        metrics: Metrics,
    ) -> None:
        """``resolve``: from ``host`` to addresses; OSError when the lookup itself fails."""
        self._role, self._host = role, host
        self._resolve = resolve
        self._machine, self._metrics = machine, metrics
        self.states: dict[str, PeerState] = {}
        self.watches: dict[str, PeerWatch] = {}

    async def find(self, wedge_seconds: float) -> None:
        """Look the peers up. When that fails those known stay: a name server's trouble says nothing about peers."""
        try:
            addresses = await self._resolve(self._host)
        except OSError as error:
            self._metrics.lookup_errors.inc()
            log.warning("%s", error)
            return
        if addresses != sorted(self.states):
            log.info("peers: %s", ", ".join(addresses) or "none")
        self.states = {address: self.states.get(address) or PeerState(address) for address in addresses}
        self.watches = {address: self.watches.get(address) or PeerWatch(wedge_seconds) for address in addresses}
        self.tell()
        self._metrics.keep_peers(addresses)

    @property
    def testable(self) -> list[str]:
        """Addresses of those that can be tested, or were not tried yet."""
        return [peer.address for peer in self.states.values() if peer.testable]

    def tell(self) -> None:
        """Bring the verdict up to date on who there is."""
        self._machine.peers(list(self.states), self.states.keys() - set(self.testable))

    def away(self, peer: PeerState, kind: Kind) -> None:
        """It is loading or cannot be reached."""
        outcome = Judgement(kind).peer_outcome
        if peer.outcome is not outcome:
            log.info("peer %s: %s", peer.address, outcome.value)
        self.watches[peer.address].ranks = None
        peer.served, peer.testable, peer.answered_health = False, False, False
        peer.signatures, peer.consecutive_failures, peer.message = (), 0, _ABSENCE[kind]
        peer.failing_since, peer.wrong = None, False
        self._set(peer, outcome)

    def untested(self, peer: PeerState, judgement: Judgement) -> None:
        """It is busy or wedged: the attempt says nothing about this engine.

        A busy one is still to be tested: as long as it is, failures with others do not make this engine the culprit.
        """
        peer.answered_health, peer.message = False, judgement.what
        if judgement.kind is Kind.PEER_WEDGED:
            peer.testable = False
            peer.consecutive_failures += 1
        self._set(peer, judgement.peer_outcome)

    def passed(self, peer: PeerState, judgement: Judgement, *, fresh: bool = True) -> None:
        """A tool call through it came back exactly right.

        ``fresh``: no cache had its prefix. Out of a cache, a prefill that now computes wrong repeats what it computed
        when it was sound: such an answer shows that the transfer and the decode work, and refutes no wrong answer.
        """
        peer.served = True
        if fresh:
            peer.last_success_time = time.time()
        elif peer.outcome is PeerOutcome.FAIL and peer.wrong:
            return
        peer.signatures, peer.message = judgement.signatures, "passes"
        peer.consecutive_failures, peer.failing_since, peer.wrong = 0, None, False
        self._set(peer, PeerOutcome.PASS)

    def failed(self, peer: PeerState, judgement: Judgement) -> None:
        """A probe through it failed. Its health is asked before the next one: it may have been restarted."""
        peer.signatures, peer.message, peer.answered_health = judgement.signatures, judgement.what, False
        peer.consecutive_failures += 1
        peer.wrong = not judgement.transport
        if peer.failing_since is None:
            peer.failing_since = time.time()
        self._set(peer, PeerOutcome.FAIL)

    def _set(self, peer: PeerState, outcome: PeerOutcome) -> None:
        peer.outcome = outcome
        self._metrics.peer(peer.address, outcome)

    def none_usable(self, kinds: set[Kind]) -> None:
        """A turn found no peer that could be tested. ``kinds``: what was found instead."""
        other = self._role.other.value
        if Kind.PEER_WEDGED in kinds:
            text = f"PeerWedged: no {other} under {self._host} gets on with its requests, so nothing can be proved"
            self._machine.no_usable_peer(Reason.NO_PEER, time.monotonic(), text)
        elif Kind.BUSY not in kinds:
            # A busy one is a peer: were it to stay so, the time it is excused for ends.
            reason = Reason.PEER_LOADING if Kind.PEER_LOADING in kinds else Reason.NO_PEER
            self._machine.no_usable_peer(reason, time.monotonic())
