"""Spec fields about routing, proving, changing and repairing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dsv4_operator.api.base import ApiModel, CelRule, ImageReference
from dsv4_operator.api.v1alpha1.arguments import SecretKeyRef
from dsv4_operator.api.v1alpha1.roles import StringMap

Int32 = {"format": "int32"}


class RouterServiceSpec(ApiModel):
    """The stable Service that users call."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Annotated[int, Field(ge=1, le=65535, json_schema_extra=Int32)] = 80
    """Port of the Service."""
    annotations: StringMap = {}
    """Annotations of the Service, for load-balancer controllers."""


class RouterSpec(ApiModel):
    """The router in front of the pairs."""

    enabled: bool = True
    """Without a router there is no stable Service; the pods can still be driven as pairs."""
    replicas: Annotated[int, Field(ge=1, le=16, json_schema_extra=Int32)] = 1
    """Router pods; each keeps its own cache-aware state, so more than one lowers prefix reuse."""
    image: ImageReference | None = None
    """Router image; unset: the operator's default."""
    policy: Literal["CacheAware", "PowerOfTwo", "Random"] = "CacheAware"
    """How prefills are chosen. Decodes are chosen at random, so that no pairing repeats and a fault can be blamed."""
    api_key_secret_ref: SecretKeyRef | None = None
    """Key that clients must send as a bearer token."""
    service: RouterServiceSpec = Field(default_factory=RouterServiceSpec)
    """The stable Service."""


class CanarySpec(ApiModel):
    """The canary beside every engine."""

    enabled: bool = True
    """False makes Ready mean no more than an answering process: every status says so."""
    image: ImageReference | None = None
    """Canary image; unset: the operator's default."""
    interval_seconds: Annotated[int, Field(ge=2, le=3600, json_schema_extra=Int32)] = 30
    """Time between probes of one pod."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600, json_schema_extra=Int32)] = 60
    """Longest time one probe may take."""
    failure_threshold: Annotated[int, Field(ge=1, le=100, json_schema_extra=Int32)] = 3
    """Failures in a row before a pod loses readiness."""
    prompt_tokens: Annotated[int, Field(ge=256, le=131072, json_schema_extra=Int32)] = 2600
    """Length of the probe prompt; under 2,048 tokens sparse attention selects every key and sees no index damage."""
    tokens_per_minute: Annotated[int, Field(ge=1000, le=1_000_000_000, json_schema_extra=Int32)] | None = None
    """What the canary of one pod may spend while nothing is wrong; unset: 2.3 times promptTokens an interval."""
    wedge_seconds: Annotated[int, Field(ge=10, le=86400, json_schema_extra=Int32)] = 60
    """Running requests but no tokens for this long is a wedge."""
    minimum_available: Annotated[int, Field(ge=1, le=256, json_schema_extra=Int32)] = 1
    """No effect yet, whatever its value. Pods of each role that serve even when all canaries blame each other."""


class SoakSpec(ApiModel):
    """A soak test that a new generation must pass before it serves."""

    sessions: Annotated[int, Field(ge=1, le=10000, json_schema_extra=Int32)] = 80
    """Concurrent agent sessions."""
    rounds: Annotated[int, Field(ge=1, le=1000, json_schema_extra=Int32)] = 4
    """Turns per session."""
    max_corruption_rate: Annotated[str, Field(max_length=8, pattern=r"^(0(\.[0-9]{1,5})?|1(\.0{1,5})?)$")] = "0"
    """Highest accepted share of corrupted sessions, such as "0.01"."""


class RolloutSpec(ApiModel):
    """How changes are made."""

    cel_rules = (
        CelRule(
            name="rollout-can-move",
            rule="self.maxSurge > 0 || self.maxUnavailable > 0",
            holds=lambda rollout: rollout.max_surge > 0 or rollout.max_unavailable > 0,
            message="with maxSurge 0 and maxUnavailable 0 no pod can ever be replaced; "
            "raise maxSurge where GPUs are free, else maxUnavailable",
            field_path=".maxSurge",
        ),
    )

    max_surge: Annotated[int, Field(ge=0, le=256, json_schema_extra=Int32)] = 1
    """Units above `replicas` while changing. A new fingerprint needs at least one unit of room."""
    max_unavailable: Annotated[int, Field(ge=0, le=256, json_schema_extra=Int32)] = 0
    """Units below `replicas` while changing."""
    drain_seconds: Annotated[int, Field(ge=0, le=86400, json_schema_extra=Int32)] = 300
    """Time that running requests of a leaving pod get to finish."""
    progress_deadline_seconds: Annotated[int, Field(ge=60, le=604800, json_schema_extra=Int32)] = 5400
    """Longest time without progress; a cold start of V4-Pro can take 45 minutes."""
    auto_rollback: bool = True
    """No effect yet, whatever its value. Return to the last good generation when the new one fails."""
    soak: SoakSpec | None = None
    """Soak the new generation before it serves; off when unset."""


class RestartBudget(ApiModel):
    """How many pods recovery may replace."""

    count: Annotated[int, Field(ge=0, le=1000, json_schema_extra=Int32)] = 3
    """Replacements within the window."""
    window_seconds: Annotated[int, Field(ge=60, le=604800, json_schema_extra=Int32)] = 3600
    """Length of the window."""


class RecoverySpec(ApiModel):
    """Repair of wedged or dead pods."""

    restart_budget: RestartBudget = Field(default_factory=RestartBudget)
    """No effect yet, whatever its value. Beyond it the deployment is Degraded and waits for a person."""


class AllowedRule(ApiModel):
    """A refused rule that the user takes responsibility for."""

    rule: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Id of the rule, see docs/policy.md."""
    reason: Annotated[str, Field(min_length=10, max_length=1024)]
    """Why; shown in status and metrics."""
