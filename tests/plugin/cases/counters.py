"""Live-traffic counters on the real OpenAIServingChat: both modes, the series as /metrics shows them."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from types import SimpleNamespace
from typing import Any

TOOL = {
    "type": "function",
    "function": {
        "name": "book_table",
        "parameters": {
            "type": "object",
            "properties": {"restaurant": {"type": "string"}, "guests": {"type": "integer"}},
            "required": ["restaurant", "guests"],
        },
    },
}
DSML = "｜DSML｜"
ANSWERS = {
    "valid": f'<{DSML}tool_calls>\n<{DSML}invoke name="book_table">\n'
    f'<{DSML}parameter name="restaurant" string="true">Luna</{DSML}parameter>\n'
    f'<{DSML}parameter name="guests" string="false">4</{DSML}parameter>\n'
    f"</{DSML}invoke>\n</{DSML}tool_calls>",
    "none": "There is nothing to book, all tables are taken tonight.",
}
COLD = {"cached_tokens": 0, "cached_tokens_details": None}
HOST = {"cached_tokens": 512, "cached_tokens_details": {"device": 128, "host": 384}}


class Tokenizer:
    """What the tool parser asks of a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        return {}


class Loose(SimpleNamespace):
    """Settings: False for whatever a case does not care about."""

    def __getattr__(self, name: str) -> bool:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


class Manager:
    """The tokenizer manager: answers in pieces, with the meta info of one request."""

    def __init__(self, text: str, meta: dict[str, Any], finish: str, pieces: int, mode: str) -> None:
        self.text, self.meta, self.finish, self.pieces = text, meta, finish, pieces
        self.server_args = Loose(disaggregation_mode=mode, tool_call_parser="deepseekv4", enable_cache_report=True)
        self.tokenizer = Tokenizer()

    async def generate_request(self, request: Any, raw: Any) -> Any:
        step = max(1, -(-len(self.text) // self.pieces))
        for end in range(step, len(self.text) + step, step):
            last = end >= len(self.text)
            yield {
                "text": self.text[:end],
                "output_ids": [],
                "index": 0,
                "meta_info": {
                    "id": "x", "prompt_tokens": 900, "completion_tokens": 3, "weight_version": "v",
                    "finish_reason": {"type": self.finish} if last else None, **self.meta,
                },
            }  # fmt: skip


def serving(text: str, meta: dict[str, Any], finish: str = "stop", pieces: int = 12, mode: str = "decode") -> Any:
    """A real OpenAIServingChat without a model behind it."""
    from sglang.srt.entrypoints.openai import serving_chat as module

    for name in ("get_serving", "get_disagg", "get_model", "get_exec"):
        if hasattr(module, name):
            setattr(module, name, lambda: Loose(enable_cache_report=True, tool_call_parser="deepseekv4"))
    # The text parser serves here also in 0.5.23, whose own works on the tokens of a real tokenizer.
    loose = {"__getattr__": lambda self, name: None, "_encoding_output": lambda self: None}
    made = object.__new__(type("Serving", (module.OpenAIServingChat,), loose))
    manager = Manager(text, meta, finish, pieces, mode)
    made.__dict__.update(tokenizer_manager=manager, tool_call_parser="deepseekv4", template_manager=Loose())
    return made


def request(stream: bool, tools: bool = True, choice: str = "auto", message_tools: str = "") -> Any:
    """A request that offers the tool: among its tools, or in a message of the role `message_tools`."""
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    offered: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice} if tools else {}
    message: list[dict[str, Any]] = [{"role": "user", "content": "A table at Luna for four."}]
    if message_tools:
        message.insert(0, {"role": message_tools, "content": "You book tables.", "tools": [TOOL]})
        if tools:
            weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
            offered["tools"] = [weather]
    return ChatCompletionRequest(model="m", messages=message, stream=stream, **offered)


def ask(made: Any, asked: Any) -> list[Any]:
    """What a client gets, streamed or not."""

    async def go() -> list[Any]:
        if asked.stream:
            return [chunk async for chunk in made._generate_chat_stream(None, asked, None)]
        made.tokenizer_manager.pieces = 1
        response = await made._handle_non_streaming_request(None, asked, None)
        return [response.model_dump_json()]

    return asyncio.run(go())


def counted() -> dict[str, float]:
    """outcome/cache -> count, those above 0; and how many requests the time series saw."""
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    found: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == "dsv4_guard_tool_calls_total" and sample.value:
                found[f"{sample.labels['outcome']}/{sample.labels['cache']}"] = sample.value
            elif sample.name == "dsv4_guard_request_seconds_count":
                found["timed"] = sample.value
    return found


def start() -> None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
    from dsv4_guard.live import tally

    tally.install()
    tally.series.start()


def shown(stream: bool, text: str, meta: str = "cold", finish: str = "stop", **more: Any) -> dict[str, Any]:
    """One answer, passed through with and without the plugin, and what was counted."""
    made = serving(ANSWERS.get(text, text), HOST if meta == "host" else COLD, finish, mode=more.pop("mode", "decode"))
    plain = ask(made, request(stream, **more))
    start()
    guarded = ask(made, request(stream, **more))

    def blank(chunk: Any) -> str:
        event = chunk[6:] if str(chunk).startswith("data: {") else chunk
        try:
            body = json.loads(event)
        except ValueError:
            return str(chunk)
        body.pop("created", None)
        for choice in body.get("choices", ()):
            for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ():
                call.pop("id", None)
        return json.dumps(body)

    return {"same": [blank(chunk) for chunk in plain] == [blank(chunk) for chunk in guarded], "counted": counted()}


def abandoned() -> dict[str, Any]:
    """A client that goes away in mid-stream is not counted, and nothing of it stays."""
    from dsv4_guard.live import tally

    start()
    made = serving(ANSWERS["valid"], COLD)

    async def go() -> None:
        stream = made._generate_chat_stream(None, request(True), None)
        await anext(stream)
        await anext(stream)
        await stream.aclose()

    asyncio.run(go())
    return {"counted": counted(), "open": len(tally._open)}


def series_from_the_start() -> int:
    """How many series there are before any request."""
    start()
    from prometheus_client import CollectorRegistry, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    names = [sample.name for family in registry.collect() for sample in family.samples]
    return names.count("dsv4_guard_tool_calls_total")


def cost(pieces: int = 600) -> dict[str, float]:
    """Seconds per request, in the counters (median) and in all: a text in `pieces` chunks, and one at once."""
    start()
    from dsv4_guard.live import tally

    spent: list[float] = []
    tally.series.count = lambda outcome, cache, seconds: spent.append(seconds)  # type: ignore[method-assign]
    found = {}
    for kind, stream in (("stream", True), ("whole", False)):
        made = serving(ANSWERS["none"] * 60, COLD, pieces=pieces)
        begun = time.perf_counter()
        for _ in range(20):
            ask(made, request(stream))
        found[f"{kind}_request"] = (time.perf_counter() - begun) / 20
        found[kind] = statistics.median(spent)
        spent.clear()
    return found
