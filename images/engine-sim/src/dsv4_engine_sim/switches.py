"""Faults that can be switched at run time: ``PUT /sim/switches`` with a JSON object, ``GET`` to read.

A switch is one entry of `SWITCHES`: its name and a kind that checks values and knows the healthy default. Code asks
``switches["transfer"]`` or ``switches.number("busy_seconds")``; nothing else is needed to add one. No switch damages
bytes: each one takes away a wait, a store or an answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class SwitchError(ValueError):
    """Unknown switch or value: HTTP 400 with this text."""


@dataclass(frozen=True)
class Choice:
    """One of some words; the first is the healthy default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.words[0]

    def check(self, value: Any) -> str:
        if value not in self.words:
            raise SwitchError(f"{value!r} is not one of {', '.join(self.words)}")
        return str(value)


@dataclass(frozen=True)
class Number:
    """A number from 0 (healthy) to `maximum`."""

    maximum: float
    whole: bool = False
    default: float = 0

    def check(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            raise SwitchError(f"{value!r} is not a{' whole' if self.whole else ''} number")
        if not 0 <= value <= self.maximum:
            raise SwitchError(f"{value!r} is not between 0 and {self.maximum:g}")
        return value


@dataclass(frozen=True)
class Address:
    """An IP address, with a port or without, optionally after ``stall:``; empty is healthy."""

    default: str = ""

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise SwitchError(f"{value!r} is not a text")
        host, colon, port = value.removeprefix("stall:").rpartition(":")
        if not colon or not host or (":" in host and not host.startswith("[")):
            host, port = value.removeprefix("stall:"), ""
        try:
            if value:
                ipaddress.ip_address(host.strip("[]"))
                int(port or 0)
        except ValueError:
            raise SwitchError(f"{value!r} is no [stall:]IP[:PORT]") from None
        return value


SWITCHES: dict[str, Choice | Number | Address] = {
    # drop: prefill accepts rooms and never sends page bytes; /health stays green.
    "transfer": Choice(("ok", "drop")),
    # Every n-th room of this prefill is dropped in that way; 0: none.
    "drop_every": Number(1_000_000, whole=True),
    # off: reads of index-K and the transfer of a cached prefix do not wait for the layer's load from the host.
    "gate": Choice(("on", "off")),
    # off: the early send takes pages that another request is still loading for device-resident (up to 0.5.22).
    "early_send_guard": Choice(("on", "off")),
    # off: the early send does not wait for the forward that is still writing the pages (NIXL; needs overlap).
    "early_send_fence": Choice(("on", "off")),
    # on: decode reuses the pages of an aborted request at once, as releases without deferred release.
    "abort_page_reuse": Choice(("off", "on")),
    # on: running requests get no tokens. overlap: only while overlapped scheduling is on.
    "wedge": Choice(("off", "on", "overlap")),
    # compute: stores of one layer's pages never land. copier: one layer of index-K is never copied from the host.
    "bad_pod": Choice(("off", "compute", "copier")),
    # Toward this decode, the last layer's index-K is lost on the way; with stall: nothing arrives at all.
    "bad_link": Address(),
    # One prefill takes this many seconds from now; /health is 503, requests wait, the process is well.
    "busy_seconds": Number(86_400),
    # The server is loading again for so many seconds from now, as after a restart.
    "slow_start_seconds": Number(86_400),
    # hang: the registry accepts connections and never answers.
    "bootstrap": Choice(("ok", "hang")),
}


class Switches:
    """Current values; starts healthy. `listeners` are called after every change with the names that were given."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {name: kind.default for name, kind in SWITCHES.items()}
        self._changed = asyncio.Event()
        self.listeners: list[Callable[[set[str]], None]] = []

    def __getitem__(self, name: str) -> str:
        return str(self._values[name])

    def number(self, name: str) -> float:
        """Value of a numeric switch."""
        return float(self._values[name])

    def read(self) -> dict[str, Any]:
        """All switches."""
        return dict(self._values)

    def update(self, changes: Any) -> None:
        """Change several at once, all or none. Raises `SwitchError`."""
        if not isinstance(changes, Mapping):
            raise SwitchError("expected a JSON object of switches")
        checked: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in SWITCHES:
                raise SwitchError(f"unknown switch {name!r}; known: {', '.join(SWITCHES)}")
            try:
                checked[name] = SWITCHES[name].check(value)
            except SwitchError as error:
                raise SwitchError(f"switch {name}: {error}") from None
        self._values.update(checked)
        event, self._changed = self._changed, asyncio.Event()
        event.set()
        for listener in self.listeners:
            listener(set(checked))

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
