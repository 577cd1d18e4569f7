"""The generated files: current, named as the conventions say, and complete with runbooks and documents."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from monitoring.alerts import ALERT_NAMES, GROUPS
from monitoring.board import Panel
from monitoring.dashboard import ROWS, dashboard
from monitoring.model import Alert, Record

from dsv4_canary.metrics import Metrics
from dsv4_canary.soak.metrics import SoakMetrics
from dsv4_operator.runtime.metrics import OperatorMetrics

ROOT = Path(__file__).resolve().parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
PAGE = (ROOT / "docs" / "observability.md").read_text()
RULES = [rule for group in GROUPS for rule in group.rules]
ALERTS = [rule for rule in RULES if isinstance(rule, Alert)]
PANELS = [panel for row in ROWS for panel in row.panels]
QUERIES = [rule.expr for rule in RULES] + [query.expr for panel in PANELS for query in panel.queries]
NAMED_IN_THE_CONTRACT = {
    "DSV4Corruption", "DSV4CorruptionSuspected", "DSV4CanaryFailing", "DSV4CanaryBlind", "DSV4EngineWedged",
    "DSV4TransferSlow", "DSV4TransferFailures", "DSV4RouterDrift", "DSV4OutputLengthRatio", "DSV4NoCanarySuccess",
    "DSV4SpecAcceptLengthDrop", "DSV4LiveToolCallCorruption", "DSV4CanaryAbsent", "DSV4EngineMetricsAbsent",
    "DSV4RouterDown", "DSV4NotServing", "DSV4OperatorDown",
}  # fmt: skip
HEADINGS = ["What it means", "What users see", "Confirm", "Do now", "Fired wrongly?", "Causes and sources"]


def test_files_are_current() -> None:
    command = [sys.executable, str(ROOT / "hack" / "monitoring_files.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_alert_of_the_contract_is_there() -> None:
    assert set(ALERT_NAMES) == NAMED_IN_THE_CONTRACT


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_are_named_and_described(rule: Record | Alert) -> None:
    if isinstance(rule, Record):
        assert re.fullmatch(r"dsv4_(pod|generation|object|operator):[a-z_]+:[a-z]+(\d+[mh])?", rule.name)
        return
    shown = rule.render("https://example.com/runbooks")
    assert rule.severity in ("critical", "warning")
    assert re.fullmatch(r"\d+[smh]", rule.lasting)
    assert shown["annotations"]["runbook_url"] == f"https://example.com/runbooks/{rule.name}.md"
    assert len(shown["annotations"]["summary"]) <= 165
    assert shown["annotations"]["description"].endswith(".")
    assert "{{{" not in str(shown["annotations"])


def test_rules_of_one_name_can_be_told_apart() -> None:
    keys = [(rule.name, rule.severity, *sorted(rule.labels.items())) for rule in ALERTS]
    assert len(keys) == len(set(keys))


def test_alerts_read_only_what_is_recorded() -> None:
    """So that no alert depends on a spelling; the other way round, nothing is recorded for nobody."""
    recorded = {rule.name for rule in RULES if isinstance(rule, Record)}
    for rule in ALERTS:
        used = set(re.findall(r"\bdsv4_[a-z]+:[\w:]+", rule.expr))
        assert used
        assert used <= recorded, rule.name
        assert not re.search(r"\bsglang|\bdsv4_(canary|engine|operator|guard)_", rule.expr), rule.name
    read = {
        name for query in QUERIES for name in re.findall(r"\bdsv4_(?:pod|generation|object|operator):[\w:]+", query)
    }
    assert recorded - read == set()


@pytest.mark.parametrize("name", ALERT_NAMES)
def test_each_alert_has_a_runbook(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == HEADINGS
    assert f"]({name}.md)" in (RUNBOOKS / "README.md").read_text()
    assert f"](runbooks/{name}.md)" in PAGE


def test_no_runbook_is_left_over() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {*ALERT_NAMES, "README"}


def rows(header: str) -> Iterator[list[str]]:
    """Cells of the rows of the tables whose header starts so."""
    for part in re.split(rf"^(?={re.escape(header)})", PAGE, flags=re.MULTILINE)[1:]:
        for line in part.split("\n\n", 1)[0].splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_table_of_alerts_is_true() -> None:
    said = {row[0].partition("]")[0].lstrip("["): (row[1], row[2]) for row in rows("| alert | severity | waits")}
    for name in ALERT_NAMES:
        mine = [rule for rule in ALERTS if rule.name == name]
        severities = ", ".join(dict.fromkeys(rule.severity for rule in mine))
        assert said[name] == (severities, ", ".join(dict.fromkeys(rule.lasting for rule in mine)))


def base(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_engine_series_are_listed() -> None:
    used = {base(name) for query in QUERIES for name in re.findall(r"sglang[:_](\w+)", query)}
    assert {name for row in rows("| series | used for") for name in re.findall(r"`(\w+)`", row[0])} == used


def test_live_and_soak_series_are_listed() -> None:
    listed = {re.findall(r"`(\w+)`", row[0])[0] for row in rows("| series | labels | what it says")}
    soak = {f"{m.name}_total" if m.type == "counter" else m.name for m in SoakMetrics("t").registry.collect()}
    used = {base(name) for query in QUERIES for name in re.findall(r"\bdsv4_(?:guard|soak)_\w+", query)}
    assert {name for name in listed if name.startswith("dsv4_soak_")} == soak
    assert used <= listed


def families() -> Iterator[Any]:
    for registry in (Metrics("prefill", "f").registry, SoakMetrics("t").registry, OperatorMetrics("0").registry):
        yield from registry.collect()


@pytest.mark.parametrize("family", [*families()], ids=lambda family: family.name)
def test_names_keep_the_conventions(family: Any) -> None:
    if family.name.startswith("process_"):
        return
    assert re.fullmatch(r"dsv4_(operator|canary|engine|soak)_[a-z_]+", family.name)
    assert not re.search(r"(milli|micro|_ms$|_minutes|_percent)", family.name)
    assert family.documentation.endswith(".")


def test_our_series_in_queries_exist() -> None:
    known = {f"{m.name}_total" if m.type == "counter" else m.name for m in families()}
    known |= {"dsv4_guard_info", "dsv4_guard_tool_calls_total", "dsv4_guard_request_seconds"}
    known |= {f"dsv4_operator_queue_{name}" for name in ("depth", "delayed", "running")}
    known |= {"dsv4_operator_queue_oldest_age_seconds", "dsv4_operator_queue_longest_run_seconds"}
    pattern = r"\bdsv4_(?:canary|engine|guard|soak|operator)_\w+(?!:)\b"
    used = {base(name) for query in QUERIES for name in re.findall(pattern, query)}
    assert used - known == set()


# -- the dashboard


def shown() -> dict[str, Any]:
    return dashboard("https://example.com/runbooks")


def test_grafanas_own_model_reads_the_dashboard() -> None:
    register_default_plugins()
    read = Dashboard.from_json(shown())
    assert read.title == "DeepSeek-V4 serving"
    assert read.templating.list_val is not None
    assert [variable.name for variable in read.templating.list_val] == ["datasource", "namespace", "deployment", "soak"]
    assert len(read.panels or []) > len(ROWS)


def test_panels_lie_side_by_side() -> None:
    everything = [p for one in shown()["panels"] for p in (one, *one.get("panels", []))]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len(everything) == len(PANELS) + len(ROWS)
    taken: set[tuple[int, int]] = set()
    for panel in shown()["panels"]:
        place = panel["gridPos"]
        assert place.get("x", 0) + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place.get("x", 0), place.get("x", 0) + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panels_say_what_they_show(panel: Panel) -> None:
    assert len(panel.description) > 10
    assert panel.queries
    assert panel.alert in ("", *ALERT_NAMES)
    assert panel.kind not in ("table", "matrix") or panel.columns
    for query in panel.queries:
        assert panel.kind in ("stat", "table", "matrix") or query.legend, "a legend"
        assert "$namespace" in query.expr or "dsv4_operator_" in query.expr or "$soak" in query.expr


def test_links_lead_to_runbooks() -> None:
    links = [link["url"] for panel in shown()["panels"] for link in panel.get("links") or []]
    assert links
    for link in links:
        assert (RUNBOOKS / link.removeprefix("https://example.com/runbooks/")).exists(), link
