"""What index-K in bf16 cannot serve, found before the model is loaded."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsv4_guard.bf16.targets import Targets
from dsv4_guard.refusal import GuardError, refuse

_TRUE = ("1", "true", "yes", "on", "y", "t")
ENVIRONMENT = {
    "SGLANG_OPT_USE_TILELANG_INDEXER": "the tilelang indexer reads fp8 keys",
    "SGLANG_OPT_USE_AITER_INDEXER": "the aiter indexer reads fp8 keys",
}
"""Variable -> why it cannot be set."""
FLAGS = {
    "enable_deepseek_v4_fp4_indexer": ("--enable-deepseek-v4-fp4-indexer", "it stores index-K in fp4"),
    "enable_hisparse": ("--enable-hisparse", "it copies single tokens of index-K, in the fp8 row format"),
    "enable_prefill_cp": ("--enable-prefill-cp", "context-parallel prefill was not tested with it"),
    "enable_nvidia_megakernel": ("--enable-nvidia-megakernel", "the megakernel reads fp8 keys"),
}
"""Field of ServerArgs -> (flag, why it cannot be on). A field that the release lacks is off."""


def environment(environ: Mapping[str, str] | None = None) -> None:
    """GuardError for a variable that selects code which cannot read bf16 keys."""
    env = os.environ if environ is None else environ
    for name, why in ENVIRONMENT.items():
        if env.get(name, "").strip().lower() in _TRUE:
            raise GuardError(f"{name}={env[name]} and DSV4_INDEX_K_DTYPE=bf16 exclude each other: {why}; unset one")


def _ratios(model_path: str) -> list[int]:
    """compress_ratios of a local checkpoint; empty when it is not local (the pools are checked as well)."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    ratios = config.get("compress_ratios", [])
    return [ratio for ratio in ratios if isinstance(ratio, int)]


def arguments(server_args: Any, targets: Targets) -> None:
    """GuardError for server arguments that bf16 index-K cannot serve."""
    for field, (flag, why) in FLAGS.items():
        if getattr(server_args, field, False):
            raise GuardError(f"{flag} and DSV4_INDEX_K_DTYPE=bf16 exclude each other: {why}; drop one")
    if not targets.storage_tag and getattr(server_args, "hicache_storage_backend", None) is not None:
        raise GuardError(
            "--hicache-storage-backend and DSV4_INDEX_K_DTYPE=bf16 exclude each other on this release: stored pages "
            "carry no format, so fp8 and bf16 pages would share keys; drop the backend, or use 0.5.23"
        )
    if str(getattr(server_args, "device", "cuda")) not in ("cuda", "None"):
        raise GuardError(f"--device {server_args.device}: index-K in bf16 is for NVIDIA GPUs")
    low = sorted({ratio for ratio in _ratios(str(server_args.model_path)) if ratio in (1, 2)})
    if low:
        raise GuardError(
            f"compress_ratios of {server_args.model_path} hold {low}: a DeepSeek-V4.1 model, with an fp4 indexer; "
            "unset DSV4_INDEX_K_DTYPE"
        )


def scheduler(targets: Targets) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Maker of Scheduler.__init__ that looks at the resolved arguments before anything is loaded."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(self: Any, server_args: Any, *rest: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                arguments(server_args, targets)
            except GuardError as error:
                refuse(str(error))
            original(self, server_args, *rest, **kwargs)

        return __init__

    return make
