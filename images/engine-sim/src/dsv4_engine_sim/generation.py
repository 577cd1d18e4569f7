"""From the prompt that was read to the output ids of a request: the model's words, stop strings, limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from dsv4_engine_sim import model, tokens
from dsv4_engine_sim.request import GenRequest


def answer(request: GenRequest, prompt_ids: Sequence[int]) -> list[int]:
    """Output ids for the prompt that was read, the end token included."""
    text = model.answer(tokens.decode(prompt_ids), forced_tools=request.forced_tools, parse_tools=request.parse_tools)
    return [*tokens.encode(text), tokens.EOS_ID]


def limit(request: GenRequest, ids: list[int], context_length: int) -> tuple[list[int], dict[str, Any]]:
    """Cut at stop strings and at the token limit; returns the ids and the finish reason."""
    maximum = request.max_new_tokens
    if maximum is None:
        maximum = context_length - len(request.prompt)
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
