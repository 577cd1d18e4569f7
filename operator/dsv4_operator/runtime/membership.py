"""Keeps each generation's published worker list true, and compares it with what its routers believe.

The decisions are plan.membership's; here is what they need to know, and the carrying out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsv4_operator.api.constants import (
    ANNOTATION_WORKERS,
    LABEL_DEPLOYMENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    Role,
)
from dsv4_operator.desired.context import DesiredContext, workers_name
from dsv4_operator.desired.workers import build_workers, read_removed, read_workers, workers_digest
from dsv4_operator.kube.errors import ApiError, NotFound
from dsv4_operator.kube.kinds import CONFIG_MAP, POD
from dsv4_operator.kube.port import JsonObject, KubeApi
from dsv4_operator.observe.pods import PodView, view_pod
from dsv4_operator.plan.membership import MembershipPlan, plan_membership
from dsv4_operator.runtime.cache import ObjectCache
from dsv4_operator.runtime.children import ChildWriter, ForeignObject
from dsv4_operator.runtime.outcome import NotYet
from dsv4_operator.runtime.router_keys import RouterKeys
from dsv4_operator.runtime.routers import RouterView, RouterWatch

LOG = logging.getLogger(__name__)

Guard = Callable[[Awaitable[str | None]], Awaitable[str | None]]
"""Carries out one write; what concerns that child alone does not stop the others."""


@dataclass(frozen=True, slots=True)
class MembershipResult:
    """What one round found: differences between routers and lists, in words, and when to look again, in seconds."""

    drift: list[str] = field(default_factory=list)
    look_again: list[float] = field(default_factory=list)


class MembershipKeeper:
    """Publishes worker lists. One instance serves all deployments."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        writer: ChildWriter,
        keys: RouterKeys,
        routers: RouterWatch,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._cache = cache
        self._writer = writer
        self._keys = keys
        self._routers = routers
        self._clock = clock

    async def keep(
        self,
        raw: JsonObject,
        pods: Sequence[PodView],
        fingerprints: Collection[str],
        ctx: DesiredContext | None,
        guard: Guard,
    ) -> MembershipResult:
        """One round over the generations of the deployment `raw`; `ctx` is None while its spec is not valid."""
        result = MembershipResult()
        name, namespace, uid = (raw["metadata"][key] for key in ("name", "namespace", "uid"))
        for fingerprint in sorted(fingerprints):
            config_map = self._cache.get(CONFIG_MAP, namespace, workers_name(name, fingerprint))
            if config_map is None and (ctx is None or fingerprint != ctx.fingerprint):
                continue  # a generation without a list never had a router
            routers = [p for p in pods if p.role is Role.ROUTER and p.fingerprint == fingerprint]
            current, removed = read_workers(config_map or {}), read_removed(config_map or {})
            plan, views = self._plan(pods, fingerprint, current, removed, []), None
            if plan.look_again is not None:
                # Somebody lingers, perhaps until a router says otherwise. Else nothing is asked before the list is
                # out: a router that does not answer must not keep a failed worker in it.
                views = await self._read_routers(routers, ctx)
                plan = self._plan(pods, fingerprint, current, removed, views)
            if plan.empties:
                live = await self._live_pods(name, namespace)
                plan = self._plan(live, fingerprint, current, removed, views or [])
            if plan.look_again is not None:
                result.look_again.append(plan.look_again)
            intent = build_workers(name, namespace, uid, fingerprint, plan.workers, plan.removed)
            reason = await guard(self._writer.apply(intent, uid))
            if reason is not None:
                LOG.info("workers of generation %s: %s (%s)", fingerprint, list(plan.workers), reason)
            await self._touch(namespace, routers, workers_digest(plan.workers), guard)
            if views is None:
                views = await self._read_routers(routers, ctx)
            result.drift.extend(self._routers.drift(views, plan.workers))
        return result

    def _plan(
        self, pods: Sequence[PodView], fingerprint: str, current: Any, removed: Any, views: list[RouterView]
    ) -> MembershipPlan:
        now = self._clock()
        mine = [pod for pod in pods if pod.fingerprint == fingerprint]
        candidates = [candidate for pod in mine if (candidate := pod.candidate(now)) is not None]
        readable = [view.ready for view in views if not view.error]
        ready = frozenset.intersection(*readable) if readable else frozenset()
        return plan_membership(current, removed, candidates, ready, now)

    async def _read_routers(self, routers: list[PodView], ctx: DesiredContext | None) -> list[RouterView]:
        if ctx is None or not ctx.spec.router.enabled or not routers:
            return []
        try:
            key = await self._keys.ensure(ctx)
        except (ForeignObject, NotYet, ApiError) as error:
            # Reported by whoever makes the key; the lists do not depend on it.
            return self._routers.unread(routers, f"its key cannot be read: {error}")
        return await self._routers.read(routers, key)

    async def _live_pods(self, name: str, namespace: str) -> list[PodView]:
        """Pods from a live read: a list is never emptied on the word of a cache."""
        selector = f"{LABEL_DEPLOYMENT}={name},{LABEL_MANAGED_BY}={MANAGED_BY}"
        listing = await self._api.list(POD, namespace, selector)
        return [view for pod in listing.items if (view := view_pod(pod)) is not None]

    async def _touch(self, namespace: str, routers: list[PodView], digest: str, guard: Guard) -> None:
        """Annotate router pods with the digest of their list: their kubelets then refresh the file at once."""
        for pod in routers:
            if pod.workers_digest != digest and not pod.is_leaving:
                await guard(self._annotate(namespace, pod.name, digest))

    async def _annotate(self, namespace: str, pod: str, digest: str) -> str | None:
        try:
            updated = await self._api.annotate(POD, namespace, pod, {ANNOTATION_WORKERS: digest})
        except NotFound:
            return None
        self._cache.put(POD, updated)
        return "annotated"
