"""The HTTP server: SGLang's endpoints that routers, probes and operators use, and ``/sim/switches``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from dsv4_engine_sim import __version__, dsml, openai, tokens
from dsv4_engine_sim.chat import RequestError
from dsv4_engine_sim.engine import Engine
from dsv4_engine_sim.guard import Guard
from dsv4_engine_sim.logprobs import Step
from dsv4_engine_sim.request import GenRequest, Output, RequestFailedError
from dsv4_engine_sim.switches import SwitchError

log = logging.getLogger(__name__)

_OPEN_PATHS = ("/health", "/health_generate", "/ready", "/metrics", "/sim/switches")


class SimServer:
    """Handlers of one engine. `loading_done` is set when the pretended model load is over."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.settings = engine.settings
        self.guard = Guard(engine.settings, engine.metrics.registry) if engine.settings.guard else None
        self.loading_done = False
        self.stopping = False
        self.slow_until = 0.0
        engine.switches.listeners.append(self._switched)
        self.started = time.time()
        self.app = web.Application(middlewares=[self._guard], client_max_size=256 * 1024 * 1024)
        add = self.app.router.add_route
        for path, methods, handler in (
            ("/health", "GET", self.health),
            ("/health_generate", "GET", self.health),
            ("/ready", "GET", self.ready),
            ("/server_info", "GET", self.server_info),
            ("/get_server_info", "GET", self.server_info),
            ("/model_info", "GET", self.model_info),
            ("/get_model_info", "GET", self.model_info),
            ("/v1/models", "GET", self.models),
            ("/v1/models/{model:.+}", "GET", self.model),
            ("/flush_cache", "GET POST", self.flush_cache),
            ("/abort_request", "POST", self.abort_request),
            ("/parse_function_call", "POST", self.parse_function_call),
            ("/generate", "POST PUT", self.generate),
            ("/v1/completions", "POST", self.completions),
            ("/v1/chat/completions", "POST", self.chat),
            ("/sim/switches", "GET", self.read_switches),
            ("/sim/switches", "PUT", self.write_switches),
        ):
            for method in methods.split():
                add(method, path, handler)
        if self.settings.enable_metrics:
            add("GET", "/metrics", self.metrics)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """API key, banner header, and requests before the model is loaded."""
        key = self.settings.api_key
        if key and request.path not in _OPEN_PATHS and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.method in ("POST", "PUT") and not self.loaded and request.path not in _OPEN_PATHS:
            return _error("The server is still starting", 503, "ServiceUnavailable")
        response = await handler(request)
        if not response.prepared:
            response.headers["Server"] = f"dsv4-engine-sim/{__version__} (SIMULATOR)"
        return response

    def _switched(self, names: set[str]) -> None:
        if "slow_start_seconds" in names:
            self.slow_until = time.monotonic() + self.engine.switches.number("slow_start_seconds")

    @property
    def loaded(self) -> bool:
        """The pretended weights are there."""
        return self.loading_done and time.monotonic() >= self.slow_until

    # -- probes and information -------------------------------------------------------------------------------------

    async def health(self, _request: web.Request) -> web.Response:
        """One token through the fake peer, as upstream; says nothing about transfers."""
        if self.stopping or not self.loaded:
            return web.Response(status=503)
        probe = asyncio.create_task(self.engine.probe())
        await asyncio.sleep(self.settings.health_seconds)  # upstream looks for the answer once a second
        return web.Response(status=200 if await probe else 503)

    async def ready(self, _request: web.Request) -> web.Response:
        """Cheap: started and not shutting down."""
        return web.Response(status=200 if self.loaded and not self.stopping else 503)

    async def server_info(self, _request: web.Request) -> web.Response:
        """Resolved arguments and live state."""
        state = {
            "last_gen_throughput": 0.0,
            "memory_usage": {"kvcache": 0.0, "token_capacity": self.engine.pool.pages * self.settings.page_size},
            "effective_max_running_requests_per_dp": self.settings.max_running_requests,
        }
        return web.json_response(
            {
                **self.settings.server_info,
                "status": "ready" if self.loaded else "starting",
                "max_total_num_tokens": self.engine.pool.pages * self.settings.page_size,
                "max_req_input_len": self.settings.context_length - 6,
                "startup_time": self.started,
                "internal_states": [state] * self.settings.dp_size,
                "version": self.settings.release,
                "simulator": {
                    "notice": "This is a SIMULATOR. It has no model.",
                    "version": __version__,
                    "index_k_dtype": self.settings.index_k_dtype,
                    "kv_layout": self.settings.kv_layout,
                    "page_bytes": self.engine.layout.page_bytes,
                },
            }
        )

    async def model_info(self, _request: web.Request) -> web.Response:
        """What is served, and that it is pretended."""
        return web.json_response(
            {
                "model_path": self.settings.model_path,
                "served_model_name": self.settings.served_model_name,
                "tokenizer_path": self.settings.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "load_format": "auto",
                "reasoning_parser": self.settings.reasoning_parser,
                "tool_call_parser": self.settings.tool_call_parser,
                "disaggregation_mode": self.settings.mode,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "deepseek_v4",
                "architectures": ["DeepseekV4ForCausalLM"],
                "simulator": True,
            }
        )

    def _card(self) -> dict[str, Any]:
        name = self.settings.served_model_name
        return {
            "id": name,
            "object": "model",
            "created": int(self.started),
            "owned_by": "SIMULATOR (dsv4-engine-sim)",
            "root": name,
            "parent": None,
            "max_model_len": self.settings.context_length,
        }

    async def models(self, _request: web.Request) -> web.Response:
        """OpenAI model list."""
        return web.json_response({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """One model."""
        name = request.match_info["model"]
        if name == self.settings.served_model_name:
            return web.json_response(self._card())
        return _error(f"The model '{name}' does not exist", 404, "NotFoundError")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(
            body=self.engine.metrics.exposition(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    # -- control ----------------------------------------------------------------------------------------------------

    async def flush_cache(self, _request: web.Request) -> web.Response:
        """400 while requests run, as upstream."""
        if self.engine.busy:
            return web.Response(text="Flush cache failed.\n", status=400)
        self.engine.cache.flush()
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )

    async def abort_request(self, request: web.Request) -> web.Response:
        """Abort by id prefix, or all."""
        body = await _json_body(request)
        self.engine.abort(str(body.get("rid") or ""), everything=bool(body.get("abort_all")))
        return web.Response(status=200)

    async def parse_function_call(self, request: web.Request) -> web.Response:
        """Parse a text as a whole output."""
        body = await _json_body(request)
        if body.get("tool_call_parser") not in openai.DEEPSEEK_TOOL_PARSERS:
            return _error("the simulator knows the DeepSeek-V4 tool-call parsers only", 400)
        names = [(tool.get("function") or {}).get("name") for tool in body.get("tools") or []]
        text = tokens.parse_specials(str(body.get("text", "")))
        _, content, calls = dsml.parse(text, thinking=False, tools=bool(names))
        return web.json_response(
            {
                "normal_text": content,
                "calls": [
                    {
                        "tool_index": names.index(call.name) if call.name in names else -1,
                        "name": call.name,
                        "parameters": call.arguments,
                    }
                    for call in calls
                ],
            }
        )

    async def read_switches(self, _request: web.Request) -> web.Response:
        """The fault switches."""
        return web.json_response(self.engine.switches.read())

    async def write_switches(self, request: web.Request) -> web.Response:
        """Change fault switches; 400 for an unknown one."""
        try:
            self.engine.switches.update(await _json_body(request))
        except (SwitchError, RequestError) as error:
            return _error(str(error), 400)
        log.warning("switches: %s", self.engine.switches.read())
        return web.json_response(self.engine.switches.read())

    # -- generation -------------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``/v1/chat/completions``."""
        try:
            body = await _json_body(request)
            generation = openai.chat_request(body, self.settings)
            builder = openai.ChatBuilder(body, generation, self.settings, self.guard)
            if generation.stream:
                return await _stream(request, builder.chunks(self.engine.generate(generation)))
            return web.json_response(await builder.whole(self.engine.generate(generation)))
        except RequestError as error:
            return _error(str(error), 400)
        except RequestFailedError as error:
            return _error(str(error), error.status)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """``/v1/completions``."""
        try:
            body = await _json_body(request)
            generation = openai.completion_request(body)
            outputs = self.engine.generate(generation)
            if generation.stream:
                return await _stream(request, self._completion_chunks(body, generation, outputs))
            output = await _collect(outputs)
            text = _visible(output.ids)
            return web.json_response(openai.completion_body(body, generation, self.settings, text, output.finish))
        except RequestError as error:
            return _error(str(error), 400)
        except RequestFailedError as error:
            return _error(str(error), error.status)

    async def _completion_chunks(
        self, body: dict[str, Any], generation: GenRequest, outputs: AsyncIterator[Output]
    ) -> AsyncIterator[dict[str, Any]]:
        async for output in outputs:
            text = _visible(output.ids)
            yield openai.completion_body(body, generation, self.settings, text, output.finish)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Native ``/generate``; a list of texts, or of lists of ids, gives a list of results."""
        try:
            body = await _json_body(request)
            if isinstance(body.get("text"), list) or _is_batch(body.get("input_ids")):
                return await self._batch(body)
            generation = openai.generate_request(body, self.settings)
            if generation.stream:
                return await _stream(request, self._native_chunks(body, generation))
            return web.json_response(await self._native(body, generation))
        except RequestError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        except RequestFailedError as error:
            return _error(str(error), error.status)

    async def _native(self, body: dict[str, Any], generation: GenRequest) -> dict[str, Any]:
        start = time.monotonic()
        output = await _collect(self.engine.generate(generation))
        return openai.generate_body(body, generation, self.settings, output, time.monotonic() - start)

    async def _native_chunks(self, body: dict[str, Any], generation: GenRequest) -> AsyncIterator[dict[str, Any]]:
        """Each chunk holds all output so far, as upstream without ``--incremental-streaming-output``."""
        start, ids = time.monotonic(), list[int]()
        steps: list[Step] = []
        async for output in self.engine.generate(generation):
            ids += output.ids
            steps += output.steps or []
            whole = Output(ids, output.finish, steps)
            yield openai.generate_body(body, generation, self.settings, whole, time.monotonic() - start)

    async def _batch(self, body: dict[str, Any]) -> web.Response:
        if body.get("stream"):
            raise RequestError("the simulator does not stream batches")
        name = "text" if isinstance(body.get("text"), list) else "input_ids"

        def item(key: str, index: int) -> Any:
            value = body.get(key)
            return value[index] if isinstance(value, list) and key != "sampling_params" else value

        async def one(index: int) -> dict[str, Any]:
            part = body | {key: item(key, index) for key in body}
            room = body.get("bootstrap_room")
            if isinstance(room, int):
                part["bootstrap_room"] = room + index
            return await self._native(part, openai.generate_request(part, self.settings))

        return web.json_response(await asyncio.gather(*map(one, range(len(body[name])))))


def _is_batch(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _visible(ids: list[int]) -> str:
    return tokens.spell(tokens.decode(token for token in ids if token != tokens.EOS_ID))


async def _collect(outputs: AsyncIterator[Output]) -> Output:
    """All output of a request as one."""
    ids: list[int] = []
    steps: list[Step] = []
    finish = None
    async for output in outputs:
        ids += output.ids
        steps += output.steps or []
        finish = output.finish or finish
    return Output(ids, finish, steps)


async def _json_body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise RequestError(f"Invalid JSON body: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return body


def _error_object(message: str, status: int, kind: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def _error(message: str, status: int, kind: str | None = None) -> web.Response:
    """An error body as upstream: its own type for 400, the status as type otherwise."""
    name = kind or ("BadRequestError" if status == 400 else str(status))
    return web.json_response(_error_object(message, status, name), status=status)


async def _stream(request: web.Request, chunks: AsyncIterator[dict[str, Any]]) -> web.StreamResponse:
    """Server-sent events. The first chunk is awaited before the status line, so bad input is a plain 400;
    a transfer that fails is an error event in a 200 stream, as upstream."""
    failure: RequestFailedError | None = None
    first: dict[str, Any] | None = None
    try:
        first = await anext(chunks)
    except RequestFailedError as error:
        failure = error
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    response.headers["Server"] = f"dsv4-engine-sim/{__version__} (SIMULATOR)"
    async with contextlib.aclosing(chunks):  # type: ignore[type-var]  # always an async generator
        await response.prepare(request)
        if first is not None:
            await _event(response, first)
            try:
                async for chunk in chunks:
                    await _event(response, chunk)
            except RequestFailedError as error:
                failure = error
        if failure is not None:
            name = "INTERNAL_SERVER_ERROR" if failure.status == 500 else str(failure.status)
            await _event(response, {"error": _error_object(str(failure), failure.status, name)})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
    return response


async def _event(response: web.StreamResponse, data: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n")
