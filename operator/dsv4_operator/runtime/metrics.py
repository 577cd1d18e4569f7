"""The operator's own Prometheus metrics, in a registry of their own (nothing from other libraries leaks in).

What describes one object (conditions, findings, ...) is kept as plain facts and turned into series only when
scraped: an object that goes takes all its series with it, and 1,000 objects cost little.
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dsv4_operator.runtime.queue import QueueStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PASS_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CALL_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


_BLAMED: Final = {
    "pods": "Engine pods of each DSV4Deployment that are the cause of failing canaries.",
    "links": "Pairs of each DSV4Deployment that fail while both pods pass with others.",
    "fabric": "1 while several prefills of a DSV4Deployment fail with several decodes, without exception.",
    "suspects": "Engine pods of each DSV4Deployment that may be the cause, where what was tested does not tell.",
}


@dataclass(slots=True)
class _Facts:
    conditions: dict[str, str] = field(default_factory=dict)
    findings: dict[tuple[str, str], int] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    generations: int = 0
    router_drift: int = 0
    blamed: Mapping[str, int] = field(default_factory=dict)


class _ObjectCollector(Collector):
    """Series of all objects, made at scrape time."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], _Facts] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        names = ["namespace", "name"]
        condition = GaugeMetricFamily(
            "dsv4_operator_condition",
            "1 for the present status of each condition of each DSV4Deployment; no series for others.",
            labels=[*names, "type", "status"],
        )
        findings = GaugeMetricFamily(
            "dsv4_operator_findings",
            "Policy findings of each DSV4Deployment by rule and action (Refuse, Set, Warn).",
            labels=[*names, "rule", "action"],
        )
        allowed = GaugeMetricFamily(
            "dsv4_operator_policy_allowed",
            "1 for each rule that a DSV4Deployment overrides with spec.policy.allow.",
            labels=[*names, "rule"],
        )
        generations = GaugeMetricFamily(
            "dsv4_operator_generations",
            "Generations (KV fingerprints) of each DSV4Deployment that have objects in the cluster.",
            labels=names,
        )
        drift = GaugeMetricFamily(
            "dsv4_operator_router_drift",
            "Router replicas whose list has differed from the wanted one for more than 15 s.",
            labels=names,
        )
        blamed = {
            what: GaugeMetricFamily(f"dsv4_operator_blamed_{what}", text, labels=names)
            for what, text in _BLAMED.items()
        }
        for key, facts in list(self.facts.items()):
            for kind, status in facts.conditions.items():
                condition.add_metric([*key, kind, status], 1)
            for (rule, action), count in facts.findings.items():
                findings.add_metric([*key, rule, action], count)
            for rule in sorted(facts.allowed):
                allowed.add_metric([*key, rule], 1)
            generations.add_metric(key, facts.generations)
            drift.add_metric(key, facts.router_drift)
            for what, family in blamed.items():
                family.add_metric(key, facts.blamed.get(what, 0))
        yield from (condition, findings, allowed, generations, drift, *blamed.values())


class OperatorMetrics:
    """All metrics of the operator. Implements kube.port.CallObserver and runtime.queue.QueueObserver."""

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        self._objects = _ObjectCollector()
        registry.register(self._objects)
        self._reconciles = Counter(
            "dsv4_operator_reconcile",
            "Finished passes over one DSV4Deployment, by result (ok, or what kind of failure).",
            ["result"],
            registry=registry,
        )
        self._reconcile_seconds = Histogram(
            "dsv4_operator_reconcile_duration_seconds",
            "Time of one pass over one DSV4Deployment.",
            buckets=PASS_SECONDS,
            registry=registry,
        )
        self._retries = Counter(
            "dsv4_operator_queue_retries", "Passes put back into the queue with backoff.", registry=registry
        )
        self._calls = Counter(
            "dsv4_operator_api_calls",
            "Requests to the API server by verb, kind and HTTP status (timeout or error without an answer).",
            ["verb", "kind", "code"],
            registry=registry,
        )
        self._call_seconds = Histogram(
            "dsv4_operator_api_call_duration_seconds",
            "Time of one request to the API server, from sending to the last byte.",
            ["verb", "kind"],
            buckets=CALL_SECONDS,
            registry=registry,
        )
        self._resyncs = Counter(
            "dsv4_operator_resync",
            "Full LISTs of all watched kinds, by result.",
            ["result"],
            registry=registry,
        )
        self._leader = Gauge(
            "dsv4_operator_leader",
            "1 while this replica leads (always 1 without a lease).",
            registry=registry,
        )
        self._reviews = Counter(
            "dsv4_operator_webhook_reviews",
            "Answers of the validating webhook: allowed, refused, skipped (spec unchanged), bad (no review), error.",
            ["result"],
            registry=registry,
        )
        self._certificate = Gauge(
            "dsv4_operator_webhook_certificate_expiry_timestamp_seconds",
            "When the webhook's serving certificate expires (unix time); 0 while there is none.",
            registry=registry,
        )
        self._pruned_fields = Gauge(
            "dsv4_operator_crd_pruned_fields",
            "Fields that this operator knows and the installed CRD drops silently; 0 when the CRD is current.",
            registry=registry,
        )
        self._left_out = Gauge(
            "dsv4_operator_namespaces_left_out",
            "Namespaces of --namespaces that refused the operator and are left out until its next start.",
            registry=registry,
        )
        build = Gauge(
            "dsv4_operator_build_info",
            "1; version of the operator.",
            ["version", "python"],
            registry=registry,
        )
        build.labels(version, platform.python_version()).set(1)

    def watch_queue(self, stats: Callable[[], QueueStats]) -> None:
        """Expose the work queue; `stats` is asked at each scrape. Call once."""
        for name, text, value in (
            ("depth", "Keys that wait for a worker.", lambda: stats().depth),
            ("delayed", "Keys that wait for a point in time.", lambda: stats().delayed),
            ("running", "Passes that run now.", lambda: stats().running),
            ("oldest_age_seconds", "How long the oldest ready key has waited.", lambda: stats().oldest_age),
            (
                "longest_run_seconds",
                "How long the longest current pass has run.",
                lambda: stats().longest_run,
            ),
        ):
            Gauge(f"dsv4_operator_queue_{name}", text, registry=self.registry).set_function(value)

    def set_crd_pruned_fields(self, count: int) -> None:
        """How many fields the installed CRD lacks."""
        self._pruned_fields.set(count)

    def set_namespaces_left_out(self, count: int) -> None:
        """How many of the namespaces to look after are left out, because they refused."""
        self._left_out.set(count)

    def watch_cache(self, size: Callable[[], int]) -> None:
        """Expose the number of cached objects. Call once."""
        text = "Objects in the operator's cache."
        Gauge("dsv4_operator_cache_objects", text, registry=self.registry).set_function(size)

    def reconcile_done(self, result: str, seconds: float) -> None:
        """A pass ended."""
        self._reconciles.labels(result).inc()
        self._reconcile_seconds.observe(seconds)

    def reconcile_retried(self) -> None:
        """A pass was put back with backoff."""
        self._retries.inc()

    def api_call(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """A request to the API server ended."""
        self._calls.labels(verb, kind, code).inc()
        self._call_seconds.labels(verb, kind).observe(seconds)

    def resync_done(self, result: str) -> None:
        """A resync ended: `ok` or `error`."""
        self._resyncs.labels(result).inc()

    def webhook_reviewed(self, result: str) -> None:
        """The webhook answered."""
        self._reviews.labels(result).inc()

    def set_webhook_certificate(self, expiry: float) -> None:
        """The webhook serves with a certificate that is good until `expiry` (unix time)."""
        self._certificate.set(expiry)

    def set_leader(self, leading: bool) -> None:
        """Whether this replica leads."""
        self._leader.set(int(leading))

    def set_conditions(self, namespace: str, name: str, conditions: Iterable[tuple[str, str]]) -> None:
        """All conditions of an object as (type, status)."""
        self._of(namespace, name).conditions = dict(conditions)

    def set_findings(self, namespace: str, name: str, findings: Iterable[tuple[str, str]]) -> None:
        """All findings of an object as (rule, action)."""
        self._of(namespace, name).findings = dict(Tally(findings))

    def set_policy_allowed(self, namespace: str, name: str, rules: Iterable[str]) -> None:
        """The rules that an object's spec.policy.allow overrides."""
        self._of(namespace, name).allowed = frozenset(rules)

    def set_generations(self, namespace: str, name: str, count: int) -> None:
        """How many generations of an object have children."""
        self._of(namespace, name).generations = count

    def set_router_drift(self, namespace: str, name: str, differences: int) -> None:
        """How many workers differ between the workers file and the routers' own lists."""
        self._of(namespace, name).router_drift = differences

    def set_blame(self, namespace: str, name: str, counts: Mapping[str, int]) -> None:
        """What failing canaries are put down to: pods, links, fabric, suspects; what is not named counts 0."""
        self._of(namespace, name).blamed = counts

    def drop_object(self, namespace: str, name: str) -> None:
        """The object is gone: so are its series."""
        self._objects.facts.pop((namespace, name), None)

    def exposition(self) -> bytes:
        """Everything in the Prometheus text format (CONTENT_TYPE)."""
        return generate_latest(self.registry)

    def _of(self, namespace: str, name: str) -> _Facts:
        return self._objects.facts.setdefault((namespace, name), _Facts())
