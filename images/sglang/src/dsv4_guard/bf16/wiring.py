"""Putting index-K in bf16 into a process of SGLang, or refusing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from dsv4_guard import patching
from dsv4_guard.bf16 import FORMAT, indexer, limits, pool, targets
from dsv4_guard.refusal import GuardError

LAYOUT = f"{targets.POOLS}:DeepSeekV4TokenToKVPool._make_indexer_pool"


def _tagged(original: Callable[..., None]) -> Callable[..., None]:
    """LogicalHostPool.__init__, the anchor of a V4 host cache: its stored pages carry the format."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        self.storage_format_tag = f"index-k-{FORMAT}"

    return __init__


def _replacements(version: str, of: targets.Targets) -> dict[str, Callable[[Any], Any]]:
    """Target -> maker of what takes its place."""
    makers: dict[str, Callable[[Any], Any]] = {
        targets.POOL_CLASS: pool.pool_class,
        targets.STORE: indexer.store,
        targets.QUERY: indexer.query,
        targets.FORWARD: indexer.forward(version),
        targets.PLAN: {"0.5.17": indexer.plan_0_5_17, "0.5.23": indexer.plan_0_5_23}[version],
        f"{targets.SCHEDULER}:Scheduler.__init__": limits.scheduler(of),
    }
    if of.bytes_function:
        makers[f"{targets.POOLS}:get_dsv4_indexer_bytes_per_token"] = pool.bytes_function
    else:
        makers[f"{targets.BUDGET}:DSV4PoolConfigurator._get_bytes_per_full_token"] = pool.bytes_in_place
    if of.regions_function:
        makers[f"{targets.STACKS}:_dsv4_indexer_regions"] = pool.regions
    else:
        for method in ("backup_from_device_all_layer", "load_to_device_per_layer"):
            makers[f"{targets.HOST_POOL}.{method}"] = pool.whole_pages
    if of.storage_tag:
        makers[f"{targets.LOGICAL_POOL}.__init__"] = _tagged
    return makers


def install(version: str) -> None:
    """Check everything, then replace everything. GuardError, with nothing replaced, when a check fails.

    In the API process only the environment is checked: no pool, kernel or scheduler lives there.
    """
    limits.environment()
    of = targets.of(version)
    from dsv4_guard.start import process_kind

    if process_kind() == "api":
        return
    replace(version, of)


def replace(version: str, of: targets.Targets) -> None:
    """Check the targets and put the replacements in place (scheduler processes)."""
    # Later imports would bind the originals by name: import what uses them first.
    for module in (targets.BUDGET, targets.STACKS, targets.SCHEDULER):
        patching.resolve(f"{module}:__name__")
    targets.check(of)
    if of.storage_tag:
        _, _, logical = patching.resolve(targets.LOGICAL_POOL)
        if not hasattr(logical, "storage_format_tag"):
            raise GuardError(f"target {targets.LOGICAL_POOL}.storage_format_tag: is not there; the release changed")
    _, _, scheduler = patching.resolve(f"{targets.SCHEDULER}:Scheduler.__init__")
    if list(inspect.signature(scheduler).parameters)[1:2] != ["server_args"]:
        raise GuardError(f"target {targets.SCHEDULER}:Scheduler.__init__: does not take server_args first any more")
    for target, maker in _replacements(version, of).items():
        patching.wrap(target, maker)


def verify(version: str) -> None:
    """GuardError unless every name under which SGLang calls the replaced parts leads to ours."""
    from dsv4_guard.start import process_kind

    if process_kind() == "api":
        return
    installed = set(patching.verify())
    missing = [target for target in _replacements(version, targets.of(version)) if target not in installed]
    if missing:
        raise GuardError(f"target {missing[0]}: index-K in bf16 is not in place")
    _, _, make = patching.resolve(LAYOUT)
    used = inspect.unwrap(make).__globals__["DeepSeekV4IndexerPool"]
    if getattr(used, "index_k_format", None) != FORMAT:
        raise GuardError(f"target {LAYOUT}: builds {used.__name__}, not the bf16 pool")
