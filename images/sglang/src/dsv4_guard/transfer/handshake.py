"""The format of index-K in what the two sides compare before the first transfer.

0.5.23 compares the string of DeepSeekV4TokenToKVPool.pd_kv_layout. Before there is no such string, but page size and
the name of the KV dtype are compared, so the format goes into that name. fp8, what every release stores unless told
otherwise, adds nothing: a guarded fp8 engine still pairs with an unguarded one, and every other combination refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dsv4_guard import patching
from dsv4_guard.refusal import GuardError
from dsv4_guard.releases import POOL, Release

COMMON = "sglang.srt.disaggregation.common.conn:CommonKVManager"


def suffix(index_k: str) -> str:
    """What the compared string ends with."""
    return "" if index_k == "fp8" else f",index_k:{index_k}"


def _layout(index_k: str) -> Callable[[Callable[..., str]], Any]:
    def make(original: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(original)
        def pd_kv_layout(self: Any) -> str:
            return original(self) + suffix(index_k)

        return pd_kv_layout

    return make


def _dtype_name(index_k: str) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:  # noqa: N807
            if not str(args.kv_cache_dtype_str).endswith(suffix(index_k)):
                args.kv_cache_dtype_str = f"{args.kv_cache_dtype_str}{suffix(index_k)}"
            original(self, args, *rest, **kwargs)

        return __init__

    return make


def install(release: Release, index_k: str) -> None:
    """Make peers with another format refuse at the handshake."""
    if release.compares_layout:
        patching.wrap(f"{POOL}.pd_kv_layout", _layout(index_k))
        return
    import inspect

    _, _, function = patching.resolve(f"{COMMON}.__init__")
    if list(inspect.signature(function).parameters)[1:2] != ["args"]:
        raise GuardError(f"target {COMMON}.__init__: does not take args first any more; the release changed")
    patching.wrap(f"{COMMON}.__init__", _dtype_name(index_k))
