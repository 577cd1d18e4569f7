"""An old CRD is recognised by the fields that it would prune."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_operator.observe.schema import installed_schema, missing_fields

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def crd() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "crds" / "serving.dsv4.dev_dsv4deployments.yaml").read_text())
    return loaded


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_the_same_schema_lacks_nothing(crd: dict[str, Any]) -> None:
    assert missing_fields(schema(crd), schema(crd)) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param("spec", "indexK", id="whole field"),
        pytest.param("spec.hiCache", "onCorruption", id="nested field"),
        pytest.param("spec.engine.env[]", "secretKeyRef", id="field of list items"),
    ],
)
def test_a_pruned_field_is_named(crd: dict[str, Any], path: str, name: str) -> None:
    old = copy.deepcopy(schema(crd))
    node = old
    for part in path.split("."):
        node = node["properties"][part.removesuffix("[]")]
        node = node["items"] if part.endswith("[]") else node
    del node["properties"][name]
    assert missing_fields(old, schema(crd)) == [f"{path}.{name}"]


def test_fields_that_only_the_installed_one_knows_do_no_harm(crd: dict[str, Any]) -> None:
    newer = copy.deepcopy(schema(crd))
    newer["properties"]["spec"]["properties"]["tomorrow"] = {"type": "string"}
    assert missing_fields(newer, schema(crd)) == []


def test_a_version_that_is_not_served_has_no_schema(crd: dict[str, Any]) -> None:
    assert installed_schema(crd, "v1alpha1") == schema(crd)
    crd["spec"]["versions"][0]["served"] = False
    assert installed_schema(crd, "v1alpha1") is None
