"""The generated files are what the models say, and the CRD is one that the API server takes."""

from __future__ import annotations

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from crd_cases import REPOSITORY, nodes, placed_rules
from dsv4_operator.api import crd, reference
from dsv4_operator.api.v1alpha1 import ConditionType, Reason

ALLOWED = {
    "description", "type", "format", "default", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "multipleOf", "required", "properties", "additionalProperties", "items", "anyOf",
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type",
    "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
}  # fmt: skip
SCHEMA = crd.object_schema().schema


def test_files_are_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main(["--check", "--out", str(REPOSITORY / crd.DEFAULT_PATH)]) == 0, capsys.readouterr().out
    assert reference.main(["--check", "--out", str(REPOSITORY / "docs")]) == 0, capsys.readouterr().out


def test_check_shows_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "crd.yaml"
    assert crd.main(["--out", str(path)]) == 0
    path.write_text(path.read_text().replace("dsv4deployment\n", "other\n"))
    assert crd.main(["--check", "--out", str(path)]) == 1
    shown = capsys.readouterr()
    assert "-    singular: other\n+    singular: dsv4deployment\n" in shown.out
    assert "python -m dsv4_operator.api.crd" in shown.err
    assert "singular: other" in path.read_text()


def test_rendering_is_stable_and_small() -> None:
    text = crd.render()
    assert text == crd.render()
    assert yaml.safe_load(text) == crd.custom_resource_definition()
    assert len(json.dumps(yaml.safe_load(text))) < crd.MAX_BYTES


def test_kubernetes_takes_the_definition() -> None:
    kubernetes_validate.validate(crd.custom_resource_definition(), "1.34", strict=True)


@pytest.mark.parametrize(("path", "node"), list(nodes(SCHEMA)), ids=[path or "root" for path, _ in nodes(SCHEMA)])
def test_node_is_structural(path: str, node: dict[str, object]) -> None:
    assert node.keys() <= ALLOWED
    assert "type" in node or "x-kubernetes-preserve-unknown-fields" in node or "x-kubernetes-int-or-string" in node
    assert not ("properties" in node and "additionalProperties" in node)
    if node.get("type") == "object" and path not in ("", "metadata"):
        assert node.keys() & {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"}
    if node.get("type") == "array":
        assert "items" in node
        assert "maxItems" in node, "CEL's cost estimate needs a bound"
    if node.get("type") == "string" and "enum" not in node and path.startswith("spec."):
        assert "maxLength" in node, "CEL's cost estimate needs a bound"
    if node.get("type") == "integer":
        assert node.get("format") in ("int32", "int64")
    if node.get("x-kubernetes-list-type") == "map":
        items = node["items"]
        assert isinstance(items, dict)
        keys = node["x-kubernetes-list-map-keys"]
        assert isinstance(keys, list)
        assert set(keys) <= set(items["required"])
    if path.startswith("status"):
        assert "default" not in node, "status is observed, never defaulted"


@pytest.mark.parametrize("path", [path for path, _ in nodes(SCHEMA) if not path.endswith(("[]", "{}")) and path])
def test_field_is_described(path: str) -> None:
    node = dict(nodes(SCHEMA))[path]
    assert path == "metadata" or node.get("description")


def test_every_object_of_the_spec_with_defaults_inside_has_one_itself() -> None:
    """Else the defaults below never apply: the API server fills only objects that are there."""
    for path, node in nodes(SCHEMA):
        for name, child in node.get("properties", {}).items():
            inner = child.get("properties", {}).values()
            if path.startswith("spec") and any("default" in field for field in inner) and not child.get("required"):
                optional = f"{path}.{name}" in ("spec.rollout.soak", "spec.model.source.persistentVolumeClaim")
                assert optional or "default" in child, f"{path}.{name}"


def test_rule_names_tell_one_rule() -> None:
    assert len(placed_rules()) == len(set(placed_rules()))


def test_subresources_and_columns() -> None:
    version = crd.custom_resource_definition()["spec"]["versions"][0]
    assert version["subresources"]["status"] == {}
    by_path = dict(nodes(SCHEMA))
    for path in version["subresources"]["scale"].values():
        assert path.removeprefix(".") in by_path
    assert [column["name"].upper() for column in version["additionalPrinterColumns"] if not column.get("priority")] == [
        "READY", "PREFILL", "DECODE", "INDEX-K", "HICACHE", "CANARY", "AGE",
    ]  # fmt: skip


def test_every_type_and_reason_is_documented() -> None:
    text = reference.conditions_markdown()
    for member in (*ConditionType, *Reason):
        assert f"| `{member.value}` |" in text


def test_a_reason_without_docstring_or_heading_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (REPOSITORY / "operator/dsv4_operator/api/v1alpha1/conditions.py").read_text()
    for spoilt in (source.replace("    # Degraded\n", "    # nothing\n"), _without_docstring(source, "AS_EXPECTED")):
        assert spoilt != source
        monkeypatch.setattr(reference.inspect, "getsource", lambda _, text=spoilt: text)
        with pytest.raises(ValueError, match="AsExpected"):
            reference.conditions_markdown()


def _without_docstring(source: str, member: str) -> str:
    lines = source.splitlines(keepends=True)
    position = next(number for number, line in enumerate(lines) if line.startswith(f"    {member} = "))
    del lines[position + 1]
    return "".join(lines)
