"""Catalogue of corruption signatures S1 to S32: usual severity and plain meaning. Data.

The numbers and what they mean come from the project's catalogue of public reports on damaged tool calls; the
meaning is written to complete "tool call through prefill X to this decode ...".
"""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_canary.model import Severity

_C = Severity.CONTRACT
_X = Severity.CORRUPTION


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a reply can be damaged."""

    id: str
    severity: Severity
    """Usual severity; a finding may carry another one (S11 and S24 at the token limit are a budget matter)."""
    meaning: str
    warns_only: bool = False
    """True: recorded, but the probe still passes."""


_ALL = (
    Signature("S1", _C, "came back as raw markup in the text"),
    Signature("S2", _C, "came back with a cut-off markup tag at the end of the text"),
    Signature("S3", _C, "came back with a closing markup tag and no opening one"),
    Signature("S4", _C, "came back with markup written with the wrong bars"),
    Signature("S5", _X, "came back with a garbled markup tag name"),
    Signature("S6", _C, "came back in the markup dialect of another model version"),
    Signature("S7", _C, "came back with markup tags that lost their marker"),
    Signature("S8", _C, "came back as JSON in the text"),
    Signature("S9", _C, "came back without a call and without text"),
    Signature("S10", _C, "came back as prose without a call"),
    Signature("S11", _C, "came back with arguments that are not JSON"),
    Signature("S12", _C, "came back without required arguments"),
    Signature("S13", _C, "came back with its arguments wrapped in another object", warns_only=True),
    Signature("S14", _C, "came back with an argument of the wrong type"),
    Signature("S15", _X, "came back with an altered argument"),
    Signature("S16", _C, "came back with the end of an argument trimmed"),
    Signature("S17", _C, "came back with a wrong tool name"),
    Signature("S18", _C, "was streamed with a call that has no name"),
    Signature("S19", _C, "was streamed with wrong call indices"),
    Signature("S20", _C, "came back more than once"),
    Signature("S21", _C, "came back inside the reasoning text"),
    Signature("S22", _C, "came back with reasoning and answer not separated"),
    Signature("S23", _C, "came back with special tokens in the text"),
    Signature("S24", _C, "came back with a finish reason that contradicts the reply"),
    Signature("S25", _X, "came back as text that repeats itself"),
    Signature("S26", _X, "came back with broken characters"),
    Signature("S27", _X, "came back as a copy of the prompt"),
    Signature("S28", _X, "came back with the content of another request"),
    Signature("S29", _X, "ended at once without an answer"),
    Signature("S30", _C, "gave different calls streamed and not streamed"),
    Signature("S31", _C, "leaked markup although tools were switched off"),
    Signature("S32", _C, "came back although none was asked for"),
)

CATALOGUE: dict[str, Signature] = {signature.id: signature for signature in _ALL}

_RANK = (Severity.TRANSPORT, Severity.BUDGET, Severity.CONTRACT, Severity.CORRUPTION)


def order(signature_id: str) -> int:
    """Sort key: the number in the id."""
    return int(signature_id[1:])


def worst(severities: list[Severity]) -> Severity | None:
    """Gravest of the severities, None of an empty list."""
    return max(severities, key=_RANK.index, default=None)
