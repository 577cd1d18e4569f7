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
    """Completes "the tool call ..."."""
    accuses: str
    """Where to look first."""
    warns_only: bool = False
    """True: recorded, but the probe still passes."""


_ALL = (
    Signature(
        "S1",
        _C,
        "came back as raw markup in the text",
        "the tool-call parser: it is off, is another model's, or (up to 0.5.20) returns damaged markup as text",
    ),
    Signature(
        "S2",
        _C,
        "came back with a cut-off markup tag at the end of the text",
        "the end of the generation: cut off within a tag, or damaged there",
    ),
    Signature(
        "S3",
        _C,
        "came back with a closing markup tag and no opening one",
        "damage of the opening tag; the parser left the rest",
    ),
    Signature(
        "S4",
        _C,
        "came back with markup written with the wrong bars",
        "tokenizer or chat template, which spell the marker otherwise, or damaged tokens",
    ),
    Signature(
        "S5",
        _X,
        "came back with a garbled markup tag name",
        "index keys, KV or transfer when it comes in bursts; a lone one may be sampling",
    ),
    Signature(
        "S6",
        _C,
        "came back in the markup dialect of another model version",
        "parser or chat template of another model version",
    ),
    Signature(
        "S7",
        _C,
        "came back with markup tags that lost their marker",
        "tokenizer or chat template: the marker is no token of its own",
    ),
    Signature(
        "S8",
        _C,
        "came back as JSON in the text",
        "the chat template (no tools in the prompt), or the model's habit",
    ),
    Signature(
        "S9",
        _C,
        "came back without a call and without text",
        "a damaged call, dropped without a word from 0.5.21 on; if only cached prompts show it, index keys or KV",
    ),
    Signature(
        "S10",
        _C,
        "came back as prose without a call",
        "the model's choice, or a damaged prompt; if only cached prompts show it, index keys or KV",
    ),
    Signature(
        "S11",
        _C,
        "came back with arguments that are not JSON",
        "damaged markup that the parser passed on (0.5.23); max_tokens too small if the finish reason is length",
    ),
    Signature(
        "S12",
        _C,
        "came back without required arguments",
        "damaged parameter tags that the parser skipped",
    ),
    Signature(
        "S13",
        _C,
        "came back with its arguments wrapped in another object",
        "the model's habit; a warning only",
        warns_only=True,
    ),
    Signature(
        "S14",
        _C,
        "came back with an argument of the wrong type",
        "the string attribute of a parameter, or the parser that reads it",
    ),
    Signature(
        "S15",
        _X,
        "came back with an altered argument",
        "index keys, KV or transfer: the model read other values than the prompt holds",
    ),
    Signature(
        "S16",
        _C,
        "came back with the end of an argument trimmed",
        "the text parser up to 0.5.20, which trims the end of streamed values",
    ),
    Signature(
        "S17",
        _C,
        "came back with a wrong tool name",
        "damage of the invoke tag, or index keys: the name was misread",
    ),
    Signature(
        "S18",
        _C,
        "was streamed with a call that has no name",
        "the streaming parser",
    ),
    Signature(
        "S19",
        _C,
        "was streamed with wrong call indices",
        "the streaming parser",
    ),
    Signature(
        "S20",
        _C,
        "came back more than once",
        "the parser, or a generation that went on after the call",
    ),
    Signature(
        "S21",
        _C,
        "came back inside the reasoning text",
        "the reasoning parser: the think tag was not seen; compare cold with cached",
    ),
    Signature(
        "S22",
        _C,
        "came back with reasoning and answer not separated",
        "the reasoning parser, or a wrong thinking switch",
    ),
    Signature(
        "S23",
        _C,
        "came back with special tokens in the text",
        "the tokenizer or skip_special_tokens; damaged tokens",
    ),
    Signature(
        "S24",
        _C,
        "came back with a finish reason that contradicts the reply",
        "the parser or the API layer; with length, a generation that went on after the call",
    ),
    Signature(
        "S25",
        _X,
        "came back as text that repeats itself",
        "index keys or KV: attention reads the same rows again and again",
    ),
    Signature(
        "S26",
        _X,
        "came back with broken characters",
        "the detokenizer, or damaged tokens",
    ),
    Signature(
        "S27",
        _X,
        "came back as a copy of the prompt",
        "index keys: the answer continues the wrong part of the prompt",
    ),
    Signature(
        "S28",
        _X,
        "came back with the content of another request",
        "KV pages that another request owns: transfer, abort or cache",
    ),
    Signature(
        "S29",
        _X,
        "ended at once without an answer",
        "the first token, which prefill computed: KV or metadata of the transfer",
    ),
    Signature(
        "S30",
        _C,
        "gave different calls streamed and not streamed",
        "the parser's streaming path; damage between the two requests looks the same",
    ),
    Signature(
        "S31",
        _C,
        "leaked markup although tools were switched off",
        "the API layer: the parser does not run with tool_choice none",
    ),
    Signature(
        "S32",
        _C,
        "came back although none was asked for",
        "a parser that takes quoted markup for a call",
    ),
)

CATALOGUE: dict[str, Signature] = {signature.id: signature for signature in _ALL}

_RANK = (Severity.TRANSPORT, Severity.BUDGET, Severity.CONTRACT, Severity.CORRUPTION)


def order(signature_id: str) -> int:
    """Sort key: the number in the id."""
    return int(signature_id[1:])


def worst(severities: list[Severity]) -> Severity | None:
    """Gravest of the severities, None of an empty list."""
    return max(severities, key=_RANK.index, default=None)
