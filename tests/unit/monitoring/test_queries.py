"""Every query that is shipped, executed by a real Prometheus that scrapes a running pair, its sidecars and a soak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitoring.alerts import GROUPS
from monitoring.board import Panel
from monitoring.dashboard import ROWS, VARIABLES
from monitoring.model import Alert, Record
from running import Asked, running

from localcluster.errors import ClusterError
from localcluster.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 180
PANELS = [panel for row in ROWS for panel in row.panels]
RECORDS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Record)]
ALERTS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)]

IDLE_RECORDS = {
    "dsv4_pod:transfer_failures:increase5m": "SGLang makes the series with the first failure",
    "dsv4_pod:bootstrap_failures:increase5m": "SGLang makes the series with the first failure",
    "dsv4_pod:failed_requests:increase5m": "made of the two above",
    "dsv4_pod:spec_accept_length:max": "the pair does not speculate; promtool situations have the series",
    "dsv4_generation:spec_accept_length:avg": "as above",
}
"""Recorded series that a healthy pair need not have, and why."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with running(tmp_path_factory.mktemp("queries")) as asked:
        yield asked


def filled(expression: str) -> str:
    """The expression as Grafana sends it with everything selected."""
    for name, value in {"$__rate_interval": "30s", "$namespace": ".*", "$deployment": ".*", "$soak": ".*"}.items():
        expression = expression.replace(name, value)
    assert "$" not in re.sub(r'"\$1"', "", expression), expression
    return expression


def returns(asked: Asked, expression: str) -> None:
    """The query returns numbers, now or soon."""
    try:
        wait_for("data", lambda: asked.has_data(expression), DEADLINE, interval=1)
    except ClusterError:
        pytest.fail(f"no data within {DEADLINE} s: {expression}\nreturns {asked.query(expression)}")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panels_have_data(prometheus: Asked, panel: Panel) -> None:
    for query in panel.queries:
        if panel.idle:
            prometheus.query(filled(query.expr))
        else:
            returns(prometheus, filled(query.expr))


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule.name)
def test_recorded_series_have_data(prometheus: Asked, rule: Record) -> None:
    prometheus.query(rule.expr)
    if rule.name not in IDLE_RECORDS:
        returns(prometheus, rule.name)


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_have_values(prometheus: Asked, name: str) -> None:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", VARIABLES[name])
    assert found
    series = {"match[]": filled(found[1])}
    wait_for(name, lambda: prometheus.get(f"label/{found[2]}/values", **series), DEADLINE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/runbooks").glob("DSV4*.md")), ids=lambda page: page.stem)
def test_queries_of_runbooks_are_valid(prometheus: Asked, page: Path) -> None:
    fences = re.findall(r"^```\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for fence in fences for line in fence.splitlines() if not line.startswith(("kubectl", "amtool"))]
    assert lines
    for line in lines:
        prometheus.query(line.replace("NS", "llm").replace("POD", "demo-abcdef-decode-0"))


def test_rules_evaluate_without_error_and_nothing_fires(prometheus: Asked) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDS) + len(ALERTS)
    assert [rule["name"] for rule in rules if rule.get("lastError") or rule["health"] != "ok"] == []
    assert prometheus.query('ALERTS{alertstate="firing"}') == []
