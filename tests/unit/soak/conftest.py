"""An OpenAI-compatible endpoint on loopback that answers right, or as a test scripts it. Real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dsv4_canary.soak.job import Job
from dsv4_canary.soak.settings import Stream

Body = dict[str, Any]
Behaviour = Callable[[web.Request, Body, int], Awaitable[web.StreamResponse | None]]


def asked_for(body: Body) -> tuple[str, dict[str, Any]]:
    """The call that the last message asks for, read out of its words."""
    text = body["messages"][-1]["content"].rpartition("Call the tool ")[2]
    tool = text.split(" ", 1)[0]
    (schema,) = (item["function"] for item in body["tools"] if item["function"]["name"] == tool)
    arguments, rest = {}, text
    for name in schema["parameters"]["properties"]:
        rest = rest.partition(f"{name} ")[2].removeprefix("`")
        arguments[name], end = json.JSONDecoder().raw_decode(rest)
        rest = rest[end:]
    return tool, arguments


def completion(body: Body, **changes: Any) -> Body:
    """The right answer; ``arguments`` and ``content`` may be given."""
    tool, arguments = asked_for(body)
    text = json.dumps(changes.get("arguments", arguments), ensure_ascii=False)
    calls = [{"id": "c", "type": "function", "function": {"name": tool, "arguments": text}}]
    message: Body = {"role": "assistant", "content": changes.get("content"), "tool_calls": calls}
    if "content" in changes:
        message.pop("tool_calls")
    choice = {"index": 0, "message": message, "finish_reason": "stop" if "content" in changes else "tool_calls"}
    return {"object": "chat.completion", "choices": [choice], "usage": usage(body)}


def usage(body: Body) -> Body:
    words = sum(len(str(message["content"]).split()) for message in body["messages"])
    return {"prompt_tokens": words, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}}


def stream_parts(whole: Body) -> list[bytes]:
    """A completion as server-sent events, the arguments in two pieces."""
    message = whole["choices"][0]["message"]
    deltas: list[Body] = [{"role": "assistant", "content": message.get("content") or ""}]
    for index, call in enumerate(message.get("tool_calls") or []):
        name, text = call["function"]["name"], call["function"]["arguments"]
        half = len(text) // 2
        pieces = ({"name": name, "arguments": text[:half]}, {"arguments": text[half:]})
        deltas += [{"tool_calls": [{"index": index, "function": piece}]} for piece in pieces]
    chunks: list[Body] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}]})
    chunks.append({"choices": [], "usage": whole["usage"]})
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


async def answer(request: web.Request, body: Body, whole: Body | None = None) -> web.StreamResponse:
    """Answer as asked: whole or streamed."""
    whole = completion(body) if whole is None else whole
    if not body.get("stream"):
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in stream_parts(whole):
        await response.write(part)
    return response


@dataclass
class Endpoint:
    """The server. ``behaviour`` gets every chat request and its number from 0; None from it means the right answer."""

    behaviour: Behaviour | None = None
    models: list[str] = field(default_factory=lambda: ["some-model"])
    bodies: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    now: int = 0
    most: int = 0
    url: str = ""
    runner: web.AppRunner | None = None

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            response = await self.behaviour(request, body, number) if self.behaviour else None
            return response if response is not None else await answer(request, body)
        finally:
            self.now -= 1

    async def list_models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes([web.post("/v1/chat/completions", self.chat), web.get("/v1/models", self.list_models)])
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        host, port = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    server = Endpoint()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """A small quiet job; keywords are fields of the settings, or of the job."""

    def make(url: str, **changes: Any) -> Job:
        values: dict[str, Any] = {
            "endpoint": url,
            "tag": "t",
            "sessions": 4,
            "rounds": 3,
            "ctx": 20,
            "shared_ctx": 60,
            "share": 2,
            "max_tokens": 500,
            "timeout": 20.0,
            "stream": Stream.MIX,
            "baseline": 2,
            "concurrency": 4,
            "reask": 5,
            "give_up": 0,
            "max_failed": 10.0,
        }
        own = {"model": None, "seed": 7, "folder": tmp_path, "quiet": True, "pause": 0.0}
        for name, value in changes.items():
            (values if name in values or name == "thinking" else own)[name] = value
        return Job(values=values, **own)

    return make


def drop(request: web.Request) -> None:
    """Cut the connection, without a word."""
    assert request.transport is not None
    request.transport.abort()


async def forever() -> None:
    """Hang until the connection is closed."""
    await asyncio.Event().wait()
