"""Vocabulary shared by the sidecar's parts: roles, reasons, outcomes, and what ``/status`` reports of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Side of the pair that the engine in this pod plays."""

    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Role:
        """Role of this engine's peers."""
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


class Reason(StrEnum):
    """Why the pod is, or is not, ready. Part of the ``/status`` contract: never rename a value."""

    ENGINE_LOADING = "EngineLoading"
    """The engine has not answered its health check yet: the model is loading or warming up."""
    ENGINE_UNREACHABLE = "EngineUnreachable"
    """The engine answered once and now refuses connections."""
    NO_PEER = "NoPeer"
    """No engine of the other role can be reached, so nothing can be proved."""
    PEER_LOADING = "PeerLoading"
    """Engines of the other role exist, none serves yet."""
    PROBING = "Probing"
    """Engine and a peer are there; the proof is not complete yet."""
    PASSING = "Passing"
    """Tool calls through the pair come back exactly right, whole and streamed."""
    PROBE_FAILED = "ProbeFailed"
    """The reply was wrong, or the request was rejected."""
    PROBE_TIMED_OUT = "ProbeTimedOut"
    """No reply within ``timeoutSeconds``."""
    TRANSFER_FAILED = "TransferFailed"
    """An engine gave up on the request (HTTP 5xx, error event, aborted)."""
    ENGINE_WEDGED = "EngineWedged"
    """The engine in this pod holds requests and does not get on with them."""
    CORRUPTION = "Corruption"
    """Confirmed evidence that this engine damages what it computes, keeps or sends."""
    GUARD_MISSING = "GuardMissing"
    """The engine lacks the plugin that its index-K format needs."""


class PeerOutcome(StrEnum):
    """Latest knowledge about one peer."""

    PASS = "Pass"  # noqa: S105 - an outcome
    FAIL = "Fail"
    UNREACHABLE = "Unreachable"
    LOADING = "Loading"
    BUSY = "Busy"
    """The probe got no answer in time while this engine or the peer had more work than it could do at once."""


class ProbeName(StrEnum):
    """Kinds of probes. Part of the metrics contract."""

    ECHO = "echo"
    """A tool call with given arguments, behind a prefix that no cache holds. Proves the pair."""
    REPEAT = "repeat"
    """The same behind a prefix that was asked before: from the device's cache, or loaded back from the host's."""
    TWIN = "twin"
    """Two calls at once behind one old prefix."""
    PARITY = "parity"
    """The same prompt whole and streamed."""
    DRIFT = "drift"
    """The same token ids again: output logprobs compared with those of the first time."""
    QUIET = "quiet"
    """Tools are offered, and a plain sentence is asked for."""


class EngineState(StrEnum):
    """State of the engine in this pod as its HTTP port shows it."""

    LOADING = "Loading"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    """Listening, was healthy before, health check now fails (busy or wedged): probes go on and decide."""
    UNREACHABLE = "Unreachable"


class Mode(StrEnum):
    """How the answer is asked for. A pair is proved only when both work."""

    FUNCTIONAL = "functional"
    STREAMED = "streamed"


class Cache(StrEnum):
    """Where the prompt's prefix came from: the slowest tier that gave a part of it."""

    COLD = "cold"
    DEVICE = "device"
    HOST = "host"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """Class of a finding: which part of the system it accuses."""

    CORRUPTION = "corruption"
    CONTRACT = "contract"
    BUDGET = "budget"
    TRANSPORT = "transport"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One conclusive probe, as ``/status`` lists it. Times in Unix seconds, latency in seconds."""

    time: float
    probe: str
    peer: str
    outcome: PeerOutcome
    cache: Cache
    signatures: tuple[str, ...]
    latency: float
    excerpt: str

    def to_json(self) -> dict[str, object]:
        """Form of the ``/status`` contract."""
        return {
            "time": round(self.time, 3),
            "probe": self.probe,
            "peer": self.peer,
            "outcome": self.outcome.value,
            "cache": self.cache.value,
            "signatures": list(self.signatures),
            "latencySeconds": round(self.latency, 3),
            "excerpt": self.excerpt,
        }


@dataclass(slots=True)
class PeerState:
    """What is known about one peer address."""

    address: str
    outcome: PeerOutcome = PeerOutcome.LOADING
    last_probe_time: float | None = None
    last_success_time: float | None = None
    """When a probe on a prefix that no cache had last passed."""
    failing_since: float | None = None
    """When the present run of failures began; None unless it fails."""
    signatures: tuple[str, ...] = ()
    consecutive_failures: int = 0
    """Failed attempts in a row with this peer, of whatever probe proves the pair."""
    wrong: bool = False
    """The last failure of this run was an answer that was read and is wrong, not one that never came."""
    message: str = ""
    """One sentence on what the last attempt showed; no counts, no times."""
    answered_health: bool = False
    """Its health check has passed since the last trouble with it, so a probe may go straight ahead."""
    served: bool = False
    """A probe was answered since it last was away: if its health check now fails, it is at work and not loading."""
    testable: bool = True
    """False while it is loading, away or wedged, so that nothing about this engine can be learnt from it."""

    def to_json(self) -> dict[str, object]:
        """Form of the ``/status`` contract."""
        return {
            "address": self.address,
            "outcome": self.outcome.value,
            "lastProbeTime": _rounded(self.last_probe_time),
            "lastSuccessTime": _rounded(self.last_success_time),
            "failingSince": _rounded(self.failing_since),
            "signatures": list(self.signatures),
            "consecutiveFailures": self.consecutive_failures,
            "message": self.message,
        }


def _rounded(time: float | None) -> float | None:
    return None if time is None else round(time, 3)
