"""Which flags have a rule of their own, so that no general rule has to speak of them."""

from __future__ import annotations

from typing import Final

from dsv4_operator.engine.releases import Release
from dsv4_operator.policy import forbidden_kv, forbidden_serving
from dsv4_operator.policy.arguments import Argument

CHECKSUM_FLAG: Final = "--disaggregation-enable-kv-checksum"
"""Spoken of together with its field (rule `kv-checksum`)."""

_ROWS: Final = (*forbidden_kv.ROWS, *forbidden_serving.ROWS)


def is_claimed(argument: Argument, release: Release | None) -> bool:
    """Whether a rule about this very flag, with these values and on this release, speaks of `argument`."""
    return argument.is_any((CHECKSUM_FLAG,)) or any(row.speaks_of(argument, release) for row in _ROWS)


def is_claimed_variable(name: str) -> bool:
    """Whether a rule about this very variable speaks of it."""
    return any(name in row.variables for row in _ROWS)
