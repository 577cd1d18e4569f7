"""Rules about hardware and how a role is spread over it."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.policy.finding import Action, Rule, Subject


def _tensor_ratio(subject: Subject) -> Iterator[tuple[str, str]]:
    prefill, decode = subject.spec.prefill.attention_tensor, subject.spec.decode.attention_tensor
    if prefill and decode and max(prefill, decode) % min(prefill, decode):
        yield (
            "spec.decode.parallelism.tensor",
            (
                f"prefill has attention tensor size {prefill} and decode {decode} (tensor divided by attentionData): "
                "one must divide the other, because ranks are mapped in whole multiples for KV transfer; "
                "change gpus, nodes or parallelism"
            ),
        )


def _gpu_count(subject: Subject) -> Iterator[tuple[str, str]]:
    for role in ENGINE_ROLES:
        spec = subject.spec.prefill if role == "prefill" else subject.spec.decode
        if tensor_size(spec) != spec.gpus * spec.nodes:
            yield (
                f"spec.{role}.parallelism.tensor",
                (
                    f"tensor-parallel size {tensor_size(spec)} takes that many GPUs, but the role asks for {spec.gpus} "
                    f"on each of {spec.nodes} node(s), and idle GPUs or missing ranks help nobody; make gpus times "
                    "nodes equal to it, or leave parallelism.tensor out"
                ),
            )
        if tensor_size(spec) % spec.parallelism.attention_data:
            yield (
                f"spec.{role}.parallelism.attentionData",
                (
                    f"attention data-parallel size {spec.parallelism.attention_data} does not divide the "
                    f"tensor-parallel size {tensor_size(spec)}, and SGLang splits ranks evenly; use a divisor"
                ),
            )


def _fp4(subject: Subject) -> Iterator[tuple[str, str]]:
    architecture = subject.spec.accelerator.architecture
    if subject.spec.index_k.dtype is IndexKDtype.FP4 and architecture is Architecture.SM103:
        yield (
            "spec.indexK.dtype",
            (
                "SGLang names SM100 and SM120 for the FP4 indexer; its check lets SM103 pass (compute capability "
                "10.x), but nobody has reported a run there; prefer FP8, or watch the canary closely"
            ),
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
        Action.WARN,
        "FP4 index-K is unproven on SM103",
        "sglang 0.5.23 srt/arg_groups/serving_hook.py, srt/utils/common.py (is_sm100_supported)",
        _fp4,
    ),
    Rule(
        "sm120-experimental",
        Action.WARN,
        "SM120 is experimental",
        "vllm-project/vllm #56700, sgl-project/sglang #32830",
        _sm120,
    ),
)
