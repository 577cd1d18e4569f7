"""Generated tokens to reasoning, content and tool calls, as SGLang 0.5.23 does it for DeepSeek-V4.

0.5.23 parses at token level through deepseek-recipe 0.2.0. The rules below, the odd ones included, were read off that
package by feeding it damaged markup; tests compare with recordings of it:

* only the special marker token opens anything, and only right behind ``<``; the newlines before are swallowed;
* inside the block, names are found by plain text search (``invoke name="``, ``parameter name=``); a misspelt tag is
  simply not found, so its part vanishes without an error;
* a value ends at ``</`` + marker, whatever tag follows; a key ends at the first space and is copied as it stands;
* what is cut off stays cut off: unfinished arguments are returned unfinished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum, auto

from dsv4_engine_sim.tokens import DSML, THINK_END, spell


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one call's arguments; the first piece of a call carries its name."""

    index: int
    arguments: str
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """What one step of parsing released."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Call:
    """A whole tool call; `arguments` is text and need not be valid JSON."""

    name: str
    arguments: str


class _State(Enum):
    REASONING = auto()
    CONTENT = auto()
    BLOCK = auto()
    NAME = auto()
    INVOKE = auto()
    KEY = auto()
    KIND = auto()
    STRING = auto()
    JSON = auto()
    DONE = auto()


_INVOKE = 'invoke name="'
_PARAMETER = "parameter name="
_CLOSE = "</" + DSML
_OPEN = "<" + DSML
_BLOCK_ENDS = tuple(_CLOSE + name + ">" for name in ("tool_calls", " calls"))


class OutputParser:
    """Feed internal text with `feed`, end with `finish`; deltas carry spelled text.

    `thinking`: the prompt left the think tag open. `tools`: tool-call parsing is on (tools offered, parser configured).
    """

    def __init__(self, *, thinking: bool, tools: bool) -> None:
        self._state = _State.REASONING if thinking else _State.CONTENT
        self._tools = tools
        self._buffer = ""
        self._index = -1
        self._parameters = 0
        self._fresh = True

    def feed(self, text: str) -> Delta:
        """Parse some more output."""
        self._buffer += text
        delta = Delta()
        while self._step(delta):
            pass
        return delta

    def finish(self) -> Delta:
        """End of output: what was held back is released where the real parser releases it."""
        delta = Delta()
        rest, self._buffer = self._buffer, ""
        if self._state is _State.CONTENT:
            self._content(delta, rest)
        elif self._state is _State.REASONING:
            self._reasoning(delta, rest)
        elif self._state is _State.STRING:
            self._arguments(delta, _escape(rest))
        elif self._state in (_State.JSON, _State.KEY):
            self._arguments(delta, spell(rest))
        return delta

    # -- steps: each returns whether the buffer should be looked at again -------------------------------------------

    def _step(self, delta: Delta) -> bool:
        if self._state in (_State.REASONING, _State.CONTENT):
            return self._prose(delta)
        handler = {
            _State.BLOCK: self._block,
            _State.NAME: self._name,
            _State.INVOKE: self._invoke,
            _State.KEY: self._key,
            _State.KIND: self._kind,
            _State.STRING: self._value,
            _State.JSON: self._value,
        }.get(self._state)
        if handler is None:  # DONE: everything after the block is swallowed
            self._buffer = ""
            return False
        return handler(delta)

    def _emit_prose(self, delta: Delta, text: str) -> None:
        if self._state is _State.REASONING:
            self._reasoning(delta, text)
        else:
            self._content(delta, text)

    def _prose(self, delta: Delta) -> bool:
        buffer = self._buffer
        think = buffer.find(THINK_END)
        opening = buffer.find(_OPEN) if self._tools else -1
        if opening >= 0 and (think < 0 or opening < think):
            self._emit_prose(delta, _without_newlines(buffer[:opening]))
            self._buffer = buffer[opening + len(_OPEN) :]
            self._state = _State.BLOCK
            return True
        if think >= 0:
            before = buffer[:think]
            if self._state is _State.REASONING:
                self._reasoning(delta, before.rstrip("\n"))
                self._state, self._fresh = _State.CONTENT, True
            else:  # a stray closing tag in an answer disappears
                self._content(delta, before)
                self._fresh = False
            self._buffer = buffer[think + 1 :]
            return True
        # Hold what may belong to an opening: newlines, then perhaps "<".
        ready = _without_newlines(buffer.removesuffix("<"))
        self._emit_prose(delta, ready)
        self._buffer = buffer[len(ready) :]
        return False

    def _block(self, delta: Delta) -> bool:
        start = self._buffer.find(_INVOKE)
        ends = [place for end in _BLOCK_ENDS if (place := self._buffer.find(end)) >= 0]
        if ends and (start < 0 or min(ends) < start):
            self._state = _State.DONE
            return True
        if start < 0:
            return self._keep_tail(max(len(_INVOKE), *map(len, _BLOCK_ENDS)))
        self._buffer = self._buffer[start + len(_INVOKE) :]
        self._state = _State.NAME
        return True

    def _name(self, delta: Delta) -> bool:
        end = self._buffer.find('"')
        if end < 0:
            return False
        self._index += 1
        self._parameters = 0
        delta.calls.append(CallDelta(self._index, "", spell(self._buffer[:end])))
        self._buffer = self._buffer[end + 1 :]
        self._state = _State.INVOKE
        return True

    def _invoke(self, delta: Delta) -> bool:
        start, close = self._buffer.find(_PARAMETER), self._buffer.find(_CLOSE)
        if close >= 0 and (start < 0 or close < start):
            self._arguments(delta, "}" if self._parameters else "{}")
            self._buffer = self._buffer[close + len(_CLOSE) :]
            self._state = _State.BLOCK
            return True
        if start < 0:
            return self._keep_tail(len(_PARAMETER))
        self._arguments(delta, ", " if self._parameters else "{")
        self._parameters += 1
        self._buffer = self._buffer[start + len(_PARAMETER) :]
        self._state = _State.KEY
        return True

    def _key(self, delta: Delta) -> bool:
        end = self._buffer.find(" ")
        if end < 0:
            self._arguments(delta, spell(self._buffer))
            self._buffer = ""
            return False
        self._arguments(delta, spell(self._buffer[:end]) + ": ")
        self._buffer = self._buffer[end:]
        self._state = _State.KIND
        return True

    def _kind(self, delta: Delta) -> bool:
        places = {word: place for word in ('true">', 'false">') if (place := self._buffer.find(word)) >= 0}
        if not places:
            return self._keep_tail(len('false">'))
        word = min(places, key=lambda item: places[item])
        self._buffer = self._buffer[places[word] + len(word) :]
        self._state = _State.STRING if word.startswith("true") else _State.JSON
        if self._state is _State.STRING:
            self._arguments(delta, '"')
        return True

    def _value(self, delta: Delta) -> bool:
        string = self._state is _State.STRING
        end = self._buffer.find(_CLOSE)
        text = self._buffer[:end] if end >= 0 else self._buffer
        if end < 0:
            for tail in ("</", "<"):
                if text.endswith(tail):
                    text = text[: -len(tail)]
                    break
        self._arguments(delta, _escape(text) if string else spell(text))
        if end < 0:
            self._buffer = self._buffer[len(text) :]
            return False
        if string:
            self._arguments(delta, '"')
        self._buffer = self._buffer[end + len(_CLOSE) :]
        self._state = _State.INVOKE
        return True

    # -- output -----------------------------------------------------------------------------------------------------

    def _keep_tail(self, size: int) -> bool:
        self._buffer = self._buffer[-size:]
        return False

    def _strip_start(self, text: str) -> str:
        if self._fresh:
            text = text.lstrip("\n")
            self._fresh = not text
        return text

    def _reasoning(self, delta: Delta, text: str) -> None:
        delta.reasoning += spell(self._strip_start(text))

    def _content(self, delta: Delta, text: str) -> None:
        delta.content += spell(self._strip_start(text))

    def _arguments(self, delta: Delta, text: str) -> None:
        if text:
            delta.calls.append(CallDelta(self._index, text))


def _without_newlines(text: str) -> str:
    """Cut trailing newlines, which belong to an opening; one directly behind ``<`` does not count as such."""
    cut = text.rstrip("\n")
    return text[: len(cut) + 1] if cut.endswith("<") else cut


def _escape(text: str) -> str:
    return json.dumps(spell(text), ensure_ascii=False)[1:-1]


def parse(text: str, *, thinking: bool, tools: bool) -> tuple[str, str, list[Call]]:
    """Parse a whole output: reasoning, content, calls."""
    parser = OutputParser(thinking=thinking, tools=tools)
    deltas = [parser.feed(text), parser.finish()]
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for piece in delta.calls:
            entry = calls.setdefault(piece.index, ["", ""])
            entry[0] = piece.name if piece.name is not None else entry[0]
            entry[1] += piece.arguments
    return (
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        [Call(name, arguments) for _, (name, arguments) in sorted(calls.items())],
    )
