"""What the sidecars say, in the little that status and blame need. A report is not trusted: every field may be odd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4_operator.api.v1alpha1.conditions import Reason

FAILING_REASONS = frozenset({"ProbeFailed", "ProbeTimedOut", "TransferFailed", "EngineUnreachable"})
"""Reasons of dsv4_canary that mean a fault which another pod may have caused, not a start."""
OWN_FAULTS: Final = {reason.value: reason for reason in (Reason.ENGINE_WEDGED, Reason.CORRUPTION, Reason.GUARD_MISSING)}
"""Reasons of dsv4_canary that accuse the sidecar's own engine, with evidence beyond a failed probe."""

_MOST_PEERS: Final = 1024
_LONGEST: Final = 512


@dataclass(frozen=True, slots=True)
class PeerReport:
    """One sidecar's word about one peer. Times in unix seconds.

    `last_success_time` is the last pass on a prefix that no cache had. `failing_since` is when the present run of
    failures began, as far back as the report tells; None unless it fails.
    """

    address: str
    outcome: str
    last_probe_time: float
    consecutive_failures: int = 0
    last_success_time: float | None = None
    failing_since: float | None = None


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """One sidecar's word. `reachable` is False when it could not be read; the message then says why.

    `own_fault` accuses the sidecar's own engine, and `fault_message` says what was seen.
    """

    reachable: bool
    ready: bool
    reason: str
    message: str
    has_passed: bool
    engine_healthy: bool = False
    own_fault: Reason | None = None
    fault_message: str = ""
    peers: tuple[PeerReport, ...] = ()

    @property
    def failing(self) -> bool:
        """Whether the sidecar reports a fault, as opposed to loading or waiting for peers."""
        return self.reachable and not self.ready and (self.reason in FAILING_REASONS or self.reason in OWN_FAULTS)


def read_report(status: Mapping[str, Any]) -> CanaryReport:
    """A report from the sidecar's /status JSON; missing fields read as nothing proved."""
    message = _text(status.get("message"))
    own_fault, fault_message = _own_fault(status, message)
    return CanaryReport(
        reachable=True,
        ready=status.get("ready") is True,
        reason=str(status.get("reason", "")),
        message=message,
        has_passed=status.get("lastSuccessTime") is not None,
        engine_healthy=_mapping(status.get("engine")).get("healthy") is True,
        own_fault=own_fault,
        fault_message=fault_message,
        peers=tuple(_peers(status)),
    )


def unreachable(why: str) -> CanaryReport:
    """The report of a sidecar that could not be read."""
    return CanaryReport(reachable=False, ready=False, reason="CanaryUnreachable", message=why, has_passed=False)


def _own_fault(status: Mapping[str, Any], message: str) -> tuple[Reason | None, str]:
    """Wedge before corruption before guard: a wedged engine answers nothing, so whatever else is seen follows."""
    reason = OWN_FAULTS.get(str(status.get("reason", ""))) if status.get("ready") is not True else None
    wedge, corruption, guard = (_mapping(status.get(name)) for name in ("wedge", "corruption", "guard"))
    if reason is Reason.ENGINE_WEDGED or wedge.get("wedged") is True:
        return Reason.ENGINE_WEDGED, _text(wedge.get("message")) or message
    # Not by its verdict: a decode sees the damage that its prefill does, and says so, without being the cause.
    if reason is Reason.CORRUPTION:
        return Reason.CORRUPTION, _text(corruption.get("message")) or message
    if reason is Reason.GUARD_MISSING:  # not by its fields: an engine that loads has no marker yet
        return Reason.GUARD_MISSING, _text(guard.get("message")) or message
    return None, ""


def _peers(status: Mapping[str, Any]) -> list[PeerReport]:
    history = [_mapping(entry) for entry in _sequence(status.get("history"))]
    reports = []
    for peer in map(_mapping, _sequence(status.get("peers"))[:_MOST_PEERS]):
        probed = _number(peer.get("lastProbeTime"))
        if probed is None or not isinstance(peer.get("address"), str):
            continue  # never probed to an end: nothing is known
        failing = peer.get("outcome") == "Fail"
        failures = _number(peer.get("consecutiveFailures"))
        success = _number(peer.get("lastSuccessTime"))
        since = _number(peer.get("failingSince")) or _began(peer["address"], history) or success or probed
        reports.append(
            PeerReport(
                address=peer["address"],
                outcome=str(peer.get("outcome", "")),
                last_probe_time=probed,
                # A sidecar that does not count failures by peer is taken at its word.
                consecutive_failures=(2 if failures is None else int(failures)) if failing else 0,
                last_success_time=success,
                failing_since=min(since, probed) if failing else None,
            )
        )
    return reports


def _began(address: str, history: Sequence[Mapping[str, Any]]) -> float | None:
    """When the run of failures with `address` at the end of `history` began; None when history has none."""
    mine = [
        (time, str(entry.get("outcome", "")))
        for entry in history
        if entry.get("peer") == address and (time := _number(entry.get("time"))) is not None
    ]
    began = None
    for time, outcome in sorted(mine, reverse=True):
        if outcome == "Pass":
            break
        if outcome == "Fail":
            began = time
    return began


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _text(value: Any) -> str:
    return " ".join(value[:_LONGEST].split()) if isinstance(value, str) else ""
