"""Counting in the API process: hooks on OpenAI chat serving, and the series.

The stream is passed on untouched; each chunk is looked at after it has been handed over, and the account is made after
the last. What has been gathered lives as long as its request. On prefill nothing is counted: its answer is one token.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from dsv4_guard import MARK, patching
from dsv4_guard.live.judge import CACHES, OUTCOMES, Call, Completion, cache_tier, judge, matches_schema, worst

log = logging.getLogger(MARK)
CHAT = "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat"
BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1)

try:  # comes with SGLang; three times as fast
    from orjson import loads
except ImportError:
    loads = json.loads


class Series:
    """The two series; nothing where metrics are off."""

    def __init__(self) -> None:
        self._calls: Any = None
        self._seconds: Any = None

    def start(self) -> None:
        """Make the series, all at 0. Only once SGLang has set the folder of the multi-process mode."""
        if self._calls is not None or "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return
        from prometheus_client import Counter, Histogram

        self._seconds = Histogram(
            "dsv4_guard_request_seconds", "Time that the plugin's counters took per chat completion", buckets=BUCKETS
        )
        self._calls = Counter(
            "dsv4_guard_tool_calls_total",
            "Finished chat completions that offered tools, by what became of the calls",
            labelnames=("outcome", "cache"),
        )
        for outcome in OUTCOMES:
            for cache in CACHES:
                self._calls.labels(outcome, cache)

    def count(self, outcome: str, cache: str, seconds: float) -> None:
        """One completion, and what looking at it took."""
        self.start()
        if self._calls is not None:
            self._calls.labels(outcome, cache).inc()
            self._seconds.observe(seconds)


series = Series()


def offered(serving: Any, request: Any) -> dict[str, Any]:
    """Tools of the request and of its messages by name, with their parameter schemas; empty when none may be called."""
    if getattr(request, "tool_choice", "auto") == "none":
        return {}
    find = getattr(serving, "_effective_tools", None)
    tools = find(request) if find is not None else request.tools or ()
    return {tool.function.name: tool.function.parameters for tool in tools if tool.function.name}


class Gathered:
    """What one streamed completion has shown so far."""

    def __init__(self, tools: dict[str, Any]) -> None:
        self.tools = tools
        self.meta: dict[str, Any] = {}
        self.seconds = 0.0
        self.failed = False
        self._text: dict[int, list[str]] = {}
        self._calls: dict[int, dict[int, tuple[list[str], list[str]]]] = {}
        self._finish: dict[int, str] = {}

    def take(self, chunk: Any) -> None:
        """Look at one server-sent event."""
        text = chunk if isinstance(chunk, str) else bytes(chunk).decode("utf-8", "replace")
        for part in text.split("\n\n"):
            if part.startswith("data: {"):
                self._event(loads(part[6:]))

    def _event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.failed = True
        for choice in event.get("choices") or ():
            index, delta = choice.get("index", 0), choice.get("delta") or {}
            if delta.get("content"):
                self._text.setdefault(index, []).append(delta["content"])
            for call in delta.get("tool_calls") or ():
                calls = self._calls.setdefault(index, {})
                name, arguments = calls.setdefault(call.get("index") or 0, ([], []))
                function = call.get("function") or {}
                name.append(function.get("name") or "")
                arguments.append(function.get("arguments") or "")
            if choice.get("finish_reason"):
                self._finish[index] = choice["finish_reason"]

    def outcome(self) -> str | None:
        """What became of it, None when it did not finish."""
        if self.failed or not self._finish or "abort" in self._finish.values():
            return None
        return worst(judge(self._choice(index), self.tools, matches_schema) for index in self._finish)

    def _choice(self, index: int) -> Completion:
        calls = [Call("".join(name), "".join(arguments)) for name, arguments in self._calls.get(index, {}).values()]
        return Completion("".join(self._text.get(index, ())), calls, self._finish[index] == "length")


_open: dict[int, Gathered] = {}
"""Streams in progress by id of their request, for the hook that sees the cache counts."""


def counts_here(serving: Any) -> bool:
    """Whether this server's answers are the ones that clients get."""
    arguments = getattr(getattr(serving, "tokenizer_manager", None), "server_args", None)
    return str(getattr(arguments, "disaggregation_mode", "null")) != "prefill"


def _stream(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _generate_chat_stream(self: Any, adapted_request: Any, request: Any, raw_request: Any) -> Any:
        stream = original(self, adapted_request, request, raw_request)
        tools = offered(self, request) if counts_here(self) else {}
        return _watched(stream, request, Gathered(tools)) if tools else stream

    return _generate_chat_stream


async def _watched(stream: Any, request: Any, gathered: Gathered) -> AsyncIterator[Any]:
    _open[id(request)] = gathered
    try:
        async for chunk in stream:
            yield chunk
            begun = time.perf_counter()
            try:
                gathered.take(chunk)
            except Exception:
                gathered.failed = True
            gathered.seconds += time.perf_counter() - begun
        account(gathered)
    finally:
        _open.pop(id(request), None)
        await stream.aclose()


def account(gathered: Gathered) -> None:
    """Count a stream that ran to its end."""
    begun = time.perf_counter()
    try:
        outcome = gathered.outcome()
        if outcome is not None:
            tier = cache_tier(gathered.meta)
            series.count(outcome, tier, gathered.seconds + time.perf_counter() - begun)
    except Exception as error:
        log.warning("%s: a streamed completion was not counted: %s", MARK, type(error).__name__)


def _content(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _generate_stream_content(self: Any, *args: Any, **kwargs: Any) -> Any:
        gathered = _open.get(id(kwargs.get("request")))
        if gathered is not None:
            gathered.meta = (kwargs.get("content") or {}).get("meta_info") or {}
        return original(self, *args, **kwargs)

    return _generate_stream_content


def _build(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _build_chat_response(self: Any, request: Any, ret: Any, created: Any) -> Any:
        response = original(self, request, ret, created)
        begun = time.perf_counter()
        try:
            tools = offered(self, request) if counts_here(self) else {}
            if tools and hasattr(response, "choices"):
                outcome = whole(response, tools)
                if outcome is not None:
                    series.count(outcome, cache_tier(ret[0]["meta_info"]), time.perf_counter() - begun)
        except Exception as error:
            log.warning("%s: a completion was not counted: %s", MARK, type(error).__name__)
        return response

    return _build_chat_response


def whole(response: Any, tools: dict[str, Any]) -> str | None:
    """The outcome of an answer that was not streamed, None when it was aborted."""
    choices = []
    for choice in response.choices:
        if choice.finish_reason == "abort":
            return None
        message = choice.message
        calls = [Call(call.function.name or "", call.function.arguments or "") for call in message.tool_calls or ()]
        choices.append(Completion(message.content or "", calls, choice.finish_reason == "length"))
    return worst(judge(choice, tools, matches_schema) for choice in choices)


def install() -> None:
    """Hook chat serving. GuardError when a target is not there."""
    patching.wrap(f"{CHAT}._generate_chat_stream", _stream)
    patching.wrap(f"{CHAT}._generate_stream_content", _content)
    patching.wrap(f"{CHAT}._build_chat_response", _build)
