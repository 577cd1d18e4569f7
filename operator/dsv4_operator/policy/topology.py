"""Rules about hardware and how a role is spread over it."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.policy.finding import Action, Rule, Subject


def _tensor_ratio(subject: Subject) -> Iterator[tuple[str, str]]:
    prefill, decode = tensor_size(subject.spec.prefill), tensor_size(subject.spec.decode)
    if max(prefill, decode) % min(prefill, decode):
        yield (
            "spec.decode.parallelism.tensor",
            (
                f"prefill has tensor-parallel size {prefill} and decode {decode}: one must divide the other for KV transfer; "
                "change gpus, nodes or parallelism.tensor"
            ),
        )


def _gpu_count(subject: Subject) -> Iterator[tuple[str, str]]:
    for role in ENGINE_ROLES:
        spec = subject.spec.prefill if role == "prefill" else subject.spec.decode
        if tensor_size(spec) != spec.gpus * spec.nodes:
            yield (
                f"spec.{role}.parallelism.tensor",
                (
                    f"tensor-parallel size {tensor_size(spec)} needs that many GPUs, but the role has {spec.gpus} GPUs on {spec.nodes} "
                    "node(s); make them equal"
                ),
            )
        if tensor_size(spec) % spec.parallelism.attention_data:
            yield (
                f"spec.{role}.parallelism.attentionData",
                (
                    f"attention data-parallel size {spec.parallelism.attention_data} must divide the tensor-parallel size "
                    f"{tensor_size(spec)}"
                ),
            )


def _fp4(subject: Subject) -> Iterator[tuple[str, str]]:
    architecture = subject.spec.accelerator.architecture
    if subject.spec.index_k.dtype is IndexKDtype.FP4 and architecture is Architecture.SM103:
        yield (
            "spec.indexK.dtype",
            "SGLang runs the FP4 indexer on SM100 and SM120 alone; use FP8, or other GPUs",
        )


def _sm120(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.spec.accelerator.architecture is Architecture.SM120:
        yield (
            "spec.accelerator.architecture",
            ("SM120 (RTX PRO) is experimental: crashes and hangs with V4 are reported; watch the canary closely"),
        )


RULES = (
    Rule(
        "tensor-ratio",
        Action.REFUSE,
        "Tensor sizes of the roles must divide",
        "sglang 0.5.23 srt/disaggregation/common/conn.py",
        _tensor_ratio,
        allowable=False,
    ),
    Rule(
        "gpu-count",
        Action.REFUSE,
        "Parallel sizes must fit the GPUs",
        "sglang 0.5.23 srt/server_args.py",
        _gpu_count,
        allowable=False,
    ),
    Rule(
        "fp4-architecture",
        Action.REFUSE,
        "FP4 index-K needs SM100 or SM120",
        "sglang 0.5.23 srt/server_args.py (fp4 indexer)",
        _fp4,
        allowable=False,
    ),
    Rule(
        "sm120-experimental",
        Action.WARN,
        "SM120 is experimental",
        "vllm-project/vllm #56700, sgl-project/sglang #32830",
        _sm120,
    ),
)
