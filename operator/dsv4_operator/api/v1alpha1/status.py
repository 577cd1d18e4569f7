"""The status of a DSV4Deployment: an observation, rebuilt when deleted; no decision depends on it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from dsv4_operator.api.base import ApiModel, ListMap
from dsv4_operator.api.v1alpha1.conditions import Condition
from dsv4_operator.api.v1alpha1.operations import Int32

Count = Annotated[int, Field(ge=0, json_schema_extra=Int32)]
Text = Annotated[str, Field(max_length=4096)]


class RoleStatus(ApiModel):
    """Pods of one role, over all generations that serve or come up."""

    desired: Count = 0
    """Pods wanted."""
    ready: Count = 0
    """Pods whose canary passes."""
    updated: Count = 0
    """Pods made from the newest template."""
    summary: Annotated[str, Field(max_length=64)] = ""
    """ready/desired, for the printed column."""


class GenerationState(StrEnum):
    """What a generation is doing."""

    STARTING = "Starting"
    SERVING = "Serving"
    LEAVING = "Leaving"


class GenerationStatus(ApiModel):
    """One set of pods that share a KV fingerprint."""

    fingerprint: Annotated[str, Field(max_length=63)]
    """The KV fingerprint."""
    state: GenerationState
    """Starting, Serving or Leaving."""
    units: Count = 0
    """Whole units whose canaries pass."""
    reason: Text = ""
    """Why it exists, or what it waits for."""


class FindingStatus(ApiModel):
    """One remark of policy."""

    rule: Annotated[str, Field(max_length=63)]
    """Id of the rule, see docs/policy.md."""
    action: Literal["Refuse", "Set", "Warn"]
    """Refused, set to a safe value, or warned."""
    path: Annotated[str, Field(max_length=512)] = ""
    """Field concerned, such as spec.hiCache.layout."""
    message: Text = ""
    """What is wrong, why, and what to do."""


class BlameKind(StrEnum):
    """What a failure of pairs is put down to, the surest first."""

    POD = "Pod"
    LINK = "Link"
    FABRIC = "Fabric"
    UNDECIDED = "Undecided"


class BlameStatus(ApiModel):
    """Who is to blame for pairs that fail."""

    kind: BlameKind
    """Pod: that pod alone. Link: the way between two pods that pass with others. Fabric: several prefills fail with
    several decodes. Undecided: what was tested does not tell; the pods are suspects."""
    reason: Annotated[str, Field(max_length=63)]
    """The reason that CanaryPassing has for it; docs/conditions.md explains each."""
    pods: Annotated[list[Annotated[str, Field(max_length=253)]], Field(max_length=64)] = []
    """Pods accused or suspected."""
    message: Text = ""
    """A sentence for people."""


class IncidentStatus(ApiModel):
    """Something that broke."""

    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it was found."""
    kind: Annotated[str, Field(max_length=63)]
    """What kind."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """Pod concerned."""
    message: Text = ""
    """What was seen."""


class DSV4DeploymentStatus(ApiModel):
    """What the operator observes."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """The metadata.generation that this status describes."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListMap("type")] = []
    """Observations by type."""
    replicas: Count = 0
    """Units that exist, for the scale subresource."""
    selector: Annotated[str, Field(max_length=1024)] = ""
    """Label selector of the engine pods, for the scale subresource."""
    prefill: RoleStatus = Field(default_factory=RoleStatus)
    """Prefill pods."""
    decode: RoleStatus = Field(default_factory=RoleStatus)
    """Decode pods."""
    endpoint: Annotated[str, Field(max_length=512)] = ""
    """URL of the stable Service inside the cluster."""
    fingerprint: Annotated[str, Field(max_length=63)] = ""
    """KV fingerprint of the generation that serves."""
    generations: Annotated[list[GenerationStatus], Field(max_length=16), ListMap("fingerprint")] = []
    """Generations that exist."""
    findings: Annotated[list[FindingStatus], Field(max_length=128)] = []
    """Remarks of policy."""
    blame: Annotated[list[BlameStatus], Field(max_length=16)] = []
    """Who is to blame for canaries that fail; empty while all pass."""
    incidents: Annotated[list[IncidentStatus], Field(max_length=10)] = []
    """The last ten incidents."""
