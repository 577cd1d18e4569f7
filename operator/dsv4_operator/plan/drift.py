"""Whether a live child differs from what we want, so that an unchanged one is never written.

Two signs together: a digest of the intent, kept as an annotation on the child (it survives operator restarts, so a
restart writes nothing), and a comparison of every field of the intent with the live object (it finds hand edits).
Fields that others add are theirs and no drift.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from dsv4_operator.api.constants import ANNOTATION_INTENT

_LIST_KEYS: Final = ("mountPath", "name", "containerPort", "port", "uid")
"""Fields that identify list items. Keyed lists may hold more live items than ours: those belong to others."""
_ATOMIC_LISTS: Final = frozenset({"ingress"})
"""Lists that server-side apply replaces whole with all that is inside (k8s.io/api, +listType=atomic), although items
inside have names or ports. Lists of scalars and of items without identity match item by item anyway."""
_ATOMIC_MAPS: Final = frozenset({"selector", "matchLabels", "nodeSelector", "podSelector"})
"""Maps that server-side apply replaces whole (+mapType=atomic, +structType=atomic): a label more selects other pods."""
_NOT_ABSENT: Final = frozenset(
    {
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "emptyDir",
        "enableServiceLinks",
        "maxSurge",
        "maxUnavailable",
        "replicas",
        "runAsUser",
    }
)
"""Fields where false, 0 or {} is not absence (pointers in k8s.io/api): the API server keeps it, so that a live object
without it was changed."""
_QUANTITY_PATH: Final = re.compile(r"(^|\.)((requests|limits)\.[^\[\]]+|sizeLimit)$")


def with_digest(intent: Mapping[str, Any]) -> dict[str, Any]:
    """The intent with its own digest as an annotation: what is really applied."""
    metadata = dict(intent["metadata"])
    annotations = {**metadata.get("annotations", {}), ANNOTATION_INTENT: intent_digest(intent)}
    return {**intent, "metadata": {**metadata, "annotations": annotations}}


def intent_digest(intent: Mapping[str, Any]) -> str:
    """Sixteen hex digits over the whole intent."""
    canonical = json.dumps(intent, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def drift(live: Mapping[str, Any] | None, intent: Mapping[str, Any]) -> str | None:
    """Why the child must be applied, or None. `intent` comes without the digest annotation."""
    if live is None:
        return "missing"
    annotations = live["metadata"].get("annotations") or {}
    if annotations.get(ANNOTATION_INTENT) != intent_digest(intent):
        return "wanted state changed"
    path = first_difference(live, intent)
    return None if path is None else f"{path} was changed by somebody else"


def first_difference(live: Any, wanted: Any, path: str = "", *, atomic: bool = False) -> str | None:
    """Path of the first field of `wanted` that `live` lacks or holds differently; None when all are there.

    Inside something atomic, lists must match item by item; elsewhere items and keys of others are ignored.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return path or "object"
        for name, value in wanted.items():
            if name not in live and _is_empty(value) and name not in _NOT_ABSENT:
                continue  # the API server drops empty maps and lists
            inside = atomic or name in _ATOMIC_LISTS
            here = f"{path}.{name}" if path else name
            found = first_difference(live.get(name), value, here, atomic=inside)
            if found is None and name in _ATOMIC_MAPS and isinstance(value, Mapping):
                found = next((f"{here}.{extra}" for extra in live[name].keys() - value.keys()), None)
            if found is not None:
                return found
        return None
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return path
        return _list_difference(live, wanted, path, atomic=atomic)
    return None if _same_scalar(live, wanted, path) else path


def _list_difference(live: Sequence[Any], wanted: Sequence[Any], path: str, *, atomic: bool) -> str | None:
    identity = None if atomic else _identity(wanted)
    if identity is None:
        if len(live) != len(wanted):
            return path
        pairs = [(f"{path}[{index}]", pair) for index, pair in enumerate(zip(live, wanted, strict=True))]
    else:
        by_key = {item.get(identity): item for item in live if isinstance(item, Mapping)}
        pairs = [(f"{path}[{item[identity]}]", (by_key.get(item[identity]), item)) for item in wanted]
    for item_path, (mine, theirs) in pairs:
        found = first_difference(mine, theirs, item_path, atomic=atomic)
        if found is not None:
            return found
    return None


def _identity(items: Sequence[Any]) -> str | None:
    for key in _LIST_KEYS:
        values = [item.get(key) for item in items if isinstance(item, Mapping)]
        if values and len(values) == len(items) and None not in values and len(set(map(str, values))) == len(values):
            return key
    return None


def _is_empty(value: Any) -> bool:
    return value is None or value in ({}, [], "", False, 0)


def _same_scalar(live: Any, wanted: Any, path: str) -> bool:
    if isinstance(live, bool) is not isinstance(wanted, bool):
        return False  # to Python True is 1
    if live == wanted:
        return True
    if _QUANTITY_PATH.search(path) is None:
        return False
    mine, theirs = quantity(str(live)), quantity(str(wanted))
    return mine is not None and mine == theirs  # the API server stores 1024Mi as 1Gi, and 8 as "8"


_QUANTITY = re.compile(
    r"^([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|([eE][+-]?[0-9]+))?$"
)
_SUFFIX: Final = {
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1000) ** -power for power, suffix in enumerate(("m", "u", "n"), start=1)},
}


def quantity(text: str) -> Decimal | None:
    """The value of a Kubernetes quantity, None for a text that is none."""
    match = _QUANTITY.match(text)
    if match is None:
        return None
    try:
        return Decimal(match.group(1) + (match.group(3) or "")) * _SUFFIX.get(match.group(2) or "", Decimal(1))
    except InvalidOperation:  # pragma: no cover - the pattern admits nothing that Decimal refuses
        return None
