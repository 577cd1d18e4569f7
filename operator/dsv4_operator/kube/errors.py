"""Typed failures of the Kubernetes API: the caller decides by type, never by status code or by text.

The message names verb, kind, namespace/name and the server's own words. Objects of kind Secret are the
exception: there the server's words are dropped, for "Invalid value: ..." quotes what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of Status.details.causes: `field` is a path such as `spec.containers[0].image`."""

    field: str
    message: str
    reason: str = ""


class ApiError(Exception):
    """A call to the API server failed. Base class; itself raised for answers no subclass describes (406, 415, ...)."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        reason: str = "",
        causes: Sequence[Cause] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """HTTP status code; None when no answer came."""
        self.reason = reason
        """Machine-readable reason of the Status object, such as `Invalid`; a constant of ours when no answer
        came.
        """
        self.causes = tuple(causes)
        self.retry_after = retry_after
        """Seconds the server asked us to wait; None when it did not say."""


class ApiUnavailable(ApiError):
    """No useful answer: network failure, time-out, or a 5xx. Worth a retry with backoff."""


class TooManyRequests(ApiError):
    """429: the server sheds load. Wait `retry_after` seconds."""


class Unauthorized(ApiError):
    """401, after the credentials were read again once."""


class Forbidden(ApiError):
    """403: RBAC, or an admission plug-in such as a quota, says no. Changes only when somebody acts."""


class NotFound(ApiError):
    """404 for this one object (or for its namespace); the kind itself is served."""


class KindNotInstalled(ApiError):
    """404 for the whole kind: no such group, version or resource on this cluster (a CRD that is not
    installed).
    """


class Conflict(ApiError):
    """409: changed by somebody in between, or (server-side apply) fields owned by others, then listed in
    `causes`.
    """


class AlreadyExists(ApiError):
    """409 on create: an object of that name is there."""


class Invalid(ApiError):
    """422: validation failed, `causes` holds the field paths; or 400, 405, 413: the object as it is will never be
    taken, an admission webhook's denial included.
    """
