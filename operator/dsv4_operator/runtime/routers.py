"""What each router replica believes its workers to be, and since when that differs from the wanted list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from dsv4_operator.desired.workers import Worker
from dsv4_operator.observe.pods import PodView
from dsv4_operator.plan.membership import router_differences
from dsv4_operator.runtime.http_peers import PeerClient, PeerError

DRIFT_SECONDS = 15.0
"""A difference younger than this is a change under way: smg reacts in half a second and drains for five."""


@dataclass(frozen=True, slots=True)
class RouterView:
    """One replica's list: URL to worker type, and the URLs it reports as ready; `error` when it could not be read."""

    pod: PodView
    listed: dict[str, str]
    ready: frozenset[str]
    error: str = ""


class RouterWatch:
    """Reads routers and remembers when each began to differ."""

    def __init__(self, peers: PeerClient, clock: Callable[[], float]) -> None:
        self._peers = peers
        self._clock = clock
        self._since: dict[str, float] = {}

    async def read(self, pods: Iterable[PodView], key: str) -> list[RouterView]:
        """The lists of all running routers among `pods`, at once."""
        running = [pod for pod in pods if pod.ip and not pod.is_leaving]
        return list(await asyncio.gather(*(self._read(pod, key) for pod in running)))

    def drift(self, views: Iterable[RouterView], wanted: Collection[Worker]) -> list[str]:
        """Differences older than DRIFT_SECONDS, each naming its pod."""
        now, texts = self._clock(), []
        for view in views:
            differences = [view.error] if view.error else router_differences(wanted, view.listed)
            if not differences:
                self._since.pop(view.pod.uid, None)
                continue
            if now - self._since.setdefault(view.pod.uid, now) >= DRIFT_SECONDS and view.pod.ready:
                texts.append(f"router {view.pod.name}: {'; '.join(differences)}")
        return texts

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Drop memory of pods that are gone; called at resync with every known pod."""
        self._since = {uid: since for uid, since in self._since.items() if uid in uids}

    @staticmethod
    def unread(pods: Iterable[PodView], why: str) -> list[RouterView]:
        """Views of routers that cannot be asked."""
        return [RouterView(pod, {}, frozenset(), error=why) for pod in pods if pod.ip and not pod.is_leaving]

    async def _read(self, pod: PodView, key: str) -> RouterView:
        try:
            workers = await self._peers.read_router_workers(pod.router_url, key)
        except PeerError as error:
            return RouterView(pod, {}, frozenset(), error=f"its worker list cannot be read: {error.reason}")
        return RouterView(
            pod,
            listed={w["url"]: str(w.get("worker_type", "")) for w in workers if w.get("status") != "draining"},
            ready=frozenset(w["url"] for w in workers if _is_ready(w)),
        )


def _is_ready(worker: dict[str, Any]) -> bool:
    status = worker.get("status")
    return status == "ready" if status is not None else worker.get("is_healthy") is True
