"""Rules about hardware and how a role is spread over it."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.quantities import as_bytes
from dsv4_operator.policy.subject import Subject

PREFILL_CP = (
    "--enable-prefill-cp",
    "--enable-nsa-prefill-context-parallel",
    "--enable-dsa-prefill-context-parallel",
)
_CP_EXPERTS = {
    ReleaseRange.of("0.5.17", "0.5.18"): ("none", "deepep", "megamoe"),
    ReleaseRange.of("0.5.19"): ("none", "deepep", "megamoe", "mori"),
}
"""MoE all-to-all backends that V4 takes with prefill context parallelism; before 0.5.17 nothing checks."""
_CP_TENSOR = 8


def _tensor_ratio(subject: Subject) -> Iterator[Remark]:
    prefill, decode = subject.spec.prefill.attention_tensor, subject.spec.decode.attention_tensor
    if prefill and decode and max(prefill, decode) % min(prefill, decode):
        yield (
            "spec.decode.parallelism.tensor",
            f"prefill has attention tensor size {prefill} and decode {decode} (tensor divided by attentionData): "
            "one must divide the other, because ranks are mapped in whole multiples for KV transfer; "
            "change gpus, nodes or parallelism, and make them equal or multiples",
        )


def _gpu_count(subject: Subject) -> Iterator[Remark]:
    for role, spec in subject.roles():
        if tensor_size(spec) != spec.gpus * spec.nodes:
            yield (
                f"spec.{role}.parallelism.tensor",
                f"tensor-parallel size {tensor_size(spec)} takes that many GPUs, but the role asks for {spec.gpus} "
                f"on each of {spec.nodes} node(s), and idle GPUs or missing ranks help nobody; make gpus times "
                "nodes equal to it, or leave parallelism.tensor out",
            )
        if tensor_size(spec) % spec.parallelism.attention_data:
            yield (
                f"spec.{role}.parallelism.attentionData",
                f"attention data-parallel size {spec.parallelism.attention_data} does not divide the "
                f"tensor-parallel size {tensor_size(spec)}, and SGLang splits ranks evenly; use a divisor",
            )


def _sm120(subject: Subject) -> Iterator[Remark]:
    if subject.spec.accelerator.architecture is Architecture.SM120:
        yield (
            "spec.accelerator.architecture",
            "SM120 (RTX PRO) is experimental: crashes and hangs with V4 are reported; watch the canary closely",
        )


def _prefill_cp(subject: Subject) -> Iterator[Remark]:
    for role, spec in subject.roles():
        argument = subject.argument(role, *PREFILL_CP)
        if argument is None or (role == "decode" and argument.scope == "engine"):
            continue
        experts = _value(subject, role, "--moe-a2a-backend", "none")
        taken = [names for releases, names in _CP_EXPERTS.items() if subject.known and subject.known in releases]
        limits = {
            f"tensor-parallel size {tensor_size(spec)} (at most {_CP_TENSOR})": tensor_size(spec) > _CP_TENSOR,
            "attention data parallelism": spec.parallelism.attention_data > 1,
            "this MoE all-to-all backend": any(experts not in names for names in taken),
            "another strategy than interleave": _value(subject, role, "--cp-strategy", "interleave") != "interleave",
        }
        broken = [what for what, holds in limits.items() if holds]
        if broken:
            yield (
                argument.path,
                f"prefill context parallelism does not go with {' and '.join(broken)}: V4 asserts at start; "
                "remove it, or change the other",
            )


def _value(subject: Subject, role: str, flag: str, default: str) -> str:
    argument = subject.argument(role, flag)
    return default if argument is None else argument.value


def _context_parallel_quality(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses(*PREFILL_CP, "--attn-cp-size", "--dcp-size"):
        yield (
            argument.path,
            f"{argument.name} splits the context over ranks: V4 gave nonsense under it on an early release, and it "
            "turns the sparse prefill off; remove it, or watch the canary closely",
        )


def _shared_memory(subject: Subject) -> Iterator[Remark]:
    for role, spec in subject.roles():
        try:
            small = spec.memory is not None and as_bytes(spec.shared_memory) >= as_bytes(spec.memory)
        except ValueError:
            continue
        if small:
            yield (
                f"spec.{role}.sharedMemory",
                f"/dev/shm may grow to {spec.shared_memory}, which counts against the memory limit {spec.memory} and "
                "leaves nothing for the engine; make sharedMemory smaller, or raise memory",
            )


RULES = (
    Rule(
        id="tensor-ratio",
        action=Action.REFUSE,
        title="Tensor sizes of the roles must divide",
        source="sglang 0.5.23 srt/disaggregation/common/conn.py",
        explanation=(
            "Each decode rank reads from the prefill ranks that hold its part of the heads. SGLang maps them in whole "
            "multiples of the attention tensor size, which is the tensor size divided by attention data parallelism."
        ),
        check=_tensor_ratio,
        allowable=False,
    ),
    Rule(
        id="gpu-count",
        action=Action.REFUSE,
        title="Parallel sizes must fit the GPUs",
        source="sglang 0.5.23 srt/server_args.py",
        explanation="One rank takes one GPU, and attention groups are equal parts of the tensor-parallel group.",
        check=_gpu_count,
        allowable=False,
    ),
    Rule(
        id="sm120-experimental",
        action=Action.WARN,
        title="SM120 is experimental",
        source="vllm-project/vllm #56700, sgl-project/sglang #32830",
        explanation=(
            "Reports on RTX PRO with V4: starts and then crashes, hangs when a batch drains to three, compiler faults, "
            "tokens that are all zero. Causes differ and not all are mended."
        ),
        check=_sm120,
    ),
    Rule(
        id="prefill-context-parallel",
        action=Action.REFUSE,
        title="Limits of prefill context parallelism",
        source="sglang 0.5.23 srt/arg_groups/deepseek_v4_hook.py (validate_deepseek_v4_cp)",
        explanation=(
            "V4 takes the interleave strategy on CUDA, at most eight ranks on one machine, no attention data "
            "parallelism, and few MoE all-to-all backends; SGLang asserts or raises otherwise."
        ),
        check=_prefill_cp,
        allowable=False,
    ),
    Rule(
        id="context-parallel-quality",
        action=Action.WARN,
        title="Context parallelism is unproven",
        source="sgl-project/sglang #25662, #33309",
        explanation=(
            "V4 under context parallelism emitted bracket salad on 0.5.12; the cause was not established. With decode "
            "context parallelism early send lost the fresh part of a prompt, which cannot happen here, since early "
            "send is off."
        ),
        check=_context_parallel_quality,
    ),
    Rule(
        id="shared-memory",
        action=Action.WARN,
        title="Shared memory counts against the limit",
        source="this operator",
        explanation=(
            "/dev/shm is a memory-backed volume: what is in it is charged to the pod, and exceeding the limit kills "
            "the engine or evicts the pod."
        ),
        check=_shared_memory,
    ),
)
