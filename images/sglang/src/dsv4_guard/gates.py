"""The gate guarantee: no byte of a layer leaves the pool before that layer's load from host has been waited for.

A gated accessor makes the current stream wait for the layer's event, then returns the buffer. Whether it does is not
believed but tried: the accessor is called on an object that records the wait and stops at the first look at anything
else. Accessors that do not wait (a changed release, or a hook of another plugin underneath) are wrapped in a wait of
our own, and tried again.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from dsv4_guard import MARK, patching
from dsv4_guard.refusal import GuardError
from dsv4_guard.releases import POOL, Release

log = logging.getLogger(MARK)

LAYER, START = 7, 3
"""Layer asked for and first layer of the stage in the trial; the wait must be for their difference."""


class _Touched(BaseException):
    """The accessor looked at the pool. Not an Exception, so that nothing underneath swallows it."""


class RecordingCounter:
    """Stands in for the HiCache layer counter."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def wait_until(self, threshold: int) -> None:
        """Record a wait for local layer `threshold`."""
        self.waits.append(threshold)


def _trial_object(pool_class: type[Any]) -> Any:
    def look(self: Any, name: str) -> Any:
        if name in ("layer_transfer_counter", "start_layer") or name.startswith("__"):
            return object.__getattribute__(self, name)
        found = inspect.getattr_static(pool_class, name, None)
        if found is None or isinstance(found, property):
            raise _Touched(name)
        return object.__getattribute__(self, name)

    trial = type("Trial", (pool_class,), {"__getattribute__": look})
    trial.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    made: Any = object.__new__(trial)
    object.__setattr__(made, "layer_transfer_counter", RecordingCounter())
    object.__setattr__(made, "start_layer", START)
    return made


def waits_first(pool_class: type[Any], accessor: str) -> bool:
    """Whether the accessor waits for its layer, and for nothing else, before it looks at any buffer."""
    made = _trial_object(pool_class)
    function = getattr(pool_class, accessor)
    arguments: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.name == "layer_id":
            arguments[parameter.name] = LAYER
        elif parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            arguments[parameter.name] = None
    if "layer_id" not in arguments:
        raise GuardError(f"target {POOL}.{accessor}: takes no layer_id any more; the release changed")
    try:
        function(made, **arguments)
    except _Touched:
        pass
    except Exception:
        log.debug("trial of %s ended early", accessor, exc_info=True)
    waits: list[int] = object.__getattribute__(made, "layer_transfer_counter").waits
    return bool(waits) and set(waits) == {LAYER - START}


def waiting(original: Callable[..., Any]) -> Callable[..., Any]:
    """The accessor, after a wait of our own that does not go through anything that can be hooked away."""

    @functools.wraps(original)
    def accessor(self: Any, *args: Any, **kwargs: Any) -> Any:
        counter = self.layer_transfer_counter
        if counter is not None:
            layer = kwargs["layer_id"] if "layer_id" in kwargs else args[0]
            counter.wait_until(layer - self.start_layer)
        return original(self, *args, **kwargs)

    return accessor


def check_list(pool_class: type[Any], release: Release) -> None:
    """GuardError when the class has a method that the release's lists do not know, or lacks a listed accessor."""
    own = {name for name, value in vars(pool_class).items() if inspect.isfunction(value) and not name.startswith("_")}
    known = {*release.gated, *release.writers, *release.others}
    unknown = sorted(name for name in own - known if not _ours(pool_class, name))
    if unknown:
        raise GuardError(
            f"target {POOL}: methods {', '.join(unknown)} are not in the list for SGLang {release.version}; "
            "one of them may let index-K out without a wait, so the release has to be read again"
        )
    for accessor in release.gated:
        if not hasattr(pool_class, accessor):
            raise GuardError(f"target {POOL}.{accessor}: is not there, so this is not SGLang {release.version}")


def _ours(pool_class: type[Any], name: str) -> bool:
    return str(getattr(vars(pool_class)[name], "__module__", "")).startswith("dsv4_guard")


def install(release: Release, always_wait: bool) -> tuple[str, ...]:
    """Prove every accessor gated, wrapping those that are not (all with `always_wait`). Returns the wrapped ones."""
    _, _, pool_class = patching.resolve(POOL)
    check_list(pool_class, release)
    wrapped = []
    for accessor in release.gated:
        if always_wait or not waits_first(pool_class, accessor):
            patching.wrap(f"{POOL}.{accessor}", waiting)
            wrapped.append(accessor)
        if not waits_first(pool_class, accessor):
            raise GuardError(f"target {POOL}.{accessor}: does not wait for its layer even when wrapped")
    if wrapped:
        log.warning("%s: accessors given a wait of our own: %s", MARK, ", ".join(wrapped))
    return tuple(wrapped)
