"""DSML, the tool-call markup of DeepSeek-V4: its grammar's surface and the ways it leaks into text. Pure.

Marker: ``｜DSML｜`` with FULLWIDTH VERTICAL LINE (U+FF5C). A block is ``<｜DSML｜tool_calls>``, with invokes and
parameters inside. V3.2 calls the block ``function_calls``; V4.1 puts a space before each tag name and calls
the block `` calls``.
"""

from __future__ import annotations

import re

BAR = "\uff5c"
MARKER = f"{BAR}DSML{BAR}"
TAG_NAMES = ("tool_calls", "invoke", "parameter")

_BARS = "|\uff5c\u2016\u2225\u2502\u00a6\u01c0\u2223"
# Bounded runs: a long row of bars must not cost quadratic time.
_MARKER_RE = re.compile(rf"[{_BARS}]{{1,8}}[ \t]?DSML[ \t]?[{_BARS}]{{1,8}}")
_TAG_RE = re.compile(
    rf"<(?P<close>/?){MARKER}(?P<space> ?)"
    rf"(?P<name>[^\s<>/=\"{BAR}]{{1,40}})(?P<rest>[^<>]{{0,400}})(?P<end>/?>)?"
)
_PLAIN_TAG_RE = re.compile(r"</?(?:tool_calls|invoke|parameter)\b[^<>]{0,200}>")

# Every text that a complete tag can begin with, for half-open tags at the end of a reply.
_STARTS = tuple(f"<{slash}{MARKER}{name}" for slash in ("", "/") for name in TAG_NAMES)

_SPECIAL_RE = re.compile(
    rf"<[{_BARS}](?:begin|end)[\u2581_ ]of[\u2581_ ](?:sentence|thinking)[{_BARS}]>"
    rf"|<[{_BARS}](?:User|Assistant|System|EOT|latest_reminder|[Tt]ool[^<>]{{0,40}})[{_BARS}]>"
)
_THINK_RE = re.compile(r"</?think>")


def normalise(text: str) -> str:
    """Write every spelling of the marker (other or doubled bars) in the one right way."""
    return _MARKER_RE.sub(MARKER, text)


def leaks(text: str) -> set[str]:
    """Signatures S1 to S7 that apply to a text in which no markup belongs."""
    clean = normalise(text)
    found = _tags(clean)
    if any(match.group() != MARKER for match in _MARKER_RE.finditer(text)):
        found.add("S4")
    if _half_open(clean):
        found.add("S2")
    if MARKER in clean:
        if _PLAIN_TAG_RE.search(clean):
            found.add("S7")
        if not found:
            found.add("S1")  # a marker in no recognisable tag is still markup in the text
    return found


def _tags(clean: str) -> set[str]:
    """What the whole tags of a normalised text show."""
    found: set[str] = set()
    opened = False
    for tag in _TAG_RE.finditer(clean):
        name = tag["name"]
        if tag["end"] is None and tag.end() == len(clean):
            # Half-open at the end. Its name can be judged only when something follows it.
            if tag["rest"] and _garbled(name):
                found.add("S5")
            break
        if not tag["close"]:
            opened = True
            found.add("S1")
        elif not opened:
            found.add("S3")
        if tag["space"] or name in ("function_calls", "calls"):
            found.add("S6")
        elif _garbled(name):
            found.add("S5")
    return found


def _garbled(name: str) -> bool:
    return name not in TAG_NAMES and any(edit_distance(name, known, 3) <= 3 for known in TAG_NAMES)


def _half_open(clean: str) -> bool:
    start = clean.rfind("<")
    if start < 0:
        return False
    tail = clean[start:]
    if ">" in tail:
        return False
    tail = re.sub(f"[{_BARS}]+", BAR, tail)
    if any(tail.startswith(full) or (BAR in tail and full.startswith(tail)) for full in _STARTS):
        return True
    return MARKER in tail


def special_tokens(text: str) -> bool:
    """The text spells out a token of the vendor's chat format (S23)."""
    return _SPECIAL_RE.search(text) is not None


def think_tags(text: str) -> bool:
    """The text holds a think tag (S22)."""
    return _THINK_RE.search(text) is not None


def edit_distance(left: str, right: str, most: int) -> int:
    """Levenshtein distance, or ``most + 1`` as soon as it must be greater than ``most``."""
    if abs(len(left) - len(right)) > most:
        return most + 1
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row[0] = row[0], i
        best = i
        for j, b in enumerate(right, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
            best = min(best, row[j])
        if best > most:
            return most + 1
    return min(row[-1], most + 1)
