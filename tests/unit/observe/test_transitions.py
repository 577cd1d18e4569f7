"""Events tell of transitions only: of conditions, and of who is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4_operator.api.v1alpha1.conditions import Condition
from dsv4_operator.api.v1alpha1.status import BlameKind, BlameStatus, DSV4DeploymentStatus
from dsv4_operator.observe.transitions import News, news

NOW = "2026-11-29T10:00:00Z"


def condition(kind: str, status: str, reason: str, message: str = "m") -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=NOW)  # type: ignore[arg-type]


def charge(kind: BlameKind, *pods: str, reason: str = "BadLink", message: str = "why") -> BlameStatus:
    return BlameStatus(kind=kind, reason=reason, pods=list(pods), message=message)


def status(*parts: Condition | BlameStatus) -> DSV4DeploymentStatus:
    return DSV4DeploymentStatus(
        conditions=[part for part in parts if isinstance(part, Condition)],
        blame=[part for part in parts if isinstance(part, BlameStatus)],
    )


def live(found: DSV4DeploymentStatus) -> dict[str, Any]:
    return found.model_dump(mode="json", by_alias=True)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (condition("Ready", "True", "Serving"), [News("Normal", "Serving", "m", "Ready")]),
        (condition("Ready", "False", "NotServing"), []),
        (condition("Degraded", "True", "BadLink"), [News("Warning", "BadLink", "m", "Degraded")]),
        (condition("Degraded", "False", "AsExpected"), []),
        (condition("CanaryPassing", "False", "Corruption"), [News("Warning", "Corruption", "m", "CanaryPassing")]),
        (condition("CanaryPassing", "Unknown", "CanaryPending"), []),
        (condition("PrefillAvailable", "False", "PodsNotReady"), []),
        (charge(BlameKind.LINK, "p", "d"), [News("Warning", "BadLink", "why", "Blame")]),
        (charge(BlameKind.UNDECIDED, "p", "d"), []),
    ],
)
def test_what_is_news(now: Condition | BlameStatus, expected: list[News]) -> None:
    assert list(news({}, status(now))) == expected
    assert list(news(live(status(now)), status(now))) == [], "the same again is none"


def test_another_message_is_no_news_and_another_reason_is() -> None:
    before = status(condition("Degraded", "True", "BadLink"), charge(BlameKind.POD, "p"))
    after = status(condition("Degraded", "True", "BadLink", "n"), charge(BlameKind.POD, "p", message="n"))
    assert list(news(live(before), after)) == []
    moved = status(condition("Degraded", "True", "Corruption"), charge(BlameKind.POD, "q"))
    assert [(item.reason, item.action) for item in news(live(before), moved)] == [
        ("Corruption", "Degraded"),
        ("BadLink", "Blame"),
    ]


@pytest.mark.parametrize(
    "before", [{}, {"conditions": [{"type": 3}], "blame": [{"kind": "x"}]}, {"conditions": None, "blame": None}]
)
def test_any_status_before(before: dict[str, Any]) -> None:
    assert len(list(news(before, status(charge(BlameKind.LINK, "p", "d"))))) == 1
