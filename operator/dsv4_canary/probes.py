"""Probes that are chat completions: what is asked of a pair and what answer is right. Pure.

Echo probe: call one offered tool with a nonce and an integer, after a long conversation head. Why it looks as
it does:

- Longer than ``promptTokens``: the sparse indexer selects 512 entries over 4:1 compressed keys, so below
  about 2,048 tokens every key is selected and damaged index keys cannot show.
- The tool's definition stands before the filler and the request after it, so calling the tool needs the far
  end of the context, outside the sliding window.
- ``tool_choice`` auto: a required or named choice uses a grammar, which hides damage.
- Temperature 0, no ``ignore_eos`` (it hides loops), ``max_tokens`` several times what the answer needs.
- The nonce is asked for in the last message, not deep in the text: exact retrieval from far back fails on
  sound models at some prompt lengths (vllm-project/vllm#55927), and lengths vary from one filler to the next.

Quiet probe: the same head and tool, and a request for one plain sentence: any call is one too many.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from dsv4_canary.expect import Expectation
from dsv4_canary.model import Mode, ProbeName
from dsv4_canary.wording import filler, fresh_nonce

__all__ = [
    "ECHO",
    "MAX_TOKENS",
    "TOOL_NAME",
    "Probe",
    "echo_probe",
    "filler",
    "fresh_nonce",
    "fresh_room",
    "quiet_probe",
]

ECHO = ProbeName.ECHO.value
TOOL_NAME = "probe_echo"
MAX_TOKENS = 512
"""The right answer takes about 60 tokens; a cap near that would cause the damage it looks for."""

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Returns its arguments unchanged.",
        "parameters": {
            "type": "object",
            "properties": {"token": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["token", "n"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One request for a pair, without the bootstrap fields that address it, and the answer it must bring."""

    name: str
    mode: Mode
    body: dict[str, Any]
    expectation: Expectation
    nonce: str
    request_id: str = field(default_factory=lambda: f"dsv4-canary-{secrets.token_hex(8)}")
    """Engine-side request id (``rid``), for ``/abort_request``."""


def echo_probe(
    model: str,
    mode: Mode,
    seed: str,
    prompt_tokens: int,
    *,
    other_nonces: tuple[str, ...] = (),
    nonce: str | None = None,
    number: int | None = None,
) -> Probe:
    """Build the echo probe.

    ``seed`` decides the conversation head: the same seed asks for a prefix that the prefill may have cached,
    a new one starts cold (it is the first thing in the prompt). ``other_nonces`` are those of earlier probes,
    whose appearance in the reply means that requests were mixed up.
    """
    nonce = fresh_nonce() if nonce is None else nonce
    number = secrets.randbelow(998) + 2 if number is None else number
    text = filler(seed, prompt_tokens)
    ask = f'Call the tool {TOOL_NAME} exactly once with token "{nonce}" and n {number}. Do not write anything else.'
    expectation = Expectation(
        mode="call",
        tool=TOOL_NAME,
        arguments={"token": nonce, "n": number},
        nonces=tuple(other for other in other_nonces if other != nonce),
        prompt=text,
    )
    request_id = _request_id()
    return Probe(ECHO, mode, _body(model, mode, seed, text, ask, request_id), expectation, nonce, request_id)


def quiet_probe(model: str, mode: Mode, seed: str, prompt_tokens: int, *, other_nonces: tuple[str, ...] = ()) -> Probe:
    """Build the quiet probe: tools are offered, and a short plain sentence is asked for. No call may come back."""
    text = filler(seed, prompt_tokens)
    ask = 'Reply with exactly "The harbour is calm today." as plain text. Do not call any tool.'
    expectation = Expectation(mode="text", tool=TOOL_NAME, nonces=other_nonces, prompt=text)
    request_id = _request_id()
    body = _body(model, mode, seed, text, ask, request_id)
    return Probe(ProbeName.QUIET.value, mode, body, expectation, "", request_id)


def _request_id() -> str:
    return f"dsv4-canary-{secrets.token_hex(8)}"


def _body(model: str, mode: Mode, seed: str, text: str, ask: str, request_id: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {
                "role": "system",
                "content": f"Session {seed}. You follow the last message of the user exactly, using the offered tool.",
            },
            {"role": "user", "content": "Keep these notes; they need no answer.\n" + text},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": ask},
        ],
        "tools": [_TOOL],
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": mode is Mode.STREAMED,
        # Reasoning would cost hundreds of tokens a probe; whatever the server's default is, the probe wants
        # none.
        "chat_template_kwargs": {"thinking": False},
        "return_cached_tokens_details": True,
        "rid": request_id,
    }
    if mode is Mode.STREAMED:
        body["stream_options"] = {"include_usage": True}
    return body


def fresh_room(rank: int = 0, ranks: int = 1) -> int:
    """A bootstrap room: random 63-bit number, unique per live request.

    A request for n samples takes n rooms from its first one, so the highest numbers are left free; two random
    rooms are never close. A data-parallel prefill picks its rank by room modulo ranks: ``rank`` is the one wanted
    (0 to ``ranks`` - 1). With one rank the low bits are random.
    """
    room = secrets.randbelow(2**63 - 2**11)
    return room - room % ranks + rank
