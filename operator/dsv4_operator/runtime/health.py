"""Whether this replica is alive and ready, judged from the queue, the resync and the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dsv4_operator.runtime.queue import QueueStats


class Health:
    """Fed by the operator, asked by the HTTP server.

    Fails when the queue has had work for `queue_stall_seconds` and finished none of it, or when the last
    complete resync is older than `resync_limit_seconds`. A standby has no work: it is healthy, and ready unless
    `webhook` says why not.
    """

    def __init__(
        self,
        *,
        queue: Callable[[], QueueStats],
        queue_stall_seconds: float,
        resync_limit_seconds: float,
        webhook: Callable[[], str | None] = lambda: None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._queue = queue
        self._stall, self._resync_limit = queue_stall_seconds, resync_limit_seconds
        self._webhook = webhook
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._working_since: float | None = None
        self._resynced_at: float | None = None
        self._stopping = False

    def start_working(self) -> None:
        """This replica leads now: from here on it owes progress."""
        self._working_since = self._now()

    def resync_succeeded(self) -> None:
        """A complete LIST of every watched kind has been taken over."""
        self._resynced_at = self._now()

    def stop(self) -> None:
        """The replica shuts down: not ready any more, and not ill for having stopped."""
        self._stopping = True

    def illness(self) -> str | None:
        """Why the process should be restarted; None when it is well."""
        if self._working_since is None or self._stopping:
            return None
        stats = self._queue()
        if stats.stalled > self._stall:
            return (
                f"the work queue has made no progress for {stats.stalled:.0f} s "
                f"({stats.depth} waiting, {stats.running} running; limit {self._stall:.0f} s)"
            )
        age = self._now() - (self._working_since if self._resynced_at is None else self._resynced_at)
        if age > self._resync_limit:
            since = "since this replica leads" if self._resynced_at is None else "since the last one"
            return f"no complete resync for {age:.0f} s {since} (limit {self._resync_limit:.0f} s)"
        return None

    def unreadiness(self) -> str | None:
        """Why the replica is not ready; None when it is, as a standby always is."""
        if self._stopping:
            return "shutting down"
        if (without := self._webhook()) is not None:
            return without
        if self._working_since is None:
            return None
        if self._resynced_at is None:
            return "the first resync is not complete"
        return self.illness()

    @property
    def role(self) -> str:
        """For the answer's text."""
        return "standby" if self._working_since is None else "leader"
