"""One request and what became of it: a line of the journal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from dsv4_canary.model import Severity
from dsv4_canary.signatures import CATALOGUE


class Phase(StrEnum):
    """Part of a soak that a request belongs to."""

    BASELINE = "baseline"
    """One request at a time, before the load."""
    LOAD = "load"
    """All sessions at once."""
    REASK = "reask"
    """Requests of the load whose reply was corrupted, again, one at a time, with a prefix that no cache holds."""


class Failure(StrEnum):
    """Why no whole reply came."""

    REFUSED = "refused"
    """Nobody listens."""
    UNREACHABLE = "unreachable"
    """No connection for another reason: name, route, TLS, no answer to the connection attempt."""
    LOST = "lost"
    """The connection broke before an answer began."""
    CUT = "cut"
    """The answer broke off: connection lost inside it, or a stream without an end."""
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    """HTTP 4xx, or an error event with such a code."""
    SERVER_ERROR = "server-error"
    """HTTP 5xx or another status that is no success."""
    ERROR_EVENT = "error-event"
    """HTTP 200 and an error object in place of an answer."""
    ABORTED = "aborted"
    """The engine ended the reply with finish reason ``abort``."""
    NO_COMPLETION = "no-completion"
    """HTTP 200 and a body that is no chat completion."""


class Verdict(StrEnum):
    """Class of one reply."""

    CLEAN = "clean"
    """Exactly right; warnings may be noted."""
    CORRUPTED = "corrupted"
    """Wrong in a way that is no matter of the token limit."""
    BUDGET = "budget"
    """Ran into ``max_tokens``; says nothing about damage."""
    FAILED = "failed"
    """No whole reply, and no damage in what came."""


class RecordError(ValueError):
    """A line that is no record; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request, done. Times in seconds; ``at`` is Unix time of sending."""

    phase: Phase
    session: int
    round: int
    group: str
    stream: bool
    tool: str
    at: float
    seconds: float
    failure: Failure | None = None
    status: int | None = None
    detail: str = ""
    """What the server said about a refusal, at most 200 characters."""
    first_byte: float | None = None
    """Seconds until the first part of a streamed answer."""
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    signatures: Mapping[str, Severity] = field(default_factory=dict)
    excerpt: str = ""
    """Evidence, with all foreign text masked."""

    @property
    def key(self) -> tuple[Phase, int, int]:
        """Identity in a journal."""
        return self.phase, self.session, self.round

    @property
    def corrupting(self) -> frozenset[str]:
        """Signatures that make the reply corrupted."""
        return frozenset(
            name
            for name, severity in self.signatures.items()
            if severity is not Severity.BUDGET and not CATALOGUE[name].warns_only
        )

    @property
    def verdict(self) -> Verdict:
        """Class of the reply. Damage in a reply that then broke off is damage."""
        if self.corrupting:
            return Verdict.CORRUPTED
        if self.failure is not None:
            return Verdict.FAILED
        if any(severity is Severity.BUDGET for severity in self.signatures.values()):
            return Verdict.BUDGET
        return Verdict.CLEAN

    def to_json(self) -> dict[str, Any]:
        """The line's object; fields at their default are left out."""
        line: dict[str, Any] = {"verdict": self.verdict.value}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or value in ("", {}):
                continue
            if item.name == "signatures":
                value = {name: severity.value for name, severity in value.items()}
            elif isinstance(value, StrEnum):
                value = value.value
            elif isinstance(value, float):
                value = round(value, 4)
            line[_camel(item.name)] = value
        return line


_TYPES: dict[str, tuple[type, ...]] = {
    "session": (int,),
    "round": (int,),
    "group": (str,),
    "stream": (bool,),
    "tool": (str,),
    "at": (int, float),
    "seconds": (int, float),
    "status": (int,),
    "detail": (str,),
    "first_byte": (int, float),
    "finish": (str,),
    "prompt_tokens": (int,),
    "completion_tokens": (int,),
    "cached_tokens": (int,),
    "excerpt": (str,),
}
_REQUIRED = ("session", "round", "group", "stream", "tool", "at", "seconds")


def from_json(line: object) -> Record:
    """Read a line's object. Raises RecordError."""
    if not isinstance(line, Mapping):
        raise RecordError("is no object")
    values: dict[str, Any] = {}
    for name, types in _TYPES.items():
        value = line.get(_camel(name))
        if value is None:
            if name in _REQUIRED:
                raise RecordError(f"{_camel(name)}: is missing")
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise RecordError(f"{_camel(name)} = {value!r}: has the wrong type")
        values[name] = value
    signatures = line.get("signatures") or {}
    if not isinstance(signatures, Mapping) or not signatures.keys() <= CATALOGUE.keys():
        raise RecordError(f"signatures = {signatures!r}: is no object of known signatures")
    try:
        values["phase"] = Phase(str(line.get("phase")))
        if line.get("failure") is not None:
            values["failure"] = Failure(line["failure"])
        values["signatures"] = {name: Severity(severity) for name, severity in signatures.items()}
    except ValueError as error:
        raise RecordError(str(error)) from None
    return Record(**values)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
