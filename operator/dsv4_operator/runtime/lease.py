"""Leader lease: one of several replicas works, by a coordination.k8s.io/v1 Lease.

The rules are client-go's (tools/leaderelection): the holder renews; others take over when they saw no renewal
for the lease's duration by their own clock (so clock skew does not matter); every write carries the
resourceVersion that was read, so two candidates cannot both win. Unlike `kubernetes.aio.leaderelection` it
releases on a clean exit.

The holder gives up `duration - renew_deadline` before others may take over: stop working when `lost` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dsv4_operator.kube.errors import AlreadyExists, ApiError, Conflict
from dsv4_operator.kube.kinds import LEASE
from dsv4_operator.kube.port import JsonObject, KubeApi

LOG = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class LeaderLease:
    """Call `acquire`, work until `lost` is set, then `release`. A lost lease is not acquired again: exit
    instead.

    Seconds: `duration` is how long a silent holder is respected, `renew_deadline` how long the holder tries
    before it gives up, `retry_period` the pace of both. `now` is for the timestamps people read; waiting uses
    the loop's clock.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        now: Callable[[], datetime] = _utc_now,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        if not retry_period < renew_deadline < duration:
            raise ValueError("a lease needs retry_period < renew_deadline < duration")
        self.lost = asyncio.Event()
        self._api = api
        self._namespace, self._name, self.identity = namespace, name, identity
        self._duration, self._renew_deadline, self._retry_period = duration, renew_deadline, retry_period
        self._now = now
        self._on_change = on_change
        self._leading = False
        self._held: JsonObject | None = None  # the Lease as we wrote it last
        self._seen: tuple[str, float] | None = None  # (resourceVersion, loop time) of the last change we saw
        self._renewal: asyncio.Task[None] | None = None

    @property
    def leading(self) -> bool:
        """Whether this process holds the lease, as far as it knows."""
        return self._leading

    async def acquire(self) -> None:
        """Return once this process leads; a task then renews the lease. API errors are outlasted."""
        waiting_for: str | None = None
        while True:
            try:
                async with asyncio.timeout(self._renew_deadline):
                    holder = await self._try_acquire()
            except (ApiError, TimeoutError) as error:
                LOG.warning("lease %s/%s: %s", self._namespace, self._name, error or "no answer in time")
            else:
                if holder is None:
                    break
                if holder != waiting_for:
                    LOG.info("lease %s/%s is held by %s; standing by", self._namespace, self._name, holder)
                    waiting_for = holder
            # Jitter, so that candidates do not collide for ever.
            await asyncio.sleep(self._retry_period * random.uniform(0.9, 1.1))  # noqa: S311
        LOG.info("lease %s/%s acquired as %s", self._namespace, self._name, self.identity)
        self._set_leading(True)
        self._renewal = asyncio.create_task(self._renew_until_lost(), name="lease-renewal")

    async def release(self) -> None:
        """Stop renewing and, if the lease is still ours, clear its holder: another takes over at once."""
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal
            self._renewal = None
        held, self._held = self._held, None
        self._set_leading(False)
        if held is None:
            return
        spec = held["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
        try:
            async with asyncio.timeout(self._renew_deadline):
                await self._api.replace(held | {"spec": spec})
        except (ApiError, TimeoutError) as error:
            LOG.warning("lease %s/%s is not released: %s", self._namespace, self._name, error or "no answer")
        else:
            LOG.info("lease %s/%s released", self._namespace, self._name)

    async def _try_acquire(self) -> str | None:
        """One attempt; None when the lease is ours now, else who holds it."""
        live = await self._api.get(LEASE, self._namespace, self._name)
        try:
            if live is None:
                self._held = await self._api.create(self._lease(None))
                return None
            spec = live.get("spec") or {}
            holder = str(spec.get("holderIdentity") or "")
            if holder and holder != self.identity and not self._expired(live):
                return holder
            self._held = await self._api.replace(self._lease(live))
        except (Conflict, AlreadyExists):
            return "another candidate"
        return None

    def _expired(self, live: JsonObject) -> bool:
        """Whether the holder has been silent for the lease's duration since we saw its last change."""
        revision = str(live["metadata"]["resourceVersion"])
        now = _loop_time()
        if self._seen is None or self._seen[0] != revision:
            self._seen = (revision, now)
        duration = float((live.get("spec") or {}).get("leaseDurationSeconds") or self._duration)
        return now - self._seen[1] >= duration

    async def _renew_until_lost(self) -> None:
        renewed = _loop_time()
        while True:
            await asyncio.sleep(self._retry_period)
            if renewed + self._renew_deadline <= _loop_time():
                return self._lose(f"not renewed for {self._renew_deadline:g} s")
            started = _loop_time()
            try:
                async with asyncio.timeout_at(renewed + self._renew_deadline):
                    other = await self._renew()
            except (ApiError, TimeoutError) as error:
                LOG.warning("lease %s/%s: not renewed: %s", self._namespace, self._name, error or "no answer in time")
                continue
            if other is not None:
                return self._lose(other)
            # From the moment we asked: others count from when the server wrote it, which is later.
            renewed = started

    async def _renew(self) -> str | None:
        """Renew once; None when done, else why the lease is lost."""
        assert self._held is not None
        try:
            self._held = await self._api.replace(self._lease(self._held))
        except Conflict:
            live = await self._api.get(LEASE, self._namespace, self._name)
            if live is None:
                return "the Lease was deleted"
            holder = str((live.get("spec") or {}).get("holderIdentity") or "")
            if holder != self.identity:
                return f"taken over by {holder or 'nobody'}"
            # Ours, but touched (by kubectl annotate, or by a write of ours whose answer got lost).
            self._held = await self._api.replace(self._lease(live))
        return None

    def _lose(self, why: str) -> None:
        LOG.error("lease %s/%s is lost: %s", self._namespace, self._name, why)
        self._held = None
        self._set_leading(False)
        self.lost.set()

    def _set_leading(self, leading: bool) -> None:
        if leading != self._leading:
            self._leading = leading
            if self._on_change is not None:
                self._on_change(leading)

    def _lease(self, live: JsonObject | None) -> JsonObject:
        """The Lease with us as its holder, on top of what is there."""
        old: dict[str, Any] = dict((live or {}).get("spec") or {})
        stamp = self._stamp()
        spec = old | {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration)),
            "renewTime": stamp,
        }
        if old.get("holderIdentity") != self.identity:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + (1 if live else 0)
        if live is not None:
            return live | {"spec": spec}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": spec,
        }

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
