"""Each conversion from pydantic's JSON schema to a structural one, and each construct that has no counterpart."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from dsv4_operator.api.base import ApiModel, CelRule, Checked, ForeignObject, ListMap, ListSet, Quantity
from dsv4_operator.api.schema import SchemaError, structural_schema


class Inner(ApiModel):
    """Described by its class."""

    size: Annotated[int, Field(ge=1, le=8)] = 2
    """How big."""


class Ruled(ApiModel):
    cel_rules = (
        CelRule(name="even", rule="self.size % 2 == 0", holds=lambda r: r.size % 2 == 0, message="must be even"),
    )

    size: int = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    bark: str = "woof"


def converted(annotation: Any, default: Any = ...) -> dict[str, Any]:
    field = Field(default_factory=default) if callable(default) else Field(default)
    model = type("Probe", (ApiModel,), {"__annotations__": {"field": annotation}, "field": field})
    found: dict[str, Any] = structural_schema(model).schema["properties"]["field"]
    return found


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (str, ..., {"type": "string"}),
        (str | None, None, {"type": "string"}),
        (Literal["A"], "A", {"type": "string", "default": "A", "enum": ["A"]}),
        (Literal["A", "B"], "B", {"type": "string", "default": "B", "enum": ["A", "B"]}),
        (int, 5, {"type": "integer", "format": "int64", "default": 5}),
        (Annotated[int, Field(le=9)], ..., {"type": "integer", "format": "int32", "maximum": 9}),
        (Annotated[float, Field(gt=0)], ..., {"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        (Annotated[float, Field(lt=1)], ..., {"type": "number", "maximum": 1, "exclusiveMaximum": True}),
        (bool, False, {"type": "boolean", "default": False}),
        (dict[str, str], ..., {"type": "object", "additionalProperties": {"type": "string"}}),
        (dict[str, Any], ..., {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (ForeignObject, ..., {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (ForeignObject | None, None, {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (int | str, ..., {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (set[str], ..., {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
        (list[str], [], {"type": "array", "items": {"type": "string"}}),
        (list[str], ["a"], {"type": "array", "default": ["a"], "items": {"type": "string"}}),
        (
            Annotated[list[str], ListSet()],
            [],
            {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        ),
    ],
    ids=str,
)
def test_conversion(annotation: Any, default: Any, expected: dict[str, Any]) -> None:
    assert converted(annotation, default) == expected


def test_nested_defaults_apply_because_the_parent_has_one() -> None:
    size = {"description": "How big. Default: 2.", "type": "integer", "format": "int32", "default": 2}
    assert converted(Inner, Inner) == {
        "description": "Described by its class.",
        "type": "object",
        "default": {},
        "properties": {"size": size | {"minimum": 1, "maximum": 8}},
    }


def test_default_of_an_object_with_rules_is_written_out() -> None:
    """The API server holds the rules against `{}` before nested defaults are in, and refuses the CRD."""
    schema = converted(Ruled, Ruled)
    assert schema["default"] == {"size": 2}
    assert schema["x-kubernetes-validations"] == [{"rule": "self.size % 2 == 0", "message": "must be even"}]


def test_list_map() -> None:
    schema = converted(Annotated[list[Inner], ListMap("size")], [])
    assert schema["x-kubernetes-list-type"] == "map"
    assert schema["x-kubernetes-list-map-keys"] == ["size"]


def test_rules_on_items_are_found_with_their_path() -> None:
    rule = CelRule(
        name="short", rule="size(self) < 3", holds=lambda text: len(text) < 3, message="too long", field_path=".x"
    )

    class Probe(ApiModel):
        words: list[Annotated[str, Checked((rule,))]]

    found = structural_schema(Probe)
    assert found.rules == [("words[]", "short")]
    assert found.schema["properties"]["words"]["items"]["x-kubernetes-validations"] == [
        {"rule": "size(self) < 3", "message": "too long", "fieldPath": ".x"}
    ]


def test_quantity_is_a_number_or_text() -> None:
    schema = converted(Quantity | None, None)
    assert schema["x-kubernetes-int-or-string"] is True
    assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert "type" not in schema


def test_tagged_union_becomes_one_object_with_rules() -> None:
    schema = converted(Annotated[Cat | Dog, Field(discriminator="kind")])
    assert list(schema["properties"]) == ["kind", "lives", "bark"]
    assert schema["properties"]["kind"] == {"type": "string", "enum": ["cat", "dog"]}
    assert schema["required"] == ["kind"]
    assert schema["x-kubernetes-validations"] == [
        {"rule": "self.kind != 'cat' || has(self.lives)", "message": "lives is required when kind is cat"}
    ]


def test_fields_below_an_undefaulted_one_have_no_default() -> None:
    class Probe(ApiModel):
        status: Inner = Field(default_factory=Inner)

    schema = structural_schema(Probe, undefaulted=frozenset({"status"})).schema
    assert "default" not in schema["properties"]["status"]
    assert "default" not in schema["properties"]["status"]["properties"]["size"]


class Node(BaseModel):
    children: list[Node] = []


@pytest.mark.parametrize(
    ("annotation", "default", "message"),
    [
        (tuple[int, str], ..., "prefixItems"),
        (dict[Annotated[str, Field(pattern="^a")], int], ..., "propertyNames|patternProperties"),
        (Cat | Dog, ..., "discriminator"),
        (Any, ..., "needs a type"),
        (Node, ..., "contains itself"),
        (str, lambda: "x", "default_factory"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_is_refused(annotation: Any, default: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        converted(annotation, default)
