"""Rules about what the bytes of KV mean, on both sides, and which hardware and release can make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

SHARED_FLAGS: Final = (
    # how KV is laid out or computed
    "--dtype",
    "--quantization",
    "--quantization-param-path",
    "--json-model-override-args",
    "--model-impl",
    "--load-format",
    "--dcp-size",
    "--decode-context-parallel-size",
    "--dsv4-attn-backend",
    "--enable-page-major-kv-layout",
    "--enable-decoder-swa-bounded-replay",
    "--enable-encoder-swa-bounded-replay",
    # the draft's KV travels with the target's
    "--enable-multi-layer-eagle",
    "--speculative-draft-kv-cache-dtype",
    "--speculative-draft-model-quantization",
    "--speculative-draft-model-revision",
    "--speculative-draft-window-size",
    "--speculative-draft-sink-size",
    # weights
    "--enable-lora",
    "--lora-paths",
    # what a request becomes: both roles make tokens of the same text
    "--tokenizer-path",
    "--tokenizer-mode",
    "--chat-template",
    "--hf-chat-template-name",
    "--completion-template",
    "--default-chat-template-kwargs",
    "--allow-auto-truncate",
)
"""Flags whose value decides what a page of KV or a prompt means, so that both roles need the same."""

SHARED_VARIABLES: Final = (
    "SGLANG_DSV4_KV_LAYOUT",
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT",
    "SGLANG_DSV4_UNIFIED_KV_FP8",
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
    "SGLANG_DSV4_USE_BF16_KV_QUANT_SOURCE",
    "SGLANG_DSV4_FP4_EXPERTS",
    "SGLANG_DSV4_FP4_DEQUANT",
    "SGLANG_OPT_USE_ONLINE_COMPRESS",
    "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP",
    "SGLANG_OPT_SM120_DIRECT_SWA_KV",
    "SGLANG_HACK_FLASHMLA_BACKEND",
    "SGLANG_HIP_DSV41_INDEX_K_PAGE8",
    "SGLANG_DEFAULT_THINKING",
    "SGLANG_DSV4_REASONING_EFFORT",
    "SGLANG_DSV41_REASONING_EFFORT",
    "SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER",
    "SGLANG_DISAGG_STAGING_BUFFER",
)
"""The same for variables."""


def _role_mismatch(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses(*SHARED_FLAGS):
        if argument.scope != "engine":
            alone = all(other.scope in ("engine", argument.scope) for other in subject.uses(argument.name))
            yield argument.path, _mismatch(argument.name, argument.scope, alone, "spec.engine.extraArgs")
    for variable in subject.sets(*SHARED_VARIABLES):
        if variable.scope != "engine":
            alone = all(other.scope in ("engine", variable.scope) for other in subject.sets(variable.name))
            yield variable.path, _mismatch(variable.name, variable.scope, alone, "spec.engine.env")


def _mismatch(name: str, role: str, alone: bool, shared: str) -> str:
    where = f"on {role} alone" if alone else "for each role by itself"
    return (
        f"{name} is set {where}, but it decides what KV or a prompt means on both sides: the handshake does not "
        f"compare it, and the KV fingerprint does not see what stands at one role; set it in {shared}, for both roles"
    )


def _fp4(subject: Subject) -> bool:
    return subject.spec.index_k.dtype is IndexKDtype.FP4


def _fp4_release(subject: Subject) -> Iterator[Remark]:
    if _fp4(subject):
        yield (
            "spec.indexK.dtype",
            f"SGLang {subject.known} has no FP4 indexer: the engine would exit at its flags; use 0.5.13 or later, or "
            "FP8",
        )


def _fp4_sm120(subject: Subject) -> Iterator[Remark]:
    if _fp4(subject) and subject.spec.accelerator.architecture is Architecture.SM120:
        yield (
            "spec.indexK.dtype",
            f"the FP4 indexer of SGLang {subject.known} is for SM100 alone and raises on SM120; use SGLang 0.5.17 or "
            "later, or FP8",
        )


def _fp4_architecture(subject: Subject) -> Iterator[Remark]:
    if _fp4(subject) and subject.spec.accelerator.architecture is Architecture.SM103:
        yield (
            "spec.indexK.dtype",
            "SGLang names SM100 and SM120 for the FP4 indexer; its check lets SM103 pass (compute capability "
            "10.x), but nobody has reported a run there; prefer FP8, or watch the canary closely",
        )


def _fp4_accuracy(subject: Subject) -> Iterator[Remark]:
    if _fp4(subject):
        yield (
            "spec.indexK.dtype",
            "FP4 index keys choose worse: its authors report 1.5 to 2.5 points less on GSM8K; use FP8 unless memory "
            "decides, and soak both",
        )


def _attention_backend(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"):
        if argument.value != "dsv4":
            yield (
                argument.path,
                f"{argument.name} has no effect: V4 always takes its own attention backend (dsv4), whatever is passed; "
                "remove it",
            )


RULES = (
    Rule(
        id="role-kv-mismatch",
        action=Action.REFUSE,
        title="What both roles must share is set on one",
        source="sglang 0.5.23 srt/disaggregation/common/conn.py",
        explanation=(
            "When decode meets a prefill it compares page size, KV dtype, and from 0.5.23 the name of the layout. It "
            "does not compare the SGLang version, the format of index keys, the dtype of compressor states, online "
            "compression, the draft's KV, or how text becomes tokens. A difference there is found by the length of a "
            "buffer at best, and by nobody at worst. In spec.engine such a setting reaches both roles and is part of "
            "the KV fingerprint. Decode context parallelism has rules of its own in the handshake: allow the rule for "
            "it if you must."
        ),
        check=_role_mismatch,
    ),
    Rule(
        id="fp4-release",
        action=Action.REFUSE,
        title="FP4 index-K needs SGLang 0.5.13",
        source="sglang 0.5.13 srt/server_args.py",
        releases=ReleaseRange.of(None, "0.5.12"),
        explanation="The flag --enable-deepseek-v4-fp4-indexer exists from 0.5.13 on.",
        check=_fp4_release,
        allowable=False,
    ),
    Rule(
        id="fp4-sm120-release",
        action=Action.REFUSE,
        title="FP4 index-K on SM120 needs SGLang 0.5.17",
        source="sglang 0.5.16 srt/server_args.py, sglang 0.5.17 srt/server_args.py",
        releases=ReleaseRange.of(None, "0.5.16"),
        explanation=(
            "Through 0.5.16 the check takes SM100 alone; from 0.5.17 on SM120 has a kernel of its own and passes. With "
            "architecture Blackwell the operator cannot know which of the two a pod gets."
        ),
        check=_fp4_sm120,
        allowable=False,
    ),
    Rule(
        id="fp4-architecture",
        action=Action.WARN,
        title="FP4 index-K is unproven on SM103",
        source="sglang 0.5.23 srt/arg_groups/serving_hook.py, srt/utils/common.py (is_sm100_supported)",
        explanation=(
            "The check for SM100 compares the major compute capability, so SM103 passes it without being named."
        ),
        check=_fp4_architecture,
    ),
    Rule(
        id="fp4-accuracy",
        action=Action.WARN,
        title="FP4 index-K costs accuracy",
        source="sgl-project/sglang #27059, #26209",
        explanation=(
            "Tables of the authors: GSM8K 95.5 to 93.0 on SM120 and 98.0 to 96.5 on SM100. The keys take half the "
            "bytes of FP8."
        ),
        check=_fp4_accuracy,
    ),
    Rule(
        id="attention-backend-ignored",
        action=Action.WARN,
        title="Attention backends have no effect on V4",
        source="sglang 0.5.23 srt/arg_groups/overrides.py",
        explanation=(
            "For DeepseekV4ForCausalLM the backend resolves to dsv4 whatever is passed, with a line in the log."
        ),
        check=_attention_backend,
    ),
)
