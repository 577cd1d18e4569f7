"""Rules against combinations that are known to corrupt output, and the safe values rendered against faults."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import IndexKDtype, SpeculativeAlgorithm
from dsv4_operator.api.v1alpha1.spec import OverlapSchedule
from dsv4_operator.engine.command import disables_overlap
from dsv4_operator.policy.finding import Action, Rule, Subject


def _hicache_fp4_speculation(subject: Subject) -> Iterator[tuple[str, str]]:
    spec = subject.spec
    if (
        spec.hi_cache.enabled
        and spec.index_k.dtype is IndexKDtype.FP4
        and spec.engine.speculative.algorithm is not SpeculativeAlgorithm.NONE
    ):
        yield (
            "spec.indexK.dtype",
            (
                "HiCache with the FP4 indexer and speculative decoding ends in illegal memory accesses under "
                "multi-turn load; turn one of the three off, FP4 first"
            ),
        )


def _hicache_pairs(subject: Subject) -> Iterator[tuple[str, str]]:
    cache = subject.spec.hi_cache
    accepted = {
        ("Kernel", "LayerFirst"),
        ("Kernel", "PageFirst"),
        ("Direct", "LayerFirst"),
        ("Direct", "PageFirstDirect"),
    }
    if cache.enabled and (cache.io_backend, cache.layout) not in accepted:
        yield (
            "spec.hiCache.layout",
            (
                f"V4's host pools do not take ioBackend {cache.io_backend} with layout {cache.layout}: the engine "
                "would fail after loading weights; use Kernel with LayerFirst or PageFirst, or Direct with LayerFirst "
                "or PageFirstDirect"
            ),
        )


def _early_send(_: Subject) -> Iterator[tuple[str, str]]:
    yield (
        "spec.prefill",
        (
            "early send of cached prefixes is turned off on prefill: NIXL ignores the fence of the running forward, so "
            "pages could leave before they are written"
        ),
    )


def _overlap(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.spec.overlap_schedule is OverlapSchedule.AUTO and disables_overlap(subject.spec):
        yield (
            "spec.overlapSchedule",
            ("the overlapped scheduler is turned off: with EAGLE and attention data parallelism it hangs"),
        )


RULES = (
    Rule(
        "hicache-fp4-speculation",
        Action.REFUSE,
        "HiCache with FP4 index-K and speculation",
        "sgl-project/sglang #35811",
        _hicache_fp4_speculation,
    ),
    Rule(
        "hicache-layout",
        Action.REFUSE,
        "Host layouts that V4 accepts",
        "sglang 0.5.23 srt/mem_cache (DeepSeekV4PagedHostPool)",
        _hicache_pairs,
        allowable=False,
    ),
    Rule(
        "early-send",
        Action.SET,
        "No early send of cached prefixes with NIXL",
        "sgl-project/sglang #44070, PR #39417",
        _early_send,
    ),
    Rule(
        "overlap-eagle-attention-dp",
        Action.SET,
        "Overlap off for EAGLE with attention DP",
        "sgl-project/sglang #27938",
        _overlap,
    ),
)
