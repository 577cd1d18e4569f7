"""Kopf wiring: watch events feed the cache and the queue, nothing else. No logic, no state on objects, no finalizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import kopf
from kopf._cogs.structs.references import Insights, NamespaceName

from dsv4_operator.api.constants import LABEL_MANAGED_BY, MANAGED_BY
from dsv4_operator.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    DSV4_DEPLOYMENT,
    LEADER_WORKER_SET,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
)
from dsv4_operator.runtime.cache import ObjectCache
from dsv4_operator.runtime.queue import WorkQueue

CHILD_KINDS: Final[tuple[Kind, ...]] = (
    DEPLOYMENT,
    SERVICE,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD,
)
"""Kinds whose labelled objects are watched. Secrets are not: nothing here may list them."""
OPTIONAL_KINDS: Final[tuple[Kind, ...]] = (LEADER_WORKER_SET,)
"""Kinds that a cluster may lack."""
CHILD_SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"

Key = tuple[str, str]


def register_handlers(
    registry: kopf.OperatorRegistry, cache: ObjectCache, queue: WorkQueue[Key], kinds: tuple[Kind, ...]
) -> None:
    """Have the events of these kinds feed `cache` and `queue`."""
    for kind in kinds:
        _register(registry, cache, queue, kind)


def _register(registry: kopf.OperatorRegistry, cache: ObjectCache, queue: WorkQueue[Key], kind: Kind) -> None:
    version = kind.api_version.rpartition("/")[2]

    async def on_event(event: Mapping[str, Any], **_: Any) -> None:
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
        owner = cache.owner_of(kind, body)
        deleted = event["type"] == "DELETED"
        changed = cache.remove(kind, body) if deleted else cache.put(kind, body)
        if changed and owner is not None:
            queue.add(owner)

    kopf.on.event(kind.group, version, kind.plural, registry=registry, id=f"on_{kind.kind.lower()}_event")(on_event)


def kopf_settings(kinds: tuple[Kind, ...]) -> kopf.OperatorSettings:
    """Kopf, told everything that its defaults leave open."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # no right to list CRDs and namespaces is needed
    settings.peering.standalone = True  # a Lease of ours decides who leads
    settings.posting.enabled = False  # our recorder posts events, on transitions alone
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.persistence.finalizer = "serving.dsv4.dev/unused"
    settings.execution.max_workers = 2  # there are no synchronous handlers
    for kind in kinds:
        if kind != DSV4_DEPLOYMENT:
            # In the request itself: a decorator's filter would have the server send every pod of the cluster. The key
            # is a triple: kopf silently ignores "group/plural".
            version = kind.api_version.rpartition("/")[2]
            settings.watching.label_selectors[kind.group, version, kind.plural] = CHILD_SELECTOR
    return settings


def kopf_insights() -> Insights:
    """What kopf watches, to be given to it and changed later. Kopf takes it as an argument and exports it nowhere."""
    return Insights()


async def stop_watching(insights: Insights, namespace: str) -> None:
    """End kopf's watches in one namespace, as kopf itself does for one that is deleted where it may see that."""
    async with insights.revised:
        insights.namespaces.discard(NamespaceName(namespace))
        insights.revised.notify_all()
