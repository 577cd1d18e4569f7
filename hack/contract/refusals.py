"""What SGLang itself refuses for DeepSeek-V4 in prefill/decode: each is shown, by resolution or by source.

The operator's policy refuses the same at admission, before a GPU is taken; `rule` names the rule. A refusal that is
raised only after weights were loaded (pools, caches) cannot be resolved on a CPU: then the text of the check is looked
for in the wheel of every release it is claimed for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from matrix import DSPARK, HICACHE, SHAPES, Patch, laid_over

from dsv4_operator.api.constants import Role
from dsv4_operator.engine.releases import ReleaseRange

_D = Role.DECODE


@dataclass(frozen=True, slots=True)
class Refused:
    """The base command of `role` (or of a spec with `patch`), with `add` behind it, is refused with `says` (a regex).

    `outcome`: "refused" by the resolution, or "unparsed" by argparse.
    """

    name: str
    rule: str
    add: tuple[str, ...]
    says: str
    role: Role = Role.PREFILL
    patch: Patch = field(default_factory=dict)
    env: tuple[tuple[str, str], ...] = ()
    architecture: str = "SM100"
    outcome: str = "refused"
    releases: ReleaseRange = field(default_factory=ReleaseRange)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SWITCH = ReleaseRange.of("0.5.21")
_POLICY = ReleaseRange.of("0.5.22")
_HICACHE = HICACHE["default"]
_COMPLETE = _words("--disaggregation-decode-allocation-policy prefill_complete")

RESOLVED: tuple[Refused, ...] = (
    Refused("NEXTN", "owned-flag", _words("--speculative-algorithm NEXTN"), "topk == 1|EAGLE and DSPARK"),
    Refused("EAGLE3", "owned-flag", _words("--speculative-algorithm EAGLE3"), "Only EAGLE"),
    Refused("NGRAM", "owned-flag", _words("--speculative-algorithm NGRAM"), "Only EAGLE"),
    Refused("EAGLE without numbers", "eagle-numbers", _words("--speculative-algorithm EAGLE"), "topk == 1"),
    Refused(
        "EAGLE top-k 2",
        "eagle-numbers",
        _words(
            "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 2 "
            "--speculative-num-draft-tokens 4"
        ),
        "topk == 1",
    ),
    Refused(
        "DSPARK with attention DP and a whole head",
        "dspark-attention-dp",
        (),
        "DSpark with dp attention requires --enable-dp-lm-head",
        patch=laid_over(DSPARK, SHAPES["tp8-dp8"]),
    ),
    Refused("KV dtype fp8_e5m2", "kv-cache-dtype", _words("--kv-cache-dtype fp8_e5m2"), "fp8_e5m2"),
    Refused("KV dtype nvfp4", "kv-cache-dtype", _words("--kv-cache-dtype nvfp4"), "nvfp4"),
    Refused(
        "trtllm backend in PD",
        "attention-backend-trtllm",
        _words("--dsv4-attn-backend trtllm"),
        "does not support PD disaggregation",
    ),
    Refused(
        "trtllm backend on SM120",
        "attention-backend-trtllm",
        _words("--dsv4-attn-backend trtllm"),
        "requires an SM100/SM103",
        architecture="SM120",
    ),
    Refused(
        "flashmla_mega on V4",
        "attention-backend-trtllm",
        _words("--dsv4-attn-backend flashmla_mega"),
        r"requires DeepSeek-V4\.1",
        releases=ReleaseRange.of("0.5.23"),
    ),
    Refused("HiCache on decode", "owned-flag", _words("--enable-hierarchical-cache"), "mutually exclusive", _D),
    Refused(
        "HiCache without radix cache",
        "owned-flag",
        _words("--disable-radix-cache"),
        "mutually exclusive",
        patch=_HICACHE,
    ),
    Refused(
        "decode KV offload without L3",
        "decode-kv-offload",
        _words("--disaggregation-decode-enable-offload-kvcache"),
        "hicache-storage-backend",
        _D,
    ),
    Refused(
        "unified memory", "unified-memory", _words("--enable-unified-memory"), r"\['dsv4'\] are not in the allowed set"
    ),
    Refused(
        "role switch with EP",
        "role-switch",
        _words("--enable-pd-role-switch"),
        "expert parallelism",
        patch={"prefill": {"gpus": 8, "parallelism": {"expert": 8}}},
        releases=_SWITCH,
    ),
    Refused(
        "role switch with speculation",
        "role-switch",
        _words("--enable-pd-role-switch"),
        "speculative decoding",
        patch={"engine": {"speculative": {"algorithm": "EAGLE"}}},
        releases=_SWITCH,
    ),
    Refused("prefill_complete over NIXL", "kv-allocation-policy", _COMPLETE, "other than Mooncake", releases=_POLICY),
    Refused(
        "prefill_complete with attention TP",
        "kv-allocation-policy",
        _COMPLETE,
        "attention tensor parallelism greater than one",
        _D,
        releases=_POLICY,
    ),
    Refused(
        "decode host receive with cpu_tensor",
        "decode-host-receive",
        _words(
            "--disaggregation-decode-host-receive-threshold 0.5 --disaggregation-decode-retraction-backup cpu_tensor"
        ),
        "host_pool",
        _D,
        releases=ReleaseRange.of("0.5.21"),
    ),
    Refused(
        "fake transfer on prefill",
        "owned-flag",
        _words("--disaggregation-transfer-backend fake"),
        "does not support 'fake'",
    ),
    Refused(
        "prefill CP above one machine",
        "prefill-context-parallel",
        _words("--enable-prefill-cp --cp-strategy interleave"),
        "tp_size <= 8",
        patch=SHAPES["two-nodes"],
    ),
    Refused(
        "prefill CP zigzag on CUDA",
        "prefill-context-parallel",
        _words("--enable-prefill-cp --cp-strategy zigzag"),
        "zigzag|interleave",
    ),
    Refused(
        "prefill CP with attention DP",
        "prefill-context-parallel",
        _words("--enable-prefill-cp --cp-strategy interleave"),
        "dp attention is not supported|attn_dp_size|data.parallel",
        patch=SHAPES["tp4-dp2"],
    ),
    Refused(
        "FP4 indexer on SM90",
        "fp4-architecture",
        (),
        "fp4-indexer requires",
        patch={"indexK": {"dtype": "FP4"}},
        architecture="SM90",
    ),
    Refused(
        "buffer_only without L3",
        "hicache-storage",
        _words("--hicache-host-memory-mode buffer_only"),
        "requires a storage backend",
        patch=_HICACHE,
    ),
    Refused(
        "attention DP that does not divide TP",
        "attention-data-divides-tensor",
        _words("--attn-dp-size 3"),
        "AssertionError",
        releases=_POLICY,
    ),
    Refused("unknown flag", "unknown-flag", _words("--no-such-flag 1"), "unrecognized arguments", outcome="unparsed"),
    Refused(
        "retired name that is an ambiguous prefix",
        "abbreviated-flag",
        _words("--cuda-graph-max-bs 128"),
        "ambiguous option",
        outcome="unparsed",
        releases=ReleaseRange.of("0.5.20"),
    ),
    Refused("value that is no choice", "flag-value", _words("--load-format x"), "invalid choice", outcome="unparsed"),
    Refused("text for a number", "flag-value", _words("--max-queued-requests x"), "invalid int", outcome="unparsed"),
    Refused("flag without its value", "flag-value", ("--log-level",), "expected one argument", outcome="unparsed"),
)


@dataclass(frozen=True, slots=True)
class InSource:
    """`text` (a regex over the file with white space folded) stands in `path` of the wheels of `releases`."""

    name: str
    rule: str
    path: str
    text: str
    releases: ReleaseRange = field(default_factory=ReleaseRange)


_ASSEMBLER = "sglang/srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py"

_BUILDER = "sglang/srt/mem_cache/kv_cache_builder.py"

SOURCE: tuple[InSource, ...] = (
    InSource("absolute HiCache size", "hicache-absolute-size", _ASSEMBLER, "does not support --hicache-size"),
    InSource(
        "decode radix cache, sliding windows",
        "decode-radix-cache",
        "sglang/srt/managers/scheduler.py",
        r"decode-enable-radix-cache is incompatible \" \"with sliding window attention",
        ReleaseRange.of(None, "0.5.12"),
    ),
    InSource(
        "decode radix cache, sliding windows",
        "decode-radix-cache",
        _BUILDER,
        r"decode-enable-radix-cache is incompatible \" \"with sliding window attention",
        ReleaseRange.of("0.5.13", "0.5.18"),
    ),
    InSource(
        "decode radix cache, V4",
        "decode-radix-cache",
        _BUILDER,
        r"is_deepseek_v4_arch.{0,200}decode-enable-radix-cache (does not support|with DeepSeek-V4)",
        ReleaseRange.of("0.5.19"),
    ),
    InSource(
        "decode KV offload, cache type",
        "decode-kv-offload",
        "sglang/srt/disaggregation/decode_kvcache_offload_manager.py",
        "Unsupported KV cache type for decode offload",
    ),
    InSource(
        "host layouts beyond three",
        "hicache-layout",
        "sglang/srt/mem_cache/memory_pool_host.py",
        r"class DeepSeekV4PagedHostPool.*raise ValueError\(f\"Unsupported layout: \{self.layout\}\"\)",
        ReleaseRange.of("0.5.14"),
    ),
    InSource(
        "direct SWA rows of SM120 with HiCache",
        "hicache-sm120-direct-swa",
        _ASSEMBLER,
        "SGLANG_OPT_SM120_DIRECT_SWA_KV for this configuration",
        ReleaseRange.of("0.5.21"),
    ),
    InSource(
        "KV checksum without state rows",
        "kv-checksum",
        "sglang/srt/disaggregation/checksum.py",
        "assert state_indices_gpu is not None",
        ReleaseRange.of("0.5.21"),
    ),
    InSource(
        "FP4 indexer on SM120 before 0.5.17",
        "fp4-sm120-release",
        "sglang/srt/server_args.py",
        r"enable_deepseek_v4_fp4_indexer and not is_sm100_supported\(\)",
        ReleaseRange.of("0.5.13", "0.5.16"),
    ),
    InSource(
        "speculation other than EAGLE before 0.5.16",
        "dspark-release",
        "sglang/srt/arg_groups/deepseek_v4_hook.py",
        "Only EAGLE speculative algorithm is supported",
        ReleaseRange.of(None, "0.5.15"),
    ),
    InSource(
        "pipeline parallelism in PD at 0.5.12",
        "pipeline-parallel",
        "sglang/srt/arg_groups/deepseek_v4_hook.py",
        "V4 PD disaggregation requires pp_size=1",
        ReleaseRange.of(None, "0.5.12"),
    ),
)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What SGLang takes and silently changes, or takes although it cannot work: the resolved values differ or lack."""

    name: str
    add: tuple[str, ...]
    values: tuple[tuple[str, object], ...]
    role: Role = Role.PREFILL
    patch: Patch = field(default_factory=dict)


REWRITTEN: tuple[Rewritten, ...] = (
    Rewritten("page size 64", _words("--page-size 64"), (("page_size", 256),)),
    Rewritten("attention backend", _words("--attention-backend triton"), (("attention_backend", "dsv4"),)),
    Rewritten(
        "page_first with direct I/O",
        _words("--hicache-io-backend direct"),
        (("hicache_io_backend", "direct"), ("hicache_mem_layout", "page_first_direct")),
        patch=_HICACHE,
    ),
    Rewritten(
        "page_first_direct with kernel I/O",
        _words("--hicache-mem-layout page_first_direct"),
        (("hicache_io_backend", "direct"), ("hicache_mem_layout", "page_first_direct")),
        patch=_HICACHE,
    ),
    Rewritten("pipeline parallelism", _words("--pp-size 2"), (("disable_overlap_schedule", True),)),
    Rewritten("several nodes without an address", _words("--nnodes 2"), (("nnodes", 2), ("dist_init_addr", None))),
    Rewritten("absolute HiCache size", _words("--hicache-size 64"), (("hicache_size", 64),), patch=_HICACHE),
    Rewritten("radix cache of decode", (), (("disable_radix_cache", True),), _D),
    Rewritten(
        "decode radix cache is taken",
        _words("--disaggregation-decode-enable-radix-cache"),
        (("disable_radix_cache", False),),
        _D,
    ),
    Rewritten("HiSparse is taken", _words("--enable-hisparse"), (("enable_hisparse", True),), _D),
    Rewritten(
        "HiCache with FP4 and speculation is taken",
        (),
        (("enable_hierarchical_cache", True), ("enable_deepseek_v4_fp4_indexer", True)),
        patch={
            "hiCache": {"enabled": True},
            "indexK": {"dtype": "FP4"},
            "engine": {"speculative": {"algorithm": "EAGLE"}},
        },
    ),
    Rewritten(
        "L3 storage is taken",
        _words("--hicache-storage-backend file"),
        (("hicache_storage_backend", "file"),),
        patch=_HICACHE,
    ),
)
"""Why a policy is needed before the engine: none of these is refused by the resolution."""
