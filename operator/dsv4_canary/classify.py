"""Classifier: a reply and what was expected -> signatures of damage. Pure, total: no input makes it raise.

A correct reply has no signature. A reply in which the call's name or arguments differ from the expected ones
in any way that survives JSON parsing has at least one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from dsv4_canary import dsml, textual
from dsv4_canary.excerpt import excerpt
from dsv4_canary.expect import Expectation
from dsv4_canary.model import Severity
from dsv4_canary.reply import Call, Reply
from dsv4_canary.signatures import CATALOGUE, order, worst

_LIMIT = 65_536
"""Characters of a text that are looked at; a loop shows long before that."""

_TRIMMED = ("parameter", "\uff5cDSML\uff5c", "</")
"""Sets of characters that the text detector up to 0.5.20 strips from the end of a streamed value, in turn (S16)."""

_REPETITION_HORIZON = 90_000
"""Prompt tokens beyond which the model itself may repeat: S25 is not scored there."""


@dataclass(frozen=True, slots=True)
class Classification:
    """Verdict on one reply."""

    severities: Mapping[str, Severity]
    """Signature id -> severity, in the order of the catalogue."""
    excerpt: str = ""
    """At most 200 characters of evidence, with everything masked that the probe did not bring in itself."""
    dialects: tuple[str, ...] = ()
    """Model versions whose markup leaked, of V3.2, V4 and V4.1; empty when the leaked tags do not tell."""

    @property
    def signatures(self) -> tuple[str, ...]:
        """Ids in the order of the catalogue."""
        return tuple(self.severities)

    @property
    def severity(self) -> Severity | None:
        """Gravest severity, None when clean."""
        return worst(list(self.severities.values()))

    @property
    def failed(self) -> bool:
        """True when some signature is more than a warning."""
        return any(not CATALOGUE[name].warns_only for name in self.severities)


def classify(reply: Reply, expectation: Expectation) -> Classification:
    """Name everything that is wrong with the reply."""
    found: dict[str, Severity] = {}

    def add(signature: str, severity: Severity | None = None) -> None:
        found.setdefault(signature, severity or CATALOGUE[signature].severity)

    content, reasoning = reply.content[:_LIMIT], reply.reasoning[:_LIMIT]
    _check_text(content, reasoning, reply, expectation, add)
    if expectation.mode == "call":
        _check_calls(reply, expectation, add)
        _check_absence(content, reasoning, reply, found, add)
    elif reply.calls:
        add("S32")
    elif expectation.mode == "text" and not content.strip():
        add("S22" if reasoning.strip() else "S9")
    _check_finish(reply, found, add)
    if not found:
        return Classification({})
    ordered = {name: found[name] for name in sorted(found, key=order)}
    leaked = dsml.dialects("\n".join((content, reasoning)))
    return Classification(ordered, excerpt(reply, expectation), leaked)


def classify_pair(streamed: Reply, whole: Reply, expectation: Expectation) -> Classification:
    """Name everything that is wrong with two replies to one request, and whether their calls differ (S30).

    Severity, excerpt and dialects are those of the first reply that has the signature.
    """
    first, second = classify(streamed, expectation), classify(whole, expectation)
    found = dict(second.severities) | dict(first.severities)
    evidence = first.excerpt or second.excerpt
    if not same_calls(streamed, whole):
        found.setdefault("S30", CATALOGUE["S30"].severity)
        evidence = evidence or excerpt(streamed, expectation)
    ordered = {name: found[name] for name in sorted(found, key=order)}
    return Classification(ordered, evidence, tuple(sorted({*first.dialects, *second.dialects})))


def same_calls(one: Reply, other: Reply) -> bool:
    """Both replies make the same calls: names and values, not the layout of the JSON."""
    return _calls(one) == _calls(other)


def _calls(reply: Reply) -> list[tuple[str, str]]:
    return [(call.name, _canonical(call.arguments)) for call in reply.calls]


class _Adder(Protocol):
    """Takes one finding; without a severity it has the catalogue's."""

    def __call__(self, signature: str, severity: Severity | None = None) -> None:
        """Add the finding, unless it is there already."""


def _check_text(content: str, reasoning: str, reply: Reply, expectation: Expectation, add: _Adder) -> None:
    """Damage that any text of the reply can show."""
    switched_off = expectation.mode != "call" and expectation.tool_choice == "none"
    leaked = dsml.leaks(content)
    if not leaked and expectation.mode == "call":
        leaked = dsml.remains(content)
    for signature in {"S31"} if leaked and switched_off else leaked:
        add(signature)
    if dsml.leaks(reasoning) or (expectation.mode == "call" and dsml.remains(reasoning)):
        add("S21")
    if dsml.think_tags(content):
        add("S22")
    # A call that is exactly right is not looked at: what it says was asked for, however odd.
    wrong = [call for call in reply.calls if not _exact(call, expectation)]
    argument_text = "\n".join(call.name + " " + call.arguments for call in wrong)[:_LIMIT]
    everything = "\n".join((content, reasoning, argument_text))
    if dsml.special_tokens(everything):
        add("S23")
    texts = (content, reasoning, argument_text)
    right = _expected_text(expectation)
    if _loops(reply, texts) and not textual.repeats(right, at_limit=False):
        add("S25")
    broken = any(textual.broken_characters(text) for text in texts) and not textual.broken_characters(right)
    if broken or textual.foreign_script(argument_text, right):
        add("S26")
    if expectation.prompt and textual.copies(everything, expectation.prompt):
        add("S27")
    if any(nonce and nonce in everything for nonce in expectation.nonces):
        add("S28")
    if reply.completion_tokens is not None and reply.completion_tokens <= 1:
        add("S29")


def _loops(reply: Reply, texts: tuple[str, ...]) -> bool:
    if reply.prompt_tokens is not None and reply.prompt_tokens > _REPETITION_HORIZON:
        return False
    at_limit = reply.finish_reason == "length"
    return any(textual.repeats(text, at_limit=at_limit) for text in texts)


def _exact(call: Call, expectation: Expectation) -> bool:
    """The call is the expected one, to the letter of its values."""
    if expectation.mode != "call" or call.name != expectation.tool:
        return False
    try:
        value = _strict_json(call.arguments)
    except (ValueError, RecursionError):
        return not expectation.arguments and not call.arguments.strip()
    return isinstance(value, dict) and _same(value, dict(expectation.arguments))


def _check_calls(reply: Reply, expectation: Expectation, add: _Adder) -> None:
    """Damage of the calls themselves."""
    if reply.nameless_piece:
        add("S18")
    if reply.index_fault:
        add("S19")
    seen: set[tuple[str, str]] = set()
    for call in reply.calls:
        if call.name != expectation.tool:
            add("S17")
        _check_arguments(call, reply, expectation, add)
        key = (call.name, _canonical(call.arguments))
        if key in seen:
            add("S20")
        seen.add(key)
    if len(reply.calls) > 1 and len(seen) > 1:
        # One call was asked for. A different second one is an extra call too, whatever else is wrong with it.
        add("S20")


def _check_arguments(call: Call, reply: Reply, expectation: Expectation, add: _Adder) -> None:
    wanted = expectation.arguments
    if not wanted and not call.arguments.strip():
        return  # some servers write the arguments of a call without any as an empty text; clients read {}
    try:
        value = _strict_json(call.arguments)
    except (ValueError, RecursionError):
        add("S11", Severity.BUDGET if reply.finish_reason == "length" else None)
        return
    if not isinstance(value, dict):
        add("S14")
        return
    if len(value) == 1 and not set(value) & set(wanted):
        inner = _unwrap(value)
        if inner is not None:
            add("S13")
            value = inner
    for name, right in wanted.items():
        if name not in value:
            add("S12")
        elif _kind(value[name]) is not _kind(right) and not _same(value[name], right):
            add("S14")
        elif not _same(value[name], right):
            add("S16" if _tail_trimmed(value[name], right) else "S15")
    if any(name not in wanted for name in value) and all(name in value for name in wanted):
        # The schema names every argument: one that it does not name is no exact echo. A misspelt name shows as S12.
        add("S15")


def _unwrap(value: dict[str, Any]) -> dict[str, Any] | None:
    ((key, inner),) = value.items()
    if key not in ("arguments", "input", "parameters"):
        return None
    if isinstance(inner, str):
        try:
            inner = _strict_json(inner)
        except (ValueError, RecursionError):
            return None
    return inner if isinstance(inner, dict) else None


def _tail_trimmed(value: object, right: object) -> bool:
    if not isinstance(value, str) or not isinstance(right, str) or value == right:
        return False
    trimmed = right
    for characters in _TRIMMED:
        trimmed = trimmed.rstrip(characters)
    return value == trimmed.strip()


def _check_absence(content: str, reasoning: str, reply: Reply, found: Mapping[str, Severity], add: _Adder) -> None:
    """The call that was asked for is missing."""
    if reply.calls:
        return
    text = content.strip()
    if not text:
        if reasoning.strip():
            if "S21" not in found:
                add("S22")
        else:
            add("S9")
    elif not found.keys() & {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S31"}:
        add("S8" if _json_in_text(text) else "S10")


def _check_finish(reply: Reply, found: Mapping[str, Severity], add: _Adder) -> None:
    reason = reply.finish_reason
    if reply.calls and reason == "length":
        # A whole call and still at the limit: the engine went on after the call and the parser threw that
        # away.
        if "S11" not in found:
            add("S24", Severity.BUDGET)
    elif bool(reply.calls) != (reason == "tool_calls") and (reply.calls or reason == "tool_calls"):
        add("S24")


_FENCE_RE = re.compile(r"```[a-zA-Z]*\s*(\{.{0,4000}?\})\s*```|(\{.{0,4000}\})", re.DOTALL)


def _json_in_text(text: str) -> bool:
    match = _FENCE_RE.search(text[:8192])
    if match is None:
        return False
    try:
        return isinstance(_strict_json(match[1] or match[2]), dict)
    except (ValueError, RecursionError):
        return False


def _strict_json(text: str) -> Any:
    """JSON as a careful client reads it: no NaN, no duplicate keys. Raises ValueError, RecursionError."""
    return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> type:
    """JSON type; int and float are told apart since the schema asks for an integer, and bool is neither."""
    return type(value)


def _same(value: object, right: object) -> bool:
    """Equal as JSON at every depth: true is not 1, 7.0 is not the integer 7; a whole number may stand for a float."""
    if isinstance(right, Mapping):
        return (
            isinstance(value, dict) and value.keys() == right.keys() and all(_same(value[k], right[k]) for k in right)
        )
    if isinstance(right, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(right)
            and all(_same(a, b) for a, b in zip(value, right, strict=True))
        )
    if isinstance(right, float) and isinstance(value, int) and not isinstance(value, bool):
        return value == right
    return _kind(value) is _kind(right) and value == right


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(_strict_json(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _expected_text(expectation: Expectation) -> str:
    return expectation.tool + " " + json.dumps(dict(expectation.arguments), ensure_ascii=False, default=str)
