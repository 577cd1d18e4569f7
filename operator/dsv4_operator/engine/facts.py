"""Facts about DeepSeek-V4 in SGLang as data: what the model forces, how large its KV is, what the handshake compares.

Each carries where it was read. "resolved" facts were seen in the output of the real argument resolution, which
tests/contract repeats for the default and the oldest recommended release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.engine.releases import ReleaseRange

_ALL = ReleaseRange()

# -- sizes ---------------------------------------------------------------------------------------------------------

PAGE_TOKENS: Final = 256
"""Tokens of one page; V4 forces it on CUDA."""
SWA_RATIO: Final = 0.1
"""Sliding-window pool as a fraction of the full one (swa_full_tokens_ratio that V4 sets)."""
INDEX_K_COMPRESSION: Final = 4
"""Tokens that share one index-K slot."""

INDEX_K_SLOT_BYTES: Final[dict[IndexKDtype, int]] = {
    IndexKDtype.FP8: 128 + 4,  # e4m3 payload and one fp32 scale
    IndexKDtype.FP4: 64 + 4,  # e2m1 payload and four ue8m0 scales
    IndexKDtype.BF16: 256,  # the plugin's format: no scale
}
"""Bytes of one index-K slot (srt/mem_cache/deepseek_v4_memory_pool.py, get_dsv4_indexer_bytes_per_token)."""

INDEX_K_BYTES: Final[dict[IndexKDtype, float]] = {
    dtype: size / INDEX_K_COMPRESSION for dtype, size in INDEX_K_SLOT_BYTES.items()
}
"""Bytes of index-K per token of context and C4 layer: 33, 17 and 64."""

INDEX_K_PAGE_BYTES: Final[dict[IndexKDtype, int]] = {
    dtype: size * PAGE_TOKENS // INDEX_K_COMPRESSION for dtype, size in INDEX_K_SLOT_BYTES.items()
}
"""Bytes of index-K per 256-token page and C4 layer: 8448, 4352 and 16384."""

KV_SLOT_BYTES: Final = 448 + 2 * 64 + 8
"""Packed fp8 latent, bf16 rope and scales of one KV slot (deepseek_v4_memory_pool.py, the same in every release)."""


def _padded(slots: int) -> int:
    """A page of so many slots, rounded up to 576 bytes as the pool does."""
    return -(-slots * KV_SLOT_BYTES // 576) * 576


C4_PAGE_BYTES: Final = _padded(PAGE_TOKENS // 4)
C128_PAGE_BYTES: Final = _padded(PAGE_TOKENS // 128)
SWA_PAGE_BYTES: Final = _padded(PAGE_TOKENS)
"""Bytes of one 256-token page per layer: 37440, 1728 and 149760 (before SWA_RATIO)."""


# -- what the model forces -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForcedValue:
    """A field of ServerArgs that V4 decides, whatever the command line says (`when` unset) or when nothing is said."""

    field: str
    value: str
    releases: ReleaseRange
    overrides_user: bool
    note: str
    source: str


_HOOK = "sglang/srt/arg_groups/deepseek_v4_hook.py"
_OVERRIDES = "sglang/srt/server_args.py up to 0.5.17, arg_groups/overrides.py or model_overrides/deepseek_v4.py later"

FORCED: Final[tuple[ForcedValue, ...]] = (
    ForcedValue("attention_backend", "dsv4", _ALL, True, "whatever is passed", _OVERRIDES),
    ForcedValue("page_size", "256", _ALL, True, "64 and 128 are silently overridden on CUDA", _OVERRIDES),
    ForcedValue("kv_cache_dtype", "fp8_e4m3", _ALL, False, "from auto; bfloat16 is accepted, all others assert", _HOOK),
    ForcedValue("swa_full_tokens_ratio", "0.1", _ALL, False, "sliding-window pool against the full one", _OVERRIDES),
    ForcedValue("max_running_requests", "256", _ALL, False, "divided by attention data parallelism later", _HOOK),
    ForcedValue(
        "dsv4_attn_backend",
        "flashmla",
        ReleaseRange.of("0.5.23"),
        False,
        "from auto (which stays auto up to 0.5.22); trtllm asserts in PD, flashmla_mega is for V4.1 alone",
        _HOOK,
    ),
    ForcedValue(
        "disable_radix_cache", "True", _ALL, True, "on decode, unless its radix cache is asked for",
        "sglang/srt/arg_groups/pd_disaggregation_hook.py (server_args.py up to 0.5.13)",
    ),
)  # fmt: skip


# -- the handshake -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandshakeCheck:
    """Something in which the roles must agree, and the releases whose handshake compares it (None: no release)."""

    what: str
    checked: ReleaseRange | None
    note: str
    source: str = "sglang/srt/disaggregation/common/conn.py, try_ensure_parallel_info"
    refusal: str | None = None
    """What the release says when it differs; the contract tests look for it in the wheel."""


HANDSHAKE: Final[tuple[HandshakeCheck, ...]] = (
    HandshakeCheck("page size", _ALL, "raises in decode's scheduler: decode dies", refusal="Page size mismatch"),
    HandshakeCheck("KV dtype", _ALL, "as text, after resolution", refusal="KV cache dtype mismatch"),
    HandshakeCheck(
        "KV layout name", ReleaseRange.of("0.5.23"), "only when both sides send one", refusal="KV layout mismatch"
    ),
    HandshakeCheck(
        "DSpark layout and TP width", ReleaseRange.of("0.5.21"), "V4.1 alone", refusal="DSpark PD layout mismatch"
    ),
    HandshakeCheck(
        "decode allocation policy", ReleaseRange.of("0.5.22"), "", source="sglang/srt/disaggregation/common/conn.py",
        refusal="decode allocation policy mismatch",
    ),
    HandshakeCheck("index-K format", None, "fp8 and fp4 peers pair; one direction writes into wrong strides"),
    HandshakeCheck("SGLang version", None, "two releases pair"),
    HandshakeCheck("model and weights", None, "two models of one shape pair"),
    HandshakeCheck("speculation", None, "V4 alone; buffer counts differ only with other draft layers"),
    HandshakeCheck("KV checksum on both sides", None, "the metadata buffers misalign, logged as an error"),
    HandshakeCheck("tool and reasoning parser", None, "answers differ by who served them"),
    HandshakeCheck("context length, page counts", None, ""),
    HandshakeCheck("NIXL backend", None, "UCX and LIBFABRIC peers cannot talk; seen at the first transfer"),
)  # fmt: skip


# -- HiCache -------------------------------------------------------------------------------------------------------

HICACHE_PAIRS: Final = frozenset(
    {("kernel", "layer_first"), ("kernel", "page_first"), ("direct", "layer_first"), ("direct", "page_first_direct")}
)
"""I/O backend and layout that V4's host pools accept (srt/mem_cache/memory_pool_host.py), in every release."""

HICACHE_REWRITES: Final = {
    ("direct", "page_first"): ("direct", "page_first_direct"),
    ("kernel", "page_first_direct"): ("direct", "page_first_direct"),
}
"""Pairs that the resolution changes silently (srt/arg_groups/hicache_hook.py)."""

FP4_INDEXER_ARCHITECTURES: Final = {
    "SM100": ReleaseRange.of("0.5.13"),
    "SM103": ReleaseRange.of("0.5.13"),
    "SM120": ReleaseRange.of("0.5.17"),
}
"""GPUs on which --enable-deepseek-v4-fp4-indexer starts, by release."""

WATCHED_ENV: Final = (
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
    "SGLANG_ENABLE_PREFILL_WAR_READ_DONE",
    "SGLANG_FORCE_COARSE_WAR_BARRIER",
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "SGLANG_DISAGGREGATION_QUEUE_SIZE",
    "SGLANG_OPT_SM120_DIRECT_SWA_KV",
)
"""Variables whose default, by release, decides how safe a release is (srt/environ.py)."""
