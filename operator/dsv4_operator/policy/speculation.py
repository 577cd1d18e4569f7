"""Rules about speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import SpeculativeAlgorithm
from dsv4_operator.engine.command import eagle_numbers
from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_ONLINE = "SGLANG_OPT_USE_ONLINE_COMPRESS"
_ONLINE_MTP = "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP"
_RAGGED = "SGLANG_RAGGED_VERIFY_MODE"
_DP_EXPERTS = {
    ReleaseRange.of(None, "0.5.17"): ("none",),
    ReleaseRange.of("0.5.18", "0.5.20"): ("none", "megamoe"),
    ReleaseRange.of("0.5.21"): ("none", "megamoe", "mori"),
}
"""MoE all-to-all backends that DSPARK takes with attention data parallelism (_handle_dspark of each release)."""
_LONG_CONTEXT = 200_000


def _is(subject: Subject, algorithm: SpeculativeAlgorithm) -> bool:
    return subject.spec.engine.speculative.algorithm is algorithm


def _dspark_release(subject: Subject) -> Iterator[Remark]:
    if _is(subject, SpeculativeAlgorithm.DSPARK):
        yield (
            "spec.engine.speculative.algorithm",
            f"SGLang {subject.known} has no DSPARK: the engine would exit at its flags; use 0.5.16 or later, or EAGLE",
        )


def _dspark_attention_dp(subject: Subject) -> Iterator[Remark]:
    if not _is(subject, SpeculativeAlgorithm.DSPARK):
        return
    for role, spec in subject.roles():
        if spec.parallelism.attention_data <= 1:
            continue
        path = f"spec.{role}.extraArgs"
        if subject.argument(role, "--enable-dp-lm-head") is None:
            yield (
                path,
                "DSPARK with attention data parallelism needs the language-model head split alike, or the engine "
                "refuses to start; set --enable-dp-lm-head in spec.engine.extraArgs, or make "
                f"spec.{role}.parallelism.attentionData 1",
            )
        experts = subject.argument(role, "--moe-a2a-backend")
        if experts is None or subject.known is None:
            continue
        taken = next(names for releases, names in _DP_EXPERTS.items() if subject.known in releases)
        mode = subject.variable(role, _RAGGED)
        if experts.value not in taken:
            yield (
                experts.path,
                "DSPARK with attention data parallelism takes few MoE all-to-all backends, and with others the engine "
                f"refuses to start; use {' or '.join(taken)}, or remove it",
            )
        elif experts.value != "none" and mode is not None and mode.value != "static":
            yield (
                mode.path,
                f"DSPARK with attention data parallelism and a MoE all-to-all backend needs {_RAGGED} static, or the "
                "engine refuses to start; remove it",
            )


def _dspark_long(subject: Subject) -> Iterator[Remark]:
    length = subject.spec.engine.context_length
    if _is(subject, SpeculativeAlgorithm.DSPARK) and (length is None or length > _LONG_CONTEXT):
        yield (
            "spec.engine.contextLength",
            "DSPARK wedged all ranks at about 245,000 tokens of context in a report without a confirmed fix: ranks "
            f"sampled differently; set it to {_LONG_CONTEXT} or less, or watch the canary's wedge signal",
        )


def _eagle_numbers(subject: Subject) -> Iterator[Remark]:
    speculative = subject.spec.engine.speculative
    given = (speculative.num_steps, speculative.eagle_topk, speculative.num_draft_tokens)
    if _is(subject, SpeculativeAlgorithm.EAGLE) and None in given:
        numbers = eagle_numbers(speculative)
        yield (
            "spec.engine.speculative",
            f"EAGLE runs with {numbers['num_steps']} steps, top-k {numbers['eagle_topk']} and "
            f"{numbers['num_draft_tokens']} draft tokens: SGLang's automatic choice takes another top-k and asserts "
            "for V4",
        )


def _eagle_draft_tokens(subject: Subject) -> Iterator[Remark]:
    numbers = eagle_numbers(subject.spec.engine.speculative)
    if numbers and numbers["num_draft_tokens"] != numbers["num_steps"] + 1:
        yield (
            "spec.engine.speculative.numDraftTokens",
            f"with top-k 1 there are as many draft tokens as steps plus one: SGLang changes "
            f"{numbers['num_draft_tokens']} to {numbers['num_steps'] + 1} silently; set numDraftTokens to that, or "
            "numSteps to fit",
        )


def _eagle_grammar(subject: Subject) -> Iterator[Remark]:
    if _is(subject, SpeculativeAlgorithm.EAGLE):
        yield (
            "spec.engine.speculative.algorithm",
            f"EAGLE in SGLang {subject.known} aborts requests with structured output or required tools in "
            "prefill/decode: a token is accepted twice; use SGLang 0.5.14 or later, or None",
        )


def _online_compress(subject: Subject) -> Iterator[Remark]:
    if _is(subject, SpeculativeAlgorithm.NONE):
        return
    said = set()
    for role, _ in subject.roles():
        variable, experimental = subject.variable(role, _ONLINE), subject.variable(role, _ONLINE_MTP)
        excepted = _is(subject, SpeculativeAlgorithm.EAGLE) and experimental is not None and experimental.on
        if variable is not None and variable.on and not excepted and variable.path not in said:
            said.add(variable.path)
            yield (
                variable.path,
                f"{_ONLINE} keeps a running state that speculation would have to roll back, so the two assert at "
                "start; remove it, or set speculation to None",
            )


RULES = (
    Rule(
        id="dspark-release",
        action=Action.REFUSE,
        title="DSPARK needs SGLang 0.5.16",
        source="sglang 0.5.16 srt/server_args.py",
        releases=ReleaseRange.of(None, "0.5.15"),
        explanation=(
            "V4 takes EAGLE with top-k 1 in all releases and DSPARK from 0.5.16 on; every other algorithm asserts, and "
            "the API has no value for it."
        ),
        check=_dspark_release,
        allowable=False,
    ),
    Rule(
        id="dspark-attention-dp",
        action=Action.REFUSE,
        title="DSPARK with attention data parallelism",
        source="sglang 0.5.23 srt/arg_groups/speculative_hook.py (_handle_dspark)",
        releases=ReleaseRange.of("0.5.16", None),
        explanation=(
            "SGLang refuses DSPARK with attention data parallelism unless --enable-dp-lm-head is given and the MoE "
            "all-to-all backend is none, from 0.5.18 on megamoe, from 0.5.21 on mori. With a backend the ragged "
            "verification must be static, which is its default."
        ),
        check=_dspark_attention_dp,
        allowable=False,
    ),
    Rule(
        id="dspark-long-context",
        action=Action.WARN,
        title="DSPARK at very long context",
        source="sgl-project/sglang #33549, PR #33614",
        releases=ReleaseRange.of("0.5.16", None),
        explanation=(
            "V4 with DSPARK at TP8 stood still with all GPUs busy at about 245,000 tokens on 0.5.16, until the "
            "watchdog killed it: ranks had sampled different tokens. A fix was proposed; whether a release has it was "
            "not established."
        ),
        check=_dspark_long,
    ),
    Rule(
        id="eagle-numbers",
        action=Action.SET,
        title="EAGLE with explicit numbers",
        source="sglang 0.5.12 to 0.5.23 srt/arg_groups/deepseek_v4_hook.py",
        explanation=(
            "V4 asserts that top-k is 1. When the numbers are left out, SGLang chooses them by model and takes another "
            "top-k, so the operator always renders all three, the same on both roles."
        ),
        check=_eagle_numbers,
    ),
    Rule(
        id="eagle-draft-tokens",
        action=Action.WARN,
        title="Draft tokens that do not fit the steps",
        source="sglang 0.5.23 srt/arg_groups/speculative_hook.py",
        explanation=(
            "With top-k 1 drafts form a chain, so there are steps plus one tokens to verify. SGLang adjusts other "
            "numbers and logs a warning."
        ),
        check=_eagle_draft_tokens,
    ),
    Rule(
        id="eagle-grammar",
        action=Action.WARN,
        title="EAGLE with structured output before 0.5.14",
        source="sgl-project/sglang #29110, #25388",
        releases=ReleaseRange.of(None, "0.5.13"),
        explanation=(
            "The speculative accept path of prefill/decode handed a token to the grammar twice, which aborts the "
            "request. Tool calls with tool_choice required or a named tool use a grammar."
        ),
        check=_eagle_grammar,
    ),
    Rule(
        id="online-compress-speculation",
        action=Action.REFUSE,
        title="Online compression with speculation",
        source="sglang 0.5.23 srt/model_executor/pool_configurator.py",
        explanation=(
            "Online compression keeps one running state per slot and assumes that tokens only move forward; "
            "verification rolls back. SGLang asserts, but for an experimental way with EAGLE behind "
            "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP."
        ),
        check=_online_compress,
        allowable=False,
    ),
)
