"""DSML, the tool-call markup of DeepSeek-V4: its grammar's surface and the ways it leaks into text. Pure.

Marker: ``｜DSML｜`` with FULLWIDTH VERTICAL LINE (U+FF5C). A block is ``<｜DSML｜tool_calls>``, with invokes and
parameters inside. V3.2 calls the block ``function_calls``; V4.1 puts a space before each tag name and calls
the block `` calls``. Other spellings of the bars are read as the right ones first.
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

# A marker that lost a bar, or tags of which only parts are left. Words of these kinds do not occur in an answer that
# makes a call.
_ONE_BARRED_RE = re.compile(rf"DSML[ \t]?[{_BARS}]|[{_BARS}][ \t]?DSML")
_REMAINS_RE = re.compile(
    rf"DSML|</?[{_BARS}]|[{_BARS}][A-Z]{{2,6}}[{_BARS}]"
    r"|\b(?:tool_calls|invoke|parameter)\"?\s*/?>|</?\s*(?:tool_calls|invoke|parameter)\b"
    r"|\b(?:invoke|parameter)\s+name\s*=|\bstring\s*=\s*\"(?:true|false)\""
)
_STUB_RE = re.compile(r"<(?!3)[^\s<]?\s*\Z")

# Every text that a complete tag can begin with, for half-open tags at the end of a reply.
_STARTS = tuple(f"<{slash}{MARKER}{name}" for slash in ("", "/") for name in TAG_NAMES)

_SPECIAL_RE = re.compile(
    rf"<[{_BARS}](?:begin|end)[\u2581_ ]of[\u2581_ ](?:sentence|thinking)[{_BARS}]>"
    rf"|<[{_BARS}](?:User|Assistant|System|EOT|latest_reminder|[Tt]ool[^<>]{{0,40}})[{_BARS}]>"
)
_THINK_RE = re.compile(r"</?think>")
_BARE_CALL_RE = re.compile(r"<(?:tool_calls>|invoke +name *=)")


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
        if tag["end"] is None and tag.end() == len(clean):
            # Half-open at the end. Its name can be judged only when something follows it.
            if tag["rest"]:
                found |= _odd_name(tag)
            break
        if not tag["close"]:
            opened = True
            found.add("S1")
        elif not opened:
            found.add("S3")
        found |= _odd_name(tag)
    return found


def _odd_name(tag: re.Match[str]) -> set[str]:
    """S6 for the name of another dialect, S5 for a garbled one."""
    if tag["space"] or tag["name"] in ("function_calls", "calls"):
        return {"S6"}
    return {"S5"} if _garbled(tag["name"]) else set()


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


def remains(text: str) -> set[str]:
    """Signatures of markup in pieces that ``leaks`` cannot see: S2 for a bare start of a tag at the end, S4 for a
    marker that lost a bar, S7 for tags without any marker, S5 for the rest.

    For replies that make a call, or should: elsewhere a text may speak of such words.
    """
    text = _SPECIAL_RE.sub("", text)
    if bare_call(text):
        return {"S7"}
    if _ONE_BARRED_RE.search(_MARKER_RE.sub("", text)):
        return {"S4"}
    if _REMAINS_RE.search(text):
        return {"S5"}
    return {"S2"} if _STUB_RE.search(text) else set()


def dialects(text: str) -> tuple[str, ...]:
    """Model versions whose markup the tags of a text are in: V3.2, V4, V4.1. Tags that several share say
    nothing: without a space ``invoke`` and ``parameter`` are V3.2 as well as V4."""
    found: set[str] = set()
    for tag in _TAG_RE.finditer(normalise(text)):
        if tag["space"] or tag["name"] == "calls":
            found.add("V4.1")
        elif tag["name"] in ("function_calls", "tool_calls"):
            found.add("V3.2" if tag["name"] == "function_calls" else "V4")
    return tuple(sorted(found))


def bare_call(text: str) -> bool:
    """A call whose tags have all lost their marker (S7)."""
    return _BARE_CALL_RE.search(text) is not None


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
