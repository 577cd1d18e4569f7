"""Object cache: the last known state of every watched object, as compact JSON.

Fed by watch events and by the periodic LIST, in any order. Three things keep it right although events and
lists race:
- an older resourceVersion of the same object never replaces a newer one (they are comparable integers: API
  concepts, "Resource versions", since Kubernetes 1.35; true of every etcd-backed server before);
- what a list lacks is dropped only if it is not newer than the list;
- an object that was deleted does not come back from a list that is older than its deletion.

8,000 objects of 2.5 kB cost about 20 MB: bytes, not dict trees (five to ten times as much). Readers get a
fresh dict each time, so nobody can change the cache by accident.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dsv4_operator.api.constants import LABEL_DEPLOYMENT
from dsv4_operator.kube.kinds import DSV4_DEPLOYMENT, Kind

JsonObject = dict[str, Any]
Objects = list[JsonObject]  # the class has a method called list

MAX_TOMBSTONES: Final = 20_000


class ObjectKey(NamedTuple):
    """Identity of a cached object. `namespace` is empty for cluster-scoped kinds."""

    kind: Kind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class _Entry:
    data: bytes
    uid: str
    revision: int
    owner: str  # value of the deployment label; empty without


class ObjectCache:
    """See the module's docstring. Not thread-safe: one event loop owns it."""

    def __init__(self, max_tombstones: int = MAX_TOMBSTONES) -> None:
        self._entries: dict[Kind, dict[tuple[str, str], _Entry]] = {}
        self._children: dict[tuple[str, str], set[ObjectKey]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()  # uid -> revision as of which it was gone
        self._max_tombstones = max_tombstones
        self._synced: set[Kind] = set()
        self._left_out: set[str] = set()

    def put(self, kind: Kind, obj: Mapping[str, Any]) -> bool:
        """Store what a watch, a list or a write returned. False when it is not news (older, equal, or
        deleted), or of a namespace that is left out.
        """
        key, entry = _key(kind, obj), _entry(obj)
        if key.namespace in self._left_out:
            return False
        if entry.revision <= self._gone.get(entry.uid, -1):
            return False
        old = self._entries.get(kind, {}).get((key.namespace, key.name))
        if old is not None:
            same_object = old.uid == entry.uid
            if entry.revision < old.revision or (same_object and entry.revision == old.revision):
                return False
            if old.owner != entry.owner:
                self._unlink(key, old)
        self._entries.setdefault(kind, {})[(key.namespace, key.name)] = entry
        if entry.owner:
            self._children.setdefault((key.namespace, entry.owner), set()).add(key)
        return True

    def remove(self, kind: Kind, obj: Mapping[str, Any]) -> bool:
        """A DELETED event: drop the object it carries, unless a newer one of that name is there. True if
        dropped.
        """
        key, dead = _key(kind, obj), _entry(obj)
        self._bury(dead.uid, dead.revision)
        entry = self._entries.get(kind, {}).get((key.namespace, key.name))
        if entry is None or entry.revision > dead.revision:
            return False
        self._drop(key, entry)
        return True

    def discard(self, kind: Kind, namespace: str | None, name: str) -> bool:
        """A live read said that the object is gone: drop it. True if it was there."""
        key = ObjectKey(kind, namespace or "", name)
        entry = self._entries.get(kind, {}).get((key.namespace, key.name))
        if entry is None:
            return False
        self._bury(entry.uid, entry.revision)
        self._drop(key, entry)
        return True

    def replace_all(
        self,
        kind: Kind,
        items: Iterable[Mapping[str, Any]],
        resource_version: str,
        namespace: str | None = None,
    ) -> set[ObjectKey]:
        """Take over a complete LIST made at `resource_version` (of one namespace, or of all) and mark the
        kind synced.

        Returns the keys that changed, appeared, or vanished without an event: the ones to look at again.
        """
        revision = _revision(resource_version)
        listed: set[tuple[str, str]] = set()
        changed: set[ObjectKey] = set()
        for item in items:
            key = _key(kind, item)
            listed.add((key.namespace, key.name))
            if self.put(kind, item):
                changed.add(key)
        for (its_namespace, name), entry in list(self._entries.get(kind, {}).items()):
            if (its_namespace, name) in listed or entry.revision > revision:
                continue
            if namespace is not None and its_namespace != namespace:
                continue
            key = ObjectKey(kind, its_namespace, name)
            self._bury(entry.uid, revision)
            self._drop(key, entry)
            changed.add(key)
        self._synced.add(kind)
        return changed

    def leave_out(self, namespace: str) -> set[tuple[str, str]]:
        """Drop all of a namespace and take nothing of it from now on (late events, answers of running passes).

        Returns (namespace, name) of the DSV4Deployments dropped.
        """
        self._left_out.add(namespace)
        dropped = [key for kind in self._entries for key in self.keys(kind) if key.namespace == namespace]
        for key in dropped:
            self._drop(key, self._entries[key.kind][(key.namespace, key.name)])
        return {(key.namespace, key.name) for key in dropped if key.kind == DSV4_DEPLOYMENT}

    def get(self, kind: Kind, namespace: str | None, name: str) -> JsonObject | None:
        """A fresh copy of the object, without managedFields; None when unknown."""
        entry = self._entries.get(kind, {}).get((namespace or "", name))
        return None if entry is None else _load(entry.data)

    def list(self, kind: Kind, namespace: str | None = None) -> Objects:
        """Fresh copies of all objects of a kind, in order of namespace and name."""
        found = self._entries.get(kind, {})
        return [_load(found[key].data) for key in sorted(found) if namespace in (None, key[0])]

    def keys(self, kind: Kind) -> set[ObjectKey]:
        """Keys of all objects of a kind, without reading them."""
        return {ObjectKey(kind, *key) for key in self._entries.get(kind, {})}

    def children_of(self, namespace: str, deployment: str) -> Objects:
        """Fresh copies of everything that carries this DSV4Deployment's label, in order of kind and name."""
        keys = sorted(self._children.get((namespace, deployment), ()), key=lambda key: (key.kind.kind, key.name))
        return [_load(self._entries[key.kind][(key.namespace, key.name)].data) for key in keys]

    def owner_of(self, kind: Kind, obj: Mapping[str, Any]) -> tuple[str, str] | None:
        """(namespace, name) of the DSV4Deployment that an event of this object concerns; None when of no one.

        By the object's label; failing that (somebody removed it), by what the cache knew of it.
        """
        key = _key(kind, obj)
        if kind == DSV4_DEPLOYMENT:
            return (key.namespace, key.name)
        known = self._entries.get(kind, {}).get((key.namespace, key.name))
        owner = _owner(obj) or (known.owner if known else "")
        return (key.namespace, owner) if owner else None

    def synced(self, *kinds: Kind) -> bool:
        """Whether each of these kinds has been listed in full at least once."""
        return self._synced.issuperset(kinds)

    def mark_synced(self, kind: Kind) -> None:
        """Count a kind as synced that cannot be listed, because the cluster does not serve it."""
        self._synced.add(kind)

    def __len__(self) -> int:
        return sum(len(found) for found in self._entries.values())

    def _drop(self, key: ObjectKey, entry: _Entry) -> None:
        del self._entries[key.kind][(key.namespace, key.name)]
        self._unlink(key, entry)

    def _unlink(self, key: ObjectKey, entry: _Entry) -> None:
        siblings = self._children.get((key.namespace, entry.owner))
        if siblings is not None:
            siblings.discard(key)
            if not siblings:
                del self._children[(key.namespace, entry.owner)]

    def _bury(self, uid: str, revision: int) -> None:
        self._gone[uid] = max(revision, self._gone.pop(uid, -1))
        while len(self._gone) > self._max_tombstones:
            self._gone.popitem(last=False)


def _metadata(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = obj["metadata"]
    return metadata


def _key(kind: Kind, obj: Mapping[str, Any]) -> ObjectKey:
    metadata = _metadata(obj)
    return ObjectKey(kind, metadata.get("namespace") or "", metadata["name"])


def _owner(obj: Mapping[str, Any]) -> str:
    return str((_metadata(obj).get("labels") or {}).get(LABEL_DEPLOYMENT) or "")


def _entry(obj: Mapping[str, Any]) -> _Entry:
    metadata = {key: value for key, value in _metadata(obj).items() if key != "managedFields"}
    data = json.dumps(dict(obj) | {"metadata": metadata}, separators=(",", ":"), ensure_ascii=False).encode()
    return _Entry(data, str(metadata.get("uid") or ""), _revision(metadata.get("resourceVersion")), _owner(obj))


def _revision(resource_version: object) -> int:
    text = str(resource_version or "")
    if not text.isdigit():
        raise ValueError(f"resourceVersion {text!r} is no integer: this API server's versions cannot be compared")
    return int(text)


def _load(data: bytes) -> JsonObject:
    loaded: JsonObject = json.loads(data)
    return loaded
