"""Probes: what is asked of a pair and what answer is right. Pure.

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
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field
from typing import Any

from dsv4_canary.expect import Expectation
from dsv4_canary.model import Mode

ECHO = "echo"
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

_NONCE_WORDS = (
    "amber",
    "anvil",
    "basil",
    "birch",
    "cedar",
    "cobalt",
    "comet",
    "copper",
    "coral",
    "crane",
    "delta",
    "ember",
    "fennel",
    "fjord",
    "garnet",
    "ginger",
    "glade",
    "gravel",
    "hazel",
    "heron",
    "indigo",
    "ivory",
    "jasper",
    "juniper",
    "kelp",
    "lagoon",
    "lantern",
    "larch",
    "linen",
    "lotus",
    "maple",
    "marble",
    "meadow",
    "mica",
    "nectar",
    "nickel",
    "ochre",
    "olive",
    "onyx",
    "opal",
    "orchid",
    "otter",
    "pebble",
    "pine",
    "plume",
    "poppy",
    "quartz",
    "quince",
    "ramp",
    "raven",
    "reed",
    "saffron",
    "sable",
    "slate",
    "spruce",
    "sumac",
    "tansy",
    "thistle",
    "topaz",
    "tulip",
    "umber",
    "velvet",
    "walnut",
    "willow",
    "zinc",
)

_SUBJECTS = (
    "the ferry",
    "the gardener",
    "a heavy cart",
    "the old bridge",
    "our neighbour",
    "the baker",
    "a grey heron",
    "the night train",
    "the river",
    "a quiet crowd",
    "the carpenter",
    "the north wind",
    "an empty boat",
    "the schoolhouse",
    "the market",
    "a young clerk",
)
_VERBS = (
    "waits beside",
    "passes",
    "turns towards",
    "looks over",
    "leans against",
    "returns to",
    "moves around",
    "rests near",
    "crosses",
    "follows",
    "leaves",
    "watches",
    "circles",
    "reaches",
    "avoids",
    "borders",
)
_OBJECTS = (
    "the stone wall",
    "a narrow lane",
    "the wooden gate",
    "the south field",
    "an open window",
    "the long pier",
    "a row of trees",
    "the village square",
    "the mill pond",
    "a low hill",
    "the tall tower",
    "the iron fence",
    "the small harbour",
    "a dusty road",
)
_TIMES = (
    "before sunrise",
    "in the late afternoon",
    "after the rain",
    "during the harvest",
    "on most winter days",
    "when the bell rings",
    "until the evening",
    "at the end of the week",
    "while the fog lifts",
    "early in the spring",
)

_WORD_MARGIN = 64


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


def filler(seed: str, prompt_tokens: int) -> str:
    """Text of more than ``prompt_tokens`` tokens; the same seed and size always give the same text.

    A byte-pair tokenizer does not merge across a space between words, so a text has at least as many tokens
    as words: counting words holds for every model without carrying its tokenizer. The length varies a little
    with the seed so that one unlucky prompt length cannot fail every probe.
    """
    rng = random.Random(f"dsv4-canary/{seed}")  # noqa: S311 - must be reproducible
    wanted = prompt_tokens + _WORD_MARGIN + rng.randrange(13)
    lines: list[str] = []
    count = 0
    while count < wanted:
        parts = (rng.choice(_SUBJECTS), rng.choice(_VERBS), rng.choice(_OBJECTS), rng.choice(_TIMES))
        line = " ".join(parts)
        count += line.count(" ") + 1
        lines.append(line[0].upper() + line[1:] + ".")
    return " ".join(lines)


def fresh_nonce() -> str:
    """A token such as ``zk-41-quartz-ramp``: letters, digits and words, never seen before."""
    letters = "".join(secrets.choice("abcdefghjkmnpqrstvwxyz") for _ in range(2))
    words = "-".join(secrets.choice(_NONCE_WORDS) for _ in range(2))
    return f"{letters}-{secrets.randbelow(90) + 10}-{words}"


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
    request_id = f"dsv4-canary-{secrets.token_hex(8)}"
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {
                "role": "system",
                "content": f"Session {seed}. You follow the last message of the user exactly, using the offered tool.",
            },
            {"role": "user", "content": "Keep these notes; they need no answer.\n" + text},
            {"role": "assistant", "content": "Noted."},
            {
                "role": "user",
                "content": f'Call the tool {TOOL_NAME} exactly once with token "{nonce}" and n {number}. '
                "Do not write anything else.",
            },
        ],
        "tools": [_TOOL],
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": mode is Mode.STREAMED,
        # Reasoning would cost hundreds of tokens a probe; whatever the server's default is, the probe wants
        # none.
        "chat_template_kwargs": {"thinking": False},
        "rid": request_id,
    }
    if mode is Mode.STREAMED:
        body["stream_options"] = {"include_usage": True}
    expectation = Expectation(
        mode="call",
        tool=TOOL_NAME,
        arguments={"token": nonce, "n": number},
        nonces=tuple(other for other in other_nonces if other != nonce),
        prompt=text,
    )
    return Probe(ECHO, mode, body, expectation, nonce, request_id)


def fresh_room() -> int:
    """A bootstrap room: random 63-bit number, unique per live request.

    A request for n samples takes n rooms from its first one, so the highest numbers are left free; two random
    rooms are never close. The low bits are random too, because a data-parallel prefill picks its rank by room
    modulo ranks.
    """
    return secrets.randbelow(2**63 - 2**10)
