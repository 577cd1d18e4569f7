"""Text to token ids and back.

The vocabulary is pretended: a plain token is up to four UTF-8 bytes of text (real prompts also have about four
characters a token), a special token is a small id. Inside the simulator text is carried with each special token as one
private-use character, so that a special token and its literal spelling in a user's text stay different things, as in
the real tokenizer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

SPELLINGS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)
"""Special tokens; the position is the token id."""

_FIRST = 0xE000
BOS, EOS, USER, ASSISTANT, THINK, THINK_END, DSML, REMINDER = (chr(_FIRST + i) for i in range(len(SPELLINGS)))
EOS_ID = 1
_SPECIAL = re.compile("([" + "".join(chr(_FIRST + i) for i in range(len(SPELLINGS))) + "])")
_SPELLED = re.compile("|".join(map(re.escape, SPELLINGS)))
_PRIVATE = re.compile("[\ue000-\uf8ff]")
UNKNOWN = "\ufffd"
"""What an id that no text could have produced is shown as."""


def literal(text: str) -> str:
    """User text made safe to put into internal text: none of it can become a special token."""
    return _PRIVATE.sub(UNKNOWN, text)


def parse_specials(text: str) -> str:
    """Raw text (completions, ``/generate``) to internal text: spelled special tokens become special."""
    return _SPELLED.sub(lambda match: chr(_FIRST + SPELLINGS.index(match[0])), literal(text))


def spell(text: str) -> str:
    """Internal text to what a client sees."""
    return _SPECIAL.sub(lambda match: SPELLINGS[ord(match[0]) - _FIRST], text)


def encode(text: str) -> list[int]:
    """Token ids of internal text."""
    ids: list[int] = []
    for part in _SPECIAL.split(text):
        if not part:
            continue
        if len(part) == 1 and _FIRST <= ord(part) < _FIRST + len(SPELLINGS):
            ids.append(ord(part) - _FIRST)
            continue
        data = part.encode("utf-8", "replace")
        start, size = 0, len(data)
        if data.isascii():  # the usual case, without a loop per token
            start = size - size % 4
            ids += [4 << 32 | value for value in struct.unpack(f">{start // 4}I", data[:start])]
        while start < size:
            end = min(start + 4, size)
            while end < size and data[end] & 0xC0 == 0x80:  # never cut a character in two
                end -= 1
            ids.append((end - start) << 32 | int.from_bytes(data[start:end], "big"))
            start = end
    return ids


@lru_cache(maxsize=65536)
def decode_one(token: int) -> str:
    """Internal text of one id; ids outside the vocabulary (damaged bytes) give U+FFFD."""
    if 0 <= token < len(SPELLINGS):
        return chr(_FIRST + token)
    length = token >> 32
    if not 1 <= length <= 4:
        return UNKNOWN
    value = token & 0xFFFFFFFF
    if value >> (8 * length):
        return UNKNOWN
    return literal(value.to_bytes(length, "big").decode("utf-8", "replace"))


def decode(ids: Iterable[int]) -> str:
    """Internal text of ids."""
    return "".join(map(decode_one, ids))


def is_token_list(value: object) -> bool:
    """Whether `value` is a non-empty list of non-negative integers that fit a KV row (56 bits)."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(item, int) and 0 <= item < 2**56 for item in value)
    )


def are_numbers(ids: Sequence[int]) -> bool:
    """Whether a prompt is plain token numbers, as in ``input_ids`` of 1000 to 30000: no word of this vocabulary."""
    return all(len(SPELLINGS) <= token < 1 << 32 for token in ids)
