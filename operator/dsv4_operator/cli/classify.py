"""`dsv4ctl classify`: what is wrong with a reply, judged by the canary's own classifier."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from dsv4_canary.classify import Classification, classify, classify_pair
from dsv4_canary.expect import Expectation
from dsv4_canary.reply import Reply, from_completion, join_chunks
from dsv4_canary.signatures import CATALOGUE
from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, UnreadableError
from dsv4_operator.cli.files import parse_documents, read_text, shown_name
from dsv4_operator.cli.output import print_json, print_line, print_table

EMPTY: Final[dict[str, Any]] = {"signatures": [], "severity": None}
_LARGEST_REPLY: Final = 64 * 1024 * 1024
_FORMS: Final = "give a chat completion as JSON, or the chunks of a streamed one as JSON lines or data: lines"


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 clean, 1 signatures found."""
    paths = [path for path in (args.reply, args.whole, args.expect) if path is not None]
    if paths.count("-") > 1:
        raise UnreadableError("stdin: can be read once; give - once")
    expectation = _read_expectation(args.expect)
    reply = _read_reply(args.reply)
    if args.whole is None:
        found = classify(reply, expectation)
    else:
        found = classify_pair(reply, _read_reply(args.whole), expectation)
    severity = found.severity
    if args.output == "json":
        print_json({"signatures": list(found.signatures), "severity": severity.value if severity else None})
    else:
        _show(shown_name(args.reply), found, reply)
    return EXIT_REFUSED if found.signatures else EXIT_FINE


def _show(name: str, found: Classification, reply: Reply) -> None:
    if found.signatures:
        print_table(
            ("ID", "SEVERITY", "THE TOOL CALL", "LOOK AT"),
            [(s, v.value, CATALOGUE[s].meaning, CATALOGUE[s].accuses) for s, v in found.severities.items()],
            [
                f"{s} {v.value}: the tool call {CATALOGUE[s].meaning}; look at {CATALOGUE[s].accuses}"
                for s, v in found.severities.items()
            ],
        )
    if found.dialects:
        print_line(f"markup: {', '.join(found.dialects)}")
    if found.excerpt:
        print_line(f"evidence: {found.excerpt}")
    if not reply.complete:
        print_line("note: the reply has no finish reason; it was cut off, or its last chunk is missing")
    severity = found.severity
    if severity is None:
        print_line(f"{name}: clean")
    else:
        note = "" if found.failed else ", a warning only: probes pass with it"
        print_line(f"{name}: {severity.value} ({', '.join(found.signatures)}){note}")


def _read_expectation(path: str) -> Expectation:
    name = shown_name(path)
    documents = parse_documents(read_text(path), name)
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise UnreadableError(f'{name}: must hold one object, such as {{"tool": "f", "arguments": {{}}}}')
    try:
        return Expectation.from_json(documents[0])
    except ValueError as error:
        raise UnreadableError(f"{name}: {error}") from None


def _read_reply(path: str) -> Reply:
    """A reply in any of its forms.

    Raises:
        UnreadableError: with the line of what is no JSON, and for JSON that is no reply.
    """
    name = shown_name(path)
    # Bytes that are no UTF-8 are damage of the reply, to be judged like any other.
    text = _read_bytes(path, name).decode("utf-8-sig", "replace")
    if not text.strip():
        raise UnreadableError(f"{name}: is empty; {_FORMS}")
    try:
        values = [json.loads(text)]
    except RecursionError:
        raise UnreadableError(f"{name}: nested too deeply") from None
    except ValueError:
        values = _lines(text, name)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    _check(values, name)
    if len(values) == 1 and _message(values[0]):
        return from_completion(values[0])
    return join_chunks(values)


def _read_bytes(path: str, name: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_LARGEST_REPLY + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_LARGEST_REPLY + 1)
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror or error}") from None
    if len(data) > _LARGEST_REPLY:
        raise UnreadableError(f"{name}: larger than {_LARGEST_REPLY // 1024**2} MiB, as no reply is")
    return data


def _lines(text: str, name: str) -> list[Any]:
    """JSON lines, or the ``data:`` lines of an event stream."""
    values = []
    # Not splitlines(): a chunk may hold other line separators of Unicode in a string.
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if line.startswith("data:"):
            line = line[5:].strip()
        elif line.startswith((":", "event:", "id:", "retry:")):
            continue
        if line == "[DONE]":
            break
        if not line:
            continue
        try:
            values.append(json.loads(line))
        except RecursionError:
            raise UnreadableError(f"{name}:{number}: nested too deeply") from None
        except json.JSONDecodeError as error:
            raise UnreadableError(f"{name}:{number}: not JSON: {error.msg}; {_FORMS}") from None
    return values


def _check(values: list[Any], name: str) -> None:
    """That there are choices somewhere, and no error in place of an answer."""
    for value in values:
        if isinstance(value, dict) and (value.get("error") is not None or value.get("object") == "error"):
            inner = value["error"] if isinstance(value.get("error"), dict) else value
            message = " ".join(str(inner.get("message") or "no message").split())[:200]
            raise UnreadableError(f"{name}: is an error and no reply: {message}")
    if not any(isinstance(value, dict) and isinstance(value.get("choices"), list) for value in values):
        raise UnreadableError(f"{name}: has no choices; {_FORMS}")
    if sum(1 for value in values if _message(value)) and len(values) > 1:
        raise UnreadableError(f"{name}: holds {len(values)} values, whole replies among them; give one reply")


def _message(value: Any) -> bool:
    """The value is a whole completion."""
    choices = value.get("choices") if isinstance(value, dict) else None
    return isinstance(choices, list) and any(isinstance(choice, dict) and "message" in choice for choice in choices)
