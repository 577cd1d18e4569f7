"""The gated image's plugin, played: its marker, and what it counts of live traffic. No content is kept.

A finished chat completion that offered tools is one of `OUTCOMES`, the worst that applies; counted are the replies that
this server really sends. A prefill's reply is one token that nobody reads, so prefill counts none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dsv4_engine_sim import chat, tokens

if TYPE_CHECKING:
    from dsv4_engine_sim.request import GenRequest
    from dsv4_engine_sim.settings import SimSettings

PLUGIN = "dsv4_guard"
VERSION = "simulated"
TESTED_RELEASES = ("0.5.17", "0.5.23")
OUTCOMES = ("leaked", "loop", "invalid_json", "unknown_tool", "schema", "valid", "none")
"""Worst first."""
TIERS = ("cold", "device", "host", "unknown")
_MARKUP = (tokens.SPELLINGS[6], "invoke name=", "$TOOL_NAME")
_REPEATS = 8
"""So many times the same piece of text at the end of a reply is a loop."""
_PIECE = 200
"""Longest piece that is looked for, in characters."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class Guard:
    """Series of an active plugin, in the engine's own exposition."""

    def __init__(self, settings: SimSettings, registry: CollectorRegistry) -> None:
        self._counts = settings.mode != "prefill"
        info = Gauge("dsv4_guard_info", "The plugin.", ["version", "release", "index_k", "process"], registry=registry)
        for process in ("api", "scheduler"):
            info.labels(VERSION, settings.release, settings.index_k_dtype, process).set(1)
        self._calls = Counter(
            "dsv4_guard_tool_calls_total",
            "Finished chat completions that offered tools.",
            ["outcome", "cache"],
            registry=registry,
        )
        for outcome in OUTCOMES:
            for cache in TIERS:
                self._calls.labels(outcome, cache)
        self._seconds = Histogram(
            "dsv4_guard_request_seconds",
            "Time spent on counting, per request.",
            buckets=(0.00001, 0.0001, 0.001, 0.01, 0.1),
            registry=registry,
        )

    def count(self, body: dict[str, Any], request: GenRequest, content: str, calls: Sequence[tuple[str, str]]) -> None:
        """Count a finished chat completion: its text and its calls (name, arguments as text)."""
        if not self._counts:
            return
        start = time.perf_counter()
        offered = chat.active_tools(body)
        if offered:
            cached = request.cached
            tier = "host" if cached.get("host") else "device" if cached.get("device") else "cold"
            self._calls.labels(judge(content, calls, offered), tier).inc()
        self._seconds.observe(time.perf_counter() - start)


def judge(content: str, calls: Sequence[tuple[str, str]], offered: Iterable[dict[str, Any]]) -> str:
    """The outcome of one reply."""
    if any(mark in content for mark in _MARKUP):
        return "leaked"
    if loops(content):
        return "loop"
    if not calls:
        return "none"
    schemas = {function["name"]: function.get("parameters") or {} for function in offered}
    return min((_call(name, text, schemas) for name, text in calls), key=OUTCOMES.index)


def _call(name: str, text: str, schemas: Mapping[str, Any]) -> str:
    try:
        arguments = json.loads(text)
    except ValueError:
        return "invalid_json"
    if name not in schemas:
        return "unknown_tool"
    return "valid" if isinstance(arguments, dict) and suits(arguments, schemas[name]) else "schema"


def suits(value: Any, schema: Any) -> bool:
    """Whether a value matches the plain part of a JSON schema: types, enum, required, properties, items."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    wanted = tuple(
        kind for name in ([kinds] if isinstance(kinds, str) else kinds or []) for kind in _TYPES.get(name, (object,))
    )
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and not {bool, object} & set(wanted))):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(suits(item, schema.get("items")) for item in value)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        if any(name not in value for name in schema.get("required") or []):
            return False
        if schema.get("additionalProperties") is False and not value.keys() <= properties.keys():
            return False
        return all(suits(item, properties.get(name)) for name, item in value.items())
    return True


def loops(text: str) -> bool:
    """Whether the text ends with the same piece again and again."""
    tail = text[-_PIECE * _REPEATS :]
    for size in range(4, len(tail) // _REPEATS + 1):
        end = tail[-size:]
        if end.strip() and tail.endswith(end * _REPEATS):
            return True
    return False
