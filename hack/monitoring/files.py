"""The files that are made, and what stands in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from monitoring.alerts import GROUPS
from monitoring.dashboard import dashboard
from monitoring.model import RUNBOOKS
from monitoring.scrape import operator_monitor, pod_monitors, scrape_configs

ROOT: Final = Path(__file__).resolve().parents[2]
MANIFESTS: Final = ROOT / "manifests" / "monitoring"
CHART_FILES: Final = ROOT / "charts" / "dsv4-operator" / "files" / "monitoring"
NOTE: Final = "# Made by hack/monitoring_files.py; do not edit.\n"
DASHBOARD: Final = "dsv4.json"

_LABELS: Final = {"app.kubernetes.io/name": "dsv4-operator", "app.kubernetes.io/part-of": "dsv4"}


class _Dumper(yaml.SafeDumper):
    """Block style for text of several lines, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def dump(*documents: Any) -> str:
    """YAML with a note of origin."""
    body = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)
    return NOTE + body


def rules(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """A rule file as Prometheus reads it."""
    return {"groups": [group.render(runbooks) for group in GROUPS]}


def _object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(_LABELS)}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": kind, "metadata": metadata, **fields}


def wanted_files() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    monitors = pod_monitors()
    everything = dashboard()
    shown = json.dumps(everything, indent=2, ensure_ascii=False) + "\n"
    yield MANIFESTS / "rules.yaml", dump(rules())
    yield MANIFESTS / "scrape-configs.yaml", dump(scrape_configs())
    yield MANIFESTS / "prometheusrule.yaml", dump(_object("PrometheusRule", "dsv4", spec=rules()))
    yield (
        MANIFESTS / "podmonitors.yaml",
        dump(
            _object("PodMonitor", "dsv4-operator", spec={"namespaceSelector": {"any": True}} | operator_monitor()),
            *(_object("PodMonitor", f"dsv4-{name}", spec=spec) for name, spec in monitors.items()),
        ),
    )
    yield MANIFESTS / DASHBOARD, shown
    yield CHART_FILES / "rules.yaml", dump(rules())
    yield CHART_FILES / "podmonitors.yaml", dump(monitors)
    yield CHART_FILES / DASHBOARD, shown
