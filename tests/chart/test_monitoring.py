"""What the chart and manifests/monitoring ship for Prometheus and Grafana."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]

API = ("--api-versions", "monitoring.coreos.com/v1")
ALL: dict[str, Any] = {
    "metrics": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboard": {"enabled": True}}
}
KINDS = ("PodMonitor", "PrometheusRule")


def found(objects: Objects, kind: str, ending: str = "") -> dict[str, Any]:
    (one,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(ending)]
    return one


def manifest(root: Path, name: str) -> Any:
    return [*yaml.safe_load_all((root / "manifests/monitoring" / name).read_text())]


def test_nothing_is_made_unasked(template: Render) -> None:
    assert not [one for one in template({}, *API) if one["kind"] in (*KINDS, "ConfigMap")]


def test_objects_of_a_missing_api_are_left_out(template: Render) -> None:
    objects = template(ALL)
    assert not [one for one in objects if one["kind"] in KINDS]
    assert found(objects, "ConfigMap", "-dashboard")


def test_rules_are_those_of_the_manifests(template: Render, root: Path) -> None:
    (ours,) = manifest(root, "prometheusrule.yaml")
    (plain,) = manifest(root, "rules.yaml")
    assert found(template(ALL, *API), "PrometheusRule")["spec"] == ours["spec"] == plain


def test_monitors_are_those_of_the_manifests(template: Render, root: Path) -> None:
    theirs = {one["metadata"]["name"].removeprefix("dsv4-"): one["spec"] for one in manifest(root, "podmonitors.yaml")}
    objects = template(ALL, *API)
    for name in ("engines", "routers"):
        assert found(objects, "PodMonitor", f"-{name}")["spec"] == theirs[name]
    spec = found(objects, "PodMonitor", "dsv4-operator")["spec"]
    assert spec["podMetricsEndpoints"] == theirs["operator"]["podMetricsEndpoints"]


@pytest.mark.parametrize("base", ["https://git.example.com/x/docs/runbooks", "https://wiki.example.com/dsv4/"])
def test_runbooks_may_be_elsewhere(template: Render, base: str) -> None:
    values = {"metrics": {**ALL["metrics"], "runbookBaseUrl": base}}
    objects = template(values, *API)
    groups = found(objects, "PrometheusRule")["spec"]["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert links
    assert all(link.startswith(base.rstrip("/") + "/DSV4") for link in links)
    board = json.loads(found(objects, "ConfigMap", "-dashboard")["data"]["dsv4.json"])
    text = json.dumps(board)
    assert f"{base.rstrip('/')}/DSV4Corruption.md" in text
    assert '"docs/runbooks' not in text


def test_the_dashboard_is_that_of_the_manifests(template: Render, root: Path) -> None:
    shipped = json.loads((root / "manifests/monitoring/dsv4.json").read_text())
    config = found(template(ALL), "ConfigMap", "-dashboard")
    assert json.loads(config["data"]["dsv4.json"]) == shipped
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_namespaced_installs_look_at_their_namespaces(template: Render) -> None:
    objects = template({**ALL, "watchNamespaces": ["team-a", "team-b"]}, *API)
    spec = found(objects, "PodMonitor", "-engines")["spec"]
    assert spec["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_kustomize_renders(kustomize: Callable[[str], Objects]) -> None:
    objects = kustomize("monitoring")
    assert sorted(one["kind"] for one in objects) == ["ConfigMap", *["PodMonitor"] * 3, "PrometheusRule"]
    assert {one["metadata"]["namespace"] for one in objects} == {"monitoring"}
    for one in objects:
        for group in one.get("spec", {}).get("groups", []):
            assert group["rules"]
