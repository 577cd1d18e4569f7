"""Pieces of the dashboard: a panel in few words, turned into Grafana's model by Grafana's own SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
SELECTED: Final = 'namespace=~"$namespace",deployment=~"$deployment"'
RATE: Final = "$__rate_interval"

GREEN, YELLOW, ORANGE, RED, GREY, BLUE = "green", "yellow", "orange", "red", "text", "blue"

Kind = Literal["series", "bars", "stat", "states", "table", "matrix"]
States = dict[int, tuple[str, str]]
"""Value to text and colour."""

YES_GOOD: Final[States] = {0: ("no", RED), 1: ("yes", GREEN)}
YES_BAD: Final[States] = {0: ("no", GREEN), 1: ("yes", RED)}
VERDICT: Final[States] = {0: ("none", GREEN), 1: ("suspected", ORANGE), 2: ("confirmed", RED)}
PEER: Final[States] = {
    1: ("pass", GREEN),
    0: ("FAIL", RED),
    -1: ("loading", BLUE),
    -2: ("unreachable", ORANGE),
    -3: ("busy", YELLOW),
}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `idle` says why its queries may return nothing on a healthy pair; without it they must not."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "series"
    unit: str = "short"
    width: int = 8
    height: int = 8
    states: States = field(default_factory=dict)
    steps: tuple[tuple[float, str], ...] = ()
    alert: str = ""
    idle: str = ""
    columns: tuple[str, ...] = ()
    """Labels that a table shows, or row and column of a matrix."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of panels under a title."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


def ours(name: str, more: str = "") -> str:
    """A selector of the chosen deployments."""
    return f"{name}{{{','.join(part for part in (SELECTED, more) if part)}}}"


def engine(make: Callable[[str], str]) -> str:
    """The expression for either spelling of SGLang's names; `make` gets the prefix."""
    return f"{make('sglang:')}\nor\n{make('sglang_')}"


def row(spec: Row, runbooks: str) -> builders.Row:
    """Grafana's row."""
    built = builders.Row(spec.title)
    for panel in spec.panels:
        built.with_panel(_panel(panel, runbooks))
    return built


def _panel(spec: Panel, runbooks: str) -> Any:
    built = _MAKERS[spec.kind](spec)
    description = " ".join(spec.description.split())
    built.title(spec.title).description(description).datasource(DATASOURCE).span(spec.width).height(spec.height)
    built.unit(spec.unit)
    if spec.alert:
        link = builders.DashboardLink(f"Runbook {spec.alert}").type(model.DashboardLinkType.LINK)
        built.links([link.url(f"{runbooks}/{spec.alert}.md").target_blank(True)])
    if spec.states:
        built.mappings([_mapping(spec.states)])
    steps = spec.steps or ((0, GREEN),)
    built.thresholds(
        builders.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=None if n == 0 else at, color=color) for n, (at, color) in enumerate(steps)])
    )
    for index, query in enumerate(spec.queries):
        built.with_target(_target(spec, query, chr(ord("A") + index)))
    return built


def _target(spec: Panel, query: Query, letter: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(letter).legend_format(query.legend)
    if spec.kind in ("table", "matrix"):
        return target.instant().format(PromQueryFormat.TABLE)
    if spec.kind == "stat":
        return target.instant()
    return target.range()


def _mapping(states: States) -> model.ValueMap:
    return model.ValueMap(
        {
            str(value): model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(states.items())
        }
    )


def _colored(mode: model.FieldColorModeId) -> builders.FieldColor:
    return builders.FieldColor().mode(mode)


def _series(spec: Panel) -> Any:
    built = timeseries.Panel().line_width(1).fill_opacity(8).show_points(common.VisibilityMode.NEVER)
    built.span_nulls(False).color_scheme(_colored(model.FieldColorModeId.PALETTE_CLASSIC))
    built.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
    )
    built.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    if len(spec.steps) > 1:
        built.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
    if spec.unit == "percentunit":
        built.min(0)
    if spec.kind == "bars":
        built.draw_style(common.GraphDrawStyle.BARS).fill_opacity(60)
        built.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    return built


def _stat(spec: Panel) -> Any:
    built = stat.Panel().graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.BACKGROUND)
    built.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    return built.color_scheme(_colored(model.FieldColorModeId.THRESHOLDS)).no_value((spec.idle and "none") or "no data")


def _states(spec: Panel) -> Any:
    del spec
    built = statetimeline.Panel().merge_values(True).show_value(common.VisibilityMode.NEVER).row_height(0.8)
    return built.color_scheme(_colored(model.FieldColorModeId.THRESHOLDS)).fill_opacity(80)


def _table(spec: Panel) -> Any:
    hidden = {"Time": True} | dict.fromkeys(("__name__",), True)
    order = {name: index for index, name in enumerate((*spec.columns, "Value"))}
    built = table.Panel().show_header(True).color_scheme(_colored(model.FieldColorModeId.THRESHOLDS))
    built.with_transformation(
        model.DataTransformerConfig(
            id_val="filterFieldsByName",
            options={"include": {"names": [*spec.columns, "Value"]}},
        )
    )
    built.with_transformation(
        model.DataTransformerConfig(
            id_val="organize", options={"excludeByName": hidden, "indexByName": order, "renameByName": {}}
        )
    )
    return _colored_cells(built, "Value")


def _matrix(spec: Panel) -> Any:
    across, down = spec.columns
    built = table.Panel().show_header(True).color_scheme(_colored(model.FieldColorModeId.THRESHOLDS))
    built.with_transformation(
        model.DataTransformerConfig(
            id_val="groupingToMatrix",
            options={"columnField": across, "rowField": down, "valueField": "Value", "emptyValue": "null"},
        )
    )
    return _colored_cells(built, "^(?!.*\\\\).+$")


def _colored_cells(built: table.Panel, names: str) -> table.Panel:
    color = model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"})
    if names == "Value":
        return built.override_by_name(names, [color])
    return built.override_by_regexp(names, [color])


_MAKERS: Final = cast(
    "dict[Kind, Callable[[Panel], Any]]",
    {
        "series": _series,
        "bars": _series,
        "stat": _stat,
        "states": _states,
        "table": _table,
        "matrix": _matrix,
    },
)
