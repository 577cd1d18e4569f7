"""The spec of a DSV4Deployment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dsv4_operator.api.base import ApiModel, CelRule, ListMap
from dsv4_operator.api.v1alpha1.engine import EngineSpec, HiCacheSpec, IndexKSpec, ModelSpec
from dsv4_operator.api.v1alpha1.operations import (
    AllowedRule,
    CanarySpec,
    Int32,
    RecoverySpec,
    RolloutSpec,
    RouterSpec,
)
from dsv4_operator.api.v1alpha1.roles import AcceleratorSpec, NetworkSpec, RoleSpec, cel_attention_tensor


class OverlapSchedule(StrEnum):
    """Values of `spec.overlapSchedule`."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class PolicySpec(ApiModel):
    """Exceptions from the safety policy."""

    allow: Annotated[list[AllowedRule], Field(max_length=64), ListMap("rule")] = []
    """Refused rules to accept as warnings. What cannot start cannot be allowed."""


CANARY_TEMPLATE_TOKENS = 1024
"""Room that a canary needs beside `promptTokens`: chat template, tool, question and answer."""


def _sizes_divide(prefill: int, decode: int) -> bool:
    """Whether one size is a multiple of the other; a size of 0 is another rule's matter."""
    return not (prefill and decode) or prefill % decode == 0 or decode % prefill == 0


class DSV4DeploymentSpec(ApiModel):
    """What the user wants."""

    cel_rules = (
        CelRule(
            name="roles-divide",
            # SGLang's disaggregation/common/conn.py maps ranks by whole multiples of the attention tensor size.
            rule=f"[{cel_attention_tensor('self.prefill')}].all(p, [{cel_attention_tensor('self.decode')}]"
            ".all(d, p == 0 || d == 0 || p % d == 0 || d % p == 0))",
            holds=lambda spec: _sizes_divide(spec.prefill.attention_tensor, spec.decode.attention_tensor),
            message="KV cannot be mapped between the roles: the attention tensor sizes (tensor divided by "
            "attentionData) of prefill and decode must be equal, or one a multiple of the other; "
            "change gpus, nodes or parallelism of one role",
            field_path=".decode",
        ),
        CelRule(
            name="canary-fits-context",
            rule="!has(self.engine.contextLength)"
            f" || self.canary.promptTokens + {CANARY_TEMPLATE_TOKENS} <= self.engine.contextLength",
            holds=lambda spec: (
                spec.engine.context_length is None
                or spec.canary.prompt_tokens + CANARY_TEMPLATE_TOKENS <= spec.engine.context_length
            ),
            message="the canary's prompt does not fit the engine, so no pod could ever become Ready; "
            f"the prompt and {CANARY_TEMPLATE_TOKENS} tokens around it must fit: "
            "lower canary.promptTokens or raise engine.contextLength",
            field_path=".canary.promptTokens",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=256, json_schema_extra=Int32)] = 1
    """Prefill/decode units; the scale subresource, so autoscalers keep the ratio of the roles."""
    model: ModelSpec
    """The model to serve."""
    engine: EngineSpec = Field(default_factory=EngineSpec)
    """The SGLang engine."""
    index_k: IndexKSpec = Field(default_factory=IndexKSpec)
    """The sparse-attention index keys. A change makes a new generation: pairs never mix formats."""
    hi_cache: HiCacheSpec = Field(default_factory=HiCacheSpec)
    """HiCache, the prefix cache in host memory, on prefill: evicted prefixes are kept there and loaded back, which
    saves computing them again. A fault in the loading corrupts answers, so canaries watch it."""
    overlap_schedule: OverlapSchedule = OverlapSchedule.AUTO
    """SGLang's overlapped scheduler: Auto leaves it to policy by release."""
    prefill: RoleSpec = Field(default_factory=RoleSpec)
    """Prefill pods."""
    decode: RoleSpec = Field(default_factory=RoleSpec)
    """Decode pods."""
    accelerator: AcceleratorSpec = Field(default_factory=AcceleratorSpec)
    """Which GPUs."""
    network: NetworkSpec = Field(default_factory=NetworkSpec)
    """How KV travels."""
    router: RouterSpec = Field(default_factory=RouterSpec)
    """The router in front."""
    canary: CanarySpec = Field(default_factory=CanarySpec)
    """The canary beside every engine."""
    rollout: RolloutSpec = Field(default_factory=RolloutSpec)
    """How changes are made."""
    recovery: RecoverySpec = Field(default_factory=RecoverySpec)
    """No effect yet, whatever its value. Repair of wedged or dead pods."""
    policy: PolicySpec = Field(default_factory=PolicySpec)
    """Exceptions from the safety policy."""
    paused: bool = False
    """Reconcile nothing but status."""
