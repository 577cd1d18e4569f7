from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.queue import QueueStats


def samples(metrics: OperatorMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.exposition().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(metric: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric, frozenset(labels.items())


def test_reconciles_and_calls_are_counted_by_label() -> None:
    metrics = OperatorMetrics("1.2.3")
    metrics.reconcile_done("ok", 0.2)
    metrics.reconcile_done("ok", 0.2)
    metrics.reconcile_done("conflict", 0.2)
    metrics.reconcile_retried()
    metrics.api_call("apply", "Deployment", "409", 0.01)
    metrics.resync_done("ok")
    metrics.set_leader(True)
    found = samples(metrics)
    assert found[series("dsv4_operator_reconcile_total", result="ok")] == 2
    assert found[series("dsv4_operator_reconcile_total", result="conflict")] == 1
    assert found[series("dsv4_operator_reconcile_duration_seconds_count")] == 3
    assert found[series("dsv4_operator_queue_retries_total")] == 1
    assert found[series("dsv4_operator_api_calls_total", verb="apply", kind="Deployment", code="409")] == 1
    assert found[series("dsv4_operator_api_call_duration_seconds_count", verb="apply", kind="Deployment")] == 1
    assert found[series("dsv4_operator_resync_total", result="ok")] == 1
    assert found[series("dsv4_operator_leader")] == 1
    build = [dict(labels) for name, labels in found if name == "dsv4_operator_build_info"]
    assert build[0]["version"] == "1.2.3"


def test_object_series_follow_the_last_report() -> None:
    metrics = OperatorMetrics("1")
    metrics.set_conditions("ns", "a", [("Ready", "False"), ("Degraded", "False")])
    metrics.set_conditions("ns", "a", [("Ready", "True")])
    metrics.set_findings("ns", "a", [("r1", "Warn"), ("r1", "Warn"), ("r2", "Set")])
    metrics.set_policy_allowed("ns", "a", ["r9"])
    metrics.set_generations("ns", "a", 2)
    metrics.set_router_drift("ns", "a", 3)
    metrics.set_blame("ns", "a", {"pods": 1, "links": 2, "fabric": 1})
    found = samples(metrics)
    of_a = {"namespace": "ns", "name": "a"}
    conditions = [key for key in found if key[0] == "dsv4_operator_condition"]
    assert conditions == [series("dsv4_operator_condition", **of_a, type="Ready", status="True")]
    assert found[series("dsv4_operator_findings", **of_a, rule="r1", action="Warn")] == 2
    assert found[series("dsv4_operator_findings", **of_a, rule="r2", action="Set")] == 1
    assert found[series("dsv4_operator_policy_allowed", **of_a, rule="r9")] == 1
    assert found[series("dsv4_operator_generations", **of_a)] == 2
    assert found[series("dsv4_operator_router_drift", **of_a)] == 3
    blamed = {what: found[series(f"dsv4_operator_blamed_{what}", **of_a)] for what in ("pods", "links", "fabric")}
    assert blamed == {"pods": 1, "links": 2, "fabric": 1}
    assert found[series("dsv4_operator_blamed_suspects", **of_a)] == 0


def test_dropped_object_leaves_no_series() -> None:
    metrics = OperatorMetrics("1")
    for name in ("a", "b"):
        metrics.set_conditions("ns", name, [("Ready", "True")])
        metrics.set_findings("ns", name, [("r", "Warn")])
    metrics.drop_object("ns", "a")
    metrics.drop_object("ns", "never-seen")
    named = {dict(labels)["name"] for _, labels in samples(metrics) if "name" in dict(labels)}
    assert named == {"b"}


def test_queue_is_asked_at_every_scrape() -> None:
    metrics, depth = OperatorMetrics("1"), [4]
    metrics.watch_queue(lambda: QueueStats(depth[0], 1, 2, 3.5, 4.5, 0, 0))
    metrics.watch_cache(lambda: 77)
    assert samples(metrics)[series("dsv4_operator_queue_depth")] == 4
    depth[0] = 9
    found = samples(metrics)
    assert found[series("dsv4_operator_queue_depth")] == 9
    assert found[series("dsv4_operator_queue_oldest_age_seconds")] == 3.5
    assert found[series("dsv4_operator_cache_objects")] == 77


def test_two_registries_do_not_meet() -> None:
    first, second = OperatorMetrics("1"), OperatorMetrics("1")
    first.reconcile_done("ok", 1)
    assert series("dsv4_operator_reconcile_total", result="ok") not in samples(second)
