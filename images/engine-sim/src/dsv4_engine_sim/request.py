"""A generation request inside the engine, what it yields, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FAKE_BOOTSTRAP_HOST = "2.2.2.2"
"""Peer that does not exist: no KV moves (upstream FAKE_BOOTSTRAP_HOST); health checks use it."""


class RequestFailedError(Exception):
    """The engine could not finish the request: HTTP `status` with this text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False)
class GenRequest:
    """One generation. `prompt` are token ids; rooms and ports as in the request body."""

    rid: str
    prompt: list[int]
    max_new_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    parse_tools: bool = False
    forced_tools: list[str] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    prefill_dp_rank: int | None = None
    internal: bool = False
    """A health probe: not counted in metrics."""
    cached: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0})
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """New token ids; the last one of a request has `finish`, upstream's finish_reason object."""

    ids: list[int]
    finish: dict[str, Any] | None = None
