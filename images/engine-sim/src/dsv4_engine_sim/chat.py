"""Chat messages and tools to a DeepSeek-V4 prompt, as the deepseek-recipe package 0.2.0 renders it for SGLang 0.5.23.

The result is internal text (see `tokens`). Tests compare it with recordings of the real package.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from dsv4_engine_sim.tokens import ASSISTANT, BOS, DSML, EOS, THINK, THINK_END, USER, literal


class RequestError(ValueError):
    """The request cannot be served: HTTP 400 with this text."""


_EFFORT_MAXIMUM = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_EFFORT_BEYOND = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
_EFFORT = {
    None: _EFFORT_MAXIMUM,
    "none": _EFFORT_MAXIMUM,
    "minimal": "",
    "low": "",
    "medium": _EFFORT_MAXIMUM,
    "high": _EFFORT_MAXIMUM,
    "xhigh": _EFFORT_MAXIMUM,
    "max": _EFFORT_BEYOND,
}

_TOOLS = f"""

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{THINK_END} BEFORE any tool calls or final response.

Otherwise, output directly after {THINK_END} with tool calls or final response.

### Available Tool Schemas

%s

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def thinking_requested(body: dict[str, Any]) -> bool:
    """``chat_template_kwargs.thinking`` (or ``enable_thinking``); off by default."""
    kwargs = body.get("chat_template_kwargs") or {}
    return bool(kwargs.get("thinking", kwargs.get("enable_thinking", False)))


def active_tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The offered functions; none when ``tool_choice`` is ``"none"``. Raises `RequestError` on bad ones."""
    tools = body.get("tools") or []
    if body.get("tool_choice") == "none":
        return []
    functions: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError("tools: each tool needs a function with a name")
        parameters = function.get("parameters")
        if parameters is not None and (not isinstance(parameters, dict) or parameters.get("type") != "object"):
            kind = parameters.get("type") if isinstance(parameters, dict) else None
            raise RequestError(
                f"Invalid schema for function '{function['name']}': schema must be a JSON Schema of "
                f"'type: \"object\"', got 'type: {kind or 'null'}'."
            )
        functions.append(function)
    if len({function["name"] for function in functions}) != len(functions):
        raise RequestError("Tool names must be unique.")
    return functions


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return literal(content)
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise RequestError("message content: only text parts are supported")
            parts.append(literal(part["text"]))
        return "\n\n".join(parts)
    raise RequestError("message content must be a string or a list of parts")


def _call(call: dict[str, Any]) -> str:
    function = call.get("function") or {}
    arguments = function.get("arguments", "{}")
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        values = {"arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    lines = [f'<{DSML}invoke name="{literal(str(function.get("name", "")))}">\n']
    for key, value in values.items():
        is_string = isinstance(value, str)
        text = value if is_string else json.dumps(value, ensure_ascii=False)
        lines.append(
            f'<{DSML}parameter name="{literal(key)}" string="{str(is_string).lower()}">{literal(text)}'
            f"</{DSML}parameter>\n"
        )
    return "".join(lines) + f"</{DSML}invoke>"


def _assistant(message: dict[str, Any], keep_reasoning: bool) -> str:
    reasoning = message.get("reasoning_content")
    text = ASSISTANT
    if keep_reasoning:
        text += THINK + literal(reasoning or "") + THINK_END
    else:
        text += THINK_END
    text += _content(message)
    calls = message.get("tool_calls") or []
    if calls:
        text += f"\n\n<{DSML}tool_calls>\n" + "\n".join(map(_call, calls)) + f"\n</{DSML}tool_calls>"
    return text + EOS


def render(body: dict[str, Any]) -> str:
    """The prompt of a chat completion request. Raises `RequestError`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("Empty input messages")
    thinking = thinking_requested(body)
    functions = active_tools(body)
    system: list[str] = []
    turns: list[tuple[str, str]] = []
    pending: set[str] = set()
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if role in ("system", "developer"):
            system.append(_content(message))
        elif role == "user":
            turns.append(("user", _content(message)))
        elif role == "tool":
            if message.get("tool_call_id") not in pending:
                raise RequestError(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                )
            turns.append(("tool", f"<tool_result>{_content(message)}</tool_result>"))
        elif role == "assistant":
            pending = {str(call.get("id")) for call in message.get("tool_calls") or []}
            turns.append(("assistant", _assistant(message, thinking and bool(functions))))
        else:
            raise RequestError(f"unknown message role {role!r}")
    effort = body.get("reasoning_effort") or (body.get("chat_template_kwargs") or {}).get("reasoning_effort")
    if effort not in _EFFORT:
        raise RequestError(f"DeepSeek-V4 reasoning_effort must be a named tier, got {effort!r}")
    text = BOS + (_EFFORT[effort] if thinking else "") + "\n\n".join(filter(None, system))
    if functions:
        schemas = (
            json.dumps(
                {
                    "name": function["name"],
                    "description": function.get("description") or "",
                    "parameters": function.get("parameters") or {},
                },
                ensure_ascii=False,
            )
            for function in functions
        )
        text += _TOOLS % literal("\n".join(schemas))
    for is_assistant, group in groupby(turns, key=lambda item: item[0] == "assistant"):
        if is_assistant:
            text += "".join(turn for _, turn in group)
            continue
        # One user turn: neighbouring user messages first (empty ones leave no trace), then tool results beside them.
        parts: list[str] = []
        for kind, run in groupby(group, key=lambda item: item[0]):
            pieces = [piece for _, piece in run]
            parts += pieces if kind == "tool" else ["\n\n".join(filter(None, pieces))]
        text += USER + "\n\n".join(parts)
    return text + ASSISTANT + (THINK if thinking else THINK_END)
