"""What became of one completion that offered tools. Pure; nothing here keeps what it is shown.

Worst outcome wins: leaked > loop > invalid_json > unknown_tool > schema > valid > none. A completion that the token
limit cut short cannot be blamed for an unfinished call.
"""

from __future__ import annotations

import functools
import json
import re
import threading
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
SCHEMA_STEPS = 10000
"""Keywords applied to one call at most, about 0.1 s: references that double at every level would never end."""


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


class _TooLong(Exception):
    """A schema that takes more than SCHEMA_STEPS."""


class _Steps(threading.local):
    left: int = 0


_steps = _Steps()
_UNBOUNDED = (
    "pattern",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "uniqueItems",
)
"""Keywords left out: regular expressions of the client, and comparisons of every item with every other."""


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _counted(keyword: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(keyword)
    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        # An enum is compared entry by entry.
        _steps.left -= len(value) if isinstance(value, list) else 1
        if _steps.left < 0:
            raise _TooLong
        return keyword(validator, value, instance, schema)

    return apply


@functools.cache
def _validator() -> Any:
    """JSON Schema in bounded time: a client's schema must not be able to stall the server."""
    from jsonschema import Draft202012Validator, validators

    keywords = {name: _counted(keyword) for name, keyword in Draft202012Validator.VALIDATORS.items()}
    return validators.extend(Draft202012Validator, {**keywords, **dict.fromkeys(_UNBOUNDED, _nothing)})


def matches_schema(schema: Any, arguments: Any) -> bool:
    """Whether arguments satisfy a tool's parameter schema. A schema that cannot be applied blames nobody."""
    from referencing import Registry

    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if closed and set(arguments) - set(schema.get("properties") or {}):
        return False
    try:
        _steps.left = SCHEMA_STEPS
        # An empty registry: a $ref to elsewhere is not fetched.
        return bool(_validator()(schema, registry=Registry()).is_valid(arguments))
    except Exception:
        return True
