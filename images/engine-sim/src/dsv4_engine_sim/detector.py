"""Generated text to content and tool calls as SGLang did it before 0.5.23: a text search for the markup's tags.

Two eras, read from upstream ``function_call/deepseekv32_detector.py`` of 0.5.20 and 0.5.22:

* ``leak`` (up to 0.5.20): a block whose opening is damaged is returned as text, and so is one whose arguments cannot be
  read; inside a block an invoke that was cut off is still taken;
* ``silent`` (0.5.21, 0.5.22): malformed or unclosed invokes vanish with a line in the log; bare invokes are parsed.

In both, calls of tools that were not offered vanish, string values lose their outer blanks, and a block that never
closes is dropped. Where upstream's streaming differs in what it returns (not only when), ``silent`` follows it; for
``leak`` both ways give what the not-streamed one gave.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Collection
from typing import Any, Protocol

from dsv4_engine_sim.dsml import CallDelta, Delta
from dsv4_engine_sim.tokens import DSML, SPELLINGS, THINK_END, spell

log = logging.getLogger(__name__)

_MARK = SPELLINGS[6]
_OPEN, _CLOSE = f"<{_MARK}tool_calls>", f"</{_MARK}tool_calls>"
_INVOKE_START = f"<{_MARK}invoke"
_SECTION = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)
_INVOKE = re.compile(
    rf'<{_MARK}invoke\s+name="(?P<name>[^"]+)"\s*(?:(?P<self>/>)|>(?P<body>.*?)(?P<end>(?:</{_MARK}invoke>|$)))',
    re.DOTALL,
)
_PARAMETER = re.compile(
    rf'<{_MARK}parameter\s+name="([^"]+)"\s+string="([^"]+)"\s*>(.*?)</{_MARK}parameter>', re.DOTALL
)


class Parser(Protocol):
    """What `dsml.OutputParser` and `TextParser` have in common."""

    def feed(self, text: str) -> Delta:
        """Parse some more output (internal text)."""

    def finish(self) -> Delta:
        """End of output."""


class TextParser:
    """Releases prose at once and holds everything from the first possible tag on until the end."""

    def __init__(self, *, era: str, thinking: bool, tools: Collection[str], stream: bool) -> None:
        self._era = era
        self._reasoning = thinking
        self._tools = tools
        self._stream = stream
        self._buffer = ""
        self._fresh = True

    def feed(self, text: str) -> Delta:
        self._buffer += text
        delta = Delta()
        if self._reasoning:
            before, end, after = self._buffer.partition(THINK_END)
            delta.reasoning = spell(before.strip("\n") if end else before)
            self._buffer, self._reasoning = after, not end
        if not self._reasoning:
            delta.content = self._prose()
        return delta

    def _prose(self) -> str:
        if not self._tools:
            ready, self._buffer = self._buffer, ""
        else:
            places = [place for mark in ("<", DSML) if (place := self._buffer.find(mark)) >= 0]
            ready = self._buffer[: min(places)] if places else self._buffer
            ready = ready.rstrip("\n")
            self._buffer = self._buffer[len(ready) :]
        if self._fresh:
            ready = ready.lstrip("\n")
            self._fresh = not ready
        return spell(ready)

    def finish(self) -> Delta:
        text, self._buffer = spell(self._buffer), ""
        if not self._tools or not text:
            return Delta(content=text)
        content, calls = detect(text, self._tools, era=self._era, stream=self._stream)
        if self._fresh:
            content = content.lstrip("\n")
        return Delta(content=content, calls=[CallDelta(i, args, name) for i, (name, args) in enumerate(calls)])


def detect(text: str, tools: Collection[str], *, era: str, stream: bool) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls (name, JSON arguments) of a whole output."""
    start = text.find(_OPEN)
    if start >= 0:
        normal = text[:start].removesuffix("\n\n")
        sections = _SECTION.findall(text)
    elif era == "silent" and (bare := text.find(_INVOKE_START)) >= 0:
        normal, sections = _before(text), [text[bare:]]
    elif era == "silent" and stream:
        return _before(text), []
    else:
        return text, []
    calls: list[tuple[str, str]] = []
    for section in sections:
        for match in _INVOKE.finditer(section):
            name, whole = match["name"].strip(), match["self"] or match["end"]
            if era == "silent" and not whole:
                log.warning("Dropping unclosed DeepSeek invoke '%s'", name)
                continue
            try:
                arguments = _arguments(match["body"] or "", strict=era == "silent")
            except ValueError as error:
                if era == "leak":
                    log.error("Error in detect_and_parse: %s", error)
                    return text, []
                log.warning("Dropping malformed DeepSeek invoke: %s", error)
                continue
            if name in tools:
                calls.append((name, arguments))
            else:
                log.warning("Model attempted to call undefined function: %s", name)
    return normal, calls


def _before(text: str) -> str:
    """Prose in front of the first tag."""
    place = text.find(_MARK)
    if place < 0:
        return text
    return text[:place].removesuffix("</").removesuffix("<").removesuffix("\n\n")


def _arguments(body: str, *, strict: bool) -> str:
    stripped = body.strip()
    if stripped.startswith("{") and (strict or stripped.endswith("}")):
        if not isinstance(json.loads(stripped), dict):
            raise ValueError("DeepSeek tool arguments must be a JSON object")
        return stripped
    values: dict[str, Any] = {}
    for key, kind, raw in _PARAMETER.findall(body):
        values[key] = raw.strip()
        if kind != "true":
            with contextlib.suppress(ValueError):
                values[key] = json.loads(raw.strip())
    rest = _PARAMETER.sub("", body)
    if strict and (_MARK in rest or (not values and rest.strip())):
        raise ValueError("Malformed DeepSeek tool parameter")
    return json.dumps(values, ensure_ascii=False)
