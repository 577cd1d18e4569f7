"""The user's podTemplate laid over ours: it may add, never undo what makes the pair safe.

Maps merge by key; lists whose items have names (containers, volumes, env, ...) merge by name, others are appended.
Null means nothing: the key keeps our value. Where the overlay has another type than ours, ours stays.
Afterwards the guarded parts are put back: labels and selectors, the canary, the engine's command, its probes and
ports, the weights, and every variable that the operator owns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsv4_operator.api.constants import CONTAINER_CANARY, CONTAINER_ENGINE
from dsv4_operator.engine.flags import OWNED_ENV

_MERGE_KEYS: Final = ("mountPath", "devicePath", "name", "containerPort", "ip")
"""Merge keys of Kubernetes (k8s.io/api, patchMergeKey) in the order in which they tell items apart: a mount has a
name too, but that is its volume's."""
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
    "serviceAccount",  # the deprecated spelling: the API server overwrites it, which would look like drift for ever
    "restartPolicy",
    "hostNetwork",
    "hostIPC",
    "terminationGracePeriodSeconds",
)
_WEIGHTS: Final = "model"
_GUARDED_VOLUMES: Final = (_WEIGHTS, "canary-settings")
"""Other weights in one role would pair under one fingerprint; other settings would blind the canary."""


def apply_overlay(template: dict[str, Any], overlay: Mapping[str, Any] | None) -> dict[str, Any]:
    """The pod template with the overlay merged in; the input is not changed. Total: any overlay gives a template."""
    if not overlay:
        return template
    merged = _merge(template, overlay)
    merged["metadata"]["labels"].update(template["metadata"]["labels"])
    spec, original = merged["spec"], template["spec"]
    for field in _GUARDED_POD_FIELDS:
        _restore(spec, original, field)
    for group in ("containers", "initContainers"):
        if group in spec:
            spec[group] = [_guarded(item, original.get(group, [])) for item in spec[group]]
    volumes = {volume["name"]: volume for volume in original["volumes"] if volume["name"] in _GUARDED_VOLUMES}
    spec["volumes"] = [copy.deepcopy(volumes.get(item.get("name"), item)) for item in spec["volumes"]]
    return merged


def _guarded(merged: Any, ours: list[dict[str, Any]]) -> Any:
    """A container after the merge, with what the overlay may not touch put back."""
    name = merged.get("name") if isinstance(merged, Mapping) else None
    mine = next((container for container in ours if container["name"] == name), None)
    if name not in (CONTAINER_ENGINE, CONTAINER_CANARY) or mine is None:
        return merged
    if name == CONTAINER_CANARY:
        return copy.deepcopy(mine)  # whole: a command or a probe that we do not set would undo it as well
    result: dict[str, Any] = dict(merged)
    for field in _GUARDED_CONTAINER_FIELDS:
        _restore(result, mine, field)
    set_by_us = {variable["name"] for variable in mine["env"]}
    result["env"] = [
        *copy.deepcopy(mine["env"]),
        *(variable for variable in result["env"] if variable.get("name") not in set_by_us | OWNED_ENV.keys()),
    ]
    result["lifecycle"] = {**result["lifecycle"], **copy.deepcopy(mine["lifecycle"])}
    weights = {mount["mountPath"]: mount for mount in mine["volumeMounts"] if mount["name"] == _WEIGHTS}
    result["volumeMounts"] = [
        copy.deepcopy(weights.get(mount.get("mountPath"), mount))
        for mount in result["volumeMounts"]
        if mount.get("mountPath") in weights or not _inside(mount, weights)
    ]
    return result


def _inside(mount: Mapping[str, Any], paths: Iterable[str]) -> bool:
    """Whether a mount would cover something below (or spelt otherwise) one of `paths`."""
    mine = "/" + "/".join(part for part in str(mount.get("mountPath", "")).split("/") if part not in ("", "."))
    return any(mine == path or mine.startswith(f"{path}/") for path in paths)


def _restore(target: dict[str, Any], source: Mapping[str, Any], field: str) -> None:
    if field in source:
        target[field] = copy.deepcopy(source[field])
    else:
        target.pop(field, None)


def _merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(base))
    for key, value in patch.items():
        current = result.get(key)
        if value is None:
            continue
        if isinstance(current, Mapping):
            if isinstance(value, Mapping):
                result[key] = _merge(current, value)
        elif isinstance(current, list):
            if isinstance(value, list):
                result[key] = _merge_list(current, value)
        else:
            result[key] = _without_nulls(value)
    return result


def _merge_list(base: list[Any], patch: list[Any]) -> list[Any]:
    result = copy.deepcopy(base)
    of_objects = any(isinstance(item, Mapping) for item in base)
    for item in patch:
        if item is None or (of_objects and not isinstance(item, Mapping)):
            continue
        index = _index_of(result, item)
        if index is None:
            result.append(_without_nulls(item))
        elif isinstance(item, Mapping):
            # value and valueFrom exclude each other
            result[index] = _without_nulls(item) if _is_env(item) else _merge(result[index], item)
    return result


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _is_env(item: Mapping[str, Any]) -> bool:
    return "value" in item or "valueFrom" in item


def _index_of(items: list[Any], wanted: Any) -> int | None:
    if not isinstance(wanted, Mapping):
        return items.index(wanted) if wanted in items else None
    for key in _MERGE_KEYS:
        if key in wanted:
            return next(
                (i for i, item in enumerate(items) if isinstance(item, Mapping) and item.get(key) == wanted[key]),
                None,
            )
    return items.index(wanted) if wanted in items else None
