"""From an HTTP answer of the API server to the typed error it means. Pure.

The answer is normally a metav1.Status (k8s.io/apimachinery/pkg/apis/meta/v1/types.go); for a path that no API
serves it is the plain text "404 page not found".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4_operator.kube.errors import (
    AlreadyExists,
    ApiError,
    ApiUnavailable,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    KindNotInstalled,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from dsv4_operator.kube.kinds import SECRET, Kind

MAX_MESSAGE: Final = 1000
"""Characters kept of the server's message: an error of a big object can quote all of it."""
MAX_CAUSES: Final = 20
TYPED_PATCH: Final = "TypedPatchFailed"
"""Reason of the causes that we read out of the text of a failed server-side apply."""

_BY_CODE: Final[dict[int, type[ApiError]]] = {
    400: Invalid,  # what an admission webhook denies without a code of its own comes as 400
    401: Unauthorized,
    403: Forbidden,
    405: Invalid,
    409: Conflict,
    413: Invalid,
    422: Invalid,
    429: TooManyRequests,
}


@dataclass(frozen=True, slots=True)
class Call:
    """What was asked, for messages and metrics."""

    verb: str
    kind: Kind
    namespace: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.kind.kind}" + (f" {where}" if where else "")


def error_of(call: Call, status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The typed error for an answer with `status` >= 400 (or any that is not a success)."""
    answer = _status_object(body)
    details = answer.get("details") or {}
    reason = str(answer.get("reason") or "")
    said = str(answer.get("message") or body[:200].decode("utf-8", "replace").strip() or "no message")
    causes = [
        Cause(str(c.get("field") or ""), str(c.get("message") or ""), str(c.get("reason") or ""))
        for c in details.get("causes") or []
    ] or _typed_patch_causes(said)
    error_class = _class_of(status, reason, details, causes)
    if call.kind == SECRET:
        said = "(the server's words are withheld: they may quote the Secret)"
        causes = [Cause(cause.field, "", cause.reason) for cause in causes]
    said = " ".join(said.split())  # one line
    if len(said) > MAX_MESSAGE:
        said = said[:MAX_MESSAGE] + "..."
    message = f"{call}: {status}{' ' + reason if reason else ''}: {said}"
    return error_class(
        message,
        status=status,
        reason=reason,
        causes=causes[:MAX_CAUSES],
        retry_after=_retry_after(headers, details),
    )


def no_answer(call: Call, error: BaseException, timeout: float) -> ApiUnavailable:
    """The typed error for a request that got no answer. `timeout` in seconds."""
    if isinstance(error, TimeoutError):
        return ApiUnavailable(f"{call}: no answer from the API server within {timeout:g} s", reason="Timeout")
    said = str(error) or type(error).__name__
    return ApiUnavailable(f"{call}: no answer from the API server: {said}", reason="ConnectionFailed")


def _class_of(status: int, reason: str, details: Mapping[str, Any], causes: Sequence[Cause]) -> type[ApiError]:
    if status == 404:
        # A Status about one object (or about its namespace) names it; about an unknown resource it does not.
        return NotFound if details.get("name") else KindNotInstalled
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists
    if status == 422 and causes and all(cause.field == "metadata.uid" for cause in causes):
        # Server-side apply with the uid of an object that another one of the same name has replaced.
        return Conflict
    if any(cause.reason == TYPED_PATCH for cause in causes):
        return Invalid
    if status >= 500:
        return ApiUnavailable
    return _BY_CODE.get(status, ApiError)


def _typed_patch_causes(said: str) -> list[Cause]:
    """Server-side apply of a wrong type or an unknown field is answered with 500 and no details, only text:

    `failed to create typed patch object (ns/name; apps/v1, Kind=Deployment): .spec.replicas: expected numeric ...`,
    several below `errors:`, one a line (seen on 1.36; kubernetes/kubernetes managedfields typeconverter).
    """
    if not said.startswith("failed to create typed patch object"):
        return []
    found = re.findall(r"(?m)(?:^\s*|\): )(\.[^:\s]+): (.*)$", said)
    return [Cause(field.removeprefix("."), text, TYPED_PATCH) for field, text in found] or [
        Cause("", said, TYPED_PATCH)
    ]


def _status_object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    for value in (headers.get("Retry-After"), details.get("retryAfterSeconds")):
        try:
            seconds = float(value) if value is not None else 0.0
        except (TypeError, ValueError):
            continue  # the date form of Retry-After is never sent by the API server
        if 0 < seconds < float("inf"):
            return seconds
    return None
