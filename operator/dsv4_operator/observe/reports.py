"""What the sidecars say, in the little that status needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAILING_REASONS = frozenset({"ProbeFailed", "ProbeTimedOut", "TransferFailed", "EngineUnreachable"})
"""Reasons of dsv4_canary that mean a fault, not a start."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """One sidecar's word. `reachable` is False when it could not be read; the message then says why."""

    reachable: bool
    ready: bool
    reason: str
    message: str
    has_passed: bool

    @property
    def failing(self) -> bool:
        """Whether the sidecar reports a fault, as opposed to loading or waiting for peers."""
        return self.reachable and not self.ready and self.reason in FAILING_REASONS


def read_report(status: Mapping[str, Any]) -> CanaryReport:
    """A report from the sidecar's /status JSON; missing fields read as nothing proved."""
    return CanaryReport(
        reachable=True,
        ready=status.get("ready") is True,
        reason=str(status.get("reason", "")),
        message=str(status.get("message", ""))[:512],
        has_passed=status.get("lastSuccessTime") is not None,
    )


def unreachable(why: str) -> CanaryReport:
    """The report of a sidecar that could not be read."""
    return CanaryReport(reachable=False, ready=False, reason="CanaryUnreachable", message=why, has_passed=False)
