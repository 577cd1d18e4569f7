"""Why the pods of a role must be replaced, in words for events and `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4_operator.api.constants import CONTAINER_CANARY, CONTAINER_ENGINE, CONTAINER_ROUTER
from dsv4_operator.plan.drift import first_difference

_OURS: Final = frozenset({CONTAINER_ENGINE, CONTAINER_CANARY, CONTAINER_ROUTER})
"""Containers whose absence from the wanted template means removal; others may be somebody else's."""


def why_replaced(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Differences between the live pod template and the wanted one that replace pods; empty when none does.

    Both are `spec.template` of a Deployment. Engine arguments are compared flag by flag, so that the reader sees
    "--enable-hierarchical-cache added" and not two long lists.
    """
    reasons: list[str] = []
    live_spec, wanted_spec = live.get("spec", {}), wanted.get("spec", {})
    for group in ("initContainers", "containers"):
        mine = {container["name"]: container for container in live_spec.get(group, [])}
        theirs = {container["name"]: container for container in wanted_spec.get(group, [])}
        reasons += [f"container {name} added" for name in sorted(theirs.keys() - mine.keys())]
        reasons += [f"container {name} removed" for name in sorted(mine.keys() & _OURS - theirs.keys())]
        for name in sorted(theirs.keys() & mine.keys()):
            reasons += _container(name, mine[name], theirs[name])
    rest = {key: value for key, value in wanted_spec.items() if key not in ("initContainers", "containers")}
    path = first_difference(live_spec, rest)
    if path is not None:
        reasons.append(f"{path} changed")
    path = first_difference(live.get("metadata", {}), wanted.get("metadata", {}))
    if path is not None:
        reasons.append(f"metadata.{path} changed")
    return reasons


def _container(name: str, live: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    reasons: list[str] = []
    if live.get("image") != wanted.get("image"):
        reasons.append(f"{name} image {live.get('image')} -> {wanted.get('image')}")
    reasons += [f"{name} {text}" for text in _arguments(live.get("args", []), wanted.get("args", []))]
    reasons += [f"{name} {text}" for text in _environment(live.get("env", []), wanted.get("env", []))]
    rest = {key: value for key, value in wanted.items() if key not in ("image", "args", "env")}
    path = first_difference(live, rest)
    if path is not None:
        reasons.append(f"{name} {path} changed")
    return reasons


def _flags(arguments: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    current = ""
    for argument in arguments:
        if argument.startswith("--"):
            current = argument
            flags[current] = ""
        else:
            flags[current] = f"{flags.get(current, '')} {argument}".strip()
    return flags


def _arguments(live: list[str], wanted: list[str]) -> list[str]:
    mine, theirs = _flags(live), _flags(wanted)
    texts = [f"{flag} removed" for flag in mine if flag not in theirs]
    texts += [f"{flag} {value}".strip() + " added" for flag, value in theirs.items() if flag not in mine]
    texts += [
        f"{flag} {mine[flag]} -> {value}" for flag, value in theirs.items() if flag in mine and mine[flag] != value
    ]
    if not texts and list(live) != list(wanted):
        texts.append("arguments reordered")
    return texts


def _environment(live: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    mine, theirs = {e["name"]: e for e in live}, {e["name"]: e for e in wanted}
    # Values may be secrets in all but name: only names are said.
    texts = [f"variable {name} removed" for name in mine if name not in theirs]
    texts += [f"variable {name} added" for name in theirs if name not in mine]
    changed = (name for name in theirs if name in mine and first_difference(mine[name], theirs[name]))
    return texts + [f"variable {name} changed" for name in changed]
