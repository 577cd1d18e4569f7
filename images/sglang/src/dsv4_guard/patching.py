"""Replacing functions of SGLang so that it can be proved later that they are replaced.

SGLang's own HookRegistry only logs a missing target or a failing hook, and the order of hooks of several plugins is
the order of their registration. This module patches after the registry is done, so its wrappers are outermost, and
raises where the target is not there.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsv4_guard.refusal import GuardError


@dataclass(frozen=True)
class Patch:
    """One replaced attribute."""

    target: str
    owner: Any
    name: str
    original: Any
    wrapper: Any


_done: dict[str, Patch] = {}


def resolve(target: str) -> tuple[Any, str, Any]:
    """(owner, name, value) of "package.module:Class.method" or "package.module:function".

    GuardError names the target when any step is missing.
    """
    module_name, _, path = target.partition(":")
    try:
        owner: Any = importlib.import_module(module_name)
    except Exception as error:
        raise GuardError(f"target {target}: module does not import: {type(error).__name__}: {error}") from error
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(owner, parent):
            raise GuardError(f"target {target}: {parent} is not there, so this release is not the one it was built for")
        owner = getattr(owner, parent)
    if not hasattr(owner, name):
        raise GuardError(f"target {target}: {name} is not there, so this release is not the one it was built for")
    return owner, name, getattr(owner, name)


def wrap(target: str, make: Callable[[Any], Any]) -> Any:
    """Replace `target` by make(original), once, also where other modules imported it by name. Returns the wrapper."""
    if target in _done:
        return _done[target].wrapper
    owner, name, original = resolve(target)
    wrapper = make(original)
    setattr(owner, name, wrapper)
    if isinstance(owner, types.ModuleType):
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and module is not owner:
                for other, value in list(vars(module).items()):
                    if value is original:
                        setattr(module, other, wrapper)
    _done[target] = Patch(target, owner, name, original, wrapper)
    return wrapper


def verify() -> tuple[str, ...]:
    """The targets that are replaced; GuardError names one that no longer is ours."""
    for patch in _done.values():
        if getattr(patch.owner, patch.name, None) is not patch.wrapper:
            raise GuardError(f"target {patch.target}: something replaced our wrapper after it was installed")
    return tuple(sorted(_done))


def undo() -> None:
    """Take everything back (tests)."""
    for patch in reversed(list(_done.values())):
        setattr(patch.owner, patch.name, patch.original)
        for module in list(sys.modules.values()):
            if isinstance(module, types.ModuleType) and module is not patch.owner:
                for other, value in list(vars(module).items()):
                    if value is patch.wrapper:
                        setattr(module, other, patch.original)
    _done.clear()
