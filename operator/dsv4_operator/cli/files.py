"""Reading files: one object of ours from YAML or JSON, with one line that says what is wrong and where."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from dsv4_operator.api.constants import API_VERSION, KIND
from dsv4_operator.cli.errors import UnreadableError

LARGEST_FILE: Final = 3 * 1024 * 1024
"""Bytes; etcd takes objects of at most 1.5 MiB."""
MOST_NODES: Final = 200_000
"""Values in a document once aliases are written out: a small file can mean billions."""
_STDIN: Final = "-"

try:
    from yaml import CSafeLoader as _BaseLoader
except ImportError:  # pragma: no cover - PyYAML without libyaml
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]


class _Loader(_BaseLoader):
    """Refuses the same key twice, of which YAML parsers silently keep one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands there twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def shown_name(path: str) -> str:
    """How messages name a file."""
    return "stdin" if path == _STDIN else path


def read_text(path: str) -> str:
    """The content of a file, or of stdin for `-`.

    Raises:
        UnreadableError: for what is no readable UTF-8 text of reasonable size.
    """
    name = shown_name(path)
    try:
        if path == _STDIN:
            data = sys.stdin.buffer.read(LARGEST_FILE + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror or error}") from None
    if len(data) > LARGEST_FILE:
        raise UnreadableError(f"{name}: larger than {LARGEST_FILE // 1024**2} MiB, as no object of Kubernetes is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{name}: not UTF-8 text (byte {error.start})") from None


def parse_documents(text: str, name: str) -> list[Any]:
    """All YAML or JSON documents in `text`, empty ones left out.

    Raises:
        UnreadableError: with line and column of what is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text, object_pairs_hook=lambda pairs: _distinct(pairs, name))]
        except json.JSONDecodeError as error:
            if name.endswith(".json"):
                more = "several documents" if error.msg == "Extra data" else f"not JSON: {error.msg}"
                raise UnreadableError(f"{name}:{error.lineno}:{error.colno}: {more}") from None
        except RecursionError:
            raise UnreadableError(f"{name}: nested too deeply") from None
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
        for document in documents:
            _check(document, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise UnreadableError(f"{name}{where}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UnreadableError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UnreadableError(f"{name}: nested too deeply") from None
    return documents


def _distinct(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise UnreadableError(f"{name}: the key {twice!r} stands there twice")
    return found


def _check(document: Any, name: str) -> None:
    """That the document is of a size that an object can have, with keys that it can have."""

    def walk(value: Any) -> Iterator[None]:
        yield None
        if isinstance(value, dict):
            wrong = next((key for key in value if not isinstance(key, str | int | float | None)), None)
            if wrong is not None:
                raise UnreadableError(f"{name}: the key {wrong} is no text; put it in quotes")
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for child in children:
            yield from walk(child)

    for count, _ in enumerate(walk(document)):
        if count > MOST_NODES:
            raise UnreadableError(f"{name}: more than {MOST_NODES} values once its aliases are written out")


def load_object(path: str) -> dict[str, Any]:
    """The one DSV4Deployment in a file, as it stands there.

    Raises:
        UnreadableError: for no document, several, or another kind.
    """
    name = shown_name(path)
    documents = parse_documents(read_text(path), name)
    if not documents:
        raise UnreadableError(f"{name}: holds no document; give one {KIND}")
    if len(documents) > 1:
        raise UnreadableError(f"{name}: holds {len(documents)} documents; give one {KIND} a file")
    document = documents[0]
    if not isinstance(document, dict):
        raise UnreadableError(f"{name}: holds a {type(document).__name__}, not an object; give one {KIND}")
    kind, version = document.get("kind"), document.get("apiVersion")
    if (kind, version) != (KIND, API_VERSION):
        found = f"kind {kind}, apiVersion {version}" if kind or version else "neither kind nor apiVersion"
        raise UnreadableError(f"{name}: has {found}; give kind {KIND}, apiVersion {API_VERSION}")
    return document
