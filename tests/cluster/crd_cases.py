"""Cases of valid and invalid objects, read by the unit tests and by those against the real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dsv4_operator.api.crd import object_schema

Object = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
SAMPLES = sorted((REPOSITORY / "manifests" / "samples").glob("*.yaml"))
RULES_FILE = Path(__file__).with_name("crd_rules.yaml")


def sample_objects(path: Path) -> list[Object]:
    """The DSV4Deployments of one sample file."""
    return [item for item in yaml.safe_load_all(path.read_text()) if item["kind"] == "DSV4Deployment"]


def minimal(name: str = "case") -> Object:
    """A valid object."""
    (found,) = sample_objects(REPOSITORY / "manifests" / "samples" / "minimal.yaml")
    found["metadata"]["name"] = name
    return found


def merged(target: Object, patch: Object) -> Object:
    """RFC 7396: `patch` laid over `target`; null removes."""
    result = copy.deepcopy(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = value
    return result


def with_value(path: str, value: Any, name: str = "case") -> Object:
    """The minimal object with `value` merged in at a schema path, such as `spec.engine.extraArgs[]`."""
    for part in reversed(path.split(".") if path else []):
        value = {part.removesuffix("[]"): [value] if part.endswith("[]") else value}
    base = minimal(name)
    if path.startswith("spec.model.source."):
        base["spec"]["model"]["source"] = {}
    return merged(base, value)


@dataclass(frozen=True)
class RuleCase:
    """One value for one rule at one place."""

    rule: str
    path: str
    number: int
    value: Any
    breaks: bool

    def __str__(self) -> str:
        return f"{self.rule}-{self.path or 'root'}-{'breaks' if self.breaks else 'holds'}-{self.number}"

    def object(self) -> Object:
        """The whole object."""
        value = self.value
        if not self.path and isinstance(value, dict) and not value.keys() & {"metadata", "spec"}:
            value = {"spec": value}
        return with_value(self.path, value)


def placed_rules() -> list[tuple[str, str]]:
    """(path, name) of every CEL rule in the schema."""
    return object_schema().rules


def rule_cases() -> list[RuleCase]:
    """All cases of crd_rules.yaml at all places of their rules."""
    cases: dict[str, Object] = {entry["rule"]: entry for entry in yaml.safe_load(RULES_FILE.read_text())}
    return [
        RuleCase(name, path, number, value, breaks)
        for path, name in placed_rules()
        for kind, breaks in (("breaks", True), ("holds", False))
        for number, value in enumerate(cases.get(name, {}).get(kind, []))
    ]


def messages() -> dict[tuple[str, str], str]:
    """The message of every placed rule, by (path, name)."""
    converted = object_schema()
    found: dict[str, list[str]] = {}
    for path, node in nodes(converted.schema):
        found[path] = [rule["message"] for rule in node.get("x-kubernetes-validations", [])]
    by_path: dict[str, Iterator[str]] = {path: iter(texts) for path, texts in found.items()}
    return {(path, name): next(by_path[path]) for path, name in converted.rules}


def nodes(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every node of a structural schema with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}" if path else name)
    if isinstance(schema.get("items"), dict):
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def enum_fields() -> list[tuple[str, list[str]]]:
    """(path, values) of every enumeration of the spec."""
    return [
        (path, node["enum"])
        for path, node in nodes(object_schema().schema)
        if "enum" in node and path.startswith("spec.")
    ]
