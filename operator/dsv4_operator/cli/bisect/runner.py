"""What runs the arms. The cluster is one runner; tests bring another."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from dsv4_operator.cli.bisect.plan import Arm


class ArmError(Exception):
    """An arm cannot be run; the others can. One line for the user."""


class TeardownError(Exception):
    """An arm cannot be removed. It holds the GPUs of all that would follow, so the bisection ends. One line."""


@dataclass(frozen=True, slots=True)
class Load:
    """One batch: the options of its soak by name, as `soak_job.arguments` takes them, endpoint left out."""

    tag: str
    values: dict[str, Any]


class RunningArm(Protocol):
    """A deployment that serves."""

    def soak(self, load: Load) -> dict[str, Any]:
        """Run one batch and return the report of the soak. Raises ArmError."""
        ...


class Runner(Protocol):
    """Makes deployments."""

    def open(self, arm: Arm) -> AbstractContextManager[RunningArm]:
        """Deploy an arm, wait until it serves, and tear it down at the end, whatever happened.

        Raises ArmError, TeardownError.
        """
        ...
