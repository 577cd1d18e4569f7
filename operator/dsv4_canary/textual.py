"""Damage that shows in any text: loops, broken characters, copies of the prompt. Pure, bounded time."""

from __future__ import annotations

import re
from functools import lru_cache

_LIMIT = 65_536
_LOOP_MIN_CHARS = 40
_LOOP_MIN_TIMES = 8
_COPY_WORDS = 20

# A unit of 1 to 32 characters, at least 8 times in a row.
_LOOP_RE = re.compile(r"(.{1,32}?)\1{7,}", re.DOTALL)
_WORD_RE = re.compile(r"\w+")

# UTF-8 read as Windows-1252 or Latin-1: the usual leading pairs.
_MOJIBAKE_RE = re.compile(
    "\u00e2\u20ac|\u00c3[\u0080-\u00bf]|\u00c2[\u00a0-\u00bf]|\u00ef\u00bc|\u00ef\u00bf\u00bd|\u00f0\u0178"
)
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_CJK_RE = re.compile(f"[{_CJK}]")
_ISOLATED_CJK_RE = re.compile(rf"(?<=[0-9])[{_CJK}]{{1,2}}(?=[0-9])")
_CONTROL_RE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def repeats(text: str, *, at_limit: bool) -> bool:
    """The text loops (S25).

    Either one unit stands many times in a row, or, when the reply ran into its token limit, few of its
    three-word sequences are distinct.
    """
    text = text[:_LIMIT]
    if len(text) < _LOOP_MIN_TIMES * 2:
        return False
    for match in _LOOP_RE.finditer(text):
        if len(match.group()) >= _LOOP_MIN_CHARS and _WORD_RE.search(match.group(1)):
            return True
    words = _WORD_RE.findall(text)
    if len(words) >= _LOOP_MIN_TIMES and _word_loop(words):
        return True
    if at_limit and len(words) >= 60:
        grams = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
        return len(set(grams)) < 0.35 * len(grams)
    return False


def _word_loop(words: list[str]) -> bool:
    """Some run of 1 to 24 words is repeated at least eight times in a row."""
    for period in range(1, 25):
        run = 0
        for i in range(period, len(words)):
            run = run + 1 if words[i] == words[i - period] else 0
            if run >= period * (_LOOP_MIN_TIMES - 1):
                return True
    return False


def broken_characters(text: str) -> bool:
    """Replacement or control characters, UTF-8 read as Latin-1, CJK between digits (S26)."""
    text = text[:_LIMIT]
    return (
        "\ufffd" in text
        or any("\ud800" <= char <= "\udfff" for char in text)
        or _MOJIBAKE_RE.search(text) is not None
        or _CONTROL_RE.search(text) is not None
        or _ISOLATED_CJK_RE.search(text) is not None
    )


def foreign_script(text: str, expected: str) -> bool:
    """CJK characters in a call whose expected form has none (S26)."""
    return _CJK_RE.search(text) is not None and _CJK_RE.search(expected) is None


def copies(text: str, prompt: str) -> bool:
    """The reply holds 20 words in a row from the prompt (S27)."""
    words = _WORD_RE.findall(text[:_LIMIT])
    if len(words) < _COPY_WORDS:
        return False
    runs = _runs(prompt)
    return any(hash(tuple(words[i : i + _COPY_WORDS])) in runs for i in range(len(words) - _COPY_WORDS + 1))


@lru_cache(maxsize=4)
def _runs(prompt: str) -> frozenset[int]:
    """Hashes of every run of so many words. Kept, since the replies to one prompt are judged one after the other."""
    known = _WORD_RE.findall(prompt)
    return frozenset(hash(tuple(known[i : i + _COPY_WORDS])) for i in range(len(known) - _COPY_WORDS + 1))
