"""What a failed pass means for the queue: wait for a change, wait a given time, or back off."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_operator.kube import errors


class InvalidSpec(Exception):
    """The object asks for something that we refuse: no retry until it changes."""


class NotYet(Exception):
    """Something outside needs time: look again after `after` seconds."""

    def __init__(self, message: str, *, after: float) -> None:
        super().__init__(message)
        self.after = after


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the queue goes on after an error."""

    result: str
    """Label of the metric: invalid, waiting, conflict, throttled, unavailable, forbidden, error."""
    after: float | None = None
    """Fixed delay in seconds; None means see `backoff`."""
    backoff: bool = True
    """True: retry with the key's exponential backoff (at least `after`). False: `after`, or never when None.
    """
    unexpected: bool = False
    """True for an error nobody foresaw: logged with its traceback."""


CONFLICT_RETRY_SECONDS = 1.0


def decide(error: BaseException) -> Verdict:
    """Classify the error of one pass."""
    match error:
        case InvalidSpec():
            return Verdict("invalid", backoff=False)
        case NotYet():
            return Verdict("waiting", after=error.after, backoff=False)
        case errors.Conflict() | errors.AlreadyExists():
            return Verdict("conflict", after=CONFLICT_RETRY_SECONDS)
        case errors.TooManyRequests():
            return Verdict("throttled", after=error.retry_after)
        case errors.ApiUnavailable():
            return Verdict("unavailable", after=error.retry_after)
        case errors.Forbidden() | errors.Unauthorized():
            return Verdict("forbidden")
        case errors.ApiError():
            return Verdict("error")
        case _:
            return Verdict("error", unexpected=True)
