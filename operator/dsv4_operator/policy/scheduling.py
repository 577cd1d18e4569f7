"""Rules about the scheduler: overlap, retraction, context, and how replies are read."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import SpeculativeAlgorithm
from dsv4_operator.api.v1alpha1.spec import OverlapSchedule
from dsv4_operator.engine.command import disables_overlap
from dsv4_operator.engine.releases import DEFAULT_RELEASE, ReleaseRange
from dsv4_operator.engine.rendered import OVERLAP_UNSAFE, RETRACTION_BACKUP
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_MODEL_CONTEXT = 1_048_576


def _eagle_with_attention_dp(subject: Subject) -> bool:
    spec = subject.spec
    attention_dp = max(spec.prefill.parallelism.attention_data, spec.decode.parallelism.attention_data)
    return spec.engine.speculative.algorithm is SpeculativeAlgorithm.EAGLE and attention_dp > 1


def _is_off(subject: Subject) -> bool:
    """Whether Auto turns overlap off: what is announced is asked of what is rendered."""
    spec = subject.spec
    return spec.overlap_schedule is OverlapSchedule.AUTO and disables_overlap(spec, subject.known or DEFAULT_RELEASE)


def _overlap_eagle(subject: Subject) -> Iterator[Remark]:
    if _is_off(subject) and _eagle_with_attention_dp(subject):
        yield (
            "spec.overlapSchedule",
            "the overlapped scheduler is turned off: with EAGLE and attention data parallelism it hangs",
        )


def _overlap_release(subject: Subject) -> Iterator[Remark]:
    if _is_off(subject) and not _eagle_with_attention_dp(subject):
        yield (
            "spec.overlapSchedule",
            f"the overlapped scheduler is turned off: up to SGLang 0.5.15, here {subject.known}, what is sent is not "
            "ordered after the running forward",
        )


def _overlap_forced(subject: Subject) -> Iterator[Remark]:
    spec = subject.spec
    if spec.overlap_schedule is not OverlapSchedule.ENABLED:
        return
    auto = spec.model_copy(update={"overlap_schedule": OverlapSchedule.AUTO})
    if disables_overlap(auto, subject.known or DEFAULT_RELEASE):
        why = (
            "EAGLE with attention data parallelism hangs with it"
            if _eagle_with_attention_dp(subject)
            else f"in SGLang {subject.known} the transfer is not ordered after it"
        )
        yield (
            "spec.overlapSchedule",
            f"Enabled overrides what policy would choose: {why}; use Auto, or watch the canary closely",
        )


def _retraction(subject: Subject) -> Iterator[Remark]:
    if subject.spec.engine.max_running_requests is None and not _reserves(subject):
        yield (
            "spec.engine.maxRunningRequests",
            f"when decode of SGLang {subject.known} runs out of KV it retracts a request, which V4 cannot do there: "
            "the scheduler dies; set maxRunningRequests so that decode always has room, or use 0.5.22 or later",
        )


def _retraction_ends(_: Subject) -> Iterator[Remark]:
    yield (
        "spec.decode",
        f"when decode runs out of KV, a request that must go ends with 503 ({RETRACTION_BACKUP.name} none): this "
        "release cannot bring one of V4 back, and would end the scheduler instead",
    )


def _reserves(subject: Subject) -> bool:
    return subject.argument("decode", "--num-reserved-decode-tokens") is not None


def _context_length(subject: Subject) -> Iterator[Remark]:
    length = subject.spec.engine.context_length
    if length is not None and length > _MODEL_CONTEXT:
        yield (
            "spec.engine.contextLength",
            f"{length} tokens are more than V4's {_MODEL_CONTEXT}: SGLang refuses a context longer than the model's at "
            "start; use the model's, or leave it out",
        )


def _context_override(subject: Subject) -> Iterator[Remark]:
    for variable in subject.sets("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"):
        if variable.on:
            yield (
                variable.path,
                f"{variable.name} lets contextLength exceed the model's: positions that it was not trained on give "
                "wrong text or CUDA errors; remove it, and set spec.engine.contextLength within the model's",
            )


def _dsml_parser(subject: Subject) -> Iterator[Remark]:
    yield (
        "spec.engine.release",
        f"the tool-call parser of SGLang {subject.known} lets damaged calls out as text, and streamed arguments can be "
        "invalid JSON though the model wrote them well: the canary cannot tell the two apart; use 0.5.21 or later",
    )


def _kv_canary(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses("--kv-canary"):
        if argument.value not in ("none", ""):
            yield (
                argument.path,
                "SGLang's kv-canary covers V4's sliding-window pool alone, neither compressed KV nor index keys: "
                "silence proves little; leave spec.canary on, which sends real requests",
            )


def _warmup(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses("--skip-server-warmup"):
        yield (
            argument.path,
            "without warm-up the first requests wait for kernels to compile, minutes perhaps, so the canary's first "
            "probes fail; remove it, or set spec.canary.timeoutSeconds to allow for it",
        )


def _load_balance(subject: Subject) -> Iterator[Remark]:
    argument = subject.argument("prefill", "--load-balance-method")
    if (
        argument is not None
        and subject.spec.prefill.parallelism.attention_data > 1
        and argument.value not in ("follow_bootstrap_room", "auto")
    ):
        yield (
            argument.path,
            "with attention data parallelism prefill must follow the bootstrap room, by which decode finds the rank: "
            "another method costs a query per request and misses prefixes; remove it",
        )


RULES = (
    Rule(
        id="overlap-eagle-attention-dp",
        action=Action.SET,
        title="Overlap off for EAGLE with attention DP",
        source="sgl-project/sglang #27938",
        explanation=(
            "V4-Flash at TP8/DP8 with EAGLE became ready and then hung at the first chat with overlap on (0.5.13). "
            "The cause was not established and the report was closed, so Auto keeps overlap off for this combination "
            "on all releases."
        ),
        check=_overlap_eagle,
    ),
    Rule(
        id="overlap-release",
        action=Action.SET,
        title="Overlap off up to 0.5.15",
        source="sgl-project/sglang #29316",
        releases=OVERLAP_UNSAFE,
        explanation=(
            "The event that orders a transfer after the running forward was added in 0.5.16; 0.5.12 has no barrier "
            "between batches at all. Auto trades some speed for that order on the old releases."
        ),
        check=_overlap_release,
    ),
    Rule(
        id="overlap-forced",
        action=Action.WARN,
        title="Overlap on against policy",
        source="sgl-project/sglang #27938, #29316",
        explanation=(
            "overlapSchedule Enabled is obeyed. Where Auto would have turned overlap off there is a report of hangs "
            "or of wrong order, which the canary can see only after it happened."
        ),
        check=_overlap_forced,
    ),
    Rule(
        id="decode-retraction",
        action=Action.WARN,
        title="Decode must never retract before 0.5.22",
        source="sgl-project/sglang #33385",
        releases=ReleaseRange.of(None, "0.5.20"),
        explanation=(
            "V4's pool has no copy of KV on the CPU, but the scheduler tried to make one when decode was full, and the "
            "NotImplementedError ended it. On 0.5.21 the operator has such requests end with 503, from 0.5.22 they are "
            "computed again on prefill. Fewer running requests, or "
            "--num-reserved-decode-tokens, keep decode from getting there."
        ),
        check=_retraction,
    ),
    Rule(
        id="retraction-ends-request",
        action=Action.SET,
        title="Retracted requests end with 503 on 0.5.21",
        source="sgl-project/sglang #33385, sglang 0.5.21 srt/disaggregation/decode.py",
        releases=RETRACTION_BACKUP.releases,
        explanation=(
            "0.5.21 brought the choice none, which aborts a retracted request so that the client can try again. "
            "Copies do not exist for V4 there, and from 0.5.22 prefill computes such a request again."
        ),
        check=_retraction_ends,
    ),
    Rule(
        id="context-length",
        action=Action.WARN,
        title="Context longer than the model's",
        source="sglang 0.5.23 srt/configs/model_config.py (_derive_context_length)",
        explanation=(
            "SGLang compares the context length with the model's configuration and raises when it is longer. The "
            "operator does not see the configuration; a million tokens is what V4 is published with."
        ),
        check=_context_length,
    ),
    Rule(
        id="context-length-override",
        action=Action.WARN,
        title="Overriding the model's context",
        source="sglang 0.5.23 srt/configs/model_config.py (_derive_context_length)",
        explanation="SGLang then only logs a warning about wrong outputs and CUDA errors.",
        check=_context_override,
    ),
    Rule(
        id="dsml-parser",
        action=Action.WARN,
        title="Tool calls leak as text up to 0.5.20",
        source="sgl-project/sglang #39632, #40236, #34600",
        releases=ReleaseRange.of(None, "0.5.20"),
        explanation=(
            "One bad call in a block made the whole block text, streamed arguments lost letters or became invalid "
            "JSON, by a report for 4 to 6 percent of tool requests. 0.5.21 buffers whole calls and drops bad ones, "
            "0.5.23 parses by token. Until then the canary's findings about tool calls can be the parser's fault."
        ),
        check=_dsml_parser,
    ),
    Rule(
        id="kv-canary-blind",
        action=Action.WARN,
        title="SGLang's own KV canary",
        source="sglang 0.5.23 srt/kv_canary",
        explanation=(
            "For V4 it checks the sliding-window pool and keeps no fingerprint of data; C4, C128, index keys and "
            "compressor states carry upstream's TODOs."
        ),
        check=_kv_canary,
    ),
    Rule(
        id="warmup-skipped",
        action=Action.WARN,
        title="Serving without warm-up",
        source="sgl-project/sglang #30748, #22511",
        explanation=(
            "The warm-up runs each attention rank once through the fake peer, so that kernels are compiled before."
        ),
        check=_warmup,
    ),
    Rule(
        id="load-balance-method",
        action=Action.WARN,
        title="How prefill picks its attention rank",
        source="sglang 0.5.23 srt/disaggregation/common/conn.py",
        explanation=(
            "SGLang's default for prefill is follow_bootstrap_room: the rank is the room modulo their number, which "
            "decode can compute. With another method decode asks the registry for every request."
        ),
        check=_load_balance,
    ),
)
