"""Evidence that may be shown: a short piece of a reply with all foreign text masked. Pure.

A damaged engine can mix requests up, so a reply to our own probe may hold a user's words. What is kept: the
probe's own values and names and near misses of them, the markup, JSON punctuation, and a few words of plain
refusals. Every other word becomes a run of dots.
"""

from __future__ import annotations

import json
import re

from dsv4_canary import dsml
from dsv4_canary.expect import Expectation
from dsv4_canary.reply import Reply

LIMIT = 200
_MASK = "\u00b7"
_MASK_MAX = 8

_GRAMMAR = frozenset(
    (
        "DSML",
        "tool_calls",
        "toolcalls",
        "function_calls",
        "calls",
        "invoke",
        "parameter",
        "name",
        "string",
        "true",
        "false",
        "null",
        "json",
        "think",
        "arguments",
        "input",
        "parameters",
        "begin",
        "end",
        "of",
        "sentence",
        "User",
        "Assistant",
        "tool",
        "call",
        "the",
        "a",
        "I",
        "will",
    )
)
_VOCABULARY = _GRAMMAR | {piece for word in _GRAMMAR for piece in word.split("_")} | {"content", "reasoning"}
_PIECE_RE = re.compile(r"[^\W_]+|[\W_]", re.UNICODE)


def excerpt(reply: Reply, expectation: Expectation) -> str:
    """Masked evidence of at most LIMIT characters: calls first, then content, then reasoning."""
    own: set[str] = set()
    for text in (expectation.tool, json.dumps(dict(expectation.arguments), ensure_ascii=False, default=str)):
        own.update(piece for piece in _PIECE_RE.findall(text) if piece[0].isalnum())
    parts = [f"call {call.name}({call.arguments[:LIMIT]})" for call in reply.calls[:3]]
    if reply.content:
        parts.append("content " + reply.content[:LIMIT])
    if reply.reasoning:
        parts.append("reasoning " + reply.reasoning[:LIMIT])
    near = (*sorted(piece for piece in own if len(piece) >= 4), "invoke", "parameter", "calls")
    shown: list[str] = []
    length = 0
    for piece in _PIECE_RE.findall(" | ".join(parts)[: 4 * LIMIT]):
        if not piece[0].isalnum():
            shown.append(" " if piece.isspace() else piece if piece.isprintable() else "\ufffd")
        elif piece in _VOCABULARY or piece in own or _is_near(piece, near):
            shown.append(piece)
        else:
            shown.append(_MASK * min(len(piece), _MASK_MAX))
        length += len(shown[-1])
        if length > LIMIT:
            break
    text = "".join(shown)
    return text if len(text) <= LIMIT else text[: LIMIT - 1] + "\u2026"


def _is_near(piece: str, own: tuple[str, ...]) -> bool:
    """One edit (two in a long word) or a change of order away from a word of the probe."""
    if len(piece) < 3:
        return False
    for word in own:
        most = 2 if len(word) >= 6 else 1
        if abs(len(piece) - len(word)) > most:
            continue
        if sorted(piece) == sorted(word) or dsml.edit_distance(piece, word, most) <= most:
            return True
    return False
