"""What the right reply to a request looks like. Pure data; also the file format of an expectation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("call", "none", "text")
_FIELDS = ("mode", "tool", "arguments", "toolChoice", "nonces", "prompt")
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected reply.

    ``mode``: ``call`` (exactly one call of ``tool`` with ``arguments``), ``none`` (tools offered, no call
    allowed), ``text`` (a plain answer). ``nonces``: secrets of other requests, which must not appear.
    ``prompt``: the long text that was sent, to recognise a reply that copies it.
    """

    mode: str = "call"
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: str = "auto"
    nonces: tuple[str, ...] = ()
    prompt: str = ""

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Expectation:
        """Read the JSON form: mode, tool, arguments, toolChoice, nonces, prompt; all optional but the tool of a call.

        Raises ValueError with one line that names the field.
        """
        for name in raw:
            if name not in _FIELDS:
                raise ValueError(f"{name}: no field of an expectation; use {', '.join(_FIELDS)}")
        mode = raw.get("mode", "call")
        if mode not in MODES:
            raise ValueError(f"mode = {mode!r}: unknown; use one of {', '.join(MODES)}")
        tool = raw.get("tool") or ""
        arguments = raw.get("arguments") or {}
        if not isinstance(tool, str) or (mode == "call" and not tool):
            raise ValueError(f"tool = {tool!r}: must be the name of the tool whose call is expected")
        if not isinstance(arguments, Mapping):
            raise ValueError(  # noqa: TRY004 - one error type for a bad file
                f"arguments = {arguments!r}: must be an object of the expected values"
            )
        if _depth(arguments) > _DEEPEST:
            raise ValueError(f"arguments: nested deeper than {_DEEPEST} levels, as no tool's are")
        nonces = raw.get("nonces") or []
        if not isinstance(nonces, list) or not all(isinstance(item, str) for item in nonces):
            raise ValueError(f"nonces = {nonces!r}: must be a list of strings")
        choice = raw.get("toolChoice") or "auto"
        prompt = raw.get("prompt") or ""
        for name, value in (("toolChoice", choice), ("prompt", prompt)):
            if not isinstance(value, str):
                raise ValueError(f"{name} = {value!r}: must be a string")  # noqa: TRY004 - as above
        return Expectation(mode, tool, dict(arguments), choice, tuple(nonces), prompt)


def _depth(value: object) -> int:
    """Levels of nesting; stops one beyond the limit."""
    level, layer = 0, [value]
    while layer and level <= _DEEPEST:
        level += 1
        inner = [list(v.values()) if isinstance(v, Mapping) else v for v in layer if isinstance(v, Mapping | list)]
        layer = [item for items in inner for item in items]
    return level
