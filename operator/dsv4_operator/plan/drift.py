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

_LIST_KEYS: Final = ("name", "containerPort", "port", "key", "uid")
"""Fields that identify list items. Keyed lists may hold more live items than ours: those belong to others."""
_ATOMIC_LISTS: Final = frozenset({"command", "args", "tolerations", "ingress", "from", "values", "matchExpressions"})
"""Lists that server-side apply replaces whole (k8s.io/api, +listType=atomic): they must match item by item."""


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


def first_difference(live: Any, wanted: Any, path: str = "", key: str = "") -> str | None:
    """Path of the first field of `wanted` that `live` lacks or holds differently; None when all are there."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return path or "object"
        for name, value in wanted.items():
            if name not in live and _is_empty(value):
                continue  # the API server drops empty maps and lists
            found = first_difference(live.get(name), value, f"{path}.{name}" if path else name, name)
            if found is not None:
                return found
        return None
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return path
        return _list_difference(live, wanted, path, key)
    return None if _same_scalar(live, wanted) else path


def _list_difference(live: Sequence[Any], wanted: Sequence[Any], path: str, key: str) -> str | None:
    identity = None if key in _ATOMIC_LISTS else _identity(wanted)
    if identity is None:
        if len(live) != len(wanted):
            return path
        pairs = [(f"{path}[{index}]", pair) for index, pair in enumerate(zip(live, wanted, strict=True))]
    else:
        by_key = {item.get(identity): item for item in live if isinstance(item, Mapping)}
        pairs = [(f"{path}[{item[identity]}]", (by_key.get(item[identity]), item)) for item in wanted]
    for item_path, (mine, theirs) in pairs:
        found = first_difference(mine, theirs, item_path)
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


def _same_scalar(live: Any, wanted: Any) -> bool:
    if live == wanted:
        return True
    if isinstance(live, str) and isinstance(wanted, str):
        mine, theirs = quantity(live), quantity(wanted)
        return mine is not None and mine == theirs  # the API server stores 1024Mi as 1Gi
    return wanted is None and live is None


_QUANTITY = re.compile(r"^([+-]?[0-9]*\.?[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?$")
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
        return Decimal(match.group(1)) * _SUFFIX.get(match.group(2) or "", Decimal(1))
    except InvalidOperation:  # pragma: no cover - the pattern admits nothing that Decimal refuses
        return None
