"""The Grafana dashboard, built with Grafana's own SDK."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from monitoring import panels, panels_engine, panels_more
from monitoring.board import DATASOURCE, Row, row
from monitoring.model import RUNBOOKS

ROWS: Final[tuple[Row, ...]] = (*panels.ROWS, *panels_engine.ROWS, *panels_more.ROWS)
UID: Final = "dsv4-serving"

_ANY = '__name__=~"dsv4_canary_ready|sglang[:_]num_running_reqs|dsv4_object:router_drift:max"'
_IN_NAMESPACE = _ANY + ',namespace=~"$namespace"'
VARIABLES: Final = {
    "namespace": f"label_values({{{_ANY}}}, namespace)",
    "deployment": f"label_values({{{_IN_NAMESPACE}}}, deployment)",
    "soak": "label_values(dsv4_soak_requests_running, tag)",
}


def dashboard(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """The dashboard as Grafana imports it; links lead to pages under `runbooks`."""
    built = (
        builders.Dashboard("DeepSeek-V4 serving")
        .uid(UID)
        .description("Prefill/decode pairs of DSV4Deployments: answers, live tool calls, engines, transfer, operator.")
        .tags(["dsv4", "sglang"])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(
            builders.DashboardLink("Runbooks")
            .type(model.DashboardLinkType.LINK)
            .url(f"{runbooks}/README.md")
            .target_blank(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name, query in VARIABLES.items():
        built.with_variable(
            builders.QueryVariable(name)
            .label(name.capitalize())
            .query(query)
            .datasource(DATASOURCE)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(selected=True, text="All", value="$__all"))
        )
    for spec in ROWS:
        built.with_row(row(spec, runbooks))
    found = cast("dict[str, Any]", json.loads(json.dumps(built.build(), cls=JSONEncoder)))
    found["panels"] = _opened(found["panels"])
    return found


def _opened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Panels of open rows beside their row, where Grafana wants them (the SDK knows closed rows alone), with ids."""
    shown: list[dict[str, Any]] = []
    for spec, one in zip(ROWS, rows, strict=True):
        shown.append(one)
        one["collapsed"] = spec.collapsed
        if not spec.collapsed:
            shown += one["panels"]
            one["panels"] = []
    number = 0
    for one in shown:
        for panel in (one, *one.get("panels", [])):
            number += 1
            panel["id"] = number
    return shown
