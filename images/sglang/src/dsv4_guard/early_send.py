"""Early send of a cached prefix, held back while a load from host may still be writing it.

Upstream does this from 0.5.23 on (44070): a batch whose build started a load is not sent early, since any of its
requests may have matched pages that the load fills. What is held back goes out with the send after the forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dsv4_guard import patching
from dsv4_guard.refusal import GuardError
from dsv4_guard.releases import SCHEDULER, Release

_PENDING = "_dsv4_guard_load_pending"


def _run_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run_batch(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, _PENDING, batch.hicache_consumer_index >= 0)
        return original(self, batch, *args, **kwargs)

    return run_batch


def _maybe_send(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def maybe_send_cached_prefix_chunk(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        # Unknown counts as pending: to send later is always right.
        if getattr(self, _PENDING, True):
            return None
        return original(self, req, *args, **kwargs)

    return maybe_send_cached_prefix_chunk


def install(release: Release) -> None:
    """Backport for releases without it; for the others, check that it is there."""
    import dataclasses
    import inspect

    send = f"{SCHEDULER}.maybe_send_cached_prefix_chunk"
    if release.early_send_checks_load:
        _, _, function = patching.resolve(send)
        if "allow_send" not in inspect.signature(function).parameters:
            raise GuardError(f"target {send}: lost its parameter allow_send; the release changed")
        return
    batch = "sglang.srt.managers.schedule_batch:ScheduleBatch"
    _, _, batch_class = patching.resolve(batch)
    if "hicache_consumer_index" not in {field.name for field in dataclasses.fields(batch_class)}:
        raise GuardError(f"target {batch}.hicache_consumer_index: is not there; the release changed")
    patching.wrap(f"{SCHEDULER}.run_batch", _run_batch)
    patching.wrap(send, _maybe_send)
