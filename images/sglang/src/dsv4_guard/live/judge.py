"""What became of one completion that offered tools. Pure; nothing here keeps what it is shown.

Worst outcome wins: leaked > loop > invalid_json > unknown_tool > schema > valid > none. A completion that the token
limit cut short cannot be blamed for an unfinished call.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OUTCOMES = ("leaked", "loop", "invalid_json", "unknown_tool", "schema", "valid", "none")
"""Worst first."""
CACHES = ("cold", "device", "host", "unknown")

LEAK = re.compile(
    r"[|｜]\s?DSML\s?[|｜]"  # the marker of V3.2, V4 and V4.1, with full-width or plain bars
    r"|<｜[^\s｜<>]{1,40}｜>"  # any special token spelled out
    r'|</?(?:invoke|parameter)\s+name="[^"]{0,120}"(?:\s+string="(?:true|false)")?\s*>'
)
TAIL = 2000
"""How much of a text's end is looked at for a loop, characters."""
LOOP_LENGTH, LOOP_REPEATS, LINE_LENGTH = 240, 8, 1000
"""A text loops when it ends in a pattern that repeats this often over this many characters; a single repeated
character may draw a line and has to be longer."""
SCHEMA_LIMIT = 65536
"""Longer arguments are not held against their schema, bytes."""


@dataclass
class Call:
    """One tool call of a completion."""

    name: str = ""
    arguments: str = ""


@dataclass
class Completion:
    """One choice: visible text, calls, and whether the token limit ended it."""

    content: str = ""
    calls: Sequence[Call] = field(default_factory=list)
    cut: bool = False


def leaked(text: str) -> bool:
    """Whether tool markup or special tokens show in text that a client sees."""
    return bool(text) and LEAK.search(text) is not None


def loops(text: str) -> bool:
    """Whether the text ends in a repetition."""
    tail = text[-TAIL:][::-1]
    if len(tail) < LOOP_LENGTH or tail.isspace():
        return False
    border = [0] * len(tail)
    for position in range(1, len(tail)):
        length = border[position - 1]
        while length and tail[position] != tail[length]:
            length = border[length - 1]
        length += tail[position] == tail[length]
        border[position] = length
        size, period = position + 1, position + 1 - length
        if size >= (LOOP_LENGTH if period > 1 else LINE_LENGTH) and size >= LOOP_REPEATS * period:
            return True
    return False


def judge(completion: Completion, tools: Mapping[str, Any], matches: Callable[[Any, Any], bool]) -> str:
    """The outcome of one choice. `tools`: offered name -> parameter schema; `matches(schema, arguments)`."""
    texts = [completion.content]
    for call in completion.calls:
        texts += [call.name, _plain(call.arguments)]
    if any(leaked(text) for text in texts):
        return "leaked"
    if any(loops(text) for text in texts):
        return "loop"
    if not completion.calls or completion.cut:
        return "none"
    return worst(_call(call, tools, matches) for call in completion.calls)


def _plain(arguments: str) -> str:
    """Arguments as their reader sees them: an escaped marker is a marker."""
    if "\\u" not in arguments:
        return arguments
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _call(call: Call, tools: Mapping[str, Any], matches: Callable[[Any, Any], bool]) -> str:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return "invalid_json"
    if not isinstance(arguments, dict):
        return "invalid_json"
    if call.name not in tools:
        return "unknown_tool"
    schema = tools[call.name]
    if isinstance(schema, dict) and len(call.arguments) <= SCHEMA_LIMIT and not matches(schema, arguments):
        return "schema"
    return "valid"


def worst(outcomes: Any) -> str:
    """The worst of several outcomes; none when there are none."""
    return min(outcomes, key=OUTCOMES.index, default="none")


def cache_tier(meta_info: Mapping[str, Any]) -> str:
    """Where the prompt's cached part came from: host (or storage) if any of it did, else device, else cold."""
    details = meta_info.get("cached_tokens_details")
    if isinstance(details, dict):
        if (details.get("host") or 0) + (details.get("storage") or 0) > 0:
            return "host"
        return "device" if (details.get("device") or 0) > 0 else "cold"
    cached = meta_info.get("cached_tokens")
    return "cold" if cached == 0 else "unknown"


def _nothing(*_: Any) -> tuple[()]:
    return ()


@functools.cache
def _validator() -> Any:
    """JSON Schema without regular expressions: a client's pattern must not be able to stall the server."""
    from jsonschema import Draft202012Validator, validators

    quiet = dict.fromkeys(("pattern", "patternProperties", "additionalProperties", "unevaluatedProperties"), _nothing)
    return validators.extend(Draft202012Validator, quiet)


def matches_schema(schema: Any, arguments: Any) -> bool:
    """Whether arguments satisfy a tool's parameter schema. A schema that cannot be applied blames nobody."""
    from referencing import Registry

    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if closed and set(arguments) - set(schema.get("properties") or {}):
        return False
    try:
        # An empty registry: a $ref to elsewhere is not fetched.
        return bool(_validator()(schema, registry=Registry()).is_valid(arguments))
    except Exception:
        return True
