"""The base of all API models, and the types that Kubernetes has and Python lacks.

What a field needs in the CRD beyond its JSON schema (CEL rules, list-map keys) stands on the model, together with
the same check in Python. `dsv4_operator.api.crd` reads the one, `parse_deployment` obeys the other, so that the API
server, the operator and `dsv4ctl lint` agree on what is a valid object.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

RULES_KEY = "x-kubernetes-validations"
RULE_NAME_KEY = "x-dsv4-rule"
"""Carries `CelRule.name` through the JSON schema; the generator takes it out again."""
BROKEN_RULES = "broken_rules"
"""Type of the pydantic error that broken rules raise; its context holds `rules`: (field path, message) of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """One `x-kubernetes-validations` entry and the same check in Python.

    `message` is what a user reads at `kubectl apply`: what is wrong, why, and what to do. `field_path` names the
    culprit below the object that carries the rule, as `.layout`.
    """

    name: str
    rule: str
    holds: Callable[[Any], bool]
    message: str
    field_path: str | None = None

    def as_schema(self) -> dict[str, str]:
        """The entry as the API server takes it, and the name under `RULE_NAME_KEY`."""
        entry = {RULE_NAME_KEY: self.name, "rule": self.rule, "message": self.message}
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry


def _raise_broken(rules: Iterable[CelRule], value: Any) -> None:
    broken = [(rule.field_path or "", rule.message) for rule in rules if not rule.holds(value)]
    if broken:
        text = "; ".join(message for _, message in broken)
        raise PydanticCustomError(BROKEN_RULES, "{text}", {"text": text, "rules": broken})


class ApiModel(BaseModel):
    """Strict about unknown fields, immutable, camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
    )

    cel_rules: ClassVar[tuple[CelRule, ...]] = ()
    """Rules on the whole object, held by the API server (CEL) and by pydantic alike."""

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        _raise_broken(self.cel_rules, self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema with `cel_rules`."""
        result = handler(schema)
        if cls.cel_rules:
            handler.resolve_ref_schema(result)[RULES_KEY] = [rule.as_schema() for rule in cls.cel_rules]
        return result

    def as_stored(self) -> dict[str, Any]:
        """The object as the API server stores it: with defaults, but without optional fields that are empty."""
        stored: dict[str, Any] = {}
        dumped = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, info in type(self).model_fields.items():
            alias = info.alias or name
            value = getattr(self, name)
            if isinstance(value, ApiModel):
                stored[alias] = value.as_stored()
            elif value is None or (is_empty(value) and is_empty(info.get_default(call_default_factory=True))):
                continue  # an empty value of a field whose default is no such value says something
            elif isinstance(value, list):
                stored[alias] = [
                    item.as_stored() if isinstance(item, ApiModel) else plain
                    for item, plain in zip(value, dumped[alias], strict=True)
                ]
            else:
                stored[alias] = dumped[alias]
        return stored


def is_empty(value: Any) -> bool:
    """Whether a default means no more than absence, so that it need not be written into every stored object."""
    return isinstance(value, str | list | dict) and not value


@dataclass(frozen=True, slots=True)
class Checked:
    """`Annotated` metadata: rules on a value that is no model, such as an item of a list of strings."""

    rules: tuple[CelRule, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validation by the rules, after the type's own."""

        def check(value: Any) -> Any:
            _raise_broken(self.rules, value)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema with the rules."""
        return handler(schema) | {RULES_KEY: [rule.as_schema() for rule in self.rules]}


class ListMap:
    """`Annotated` metadata: a list whose items are told apart by `keys`; duplicates are refused."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def _identity(self, item: Any) -> Hashable:
        return tuple(getattr(item, key) for key in self.keys)

    def _distinct(self, items: list[Any]) -> list[Any]:
        seen: set[Hashable] = set()
        for item in items:
            identity = self._identity(item)
            if identity in seen:
                raise PydanticCustomError(
                    "duplicate_item",
                    "{what} stands there twice: keep one of them",
                    {"what": ", ".join(str(part) for part in identity) if isinstance(identity, tuple) else identity},
                )
            seen.add(identity)
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validation that items are distinct."""
        return core_schema.no_info_after_validator_function(self._distinct, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema as a list-map."""
        extra = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}
        return handler(schema) | extra


class ListSet(ListMap):
    """`Annotated` metadata: a list of distinct scalars."""

    def _identity(self, item: Any) -> Hashable:
        return str(item)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema as a list-set."""
        return handler(schema) | {"x-kubernetes-list-type": "set"}


ForeignObject = Annotated[
    dict[str, Any],
    Field(json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object of another Kubernetes API, kept as it is and validated by the API server when it is used."""

_QUANTITY_PATTERN = (
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


def _quantity_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    Field(pattern=_QUANTITY_PATTERN, max_length=32),
    BeforeValidator(_quantity_text),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]
"""A Kubernetes resource quantity, such as "64Gi" or 8, never negative (the pattern is that of k8s.io/apimachinery)."""

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, min_length=1)]
"""An RFC 1123 label."""

ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253, min_length=1)]
"""The name of a Kubernetes object."""

ResourceName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=253)
]
"""The name of an extended resource: domain/name."""

ImageReference = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=512, min_length=1)]
"""A container image reference; by digest is best, since a tag can move."""
