"""From the prompt that was read to the reply of a request: the model's words or numbers, stop strings, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dsv4_engine_sim import model, tokens
from dsv4_engine_sim.logprobs import Distribution, Step
from dsv4_engine_sim.request import GenRequest


@dataclass(frozen=True, slots=True)
class Reply:
    """Output ids, the finish reason, and one `Step` per id when the request asks for logprobs."""

    ids: list[int]
    finish: dict[str, Any]
    steps: list[Step] | None = None


@dataclass(frozen=True, slots=True)
class First:
    """The first token as prefill sampled it."""

    token: int
    step: Step | None = None


def reply(
    request: GenRequest, read: Sequence[int], context_length: int, *, first: First | None = None, noise: float = 0.0
) -> Reply:
    """The reply to the prompt that was `read`; its first token is `first`, where that was sampled elsewhere."""
    maximum = request.max_new_tokens
    if maximum is None:
        maximum = context_length - len(request.prompt)
    if request.numbers:
        finish: dict[str, Any] = {"type": "length", "length": maximum}
        steps = list(_steps(request, read, first, noise, [None] * maximum))
        return Reply([step.token for step in steps], finish, steps if request.return_logprob else None)
    ids = _answer(request, read)
    if first is not None:
        ids = [first.token, *ids[1:]]
    ids, finish = _limit(request, ids, maximum)
    return Reply(ids, finish, list(_steps(request, read, first, noise, ids)) if request.return_logprob else None)


def first_token(request: GenRequest, read: Sequence[int], noise: float = 0.0) -> First:
    """What the forward of a prompt samples."""
    token = None if request.numbers else _answer(request, read)[0]
    if not request.numbers and not request.return_logprob:
        assert token is not None
        return First(token)
    (step,) = _steps(request, read, None, noise, [token])
    return First(step.token, step if request.return_logprob else None)


def _steps(
    request: GenRequest, read: Sequence[int], first: First | None, noise: float, ids: Sequence[int | None]
) -> Iterator[Step]:
    distribution = Distribution(read, noise=noise, salt=request.bootstrap_room or request.number)
    for number, token in enumerate(ids):
        if number == 0 and first is not None:
            distribution.follow(first.token)
            yield first.step or Step(first.token, 0.0, ())
        else:
            yield distribution.step(token)


def _answer(request: GenRequest, read: Sequence[int]) -> list[int]:
    """Output ids of the model's words, the end token included."""
    text = model.answer(tokens.decode(read), forced_tools=request.forced_tools, parse_tools=request.parse_tools)
    return [*tokens.encode(text), tokens.EOS_ID]


def _limit(request: GenRequest, ids: list[int], maximum: int) -> tuple[list[int], dict[str, Any]]:
    """Cut at stop strings and at the token limit; returns the ids and the finish reason."""
    if request.ignore_eos:
        words = model.endless(tokens.spell(tokens.decode(ids[:-1])))
        more: Iterator[int] = (token for word in words for token in tokens.encode(word))
        ids = [*ids[:-1], *islice(more, max(0, maximum - len(ids) + 1))]
        return ids[:maximum], {"type": "length", "length": maximum}
    finish: dict[str, Any] = {"type": "stop", "matched": tokens.EOS_ID}
    if request.stop:
        text = tokens.decode(ids[:-1])
        places = [(place, word) for word in request.stop if (place := text.find(word)) >= 0]
        if places:
            place, word = min(places)
            ids = tokens.encode(text[:place])
            finish = {"type": "stop", "matched": word}
    if len(ids) > maximum:
        return ids[:maximum], {"type": "length", "length": maximum}
    return ids, finish
