"""Applying and deleting children: only IO and its ordering; what to write was decided elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dsv4_operator.api.constants import API_VERSION, FIELD_MANAGER, KIND
from dsv4_operator.kube.kinds import Kind, kind_of
from dsv4_operator.kube.port import KubeApi
from dsv4_operator.plan.drift import drift, intent_digest, with_digest
from dsv4_operator.plan.pruning import is_owned
from dsv4_operator.runtime.cache import ObjectCache
from dsv4_operator.runtime.outcome import NotYet

LOG = logging.getLogger(__name__)

GARBAGE_COLLECTION_SECONDS = 2.0


class ForeignObject(Exception):
    """An object of the wanted name exists and belongs to somebody else: it is never taken over."""


class ChildWriter:
    """Writes children of deployments through server-side apply, and nothing that is already as wanted."""

    def __init__(self, api: KubeApi, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache
        self._settled: dict[tuple[Kind, str, str], tuple[str, str]] = {}

    async def apply(self, intent: Mapping[str, Any], owner_uid: str) -> str | None:
        """Make the live object match the intent; says why it was written, None when it was as wanted.

        Raises:
            ForeignObject: when the name is taken by an object that this deployment does not control.
            NotYet: when the name is held by an object that is going away.
            ApiError: as the API server answers.
        """
        kind, metadata = kind_of(intent), intent["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        live = self._cache.get(kind, namespace, name)
        if live is None:
            # The cache holds only what carries our label; a stranger of that name would not be in it.
            live = await self._api.get(kind, namespace, name)
        if live is not None:
            _check_owner(live, kind, owner_uid)
        reason = drift(live, intent)
        if reason is None or (live is not None and self._is_settled(kind, live, intent)):
            return None
        result = await self._api.apply(with_digest(intent), field_manager=FIELD_MANAGER, force=True)
        self._cache.put(kind, result)
        left = drift(result, intent)
        if left is not None:
            # Something in the cluster (an admission webhook, say) insists on another value. Writing again in every
            # pass would be a war; leave it until the object changes.
            LOG.warning("%s %s/%s: %s right after it was applied; left as it is", kind.kind, namespace, name, left)
            self._settled[kind, namespace, name] = (str(result["metadata"]["resourceVersion"]), intent_digest(intent))
        return reason

    async def delete(self, obj: Mapping[str, Any]) -> bool:
        """Delete exactly this object (by uid); False when it was gone already."""
        kind, metadata = kind_of(obj), obj["metadata"]
        if metadata.get("deletionTimestamp"):
            return False
        deleted = await self._api.delete(kind, metadata["namespace"], metadata["name"], metadata["uid"])
        self._settled.pop((kind, metadata["namespace"], metadata["name"]), None)
        return deleted

    def _is_settled(self, kind: Kind, live: Mapping[str, Any], intent: Mapping[str, Any]) -> bool:
        """Whether this very intent was applied to this very state before, and did not stick."""
        metadata = live["metadata"]
        settled = self._settled.get((kind, metadata["namespace"], metadata["name"]))
        return settled == (str(metadata["resourceVersion"]), intent_digest(intent))


def _check_owner(live: Mapping[str, Any], kind: Kind, owner_uid: str) -> None:
    metadata = live["metadata"]
    text = f"{kind.kind} {metadata['name']}"
    if not is_owned(live, owner_uid):
        references = metadata.get("ownerReferences") or []
        predecessor = any(r.get("kind") == KIND and r.get("apiVersion") == API_VERSION for r in references)
        if predecessor:
            raise NotYet(f"{text} of a deleted deployment is being collected", after=GARBAGE_COLLECTION_SECONDS)
        raise ForeignObject(f"{text} exists and is not ours; rename or delete it, or rename this deployment")
    if metadata.get("deletionTimestamp"):
        raise NotYet(f"{text} is being deleted", after=GARBAGE_COLLECTION_SECONDS)
