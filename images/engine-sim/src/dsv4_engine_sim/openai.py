"""Request bodies to engine requests, and engine output to response bodies, in SGLang 0.5.23's shapes."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from dsv4_engine_sim import chat, dsml, tokens
from dsv4_engine_sim.chat import RequestError
from dsv4_engine_sim.detector import Parser, TextParser
from dsv4_engine_sim.logprobs import CANDIDATES, Step
from dsv4_engine_sim.request import GenRequest, Output

if TYPE_CHECKING:
    from dsv4_engine_sim.guard import Guard
    from dsv4_engine_sim.settings import SimSettings

FINGERPRINT = "dsv4-engine-SIMULATOR"
DEEPSEEK_TOOL_PARSERS = ("deepseekv4", "deepseekv41")


def _integer(body: dict[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{key} must be an integer")
    return value


def _common(body: dict[str, Any], prompt: list[int], rid: str | None = None) -> GenRequest:
    """Fields that all three request formats share."""
    for field in ("logprobs", "top_logprobs"):
        if body.get(field):
            raise RequestError(f"the simulator does not compute {field}")
    if body.get("n") not in (None, 1):
        raise RequestError("the simulator serves n=1 only")
    room = _integer(body, "bootstrap_room")
    if room is not None and not 0 <= room < 2**63:
        raise RequestError("bootstrap_room must be between 0 and 2**63 - 1")
    stop = body.get("stop") or []
    given = rid or body.get("rid")
    return GenRequest(
        rid=given if isinstance(given, str) and given else uuid.uuid4().hex,
        prompt=prompt,
        stop=[stop] if isinstance(stop, str) else list(stop),
        ignore_eos=bool(body.get("ignore_eos")),
        stream=bool(body.get("stream")),
        bootstrap_host=body.get("bootstrap_host"),
        bootstrap_port=_integer(body, "bootstrap_port"),
        bootstrap_room=room,
        prefill_dp_rank=_integer(body, "disagg_prefill_dp_rank"),
    )


def _maximum(body: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = _integer(body, key)
        if value is not None:
            if value < 1:
                raise RequestError(f"{key} must be at least 1, got {value}")
            return value
    return None


def chat_request(body: dict[str, Any], settings: SimSettings) -> GenRequest:
    """``/v1/chat/completions`` body. Raises `RequestError`."""
    if settings.skip_tokenizer_init:
        raise RequestError("the engine was started with --skip-tokenizer-init and has no chat template")
    kind = (body.get("response_format") or {}).get("type", "text")
    if kind != "text":
        raise RequestError(f"the simulator does not implement response_format {kind!r}")
    request = _common(body, tokens.encode(chat.render(body)))
    request.max_new_tokens = _maximum(body, "max_completion_tokens", "max_tokens")
    functions = chat.active_tools(body)
    request.parse_tools = bool(functions)
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        request.forced_tools = [str((choice.get("function") or {}).get("name"))]
    elif choice == "required":
        request.forced_tools = [function["name"] for function in functions]
    elif choice not in (None, "auto", "none"):
        raise RequestError(f"tool_choice {choice!r} is not supported")
    if request.forced_tools and settings.tool_call_parser is None:
        raise RequestError("tool_choice needs --tool-call-parser")
    return request


def completion_request(body: dict[str, Any]) -> GenRequest:
    """``/v1/completions`` body; `prompt` is a text or token ids."""
    request = _common(body, _prompt(body.get("prompt"), "prompt"))
    request.max_new_tokens = _maximum(body, "max_tokens") or 16
    return request


def generate_request(body: dict[str, Any], settings: SimSettings) -> GenRequest:
    """Native ``/generate`` body with `text` or `input_ids`."""
    if settings.skip_tokenizer_init and body.get("input_ids") is None:
        raise RequestError(
            "The engine initialized with skip_tokenizer_init=True cannot accept text prompts. "
            "Please provide input_ids or re-initialize the engine with skip_tokenizer_init=False."
        )
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise RequestError("sampling_params must be an object")
    prompt = body.get("text") if body.get("text") is not None else body.get("input_ids")
    name = "text" if body.get("text") is not None else "input_ids"
    request = _common({**body, "stop": sampling.get("stop"), "n": sampling.get("n")}, _prompt(prompt, name))
    request.numbers = name == "input_ids" and tokens.are_numbers(request.prompt)
    request.return_logprob = bool(body.get("return_logprob"))
    request.top_logprobs_num = _integer(body, "top_logprobs_num") or 0
    if not 0 <= request.top_logprobs_num <= CANDIDATES:  # upstream's metadata buffer has room for so many
        raise RequestError(
            f"top_logprobs_num {request.top_logprobs_num} exceeds disaggregation metadata capacity {CANDIDATES}. "
            "Lower top_logprobs_num or increase the metadata buffer."
        )
    request.ignore_eos = bool(sampling.get("ignore_eos"))
    request.max_new_tokens = _maximum(sampling, "max_new_tokens") or 128
    return request


def _prompt(value: Any, name: str) -> list[int]:
    if isinstance(value, str):
        ids = tokens.encode(tokens.parse_specials(value))
        if ids:
            return ids
    elif tokens.is_token_list(value):
        return [int(item) for item in value]
    raise RequestError(f"{name} must be a non-empty text or a list of token ids")


def usage(request: GenRequest, settings: SimSettings) -> dict[str, Any]:
    """OpenAI usage object; cached tokens only with ``--enable-cache-report``."""
    prompt, generated = len(request.prompt), request.completion_tokens
    details = {"cached_tokens": sum(request.cached.values())} if settings.enable_cache_report else None
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": details,
        "reasoning_tokens": 0,
    }


def parser_for(body: dict[str, Any], request: GenRequest, settings: SimSettings) -> Parser:
    """The output parser that decode configures from its own copy of the request."""
    thinking = chat.thinking_requested(body) and settings.reasoning_parser is not None
    tools = request.parse_tools and settings.tool_call_parser in DEEPSEEK_TOOL_PARSERS
    if settings.output_era == "token":
        return dsml.OutputParser(thinking=thinking, tools=tools)
    names = [function["name"] for function in chat.active_tools(body)] if tools else []
    return TextParser(era=settings.output_era, thinking=thinking, tools=names, stream=request.stream)


class ChatBuilder:
    """Turns one request's output into a chat completion or its stream chunks."""

    def __init__(
        self, body: dict[str, Any], request: GenRequest, settings: SimSettings, guard: Guard | None = None
    ) -> None:
        self._guard = guard
        self._content = ""
        self._calls: dict[int, dict[str, str]] = {}
        self._body = body
        self._request = request
        self._settings = settings
        self._parser = parser_for(body, request, settings)
        self._created = int(time.time())
        self._model = body.get("model") or settings.served_model_name
        self._merge = body.get("separate_reasoning") is False

    def _finish(self, finish: dict[str, Any]) -> tuple[str, Any]:
        kind = finish["type"]
        if kind == "stop" and self._calls:
            return "tool_calls", None
        return kind, finish.get("matched")

    def _step(self, output: Output) -> dsml.Delta:
        text = tokens.decode(token for token in output.ids if token != tokens.EOS_ID)
        delta = self._parser.feed(text)
        if output.finish is not None:
            last = self._parser.finish()
            delta.reasoning += last.reasoning
            delta.content += last.content
            delta.calls += last.calls
        if self._merge:
            delta.content, delta.reasoning = delta.reasoning + delta.content, ""
        self._content += delta.content
        for piece in delta.calls:
            call = self._calls.setdefault(piece.index, {"name": "", "arguments": ""})
            call["name"] = piece.name if piece.name is not None else call["name"]
            call["arguments"] += piece.arguments
        if self._guard is not None and output.finish is not None and output.finish["type"] != "abort":
            calls = [(call["name"], call["arguments"]) for call in self._calls.values()]
            self._guard.count(self._body, self._request, self._content, calls)
        return delta

    async def whole(self, outputs: AsyncIterator[Output]) -> dict[str, Any]:
        """The not-streamed response body."""
        reasoning, finish = "", {"type": "stop"}
        async for output in outputs:
            reasoning += self._step(output).reasoning
            finish = output.finish or finish
        reason, matched = self._finish(finish)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self._content,
            "reasoning_content": reasoning or None,
        }
        if self._calls:
            message["tool_calls"] = [
                {"id": call_id(), "index": index, "type": "function", "function": call}
                for index, call in sorted(self._calls.items())
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": reason,
            "matched_stop": matched,
        }
        return {
            "id": self._request.rid,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
            "usage": usage(self._request, self._settings),
            "metadata": {"weight_version": "default"},
            "system_fingerprint": FINGERPRINT,
            **self._extension(),
        }

    def _extension(self) -> dict[str, Any]:
        """Cached tokens by tier, when the request asks with ``return_cached_tokens_details``."""
        details = cached_details(self._request)
        if not self._body.get("return_cached_tokens_details") or details is None:
            return {}
        return {"sglext": {"cached_tokens_details": details}}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, matched: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": matched}
        return self._envelope([choice])

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._request.rid,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        }

    async def chunks(self, outputs: AsyncIterator[Output]) -> AsyncIterator[dict[str, Any]]:
        """The stream's chunks, without the closing ``[DONE]``."""
        first = True
        async for output in outputs:
            if first:
                first = False
                yield self._chunk({"role": "assistant", "content": "", "reasoning_content": None})
            delta = self._step(output)
            if delta.reasoning:
                yield self._chunk({"reasoning_content": delta.reasoning})
            if delta.content:
                yield self._chunk({"content": delta.content, "reasoning_content": None})
            for piece in delta.calls:
                yield self._chunk({"reasoning_content": None, "tool_calls": [_call_delta(piece)]})
            if output.finish is not None:
                reason, matched = self._finish(output.finish)
                yield self._chunk({"reasoning_content": None}, reason, matched)
        if extension := self._extension():
            yield {**self._envelope([]), **extension}
        if (self._body.get("stream_options") or {}).get("include_usage"):
            yield {**self._envelope([]), "usage": usage(self._request, self._settings)}


def call_id() -> str:
    """A new tool call id, in upstream's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


def _call_delta(piece: dsml.CallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"name": piece.name, "arguments": piece.arguments}
    return {
        "id": call_id() if piece.name is not None else None,
        "index": piece.index,
        "type": "function",
        "function": function,
    }


def cached_details(request: GenRequest) -> dict[str, int] | None:
    """Cached tokens by tier; nothing at all for a cold prompt, as upstream ``get_cached_tokens_details``."""
    return dict(request.cached) if any(request.cached.values()) else None


def generate_body(
    body: dict[str, Any],
    request: GenRequest,
    settings: SimSettings,
    output: Output,
    seconds: float,
) -> dict[str, Any]:
    """Native ``/generate`` response; `output` is the whole output so far."""
    ranks = settings.dp_size
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": output.finish,
        "prompt_tokens": len(request.prompt),
        "weight_version": "default",
        "num_retractions": 0,
    }
    if request.return_logprob:
        meta |= _logprobs(request, output.steps or [], texts=bool(body.get("return_text_in_logprobs")))
    meta |= {
        "reasoning_tokens": 0,
        "completion_tokens": request.completion_tokens,
        "cached_tokens": sum(request.cached.values()),
        "cached_tokens_details": cached_details(request),
        "dp_rank": (request.bootstrap_room or 0) % ranks if ranks > 1 else None,
    }
    if output.finish is not None:
        meta["e2e_latency"] = seconds
    reply = {"output_ids": output.ids, "meta_info": meta}
    if settings.skip_tokenizer_init:
        return reply
    return {"text": tokens.spell(tokens.decode(token for token in output.ids if token != tokens.EOS_ID))} | reply


def _logprobs(request: GenRequest, steps: Sequence[Step], *, texts: bool) -> dict[str, Any]:
    """Upstream ``add_logprob_to_meta_info``: lists of [logprob, token id, text or null]; of the output alone."""

    def entry(logprob: float, token: int) -> list[Any]:
        return [logprob, token, tokens.spell(tokens.decode_one(token)) if texts else None]

    found: dict[str, Any] = {
        "input_token_logprobs": [],
        "output_token_logprobs": [entry(step.logprob, step.token) for step in steps],
        "output_token_logprobs_length": len(steps),
    }
    if request.top_logprobs_num:
        found["input_top_logprobs"] = []
        found["output_top_logprobs"] = [
            [entry(*candidate) for candidate in step.top[: request.top_logprobs_num]] or None for step in steps
        ]
    return found


def completion_body(
    body: dict[str, Any], request: GenRequest, settings: SimSettings, text: str, finish: dict[str, Any] | None
) -> dict[str, Any]:
    """``/v1/completions`` response or stream chunk; `finish` None for a chunk in the middle."""
    result: dict[str, Any] = {
        "id": request.rid,
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.get("model") or settings.served_model_name,
        "choices": [
            {
                "index": 0,
                "text": text,
                "logprobs": None,
                "finish_reason": finish["type"] if finish else None,
                "matched_stop": finish.get("matched") if finish else None,
            }
        ],
        "system_fingerprint": FINGERPRINT,
    }
    if finish is not None:
        result["usage"] = usage(request, settings)
    return result
