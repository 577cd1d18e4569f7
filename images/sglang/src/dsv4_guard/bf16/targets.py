"""What of SGLang is replaced for bf16 index-K, per release, and how it is told that it is what was studied.

A replaced function or class must have the source text whose digest is here: a release, or another plugin, that changed
it is refused rather than patched over. What is only wrapped must take the parameters named here.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_guard import patching
from dsv4_guard.refusal import GuardError

INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
COMPRESSOR = "sglang.srt.layers.attention.dsv4.compressor_v2"
METADATA = "sglang.srt.layers.attention.dsv4.metadata"
POOLS = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
BUDGET = "sglang.srt.model_executor.pool_configurator"
HOST = "sglang.srt.mem_cache.memory_pool_host"
STACKS = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler"
SCHEDULER = "sglang.srt.managers.scheduler"

POOL_CLASS = f"{POOLS}:DeepSeekV4IndexerPool"
FORWARD = f"{INDEXER}:C4IndexerBackendMixin.forward_c4_indexer"
COMPUTE_Q = f"{INDEXER}:C4Indexer.compute_q"
QUERY = f"{INDEXER}:fused_q_indexer_rope_hadamard_quant"
STORE = f"{COMPRESSOR}:compress_norm_rope_store"
STORE_CALLER = f"{COMPRESSOR}:CompressorBackendMixin._forward_compress_all_in_one"
PLAN = f"{METADATA}:PagedIndexerMetadata.__post_init__"
HOST_POOL = f"{HOST}:DeepSeekV4PagedHostPool"
LOGICAL_POOL = f"{HOST}:LogicalHostPool"


@dataclass(frozen=True)
class Targets:
    """Of one release."""

    digests: Mapping[str, str]
    """Target -> first 16 hex digits of the SHA-256 of its source text."""
    parameters: Mapping[str, tuple[str, ...]]
    """Wrapped target -> parameters that it must take."""
    bytes_function: bool
    """get_dsv4_indexer_bytes_per_token exists; else the budget computes the bytes in place."""
    regions_function: bool
    """_dsv4_indexer_regions and page_aligned_only exist; else the host pool itself is told not to split pages."""
    storage_tag: bool
    """Stored pages carry a format tag; else a storage backend is refused."""
    chunked: bool
    """The logits of a long prefill are made a chunk of rows at a time."""


_STORE = ("kv", "plan", "norm_weight", "norm_eps", "freq_cis", "out_loc", "kvcache", "page_size", "use_fp4")
_QUERY = ("q_input", "weight", "weight_scale", "freqs_cis", "positions")

RELEASES: Mapping[str, Targets] = {
    "0.5.17": Targets(
        digests={
            FORWARD: "8990913f6344ea7f",
            COMPUTE_Q: "1d291ecae34fa4d7",
            STORE_CALLER: "66a0cdd879ff7e20",
            PLAN: "3193634f457701b4",
            POOL_CLASS: "f9315f7c4c228ac1",
            f"{BUDGET}:DSV4PoolConfigurator._get_bytes_per_full_token": "61ff61c0227dce96",
            f"{HOST_POOL}.backup_from_device_all_layer": "59859c2150523f6a",
            f"{HOST_POOL}.load_to_device_per_layer": "edbc4e13bafb437a",
        },
        parameters={QUERY: _QUERY, STORE: _STORE},
        bytes_function=False,
        regions_function=False,
        storage_tag=False,
        chunked=False,
    ),
    "0.5.23": Targets(
        digests={
            FORWARD: "d9a8e49244ce0979",
            COMPUTE_Q: "c003b449fe29fec4",
            STORE_CALLER: "a9da77fa860aade8",
            PLAN: "80b4df8f83c47a72",
            POOL_CLASS: "3db495a6aa65229a",
            f"{STACKS}:_dsv4_indexer_regions": "9d380448dc5f8f14",
        },
        parameters={
            QUERY: _QUERY,
            STORE: _STORE,
            f"{POOLS}:get_dsv4_indexer_bytes_per_token": ("index_head_dim", "use_fp4_indexer"),
        },
        bytes_function=True,
        regions_function=True,
        storage_tag=True,
        chunked=True,
    ),
}


def of(version: str) -> Targets:
    """The targets of a release; GuardError for one that bf16 index-K was not built for."""
    if version not in RELEASES:
        raise GuardError(
            f"DSV4_INDEX_K_DTYPE=bf16: index-K in bf16 replaces functions of SGLang {' and '.join(RELEASES)} alone, "
            f"and this is {version}; use such an image, or fp8"
        )
    return RELEASES[version]


def digest(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of a function's or class's source text."""
    return hashlib.sha256(textwrap.dedent(inspect.getsource(value)).encode()).hexdigest()[:16]


def check(targets: Targets) -> None:
    """GuardError that names the first target which is missing or not what was studied."""
    for target, want in targets.digests.items():
        _, _, value = patching.resolve(target)
        got = digest(value)
        if got != want:
            raise GuardError(
                f"target {target}: its source is not the one that bf16 index-K was built against (digest {got}, "
                f"expected {want}): a changed release, or another plugin patches it"
            )
    for target, names in targets.parameters.items():
        _, _, value = patching.resolve(target)
        missing = [name for name in names if name not in inspect.signature(value).parameters]
        if missing:
            raise GuardError(f"target {target}: takes no {missing[0]}, so this release is not the one it was built for")


def module(target: str) -> Any:
    """The imported module of a target."""
    return sys.modules[target.partition(":")[0]]
