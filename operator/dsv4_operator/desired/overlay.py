"""The user's podTemplate laid over ours: it may add, never undo what makes the pair safe.

Maps merge by key; lists whose items have names (containers, volumes, env, ...) merge by name, others are appended.
Afterwards the guarded parts are put back: labels and selectors, the canary, the engine's command, its probes and
ports, and every variable that the operator owns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from dsv4_operator.api.constants import CONTAINER_CANARY, CONTAINER_ENGINE

_MERGE_KEYS: Final = ("name", "mountPath", "containerPort", "key", "ip")
_GUARDED_CONTAINER_FIELDS: Final = (
    "command",
    "args",
    "image",
    "ports",
    "startupProbe",
    "livenessProbe",
    "readinessProbe",
)
_GUARDED_POD_FIELDS: Final = (
    "serviceAccountName",
    "restartPolicy",
    "hostNetwork",
    "terminationGracePeriodSeconds",
)


def apply_overlay(template: dict[str, Any], overlay: Mapping[str, Any] | None) -> dict[str, Any]:
    """The pod template with the overlay merged in; the input is not changed."""
    if not overlay:
        return template
    merged = _merge(template, overlay)
    merged["metadata"]["labels"].update(template["metadata"]["labels"])
    spec, original = merged["spec"], template["spec"]
    for field in _GUARDED_POD_FIELDS:
        _restore(spec, original, field)
    for group, name in (("containers", CONTAINER_ENGINE), ("initContainers", CONTAINER_CANARY)):
        ours = _named(original.get(group, []), name)
        if ours is None:
            continue
        theirs = _named(spec[group], name)
        if theirs is None:  # unreachable by merging; kept so that a later change cannot lose a container
            spec[group].insert(0, copy.deepcopy(ours))
            continue
        fields = ours.keys() if name == CONTAINER_CANARY else _GUARDED_CONTAINER_FIELDS
        for field in fields:
            _restore(theirs, ours, field)
        theirs["env"] = _merge_list(theirs.get("env", []), ours.get("env", []))
    return merged


def _restore(target: dict[str, Any], source: Mapping[str, Any], field: str) -> None:
    if field in source:
        target[field] = copy.deepcopy(source[field])
    else:
        target.pop(field, None)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((item for item in items if item.get("name") == name), None)


def _merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for key, value in patch.items():
        current = result.get(key)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            result[key] = _merge(current, value)
        elif isinstance(current, list) and isinstance(value, list):
            result[key] = _merge_list(current, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _merge_list(base: list[Any], patch: list[Any]) -> list[Any]:
    result = copy.deepcopy(base)
    for item in patch:
        index = _index_of(result, item)
        if index is None:
            result.append(copy.deepcopy(item))
        elif isinstance(item, Mapping) and _is_env(item):
            result[index] = copy.deepcopy(dict(item))  # value and valueFrom exclude each other
        elif isinstance(item, Mapping):
            result[index] = _merge(result[index], item)
    return result


def _is_env(item: Mapping[str, Any]) -> bool:
    return item.keys() <= {"name", "value", "valueFrom"}


def _index_of(items: list[Any], wanted: Any) -> int | None:
    if not isinstance(wanted, Mapping):
        return items.index(wanted) if wanted in items else None
    for key in _MERGE_KEYS:
        if key in wanted:
            return next(
                (i for i, item in enumerate(items) if isinstance(item, Mapping) and item.get(key) == wanted[key]),
                None,
            )
    return None
