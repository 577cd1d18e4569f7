"""What the right reply to a request looks like. Pure data; also the file format of an expectation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODES = ("call", "none", "text")


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
        """Read the JSON form: mode, tool, arguments, toolChoice, nonces, prompt.

        Raises ValueError with one line that names the field.
        """
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
        nonces = raw.get("nonces") or []
        if not isinstance(nonces, list) or not all(isinstance(item, str) for item in nonces):
            raise ValueError(f"nonces = {nonces!r}: must be a list of strings")
        return Expectation(
            mode=mode,
            tool=tool,
            arguments=dict(arguments),
            tool_choice=str(raw.get("toolChoice", "auto")),
            nonces=tuple(nonces),
            prompt=str(raw.get("prompt") or ""),
        )
