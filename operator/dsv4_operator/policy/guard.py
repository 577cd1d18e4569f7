"""Rules about what needs the guard, the plugin of the gated image: BF16 index-K and the KV checksum."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dsv4_operator.api.v1alpha1.engine import IndexKDtype, SpeculativeAlgorithm
from dsv4_operator.engine.guard import CHECKSUM_RELEASES, GUARD_RELEASES, INDEX_K_ENV, PLUGIN, guarded_index_k, named
from dsv4_operator.engine.rendered import CHECKSUM
from dsv4_operator.policy.claims import CHECKSUM_FLAG
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject
from dsv4_operator.policy.topology import PREFILL_CP

_TOKENIZERS: Final = "--tokenizer-worker-num"
_BF16: Final = "spec.indexK.dtype"
_CHECKSUM: Final = "spec.network.checksum"
_OTHER_INDEXERS: Final = {
    "--enable-hisparse": "keeps index keys on the host in its own format",
    "--hisparse-config": "keeps index keys on the host in its own format",
    "--enable-nvidia-megakernel": "reads index keys inside one fused kernel, which knows FP8 alone",
    **dict.fromkeys((*PREFILL_CP, "--attn-cp-size"), "splits the indexer's work over ranks, which the guard does not"),
}
_OTHER_INDEXER_VARIABLES: Final = {
    "SGLANG_OPT_USE_TILELANG_INDEXER": "computes scores in TileLang, from FP8 keys",
    "SGLANG_OPT_USE_AITER_INDEXER": "computes scores with AITER, from FP8 keys",
}
_V41: Final = re.compile(r"v4[._-]?1(?![0-9])", re.IGNORECASE)


def _is_bf16(subject: Subject) -> bool:
    return subject.spec.index_k.dtype is IndexKDtype.BF16


def _bf16_release(subject: Subject) -> Iterator[Remark]:
    if _is_bf16(subject) and subject.known is not None and subject.known not in GUARD_RELEASES:
        yield (
            _BF16,
            f"BF16 index keys need the guard of the gated image, which replaces functions as they stand in SGLang "
            f"{named(GUARD_RELEASES)}, and {subject.known} has others: the engine would exit at start; use an image "
            "of such a release, or FP8",
        )


def _bf16_indexer(subject: Subject) -> Iterator[Remark]:
    if not _is_bf16(subject):
        return
    for argument in subject.uses(*_OTHER_INDEXERS):
        why = _OTHER_INDEXERS.get(argument.name) or _OTHER_INDEXERS[argument.written]
        yield argument.path, f"{argument.name} {why}, so it does not go with BF16 index-K; remove it, or use FP8"
    for variable in subject.sets(*_OTHER_INDEXER_VARIABLES):
        if variable.on:
            why = _OTHER_INDEXER_VARIABLES[variable.name]
            yield variable.path, f"{variable.name} {why}, so it does not go with BF16 index-K; remove it, or use FP8"


def _bf16_model(subject: Subject) -> Iterator[Remark]:
    source = subject.spec.model.source.hugging_face
    names = {"spec.model.id": subject.spec.model.id}
    if source is not None:
        names["spec.model.source.huggingFace.repo"] = source.repo
    for path, name in names.items() if _is_bf16(subject) else ():
        if _V41.search(name):
            yield (
                path,
                "the name speaks of DeepSeek-V4.1, whose low-ratio index keys are FP4 always, so the guard refuses "
                "it with BF16; use FP8, or allow this rule where the checkpoint is a V4",
            )


def _bf16_speculation(subject: Subject) -> Iterator[Remark]:
    algorithm = subject.spec.engine.speculative.algorithm
    if _is_bf16(subject) and algorithm is not SpeculativeAlgorithm.NONE:
        yield (
            "spec.engine.speculative.algorithm",
            f"{algorithm.value} with BF16 index-K was not run on a GPU: draft layers have no index keys, but "
            "verification asks the target's for several rows at once; watch the canary and the accept length, or use "
            "None",
        )


def _guard_required(subject: Subject) -> Iterator[Remark]:
    if subject.known is None:
        return
    index_k = guarded_index_k(subject.spec, subject.known)
    if index_k is not None:
        yield (
            _BF16 if _is_bf16(subject) else _CHECKSUM,
            f"the guard of the gated image is turned on, on both roles (SGLANG_PLUGINS={PLUGIN}, "
            f"{INDEX_K_ENV}={index_k}), and no engine becomes Ready that does not show its marker",
        )


def _guard_unchecked(subject: Subject) -> Iterator[Remark]:
    if subject.known is not None and guarded_index_k(subject.spec, subject.known) and not subject.spec.canary.enabled:
        yield (
            "spec.canary.enabled",
            "without the canary nobody looks for the guard's marker: an image without the guard would serve FP8 "
            "index keys, unguarded, and nothing would say so; turn the canary on",
        )


def _live_counters(subject: Subject) -> Iterator[Remark]:
    if subject.known is None or guarded_index_k(subject.spec, subject.known) is None:
        return
    for argument in subject.uses(_TOKENIZERS):
        if argument.value.strip() != "1":
            yield (
                argument.path,
                f"{_TOKENIZERS} starts API processes that load no plugins, so the guard counts no tool call of "
                "users: dsv4_guard_tool_calls_total stays at 0 and DSV4LiveToolCallCorruption cannot fire; remove "
                "it, or leave it to the canary alone to find corruption",
            )


def _checksum(subject: Subject) -> Iterator[Remark]:
    spec, release = subject.spec, subject.known
    for argument in subject.uses(CHECKSUM_FLAG):
        yield (
            argument.path,
            f"{CHECKSUM_FLAG} alone asserts at the first real request of V4, and both roles need it; "
            f"remove it and use {_CHECKSUM}",
        )
    if not spec.network.checksum:
        return
    if spec.index_k.dtype is IndexKDtype.FP4:
        yield (
            _CHECKSUM,
            "the guard, which makes the KV checksum work on V4, was not tested with FP4 index-K; use false, or FP8 "
            "or BF16",
        )
    if release is None or release in CHECKSUM_RELEASES:
        return
    if release not in CHECKSUM.releases:
        why = f"SGLang {release} has no KV checksum, which came with 0.5.21"
    else:
        why = (
            f"in SGLang {release} the KV checksum asserts at the first real request of V4, which lists no state rows "
            "for it; the guard of the gated image mends that on other releases alone"
        )
    yield _CHECKSUM, f"{why}; use an image of SGLang {named(CHECKSUM_RELEASES)}, or false"


RULES = (
    Rule(
        id="bf16-release",
        action=Action.REFUSE,
        title="Releases that the guard supports with BF16 index-K",
        source="sglang 0.5.23 srt/mem_cache/deepseek_v4_memory_pool.py (DeepSeekV4IndexerPool)",
        explanation=(
            "BF16 index keys need another pool, store kernel, query and logits than upstream has. The guard replaces "
            "those by name, in 0.5.17 and 0.5.23 alone; on any other release it ends the engine at start, since a name "
            "that a release does not have is only logged by SGLang, and the engine would run unpatched."
        ),
        check=_bf16_release,
        allowable=False,
    ),
    Rule(
        id="bf16-indexer",
        action=Action.REFUSE,
        title="Indexers that cannot read BF16 index-K",
        source="sglang 0.5.23 srt/layers/attention/dsv4/indexer.py (forward_c4_indexer)",
        explanation=(
            "Several optional ways compute the indexer's scores, each from its own format of the keys: HiSparse, "
            "NVIDIA's megakernel, TileLang, AITER, and context parallelism on prefill. The guard replaces the default "
            "way alone. Other attention backends are refused anyway (attention-backend-trtllm)."
        ),
        check=_bf16_indexer,
        allowable=False,
    ),
    Rule(
        id="bf16-model",
        action=Action.REFUSE,
        title="BF16 index-K is for V4, not V4.1",
        source="sglang 0.5.23 srt/mem_cache/deepseek_v4_memory_pool.py (get_low_ratio_index_k_fp4)",
        explanation=(
            "V4.1 adds index keys at compression ratios 1 and 2, in FP4 always, and reads them through accessors of "
            "their own. The rule goes by names, so it can be wrong about a checkpoint: then allow it."
        ),
        check=_bf16_model,
    ),
    Rule(
        id="bf16-speculation",
        action=Action.WARN,
        title="BF16 index-K with speculation is unproven",
        source="sglang 0.5.23 srt/models/deepseek_v4_nextn.py (COMPRESS_RATIO_NEXTN_LAYER)",
        explanation=(
            "The draft layer of EAGLE and DSPARK keeps a sliding window alone, so its KV has no index keys and keeps "
            "its format. Verification sends several rows per request through the target's indexer, which the guard's "
            "kernels take; that was tested on kernels, not in a running pair."
        ),
        check=_bf16_speculation,
    ),
    Rule(
        id="guard-required",
        action=Action.SET,
        title="The guard is turned on where it is needed",
        source="this operator",
        explanation=(
            "BF16 index-K and the KV checksum work with the guard alone, a plugin in the gated image (images/sglang). "
            "The operator renders its variables on both roles. An image cannot be looked into beforehand, so the "
            "sidecar waits for the marker that the guard puts into the engine's metrics, with the right format of "
            "index keys; until then the pod is not Ready, reason GuardMissing. BF16 takes 64 bytes of index-K per "
            "token and C4 layer instead of 33, about a tenth more of all KV, so that much fewer tokens fit."
        ),
        check=_guard_required,
    ),
    Rule(
        id="guard-unchecked",
        action=Action.REFUSE,
        title="The guard needs the canary",
        source="this operator",
        explanation=(
            "An engine without the plugin ignores the plugin's variables and serves FP8 on both roles, which works and "
            "is not what the spec says. Only the canary looks for the marker."
        ),
        check=_guard_unchecked,
    ),
    Rule(
        id="live-counters",
        action=Action.WARN,
        title="Several tokenizer workers are not counted",
        source="sglang 0.5.23 srt/entrypoints/http_server.py (tokenizer_worker_num)",
        explanation=(
            "The guard counts how users' tool calls end in the process that answers HTTP. With more than one tokenizer "
            "worker those are processes of their own, in which SGLang loads no plugins. The gates, BF16 and the "
            "transfer are in the scheduler and not concerned."
        ),
        check=_live_counters,
    ),
    Rule(
        id="kv-checksum",
        action=Action.REFUSE,
        title="KV checksum on V4",
        source="sglang 0.5.23 srt/disaggregation/checksum.py (state_indices_for_request)",
        explanation=(
            "The checksum (0.5.21 and later) is the best witness of a broken transfer: prefill and decode each sum up "
            "all pages of a request, and decode aborts it when the sums differ. But V4 registers state buffers, the "
            "helper that lists their rows returns nothing for it, and the checksum asserts on that in the scheduler at "
            "the first real request; health checks do not reach that code. The guard of the gated image gives V4 its "
            "rows, in 0.5.23 alone. The price is one more read of each request's KV on both sides."
        ),
        check=_checksum,
        allowable=False,
    ),
)
