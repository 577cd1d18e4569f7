"""What each canary sidecar last said: those of pods that are not Ready are asked in every pass, the others seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.reports import CanaryReport, read_report, unreachable
from dsv4_operator.runtime.http_peers import PeerClient, PeerError

SHORTEST_SECONDS: Final = 4.0
"""A Ready pod's sidecar is not asked again sooner: passes can follow each other quickly."""
LONGEST_SECONDS: Final = 600.0
"""Nor later than this, however often it did not answer."""


@dataclass(slots=True)
class _Heard:
    report: CanaryReport
    at: float
    silent: int = 0
    """How often in a row it did not answer."""


class CanaryWatch:
    """Reads sidecars. Remembers what those of Ready pods said, which costs nothing but freshness when lost."""

    def __init__(self, peers: PeerClient, clock: Callable[[], float]) -> None:
        self._peers = peers
        self._clock = clock
        self._heard: dict[str, _Heard] = {}

    async def read(self, pods: Iterable[PodView], interval: float) -> dict[str, CanaryReport]:
        """Reports of engine pods that run, by uid; `interval` is the seconds between two probes of a sidecar.

        A pod that is not Ready is asked now. A Ready one is asked when its last answer is older than an interval, or
        soon while anything is wrong; one that does not answer less and less often, since a pass must not wait for the
        same silence again and again.
        """
        asked = [p for p in pods if p.role in ENGINE_ROLES and p.ip and not p.is_leaving]
        pause = SHORTEST_SECONDS if self._in_trouble(asked) else max(SHORTEST_SECONDS, interval)
        due = [pod for pod in asked if not pod.ready or self._is_due(pod, pause, interval)]
        for pod, report in zip(due, await asyncio.gather(*map(self._read, due)), strict=True):
            before = self._heard.get(pod.uid)
            silent = 0 if report.reachable else 1 + (before.silent if before is not None else 0)
            self._heard[pod.uid] = _Heard(report, self._clock(), silent)
        # A resync may have forgotten a pod meanwhile, which then is gone.
        return {pod.uid: self._heard[pod.uid].report for pod in asked if pod.uid in self._heard}

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drop memory of pods that are gone; called at resync with every known pod."""
        self._heard = {uid: heard for uid, heard in self._heard.items() if uid in uids}

    def _in_trouble(self, pods: Collection[PodView]) -> bool:
        """Whether a pod is not Ready, or a pair fails: blame then wants fresh views from both ends."""
        heard = {pod.uid: self._heard.get(pod.uid) for pod in pods}
        return any(not pod.ready for pod in pods) or any(
            peer.failing_since is not None for seen in heard.values() if seen for peer in seen.report.peers
        )

    def _is_due(self, pod: PodView, pause: float, interval: float) -> bool:
        heard = self._heard.get(pod.uid)
        if heard is None:
            return True
        if heard.silent:
            pause = min(LONGEST_SECONDS, interval * 2.0 ** min(heard.silent, 10))
        elif not heard.report.ready:
            return True  # what it said before it became Ready is no longer true
        return self._clock() - heard.at >= pause

    async def _read(self, pod: PodView) -> CanaryReport:
        try:
            return read_report(await self._peers.read_canary_status(pod.canary_url))
        except PeerError as error:
            return unreachable(f"its canary does not answer: {error.reason}")
