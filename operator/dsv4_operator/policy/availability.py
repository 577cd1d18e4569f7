"""Rules about fields whose function is not built yet, said clearly, and about a canary that sees little."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import HiCacheSpec
from dsv4_operator.api.v1alpha1.operations import CanarySpec, RecoverySpec, RolloutSpec
from dsv4_operator.api.v1alpha1.roles import ComputeDomainMode
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_BLIND_TOKENS = 2048
"""512 entries of the index top-k over keys compressed 4:1: below, every key is selected, damaged or not."""


def _not_built(subject: Subject) -> Iterator[Remark]:
    spec = subject.spec
    if spec.network.compute_domain.mode is not ComputeDomainMode.NONE:
        yield "spec.network.computeDomain.mode", "ComputeDomains are not created or joined yet; use None"
    if spec.rollout.soak is not None:
        yield (
            "spec.rollout.soak",
            "the soak gate is not built yet; remove the field and soak by hand before you switch",
        )


def _without_effect(subject: Subject) -> Iterator[Remark]:
    spec = subject.spec
    if spec.recovery != RecoverySpec():
        yield (
            "spec.recovery",
            "recovery is not built yet: wedged pods are kept out of the router but not replaced; "
            "delete such pods by hand",
        )
    if spec.hi_cache.on_corruption != HiCacheSpec().on_corruption:
        yield (
            "spec.hiCache.onCorruption",
            "not acted on yet: a failing canary takes the pod out of the router, whatever the cause; "
            "turn hiCache off by hand when reloaded prefixes are the cause",
        )
    if spec.canary.minimum_available != CanarySpec().minimum_available:
        yield "spec.canary.minimumAvailable", "not acted on yet, whatever its value; leave it out"
    if spec.rollout.auto_rollback != RolloutSpec().auto_rollback:
        yield (
            "spec.rollout.autoRollback",
            "not acted on yet, whatever its value: a generation that fails stays; leave it out, and apply the last "
            "good spec by hand",
        )


def _canary_off(subject: Subject) -> Iterator[Remark]:
    if not subject.spec.canary.enabled:
        yield (
            "spec.canary.enabled",
            "without the canary Ready proves nothing: SGLang's /health moves no KV, so a broken or corrupting pair "
            "serves; turn it on",
        )


def _canary_short(subject: Subject) -> Iterator[Remark]:
    canary = subject.spec.canary
    if canary.enabled and canary.prompt_tokens < _BLIND_TOKENS:
        yield (
            "spec.canary.promptTokens",
            f"a prompt of {canary.prompt_tokens} tokens cannot show damaged index keys: below {_BLIND_TOKENS} sparse "
            "attention selects every key; use 2600 or more",
        )


RULES = (
    Rule(
        id="not-built",
        action=Action.REFUSE,
        title="Fields whose function is not built yet",
        source="this operator",
        explanation=(
            "The API has fields for what later versions of the operator will do. Ignoring one would leave you with "
            "less than the spec says, so it is refused."
        ),
        check=_not_built,
        allowable=False,
    ),
    Rule(
        id="without-effect",
        action=Action.WARN,
        title="Fields that have no effect yet",
        source="this operator",
        explanation="Fields whose absence of function does no harm beyond what the message says.",
        check=_without_effect,
    ),
    Rule(
        id="canary-disabled",
        action=Action.WARN,
        title="The canary is off",
        source="sglang 0.5.23 srt/entrypoints/http_server.py (health)",
        explanation=(
            "SGLang's health check uses a fake peer, so no KV moves, and it is not even run while the scheduler has "
            "work. The canary is the only thing that sends a request through prefill, transfer and decode before "
            "users do."
        ),
        check=_canary_off,
    ),
    Rule(
        id="canary-prompt-short",
        action=Action.WARN,
        title="A canary prompt that cannot see index damage",
        source="sglang 0.5.23 srt/layers/attention (index_topk 512, compression 4:1)",
        explanation=(
            "The indexer picks 512 of the compressed keys. As long as there are fewer, all are taken and their scores "
            "do not matter, so corrupt index keys go unseen."
        ),
        check=_canary_short,
    ),
)
