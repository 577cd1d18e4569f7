"""Condition types and reasons: constants, each documented, none with text that changes from pass to pass."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from dsv4_operator.api.base import ApiModel


class ConditionType(StrEnum):
    """Types of `status.conditions`, in the order in which a reader wants them. Docstrings go into the reference."""

    READY = "Ready"
    """Requests through the stable Service reach a pair that a canary has proven."""
    CONFIG_VALID = "ConfigValid"
    """The spec parses and policy refuses nothing in it. While false, nothing is created or changed."""
    PREFILL_AVAILABLE = "PrefillAvailable"
    """Every wanted prefill pod is Ready, which means that its canary passes."""
    DECODE_AVAILABLE = "DecodeAvailable"
    """Every wanted decode pod is Ready, which means that its canary passes."""
    ROUTER_AVAILABLE = "RouterAvailable"
    """The router is Ready and its own worker list is the wanted one."""
    CANARY_PASSING = "CanaryPassing"
    """The canaries of all ready engine pods pass: tool calls through prefill, transfer and decode come back right."""
    PROGRESSING = "Progressing"
    """A change is under way; false when the newest generation serves, or when it makes no progress."""
    DEGRADED = "Degraded"
    """Something is wrong that the operator cannot repair alone."""


class Reason(StrEnum):
    """Reasons of conditions and events. The docstring of each member is its entry in the reference.

    A comment of its own line names the condition types that the reasons after it belong to.
    """

    # Ready
    SERVING = "Serving"
    """Requests through the stable Service reach a pair whose canary passes."""
    NOT_SERVING = "NotServing"
    """No pair behind the stable Service is ready; the message names the first thing that holds it back."""
    PAUSED = "Paused"
    """`spec.paused` is true: nothing but status is reconciled."""
    # ConfigValid
    VALID = "Valid"
    """The spec parses and policy refuses nothing in it."""
    INVALID_SPEC = "InvalidSpec"
    """The stored spec does not parse; the message names field, value and remedy."""
    REFUSED_BY_POLICY = "RefusedByPolicy"
    """At least one finding of action Refuse; see `status.findings`. Running pods are left untouched."""
    # PrefillAvailable, DecodeAvailable, RouterAvailable
    ALL_READY = "AllReady"
    """Every wanted pod of the role is Ready."""
    PODS_NOT_READY = "PodsNotReady"
    """Some wanted pods are not Ready; the message names the first and what it waits for."""
    NOT_CREATED = "NotCreated"
    """The role has no workload yet."""
    ROUTER_DISABLED = "RouterDisabled"
    """`spec.router.enabled` is false."""
    ROUTER_DRIFT = "RouterDrift"
    """A router's own worker list has differed from the wanted one for longer than 15 seconds."""
    NO_WORKERS = "NoWorkers"
    """The router lacks a prefill or a decode whose canary passes."""
    # CanaryPassing
    CANARY_PASSED = "CanaryPassed"
    """The canary of every ready engine pod passed its last probes."""
    CANARY_PENDING = "CanaryPending"
    """No canary has completed a probe yet: engines load, or peers are missing."""
    CANARY_DISABLED = "CanaryDisabled"
    """`spec.canary.enabled` is false: Ready then proves nothing about the transfer path."""
    CANARY_UNREACHABLE = "CanaryUnreachable"
    """The operator could not read a sidecar's status."""
    # CanaryPassing, Degraded
    CANARY_FAILING = "CanaryFailing"
    """A canary reports a failure; the message says which pod and check. Degraded has it when one pod is the culprit: it
    fails with every peer while they pass with another."""
    ENGINE_WEDGED = "EngineWedged"
    """An engine has stopped making progress, whatever its health check answers; the message says which and how."""
    CORRUPTION = "Corruption"
    """Answers through an engine are corrupt, by evidence beyond one odd reply; the message says where cached."""
    GUARD_MISSING = "GuardMissing"
    """An engine does not show the guard that BF16 index-K or the KV checksum needs: the image has no plugin, or another
    format than the spec asks for. The pod never becomes Ready."""
    BAD_LINK = "BadLink"
    """One prefill and one decode fail together, while both pass with others. Both stay in the router."""
    FABRIC_FAILING = "FabricFailing"
    """Several prefills fail with several decodes, without exception: what they share is the cause, most likely the
    network."""
    # Progressing
    UP_TO_DATE = "UpToDate"
    """The newest generation serves and no pod waits to be replaced."""
    NEW_GENERATION = "NewGeneration"
    """The KV fingerprint changed: a second generation comes up beside the serving one."""
    ROLLING_ROLE = "RollingRole"
    """Pods of one role are replaced; the fingerprint is unchanged."""
    STARTING = "Starting"
    """The first generation comes up."""
    DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """No progress within `spec.rollout.progressDeadlineSeconds`."""
    # Degraded
    AS_EXPECTED = "AsExpected"
    """Nothing known to be wrong."""
    NAME_CONFLICT = "NameConflict"
    """An object that this deployment needs exists already and belongs to somebody else; it is not taken over."""
    API_MISSING = "ApiMissing"
    """A needed API (LeaderWorkerSet, ComputeDomain) is not installed in the cluster."""
    APPLY_REJECTED = "ApplyRejected"
    """The API server rejected a child object; the message quotes it."""
    APPLY_FAILED = "ApplyFailed"
    """The API server could not write a child object, for example because an admission webhook does not answer; the
    message quotes it. It is tried again; everything else goes on, but nothing is removed meanwhile."""
    NO_CAPACITY = "NoCapacity"
    """A pod cannot be scheduled; the message quotes the scheduler."""


class Condition(ApiModel):
    """One observation, in the shape of metav1.Condition."""

    type: Annotated[str, Field(max_length=316, pattern=r"^[A-Z][A-Za-z]*$")]
    """What is observed, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """A constant for programs; docs/conditions.md explains each."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """A sentence for people."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] = 0
    """The `metadata.generation` that was looked at."""
