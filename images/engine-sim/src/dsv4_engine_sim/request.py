"""A generation request inside the engine, what it yields, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4_engine_sim.logprobs import Step

_NUMBERS = count(1)

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
    numbers: bool = False
    """The prompt is plain token numbers without words; so is the reply."""
    return_logprob: bool = False
    top_logprobs_num: int = 0
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """Counts the requests of this process."""
    cached: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0})
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """New token ids; the last one of a request has `finish`, upstream's finish_reason object."""

    ids: list[int]
    finish: dict[str, Any] | None = None
    steps: list[Step] | None = None
    """Logprobs of the ids, when the request asks for them."""
