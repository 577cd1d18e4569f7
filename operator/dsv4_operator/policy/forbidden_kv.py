"""Flags and variables about KV and its caches that V4 in prefill/decode never takes."""

from __future__ import annotations

from typing import Final

from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.arguments import Argument
from dsv4_operator.policy.forbidden import Forbidden, value_in


def _below_one(argument: Argument) -> bool:
    try:
        return float(argument.value) < 1
    except ValueError:
        return True


ROWS: Final[tuple[Forbidden, ...]] = (
    Forbidden(
        id="hicache-absolute-size",
        title="HiCache by absolute size",
        flags=("--hicache-size",),
        why="is accepted by the parser and then refused for V4, after the weights are loaded",
        remedy="remove it and set spec.hiCache.ratio, a multiple of the device pool",
        source="sglang 0.5.12 to 0.5.23 srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py",
        explanation=(
            "V4 has several host pools (full, sliding window, compressed, index keys) whose sizes depend on each "
            "other, so only a ratio to the device pools is supported. An absolute size raises when the pools are "
            "built, which can be 45 minutes after the pod started."
        ),
    ),
    Forbidden(
        id="hicache-storage",
        title="HiCache storage (L3)",
        flags=(
            "--hicache-storage-backend",
            "--hicache-storage-backend-extra-config",
            "--hicache-storage-prefetch-policy",
            "--hicache-host-memory-mode",
            "--enable-unified-cache-external-linker",
        ),
        variables=("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",),
        why=(
            "puts a storage tier below HiCache: restored KV can lack its index keys, which corrupts answers silently, "
            "and its prefetch deadlocks ranks"
        ),
        remedy="remove it and use spec.hiCache, which keeps to host memory",
        source="sgl-project/sglang #36179, #30760, #30057",
        explanation=(
            "Partial reads from storage brought back KV without the index-K pages that belong to it (#30057, #31108), "
            "ranks left the prefetch loop at different points and hung (#30760), and with storage the output of "
            "V4-Flash grew from 600 to over 3,000 looping tokens (#36179). The first are mended for some paths, the "
            "last is open."
        ),
        allowable=True,
    ),
    Forbidden(
        id="hisparse",
        title="HiSparse",
        flags=("--enable-hisparse", "--hisparse-config"),
        why=(
            "keeps parts of the sparse cache on the host: scores of V4 dropped with it in prefill/decode, and it needs "
            "the radix cache off, so no prefix is ever reused"
        ),
        remedy="remove it and use spec.hiCache for more prefix reuse",
        source="sgl-project/sglang #31482, sglang 0.5.23 srt/arg_groups/hisparse_hook.py",
        explanation=(
            "A report on 0.5.15 and 0.5.16 compares GPQA and SWE scores of V4 with and without HiSparse in "
            "prefill/decode and finds them lower; the cause was not established. SGLang asserts that the radix cache "
            "is off with it, which also excludes HiCache."
        ),
        allowable=True,
    ),
    Forbidden(
        id="decode-radix-cache",
        title="Radix cache on decode",
        flags=("--disaggregation-decode-enable-radix-cache",),
        variables=("SGLANG_EXPERIMENTAL_DSV4_DECODE_RADIX_CACHE",),
        why="is refused for V4 on NVIDIA when the cache is built, since it needs the unified KV layout of ROCm",
        remedy="remove it, since prefixes are reused on prefill",
        source="sglang 0.5.23 srt/mem_cache/kv_cache_builder.py, sgl-project/sglang #30322",
        explanation=(
            "Decode receives whole requests from prefill, so a prefix cache of its own saves transfers, not "
            "computation. For V4 it exists only with the unified KV layout, which needs ROCm."
        ),
    ),
    Forbidden(
        id="decode-kv-offload",
        title="KV offload on decode",
        flags=("--disaggregation-decode-enable-offload-kvcache",),
        why='ends in "unsupported KV cache type" for V4, and it needs a storage backend',
        remedy="remove it",
        source="sglang 0.5.23 srt/disaggregation/decode_kvcache_offload_manager.py",
        explanation=(
            "Decode writes finished KV to HiCache storage with it. Only plain MHA, MLA and unified sliding-window "
            "pools are supported; V4's pool is none of them, so the engine stops at start."
        ),
    ),
    Forbidden(
        id="page-size",
        title="Page size",
        flags=("--page-size", "--c128-page-size"),
        why="has no effect but to mislead: V4 forces pages of 256 tokens whatever is passed",
        remedy="remove it",
        source="sglang 0.5.23 srt/arg_groups/model_overrides/deepseek_v4.py",
        explanation=(
            "Index keys and compressed KV are laid out in pages of 256 tokens (64 slots of four). SGLang overrides any "
            "other size silently. The two roles compare their page size when they meet, and decode dies on a mismatch."
        ),
    ),
    Forbidden(
        id="kv-cache-dtype",
        title="KV dtype",
        flags=("--kv-cache-dtype",),
        why=(
            "is fixed: V4's pools keep the packed fp8 layout, other dtypes assert at start, and roles that differ kill "
            "the decode engine when it first meets a prefill"
        ),
        remedy="remove it, and use spec.indexK.dtype for the index keys",
        source="sglang 0.5.23 srt/arg_groups/overrides.py (_deepseek_v4_kv_cache_dtype)",
        explanation=(
            "auto resolves to fp8_e4m3; bfloat16 is accepted, but on CUDA the pools store the packed fp8 layout "
            "anyway; everything else asserts. The operator renders auto on both roles."
        ),
    ),
    Forbidden(
        id="kv-allocation-policy",
        title="Allocating KV on decode after prefill",
        flags=("--disaggregation-decode-allocation-policy",),
        when=value_in("prefill_complete"),
        why="refuses NIXL, attention tensor parallelism and V4's state pools at start",
        remedy="remove it, since the default (early) is what NIXL supports",
        source="sglang 0.5.23 srt/arg_groups/pd_disaggregation_hook.py (_validate_prefill_complete)",
        explanation=(
            "From 0.5.22 decode can wait with its pages until prefill has finished. That exists for Mooncake alone, "
            "without any parallel attention, and both roles must agree on it."
        ),
    ),
    Forbidden(
        id="decode-host-receive",
        title="Receiving KV in host memory",
        flags=("--disaggregation-decode-host-receive-threshold",),
        when=_below_one,
        why="asks the transfer backend for something that none of the built-in ones supports",
        remedy="remove it, or use 1",
        source="sglang 0.5.23 srt/arg_groups/pd_disaggregation_hook.py",
        explanation=(
            "Below 1 decode would receive KV into a host pool when its device pool is that full. SGLang's own help "
            "says that no built-in backend can, and the host pool excludes V4."
        ),
    ),
    Forbidden(
        id="unified-memory",
        title="Unified memory pool",
        flags=("--enable-unified-memory", "--enable-kv-cache-sharding"),
        why="asserts with V4's attention backend",
        remedy="remove it",
        source="sglang 0.5.23 srt/arg_groups/kv_cache_hook.py",
        explanation="The unified pool lists the attention backends that it supports; dsv4 is not among them.",
    ),
    Forbidden(
        id="attention-backend-trtllm",
        title="The trtllm attention backend of V4",
        flags=("--dsv4-attn-backend",),
        when=value_in("trtllm", "flashmla_mega"),
        why=(
            "with trtllm or flashmla_mega asserts at start: the one refuses prefill/decode, the other is for V4.1 alone"
        ),
        remedy="remove it, since auto takes flashmla for V4",
        source="sgl-project/sglang #37838, sglang 0.5.23 srt/arg_groups/deepseek_v4_hook.py",
        explanation=(
            "trtllm (0.5.20 and later) keeps KV in another layout, which was never run between prefill and decode, so "
            "SGLang refuses it there. flashmla_mega needs DeepSeek-V4.1 on SM100 or SM103."
        ),
    ),
    Forbidden(
        id="retraction-backup",
        title="Copies of retracted requests",
        flags=("--disaggregation-decode-retraction-backup",),
        when=value_in("cpu_tensor", "host_pool"),
        releases=ReleaseRange.of("0.5.18", "0.5.21"),
        why="asks for a copy that V4's pool cannot make: the first retraction kills the decode engine",
        remedy="remove it, and use 0.5.22 or later, which computes such requests again",
        source="sgl-project/sglang #33385",
        explanation=(
            "When decode runs out of KV it retracts a request and copies its KV away. V4's pool raises on that before "
            "0.5.22, where prefill computes the request again instead and both values are ignored."
        ),
        allowable=True,
    ),
)

RULES: Final = tuple(row.rule() for row in ROWS)
