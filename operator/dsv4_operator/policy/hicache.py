"""Rules about HiCache on prefill."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.engine import HiCacheWritePolicy, IndexKDtype, SpeculativeAlgorithm
from dsv4_operator.engine.memory import host_pool_estimate
from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.engine.rendered import UNIFIED_RADIX_TREE
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.quantities import as_bytes, in_gib
from dsv4_operator.policy.subject import Subject

_PAIRS = {("Kernel", "LayerFirst"), ("Kernel", "PageFirst"), ("Direct", "LayerFirst"), ("Direct", "PageFirstDirect")}
_DIRECT_SWA = "SGLANG_OPT_SM120_DIRECT_SWA_KV"


def _speculates(subject: Subject) -> bool:
    return subject.spec.engine.speculative.algorithm is not SpeculativeAlgorithm.NONE


def _layout(subject: Subject) -> Iterator[Remark]:
    cache = subject.spec.hi_cache
    if cache.enabled and (cache.io_backend, cache.layout) not in _PAIRS:
        yield (
            "spec.hiCache.layout",
            f"V4's host pools do not take ioBackend {cache.io_backend} with layout {cache.layout}: the engine "
            "would fail after loading weights; use Kernel with LayerFirst or PageFirst, or Direct with LayerFirst "
            "or PageFirstDirect",
        )


def _write_policy(subject: Subject) -> Iterator[Remark]:
    cache = subject.spec.hi_cache
    if cache.enabled and cache.write_policy is not HiCacheWritePolicy.WRITE_THROUGH:
        yield (
            "spec.hiCache.writePolicy",
            f"{cache.write_policy.value} parses, but all good reports of V4 in prefill/decode are with WriteThrough; "
            "use WriteThrough, or watch the canary closely",
        )


def _chunked_backup(subject: Subject) -> Iterator[Remark]:
    cache = subject.spec.hi_cache
    if cache.enabled and cache.write_policy is HiCacheWritePolicy.WRITE_THROUGH:
        yield (
            "spec.hiCache.writePolicy",
            f"WriteThrough in SGLang {subject.known} skips prompts that are prefilled in chunks, so long ones are "
            "hardly ever kept; use SGLang 0.5.22 or later to reuse them",
        )


def _deadlock(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled:
        yield (
            "spec.hiCache.enabled",
            f"HiCache in SGLang {subject.known} deadlocks ranks: eviction and write checks wait in a collective that "
            "others skipped, while /health stays green; use SGLang 0.5.15 or later, or set false",
        )


def _swa_report(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled:
        yield (
            "spec.hiCache.enabled",
            f"an open report speaks of NaN and dead ranks with HiCache on V4 in SGLang {subject.known}, after the "
            "sliding-window slots went wrong; use 0.5.18 or later, or set false",
        )


def _looping_report(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled:
        yield (
            "spec.hiCache.enabled",
            f"an open report speaks of looping, ever longer answers with HiCache on V4-Flash in SGLang "
            f"{subject.known}; watch the length of answers and the canary, or use 0.5.19 or later",
        )


def _with_speculation(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled and _speculates(subject):
        yield (
            "spec.engine.speculative.algorithm",
            f"HiCache with speculation in SGLang {subject.known} loads a prefix back without the draft's state, and "
            "its pools leak until the engine stops; use SGLang 0.5.18 or later, or turn one of the two off",
        )


def _fp4_speculation(subject: Subject) -> Iterator[Remark]:
    spec = subject.spec
    if spec.hi_cache.enabled and spec.index_k.dtype is IndexKDtype.FP4 and _speculates(subject):
        yield (
            "spec.indexK.dtype",
            "HiCache with the FP4 indexer and speculative decoding ends in illegal memory accesses under "
            "multi-turn load; turn one of the three off, FP4 first",
        )


def _dspark_stall(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled and subject.spec.engine.speculative.algorithm is SpeculativeAlgorithm.DSPARK:
        yield (
            "spec.engine.speculative.algorithm",
            "DSPARK with HiCache stalled for ever when a long prefix was loaded back, by a report without a known "
            "cause; watch the canary's wedge signal, or turn one of the two off",
        )


def _unified_tree(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled:
        yield (
            "spec.hiCache.enabled",
            f"the unified radix tree is turned on on prefill ({UNIFIED_RADIX_TREE.name}=1): the older tree of "
            "this release rejects V4's pools",
        )


def _small_ratio(subject: Subject) -> Iterator[Remark]:
    cache = subject.spec.hi_cache
    try:
        small = cache.enabled and Decimal(cache.ratio) < 1
    except InvalidOperation:
        return
    if small:
        yield (
            "spec.hiCache.ratio",
            f"a host pool of {cache.ratio} times the device pool holds less than the device does, and what is written "
            "through is on the device anyway, so little is gained; use at least 1, where memory allows 2",
        )


def _memory(subject: Subject) -> Iterator[Remark]:
    spec, release = subject.spec, subject.known
    if not spec.hi_cache.enabled or release is None or spec.prefill.memory is None:
        return
    estimate = host_pool_estimate(spec, release, Role.PREFILL)
    if estimate is None:
        return
    try:
        limit, shared = as_bytes(spec.prefill.memory), as_bytes(spec.prefill.shared_memory)
    except ValueError:
        return
    needed = estimate.bytes + shared
    if needed > limit:
        yield (
            "spec.prefill.memory",
            f"HiCache does not fit the pod: {estimate.ranks} ranks x {in_gib(estimate.per_rank)} of host pool + "
            f"{in_gib(shared)} sharedMemory = {in_gib(needed)}, but the limit is {in_gib(limit)} ({estimate.basis}), "
            f"and the kernel would kill the engine while it pins memory; raise memory to more than {in_gib(needed)}, "
            "or make spec.hiCache.ratio smaller",
        )


def _memory_unset(subject: Subject) -> Iterator[Remark]:
    if subject.spec.hi_cache.enabled and subject.spec.prefill.memory is None:
        yield (
            "spec.prefill.memory",
            "HiCache pins host memory, and no limit says how much the pod may take: the node's other pods pay for a "
            "pool that is larger than thought; set it to the host pools plus sharedMemory and some room",
        )


def _direct_swa(subject: Subject) -> Iterator[Remark]:
    for variable in subject.sets(_DIRECT_SWA):
        if subject.spec.hi_cache.enabled and variable.on:
            yield (
                variable.path,
                f"{_DIRECT_SWA} gives sliding-window pages another row size, with which HiCache raises at start; "
                "remove it, or set spec.hiCache.enabled to false",
            )


RULES = (
    Rule(
        id="hicache-layout",
        action=Action.REFUSE,
        title="Host layouts that V4 accepts",
        source="sglang 0.5.23 srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py",
        explanation=(
            "V4's host pools take exactly four pairs of copy backend and layout. SGLang rewrites some others silently "
            "(PageFirst with Direct becomes PageFirstDirect) and raises for the rest when the pools are built, after "
            "the weights are loaded."
        ),
        check=_layout,
        allowable=False,
    ),
    Rule(
        id="hicache-write-policy",
        action=Action.WARN,
        title="Write policies without good reports",
        source="sgl-project/sglang #36179",
        explanation=(
            "The one careful report of a good run (0.5.18, two prefills and a decode over NIXL) used write_through, "
            "page_first and the kernel backend. WriteBack copies at eviction, when the pool is under pressure; "
            "WriteThroughSelective after several hits."
        ),
        check=_write_policy,
    ),
    Rule(
        id="hicache-chunked-backup",
        action=Action.WARN,
        title="Long prompts are not written through before 0.5.22",
        source="sglang 0.5.22 srt/mem_cache",
        releases=ReleaseRange.of(None, "0.5.21"),
        explanation=(
            "Before 0.5.22 a prompt that takes several prefill chunks was not backed up by write_through. HiCache then "
            "costs its memory and helps short prompts alone."
        ),
        check=_chunked_backup,
    ),
    Rule(
        id="hicache-deadlock",
        action=Action.REFUSE,
        title="HiCache up to 0.5.14 deadlocks",
        source="sgl-project/sglang #26921, #28429, #30532",
        releases=ReleaseRange.of(None, "0.5.14"),
        explanation=(
            "One rank of a tensor-parallel group waited in a collective of the write check that the others had skipped "
            "(0.5.12, 0.5.13), and on 0.5.14 a pool that was nearly all evictable evicted nothing until the watchdog "
            "killed the engine."
        ),
        check=_deadlock,
    ),
    Rule(
        id="hicache-swa-report",
        action=Action.WARN,
        title="HiCache and the sliding-window pool on 0.5.16 and 0.5.17",
        source="sgl-project/sglang #33656",
        releases=ReleaseRange.of("0.5.16", "0.5.17"),
        explanation=(
            "V4-Flash on 0.5.16 got NaN in the sampler at light load, which kills all ranks; SGLang's kv-canary saw "
            "wrong positions in sliding-window slots. The report is open; it was not seen on 0.5.18."
        ),
        check=_swa_report,
    ),
    Rule(
        id="hicache-looping-report",
        action=Action.WARN,
        title="Looping output with HiCache on 0.5.17 and 0.5.18",
        source="sgl-project/sglang #36179",
        releases=ReleaseRange.of("0.5.17", "0.5.18"),
        explanation=(
            "The mean output of V4-Flash grew from 600 to 1,100 tokens with HiCache in host memory. A careful run on "
            "0.5.18 in prefill/decode over NIXL, with HiCache on prefill alone, did not show it. Forcing ignore_eos "
            "hides the fault, so the canary lets answers end."
        ),
        check=_looping_report,
    ),
    Rule(
        id="hicache-speculation",
        action=Action.REFUSE,
        title="HiCache with speculation before 0.5.18",
        source="sgl-project/sglang #32176, #27789",
        releases=ReleaseRange.of(None, "0.5.17"),
        explanation=(
            "A prefix loaded back had no draft state: the accept length fell from 4.5 to 1.6 without an error "
            "(#32176), and with EAGLE the sliding-window pool lost a page at a time until a check stopped the engine "
            "(#27789). From 0.5.18 the draft's pages are kept beside the target's."
        ),
        check=_with_speculation,
    ),
    Rule(
        id="hicache-fp4-speculation",
        action=Action.REFUSE,
        title="HiCache with FP4 index-K and speculation",
        source="sgl-project/sglang #35811",
        explanation=(
            "V4-Flash with HiCache, DSPARK and the FP4 indexer ended in illegal memory accesses in a multi-turn "
            "benchmark. The cause is open. Each pair of the three runs."
        ),
        check=_fp4_speculation,
    ),
    Rule(
        id="hicache-dspark-stall",
        action=Action.WARN,
        title="DSPARK with HiCache may stall",
        source="sgl-project/sglang #32356",
        releases=ReleaseRange.of("0.5.16", None),
        explanation=(
            "A load-back of a long prefix stalled V4 with DSPARK for ever, the process alive and healthy. No cause and "
            "no fix are known. The canary takes such a pod out of the router."
        ),
        check=_dspark_stall,
    ),
    Rule(
        id="unified-radix-tree",
        action=Action.SET,
        title="The unified radix tree for HiCache",
        source="sgl-project/sglang #26690, sglang 0.5.12 to 0.5.20 srt/environ.py",
        releases=UNIFIED_RADIX_TREE.releases,
        explanation=(
            "0.5.12 needs the variable, or HiCache rejects V4's pool at start. Later releases imply it for models with "
            "a sliding window, and from 0.5.21 it does nothing."
        ),
        check=_unified_tree,
    ),
    Rule(
        id="hicache-ratio-small",
        action=Action.WARN,
        title="A host pool smaller than the device's",
        source="sglang 0.5.23 srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py",
        explanation=(
            "Host pages are device pages times the ratio. Below 1 the host keeps a part of what the device has; "
            "prefixes that were evicted from the device are mostly gone from the host too."
        ),
        check=_small_ratio,
    ),
    Rule(
        id="hicache-memory",
        action=Action.REFUSE,
        title="HiCache must fit the pod's memory",
        source="sgl-project/sglang #20136, sglang 0.5.23 srt/mem_cache/pool_host/base.py",
        explanation=(
            "Each rank pins a host pool of its own, ratio times its device pool; /dev/shm counts as well. SGLang "
            "looks at the node's free memory, from 0.5.21 at the pod's only where no ratio is given, so a pool that "
            "does not fit ends with the kernel killing the engine after the weights are loaded. The sum is an "
            "estimate from the size of the GPU memory; allow the rule where you measured."
        ),
        check=_memory,
    ),
    Rule(
        id="hicache-memory-unset",
        action=Action.WARN,
        title="HiCache without a memory limit",
        source="sgl-project/sglang #20136",
        explanation=(
            "Ratio 2 at TP8 took about 950 GB on B300. Without a request the scheduler puts the pod on a node that has "
            "not as much, and pinned memory cannot be swapped or reclaimed."
        ),
        check=_memory_unset,
    ),
    Rule(
        id="hicache-sm120-direct-swa",
        action=Action.REFUSE,
        title="HiCache with direct sliding-window rows on SM120",
        source="sglang 0.5.23 srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py",
        releases=ReleaseRange.of("0.5.21"),
        explanation=(
            "The SM120 option stores sliding-window KV in rows of another size than the logical page. HiCache copies "
            "whole pages and refuses that at start."
        ),
        check=_direct_swa,
        allowable=False,
    ),
)
