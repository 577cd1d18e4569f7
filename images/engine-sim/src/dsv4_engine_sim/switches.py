"""Faults that can be switched at run time: ``PUT /sim/switches`` with a JSON object, ``GET`` to read.

A switch is one entry of `SWITCHES`: its name, its values, the first being the healthy default. Code asks
``switches["transfer"]``; nothing else is needed to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SWITCHES: dict[str, tuple[str, ...]] = {
    # drop: prefill accepts rooms and never sends page bytes; /health stays green.
    "transfer": ("ok", "drop"),
}


class SwitchError(ValueError):
    """Unknown switch or value: HTTP 400 with this text."""


class Switches:
    """Current values; starts healthy."""

    def __init__(self) -> None:
        self._values = {name: values[0] for name, values in SWITCHES.items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def read(self) -> dict[str, str]:
        """All switches."""
        return dict(self._values)

    def update(self, changes: Any) -> None:
        """Change several at once, all or none. Raises `SwitchError`."""
        if not isinstance(changes, Mapping):
            raise SwitchError("expected a JSON object of switches")
        for name, value in changes.items():
            if name not in SWITCHES:
                raise SwitchError(f"unknown switch {name!r}; known: {', '.join(SWITCHES)}")
            if value not in SWITCHES[name]:
                raise SwitchError(f"switch {name}: {value!r} is not one of {', '.join(SWITCHES[name])}")
        self._values.update(changes)
