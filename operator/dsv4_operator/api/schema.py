"""Pydantic's JSON schema made into the structural OpenAPI schema that a CustomResourceDefinition needs.

Only what has a faithful counterpart is converted; everything else is an error with its path, so that no constraint is
lost without notice. The rules are those of Kubernetes' "Specifying a structural schema".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from dsv4_operator.api.base import RULE_NAME_KEY, RULES_KEY, ApiModel, is_empty

Schema = dict[str, Any]

_LIST_TYPE: Final = "x-kubernetes-list-type"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"

_KEPT: Final = frozenset(
    {"type", "format", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties"}
    | {"maxProperties", "minimum", "maximum", "multipleOf", "required"}
    | {_LIST_TYPE, "x-kubernetes-list-map-keys", "x-kubernetes-map-type", _INT_OR_STRING, _PRESERVE}
)
_DROPPED: Final = frozenset({"title", "examples", "discriminator", "readOnly", "writeOnly", "deprecated", "$defs"})
_HANDLED: Final = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "const", "default", "description", "exclusiveMinimum", "exclusiveMaximum"}
    | {"additionalProperties", "properties", "items", "uniqueItems", RULES_KEY}
)
_ORDER: Final = ("description", "type", "format", "default", "enum", "pattern", "minimum", "maximum")
_MAX_INT32: Final = 2**31 - 1


class SchemaError(ValueError):
    """A construct of the models that a structural schema cannot express."""


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, which skips `default_factory`; Kubernetes needs `{}` there for nested defaults."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        factory = schema.get("default_factory")
        if factory is None:
            return super().default_schema(schema)
        if not (isinstance(factory, type) and issubclass(factory, BaseModel | list | dict)):
            raise SchemaError(f"default_factory {factory!r}: only a model, list or dict has a static default")
        default: Any = [] if issubclass(factory, list) else {}
        if issubclass(factory, ApiModel) and factory.cel_rules:
            # The API server holds the rules against the default as written, before nested defaults fill it.
            default = factory().as_stored()
        return {**self.generate_inner(schema["schema"]), "default": default}


@dataclass(slots=True)
class StructuralSchema:
    """The converted schema, and the named rules in it as (path, name)."""

    schema: Schema
    rules: list[tuple[str, str]] = field(default_factory=list)


def structural_schema(model: type[BaseModel], *, undefaulted: frozenset[str] = frozenset()) -> StructuralSchema:
    """The structural schema of `model`; below the fields named in `undefaulted` no defaults are set (status).

    Raises:
        SchemaError: for a construct without counterpart, with its path.
    """
    source = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    converter = _Converter(source.get("$defs", {}), undefaulted)
    return StructuralSchema(converter.convert(source, "", (), defaults=True), converter.rules)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], undefaulted: frozenset[str]) -> None:
        self._definitions = definitions
        self._undefaulted = undefaulted
        self.rules: list[tuple[str, str]] = []

    def convert(self, node: Schema, path: str, above: tuple[str, ...], *, defaults: bool) -> Schema:
        defaults = defaults and path not in self._undefaulted
        node, above = self._inline(node, path, above)
        node = self._without_null(node, path)
        if "$ref" in node or "allOf" in node:
            node, above = self._inline(node, path, above)
        if _is_int_or_string(node):
            node = {key: value for key, value in node.items() if key != "anyOf"} | {_INT_OR_STRING: True}
        elif "oneOf" in node or "anyOf" in node:
            node = self._merge_union(node, path, above)
        if unknown := node.keys() - _KEPT - _DROPPED - _HANDLED:
            raise SchemaError(f"{path or 'root'}: {', '.join(sorted(unknown))} has no counterpart in a CRD")
        result = {key: value for key, value in node.items() if key in _KEPT}
        self._constants(node, result)
        self._children(node, result, path, above, defaults=defaults)
        if "description" in node:
            result["description"] = _paragraphs(node["description"])
        if defaults and node.get("default") is not None and not (is_empty(node["default"]) and not _is_model(node)):
            result["default"] = node["default"]
            if "description" in result and not isinstance(node["default"], dict | list):
                # `kubectl explain` shows no defaults of its own.
                result["description"] += f" Default: {shown(node['default'])}."
        if RULES_KEY in node:
            result[RULES_KEY] = [self._rule(rule, path) for rule in node[RULES_KEY]]
        if result.get("type") == "integer" and "format" not in result:
            result["format"] = "int32" if result.get("maximum", _MAX_INT32 + 1) <= _MAX_INT32 else "int64"
        if _INT_OR_STRING in result:
            result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        elif "type" not in result and _PRESERVE not in result:
            raise SchemaError(f"{path or 'root'}: a structural schema needs a type here")
        return _ordered(result)

    def _inline(self, node: Schema, path: str, above: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """`node` with its reference resolved; what stands beside the reference wins."""
        if len(node.get("allOf", ())) == 1:
            node = {**node["allOf"][0], **{key: value for key, value in node.items() if key != "allOf"}}
        if "$ref" not in node:
            return node, above
        name = node["$ref"].removeprefix("#/$defs/")
        if name in above:
            raise SchemaError(f"{path}: {name} contains itself, which a structural schema cannot express")
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        merged = {**self._definitions[name], **siblings}
        rules = [*self._definitions[name].get(RULES_KEY, []), *siblings.get(RULES_KEY, [])]
        return (merged | {RULES_KEY: rules} if rules else merged), (*above, name)

    def _without_null(self, node: Schema, path: str) -> Schema:
        """An optional field is a field that may be absent, not one that may be null."""
        options: list[Schema] = node.get("anyOf", [])
        if not options or _is_int_or_string(node):
            return node
        real = [option for option in options if option.get("type") != "null"]
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        if len(real) == len(options):
            return node
        if rest.get("default", 0) is None:
            del rest["default"]
        return {**real[0], **rest} if len(real) == 1 else {**rest, "anyOf": real}

    def _merge_union(self, node: Schema, path: str, above: tuple[str, ...]) -> Schema:
        """A union told apart by a tag, as one object with the fields of all and a rule for what each tag requires."""
        tag: str = node.get("discriminator", {}).get("propertyName", "")
        if not tag:
            raise SchemaError(f"{path}: a union needs a discriminator, or must be of int and str")
        properties: dict[str, Schema] = {}
        tags: list[str] = []
        rules: list[dict[str, str]] = []
        options: list[Schema] = node.get("oneOf") or node.get("anyOf") or []
        for option in options:
            variant, _ = self._inline(option, path, above)
            value = variant["properties"][tag].get("const")
            if value is None:
                raise SchemaError(f"{path}.{tag}: the tag of each variant must be one literal")
            tags.append(value)
            for name, schema in variant["properties"].items():
                if name != tag and properties.setdefault(name, schema) != schema:
                    raise SchemaError(f"{path}.{name}: differs between the variants of the union")
            rules += [
                {
                    "rule": f"self.{tag} != '{value}' || has(self.{name})",
                    "message": f"{name} is required when {tag} is {value}",
                }
                for name in variant.get("required", [])
                if name != tag
            ]
        merged: Schema = {key: value for key, value in node.items() if key not in ("oneOf", "anyOf")}
        merged |= {"type": "object", "required": [tag]}
        merged["properties"] = {tag: {"type": "string", "enum": tags}, **properties}
        return merged | ({RULES_KEY: rules} if rules else {})

    def _constants(self, node: Schema, result: Schema) -> None:
        if "const" in node:
            result["enum"] = [node["const"]]
            result.setdefault("type", {str: "string", bool: "boolean", int: "integer"}[type(node["const"])])
        for bound in ("Minimum", "Maximum"):
            if f"exclusive{bound}" in node:
                result[bound.lower()] = node[f"exclusive{bound}"]
                result[f"exclusive{bound}"] = True
        if node.get("uniqueItems"):
            result[_LIST_TYPE] = "set"

    def _children(self, node: Schema, result: Schema, path: str, above: tuple[str, ...], *, defaults: bool) -> None:
        if "properties" in node:
            result["properties"] = {
                name: self.convert(child, f"{path}.{name}" if path else name, above, defaults=defaults)
                for name, child in node["properties"].items()
            }
        if "items" in node:
            result["items"] = self.convert(node["items"], f"{path}[]", above, defaults=defaults)
        additional = node.get("additionalProperties", False)
        if isinstance(additional, dict) and additional:
            result["additionalProperties"] = self.convert(additional, f"{path}{{}}", above, defaults=defaults)
        elif additional is not False:
            result[_PRESERVE] = True

    def _rule(self, rule: Mapping[str, str], path: str) -> dict[str, str]:
        if RULE_NAME_KEY in rule:
            self.rules.append((path, rule[RULE_NAME_KEY]))
        return {key: rule[key] for key in ("rule", "message", "fieldPath") if key in rule}


def shown(default: Any) -> str:
    """A default as one writes it in YAML: text without quotes, unless it would be read as a number."""
    return default if isinstance(default, str) and default[:1].isalpha() else json.dumps(default)


def _is_int_or_string(node: Schema) -> bool:
    options = [option.get("type") for option in node.get("anyOf", ())]
    return bool(node.get(_INT_OR_STRING)) or sorted(map(str, options)) == ["integer", "string"]


def _is_model(node: Schema) -> bool:
    """Whether a default of `{}` on it matters: it lets the defaults of its fields apply."""
    return "properties" in node


def _paragraphs(text: str) -> str:
    """Docstring text with its line breaks undone; an empty line still parts paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _ordered(schema: Schema) -> Schema:
    """Keywords in the order in which one reads them; the fields of an object stay as declared, its rules come last."""
    last = ("properties", "additionalProperties", "items", "required", RULES_KEY)
    middle = sorted(schema.keys() - set(_ORDER) - set(last))
    return {key: schema[key] for key in (*_ORDER, *middle, *last) if key in schema}
