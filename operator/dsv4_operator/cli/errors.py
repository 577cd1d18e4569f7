"""The one error that a command ends with when it cannot read what it was given."""

from __future__ import annotations

EXIT_FINE = 0
EXIT_REFUSED = 1
EXIT_UNREADABLE = 2


class UnreadableError(Exception):
    """Input that cannot be judged at all: one line that says what is wrong and where. Exit code 2."""
