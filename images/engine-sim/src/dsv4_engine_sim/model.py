"""The "model": a deterministic reader of the prompt that was found in the pages. No weights, no randomness.

Everything it writes is taken from the prompt text it is given: the spelling of the tool-call markup from the example in
the tools section, tool names and parameters from the schemas there, values from the last user turn. Damage to any of
them therefore comes out as the kind of damage seen in the field: garbled values, misspelt or leaked markup, missing
calls. What it understands:

* the last user turn asks to call, use or invoke an offered tool, and names every required parameter followed by its
  value (``token "zk-41"``, ``n 7``, ``flags `[1, 2]` ``) -> tool calls;
* a value may be looked up: with "token from note 3", where an earlier turn has "note 3: token "zk-41"", the value is
  copied from there;
* what is damaged is read as far as it can be: schemas that are no JSON any more give the names still legible, a format
  that is gone leaves an announcement in prose;
* the last user turn ends with tool results -> a text quoting them;
* "reply with exactly "X"" -> X;
* anything else -> a text with a digest of the whole prompt and the last words of the user: it changes with any token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dsv4_engine_sim.tokens import ASSISTANT, DSML, EOS, THINK, THINK_END, USER

_VALUE = (
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|`[^`]*`|\[[^\]]*\]|\{[^}]*\}"""
    r"""|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true\b|false\b|null\b)"""
)
_ASKS = re.compile(r"\b(?:call|calls|calling|use|using|invoke|invoking|run)\b", re.IGNORECASE)
_FORBIDS = re.compile(
    r"\b(?:do not|don't|never|without|must not|no need to|not to)\s+(?:\w+\s+){0,2}?(?:call|use|invoke|run)",
    re.IGNORECASE,
)
_EXACTLY = re.compile(
    r"\b(?:reply|answer|respond)\s+(?:only\s+)?with\s+(?:exactly|only)?[^\"`\n]{0,20}[\"`](?P<text>[^\"`]+)[\"`]",
    re.IGNORECASE,
)
_RESULT = re.compile(r"<tool_result>(.*?)</tool_result>", re.DOTALL)
_NAME = re.compile(r'"name": ?"([^"]{1,80})"')
_PROPERTY = re.compile(r'"([^"\s]{1,40})": ?\{"type": ?"(\w+)"')
_REACH = 200
"""Characters before a tool's name in which the request to call it is looked for."""
_SCHEMAS = "### Available Tool Schemas\n\n"
_FORMAT = (
    f"<{DSML}tool_calls>",
    f'<{DSML}invoke name="$TOOL_NAME">',
    f'<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>',
    f"</{DSML}invoke>",
    f"</{DSML}tool_calls>",
)
"""What a grammar (``tool_choice`` required or named) writes whatever the prompt looks like."""
_EXAMPLE = "block like the following:\n\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the reader found in the prompt text."""

    text: str
    user: str
    """The last user turn."""
    thinking: bool
    functions: tuple[dict[str, Any], ...]
    example: tuple[str, ...]
    """Lines of the markup example, as read: block, invoke, parameter, end of invoke, end of block."""


def read_prompt(text: str) -> Prompt:
    """Find turns, schemas and the markup example in internal text; what cannot be read is simply not there."""
    head, _, last = text.rpartition(USER)
    user, _, tail = last.partition(ASSISTANT)
    if ASSISTANT not in last:  # raw completion, or a damaged prompt
        user, tail = last, ""
    functions, example = _functions(text), _example(text)
    return Prompt(text, user if head or USER in text else text, tail.endswith(THINK), functions, example)


def _functions(text: str) -> tuple[dict[str, Any], ...]:
    """Schemas of the offered tools; of those that are not JSON any more, what is still legible."""
    functions: list[dict[str, Any]] = []
    head, found, schemas = text.partition(_SCHEMAS)
    if found:
        rows = schemas.split("\n\n", 1)[0].split("\n")
    elif DSML in (head := text.partition(USER)[0]):  # a tools section whose headline is damaged
        rows = head.split("\n")
    else:
        rows = []
    for row in rows:
        try:
            schema = json.loads(row)
        except (json.JSONDecodeError, RecursionError):
            schema = _legible(row)
        if isinstance(schema, dict) and isinstance(schema.get("name"), str):
            functions.append(schema)
    return tuple(functions)


def _legible(row: str) -> dict[str, Any] | None:
    name = _NAME.search(row)
    if name is None:
        return None
    properties = {key: {"type": kind} for key, kind in _PROPERTY.findall(row) if key not in ("name", "parameters")}
    return {"name": name[1], "parameters": {"type": "object", "properties": properties}}


def _example(text: str) -> tuple[str, ...]:
    """The markup example, line for line as read; empty when nothing of it is left."""
    _, found, section = text.partition(_EXAMPLE)
    if not found:
        head = text.partition(USER)[0]
        start = head.find("<" + DSML, head.find(DSML) + 1)  # the first one only names the block
        if start < 0:
            return ()
        section = head[start:]
    lines = section.split("\n\n", 1)[0].split("\n")
    return (lines[0], *(lines[min(number, len(lines) - 1)] for number in (1, 2, 4)), lines[-1])


def _convert(raw: str, schema: dict[str, Any]) -> tuple[str, bool] | None:
    """A value found in the text, as (markup text, is a string), or None where it does not suit the schema's type."""
    kind = schema.get("type", "string")
    bare = raw[1:-1] if raw[:1] in "\"'`" else raw
    if raw[:1] == '"' and "\\" in raw:
        try:
            bare = json.loads(raw)
        except json.JSONDecodeError:
            bare = raw[1:-1]
    if kind == "string":
        return bare, True
    try:
        value = json.loads(bare)
    except json.JSONDecodeError:
        return None
    expected: tuple[type, ...] = {
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "array": (list,),
        "object": (dict,),
        "null": (type(None),),
    }.get(kind if isinstance(kind, str) else "", (object,))
    if not isinstance(value, expected) or (kind in ("integer", "number") and isinstance(value, bool)):
        return None
    return bare, False


def _noted(name: str, schema: dict[str, Any], text: str, whole: str) -> tuple[str, bool] | None:
    """The value of a parameter that `text` says to take from a note, as far as the note can be found and read."""
    wanted = re.search(rf"(?<![\w-]){re.escape(name)} (?:from|of|in) note (\d+)", text)
    if wanted is None:
        return None
    noted = re.search(rf'note {wanted[1]}: {re.escape(name)} "([^"\n]*)"', whole)
    return _convert(noted[1] if noted else "", schema)


def _arguments(function: dict[str, Any], text: str, whole: str = "") -> dict[str, tuple[str, bool]] | None:
    """Values of the function's parameters found in `text`; None when a required one is missing.

    `whole` is the prompt, for values that the text says to look up.
    """
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    if not isinstance(properties, dict):
        return None
    found: dict[str, tuple[str, bool]] = {}
    for name, schema in properties.items():
        note = _noted(name, schema if isinstance(schema, dict) else {}, text, whole)
        if note is not None:
            found[name] = note
            continue
        pattern = rf"(?<![\w-])[\"'`]?{re.escape(name)}[\"'`]?(?:\s+(?:is|to|of|set to|equal to))?\s*[:=]?\s*" + _VALUE
        for match in re.finditer(pattern, text):
            value = _convert(match["value"], schema if isinstance(schema, dict) else {})
            if value is not None:
                found[name] = value
                break
    required = parameters.get("required") or []
    return found if all(name in found for name in required) else None


def _wanted_calls(prompt: Prompt) -> list[tuple[str, dict[str, tuple[str, bool]]]]:
    """Calls the last user turn asks for, in the order in which the tools are mentioned last."""
    user = _RESULT.sub("", prompt.user)
    mentions: list[tuple[int, dict[str, Any]]] = []
    for function in prompt.functions:
        places = [match.start() for match in re.finditer(rf"(?<![\w-]){re.escape(function['name'])}(?![\w-])", user)]
        if places:
            mentions.append((places[-1], function))
    mentions.sort(key=lambda item: item[0])
    calls = []
    for number, (start, function) in enumerate(mentions):
        before = user[max(0, start - _REACH) : start]
        end = mentions[number + 1][0] if number + 1 < len(mentions) else len(user)
        if not _ASKS.search(before) or _FORBIDS.search(before):
            continue
        values = _arguments(function, user[start:end], prompt.text)
        if values is None and len(mentions) == 1:  # values named before the tool
            values = _arguments(function, before, prompt.text)
        if values is not None:
            calls.append((function["name"], values))
    return calls


def _forced_calls(prompt: Prompt, names: list[str]) -> list[tuple[str, dict[str, tuple[str, bool]]]]:
    """With a grammar (``tool_choice`` required or named) a call always comes out; gaps are filled by type."""
    blanks = {"string": ("", True), "integer": ("0", False), "number": ("0", False), "boolean": ("false", False)}
    for function in prompt.functions:
        if function["name"] not in names:
            continue
        parameters = function.get("parameters") or {}
        values = _arguments({**function, "parameters": {**parameters, "required": []}}, prompt.user) or {}
        for name in parameters.get("required") or []:
            schema = (parameters.get("properties") or {}).get(name) or {}
            values.setdefault(name, blanks.get(schema.get("type", "string"), ("null", False)))
        return [(function["name"], values)]
    return []


def _markup(prompt: Prompt, calls: list[tuple[str, dict[str, tuple[str, bool]]]]) -> str:
    """Tool-call markup, spelled as the example in the prompt spells it."""
    block, invoke, parameter, invoke_end, block_end = prompt.example or _FORMAT
    lines = [block]
    for name, values in calls:
        lines.append(invoke.replace("$TOOL_NAME", name))
        for key, (value, is_string) in values.items():
            line = parameter.replace("$PARAMETER_NAME", key).replace("true|false", "true" if is_string else "false")
            lines.append(line.replace("$PARAMETER_VALUE", value))
        lines.append(invoke_end)
    return "\n".join([*lines, block_end])


def _text_answer(prompt: Prompt) -> str:
    results: list[str] = _RESULT.findall(prompt.user)
    if results and prompt.user.endswith("</tool_result>"):
        return "The tool returned: " + "; ".join(result.strip() for result in results)
    exact = _EXACTLY.search(prompt.user)
    if exact:
        return exact["text"]
    digest = hashlib.blake2b(prompt.text.encode("utf-8", "replace"), digest_size=6).hexdigest()
    words = prompt.user.split()
    return (
        f'I am a simulator and have read {len(prompt.text)} characters ({digest}). You said: "{" ".join(words[-24:])}"'
    )


def answer(text: str, *, forced_tools: list[str] | None = None, parse_tools: bool = True) -> str:
    """The output (internal text, without the final end token) for a prompt.

    `forced_tools`: names allowed by ``tool_choice`` required or named. `parse_tools`: whether tools were offered.
    """
    prompt = read_prompt(text)
    calls = _forced_calls(prompt, forced_tools) if forced_tools else _wanted_calls(prompt) if parse_tools else []
    reasoning = ""
    if prompt.thinking:
        aim = f"call {', '.join(name for name, _ in calls)}" if calls else "answer in text"
        reasoning = f"The last message has {len(prompt.user)} characters. I will {aim}.{THINK_END}"
    if calls and not prompt.example and not forced_tools:
        return reasoning + f"I will call {calls[0][0]} now."
    if calls:
        return reasoning + "\n\n" + _markup(prompt, calls)
    return reasoning + _text_answer(prompt).replace(EOS, "")


def endless(text: str) -> Iterator[str]:
    """What follows when the end token is ignored (``ignore_eos``): the answer's words again and again."""
    words = text.split() or ["…"]
    while True:
        for word in words:
            yield " " + word
