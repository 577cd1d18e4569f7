"""What an engine answered: one form for whole and streamed chat completions. Pure; never raises on damaged input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as a client would see it. ``arguments`` is the raw text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The first choice of a chat completion, joined if it was streamed."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    nameless_piece: bool = False
    """Streamed only: the first piece of a call carried no name (S18)."""
    index_fault: bool = False
    """Streamed only: call indices are not dense, or two calls share one (S19)."""
    error: str | None = None
    """``code`` or ``type`` of an error object that came in place of an answer, with HTTP 200 in a stream."""
    complete: bool = True
    """False: a stream that ended without a finish reason, or a body that is no completion."""


def from_completion(body: object) -> Reply:
    """Read the JSON body of a chat completion that was not streamed."""
    if not isinstance(body, Mapping):
        return Reply(complete=False)
    error = _error(body)
    choice = _first_choice(body)
    if choice is None:
        return Reply(error=error, complete=False)
    message = choice.get("message")
    message = message if isinstance(message, Mapping) else {}
    calls = []
    for item in _items(message.get("tool_calls")):
        function = item.get("function")
        function = function if isinstance(function, Mapping) else {}
        calls.append(Call(_text(function.get("name")), _text(function.get("arguments"))))
    prompt, completion, cached = usage(body)
    return Reply(
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content")),
        calls=tuple(calls),
        finish_reason=_optional(choice.get("finish_reason")),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        error=error,
    )


def parse_completion(data: bytes) -> Reply:
    """Read a body as it came over the wire."""
    try:
        return from_completion(json.loads(data))
    except (ValueError, RecursionError):
        return Reply(complete=False)


@dataclass(slots=True)
class _Open:
    """A streamed call under construction."""

    name: str
    arguments: list[str] = field(default_factory=list)


class StreamJoiner:
    """Joins the chunks of a streamed chat completion the way a client library does."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._finish: str | None = None
        self._usage: tuple[int | None, int | None, int | None] = (None, None, None)
        self._nameless = False
        self._index_fault = False
        self._error: str | None = None

    def add(self, chunk: object) -> None:
        """Take one decoded chunk; anything that is no chunk is ignored."""
        if not isinstance(chunk, Mapping):
            return
        self._error = self._error or _error(chunk)
        seen = usage(chunk)
        if any(value is not None for value in seen):
            self._usage = seen
        choice = _first_choice(chunk)
        if choice is None:
            return
        self._finish = _optional(choice.get("finish_reason")) or self._finish
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return
        self._content.append(_text(delta.get("content")))
        self._reasoning.append(_text(delta.get("reasoning_content")))
        for piece in _items(delta.get("tool_calls")):
            self._add_piece(piece)

    def _add_piece(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, arguments = _text(function.get("name")), _text(function.get("arguments"))
        index = piece.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            self._index_fault = True
            index = len(self._by_index)
        call = self._by_index.get(index)
        if call is None:
            # New calls must come in order, without gaps.
            self._index_fault |= index != len(self._by_index)
            self._nameless |= not name
            call = self._open(index, name)
        elif name:
            # A second name on one index starts a second call there.
            self._index_fault = True
            call = self._open(index, name)
        call.arguments.append(arguments)

    def _open(self, index: int, name: str) -> _Open:
        call = _Open(name)
        self._by_index[index] = call
        self._calls.append(call)
        return call

    def reply(self) -> Reply:
        """The joined reply as of now."""
        prompt, completion, cached = self._usage
        return Reply(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            calls=tuple(Call(call.name, "".join(call.arguments)) for call in self._calls),
            finish_reason=self._finish,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            nameless_piece=self._nameless,
            index_fault=self._index_fault,
            error=self._error,
            complete=self._finish is not None,
        )


def join_chunks(chunks: Iterable[object]) -> Reply:
    """Join decoded chunks."""
    joiner = StreamJoiner()
    for chunk in chunks:
        joiner.add(chunk)
    return joiner.reply()


def parse_stream(data: bytes) -> Reply:
    """Read a whole server-sent-event body as it came over the wire."""
    joiner = StreamJoiner()
    for line in data.split(b"\n"):
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            break
        try:
            joiner.add(json.loads(payload))
        except (ValueError, RecursionError):
            continue
    return joiner.reply()


def usage(body: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """(prompt tokens, completion tokens, cached prompt tokens) of a body or chunk, None where it does not say.

    SGLang reports cached tokens only with ``--enable-cache-report``; it may leave the details out when the
    count is 0.
    """
    raw = body.get("usage")
    if not isinstance(raw, Mapping):
        return None, None, None
    details = raw.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    return _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens")), cached


def _error(body: Mapping[str, Any]) -> str | None:
    raw = body.get("error")
    if raw is None and body.get("object") == "error":
        raw = body
    if raw is None:
        return None
    if isinstance(raw, Mapping):
        code = raw.get("code")
        if isinstance(code, int) and not isinstance(code, bool):
            return str(code)
    return "500"


def _first_choice(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for choice in _items(body.get("choices")):
        if choice.get("index", 0) == 0:
            return choice
    return None


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
