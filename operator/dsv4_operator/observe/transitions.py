"""What is news: the events that a new status is worth, against the one before it. Events tell of transitions only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError

from dsv4_operator.api.v1alpha1.conditions import Condition, ConditionType, Reason
from dsv4_operator.api.v1alpha1.status import BlameKind, BlameStatus, DSV4DeploymentStatus

_TOLD: Final = frozenset(
    {ConditionType.READY, ConditionType.CONFIG_VALID, ConditionType.CANARY_PASSING, ConditionType.DEGRADED}
)
_QUIET: Final = frozenset({Reason.NOT_SERVING, Reason.AS_EXPECTED, Reason.CANARY_PENDING, Reason.VALID})


@dataclass(frozen=True, slots=True)
class News:
    """One event to post."""

    event_type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str


def news(before: Mapping[str, Any], status: DSV4DeploymentStatus) -> Iterator[News]:
    """One event per condition whose status or reason changed, and per charge that is new.

    `before` is the live status, of whatever shape. A charge that is the whole message of a condition is the same event
    in reason and message, so that it is posted once.
    """
    known = {c.type: (c.status, c.reason) for c in previous_conditions(before)}
    for condition in status.conditions:
        changed = known.get(condition.type) != (condition.status, condition.reason)
        if changed and condition.type in _TOLD and condition.reason not in _QUIET:
            yield News(_type(condition), condition.reason, condition.message, condition.type)
    charged = _previous_charges(before)
    for charge in status.blame:
        if charge.kind is not BlameKind.UNDECIDED and (charge.kind, charge.reason, charge.pods) not in charged:
            yield News("Warning", charge.reason, charge.message, "Blame")


def previous_conditions(before: Mapping[str, Any]) -> list[Condition]:
    """The conditions of a live status; none when they are not ours."""
    try:
        return [Condition.model_validate(condition) for condition in before.get("conditions") or []]
    except ValidationError:
        return []


def _previous_charges(before: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    try:
        charges = [BlameStatus.model_validate(entry) for entry in before.get("blame") or []]
    except ValidationError:
        return []
    return [(charge.kind, charge.reason, charge.pods) for charge in charges]


def _type(condition: Condition) -> Literal["Normal", "Warning"]:
    bad = "True" if condition.type == ConditionType.DEGRADED else "False"
    return "Warning" if condition.status == bad else "Normal"
