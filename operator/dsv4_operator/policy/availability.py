"""Rules about fields whose function is not built yet: said clearly, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import HiCacheSpec, IndexKDtype
from dsv4_operator.api.v1alpha1.operations import CanarySpec, RecoverySpec
from dsv4_operator.api.v1alpha1.roles import ComputeDomainMode
from dsv4_operator.policy.finding import Action, Rule, Subject


def _not_built(subject: Subject) -> Iterator[tuple[str, str]]:
    spec = subject.spec
    if spec.index_k.dtype is IndexKDtype.BF16:
        yield (
            "spec.indexK.dtype",
            (
                "BF16 index-K needs the gated image's run-time marker, which this operator cannot check yet; "
                "use FP8 or FP4"
            ),
        )
    if spec.network.checksum:
        yield (
            "spec.network.checksum",
            (
                "the KV checksum asserts on V4 in upstream images, and the gated image that mends it is not checked "
                "for yet; use false"
            ),
        )
    if spec.network.compute_domain.mode is not ComputeDomainMode.NONE:
        yield "spec.network.computeDomain.mode", "ComputeDomains are not created or joined yet; use None"
    if spec.rollout.soak is not None:
        yield (
            "spec.rollout.soak",
            "the soak gate is not built yet; remove the field and soak by hand before you switch",
        )


def _without_effect(subject: Subject) -> Iterator[tuple[str, str]]:
    spec = subject.spec
    defaults = CanarySpec()
    if spec.recovery != RecoverySpec():
        yield (
            "spec.recovery",
            (
                "recovery is not built yet: wedged pods are kept out of the router but not replaced; "
                "delete such pods by hand"
            ),
        )
    if spec.hi_cache.on_corruption != HiCacheSpec().on_corruption:
        yield (
            "spec.hiCache.onCorruption",
            "not acted on yet: a failing canary takes the pod out of the router, whatever the cause; "
            "turn hiCache off by hand when reloaded prefixes are the cause",
        )
    for field, path in (("wedge_seconds", "wedgeSeconds"), ("minimum_available", "minimumAvailable")):
        if getattr(spec.canary, field) != getattr(defaults, field):
            yield f"spec.canary.{path}", "not acted on yet, whatever its value; leave it out"


def _canary_off(subject: Subject) -> Iterator[tuple[str, str]]:
    if not subject.spec.canary.enabled:
        yield (
            "spec.canary.enabled",
            (
                "without the canary Ready proves nothing: SGLang's /health moves no KV, so a broken or corrupting pair "
                "serves; turn it on"
            ),
        )


RULES = (
    Rule(
        "not-built",
        Action.REFUSE,
        "Fields whose function is not built yet",
        "this operator",
        _not_built,
        allowable=False,
    ),
    Rule("without-effect", Action.WARN, "Fields that have no effect yet", "this operator", _without_effect),
    Rule(
        "canary-disabled",
        Action.WARN,
        "The canary is off",
        "sglang srt/entrypoints/http_server.py (health)",
        _canary_off,
    ),
)
