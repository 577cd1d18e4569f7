"""The router, the Services and the worker list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crd_cases import merged, minimal
from dsv4_operator.api.constants import ANNOTATION_REMOVED, LABEL_FINGERPRINT, Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext, build_children
from dsv4_operator.desired.children import build_object_children
from dsv4_operator.desired.router import build_router_deployment
from dsv4_operator.desired.workers import (
    Worker,
    build_workers,
    read_removed,
    read_workers,
    workers_digest,
    workers_file,
)
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE

P1, P2 = Worker.of_pod("u1", "10.0.0.1", Role.PREFILL), Worker.of_pod("u2", "10.0.0.2", Role.PREFILL)
D1 = Worker.of_pod("u3", "fd00::3", Role.DECODE)


def context(patch: dict[str, Any] | None = None, **changes: Any) -> DesiredContext:
    spec = parse_deployment(merged(minimal("pair"), {"spec": patch or {}})).spec
    images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
    return DesiredContext("pair", "ns", "uid", spec, images, DEFAULT_RELEASE, **changes)


def router(patch: dict[str, Any] | None = None) -> dict[str, Any]:
    (container,) = build_router_deployment(context(patch))["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


def test_router_command_word_by_word() -> None:
    assert " ".join(router()["args"]) == (
        "--host 0.0.0.0 --port 30000 --pd-disaggregation --discovery-provider file "
        "--discovery-file /members/workers.json --discovery-check-interval-secs 5 --no-remove-unhealthy-workers "
        "--prefill-policy cache_aware --decode-policy random --health-check-interval-secs 5 "
        "--health-check-timeout-secs 25 --health-check-endpoint /ready --retry-max-retries 3 "
        "--prometheus-host 0.0.0.0 --prometheus-port 29000 --shutdown-grace-period-secs 60 "
        "--control-plane-api-keys op:operator:admin:$(ROUTER_CONTROL_KEY)"
    )


@pytest.mark.parametrize(
    ("policy", "word"), [("CacheAware", "cache_aware"), ("PowerOfTwo", "power_of_two"), ("Random", "random")]
)
def test_router_policy(policy: str, word: str) -> None:
    arguments = router({"router": {"policy": policy}})["args"]
    assert arguments[arguments.index("--prefill-policy") + 1] == word
    assert arguments[arguments.index("--decode-policy") + 1] == "random"


def test_keys_are_secrets_never_words() -> None:
    container = router({"router": {"apiKeySecretRef": {"name": "users", "key": "k"}}})
    assert container["args"][-2:] == ["--api-key", "$(ROUTER_API_KEY)"]
    assert container["env"] == [
        {"name": "ROUTER_CONTROL_KEY", "valueFrom": {"secretKeyRef": {"name": "pair-router-key", "key": "key"}}},
        {"name": "ROUTER_API_KEY", "valueFrom": {"secretKeyRef": {"name": "users", "key": "k"}}},
    ]
    assert "--api-key" not in router()["args"]


def test_router_readiness_needs_workers() -> None:
    assert router()["readinessProbe"]["httpGet"]["path"] == "/readiness"
    assert router()["livenessProbe"]["httpGet"]["path"] == "/liveness"
    assert router({"router": {"replicas": 3}}) == router()
    assert build_router_deployment(context({"router": {"replicas": 3}}))["spec"]["replicas"] == 3


def stable(ctx: DesiredContext, serving: str | None = None) -> dict[str, Any]:
    (service,) = (c for c in build_children(ctx, serving) if c["kind"] == "Service" and c["metadata"]["name"] == "pair")
    return service


def test_stable_service_points_where_it_is_told() -> None:
    ctx = context({"router": {"service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}}}})
    assert stable(ctx)["spec"]["selector"][LABEL_FINGERPRINT] == ctx.fingerprint
    service = stable(ctx, "0ld0ld00")
    assert service["spec"]["selector"][LABEL_FINGERPRINT] == "0ld0ld00"
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["ports"] == [{"name": "http", "port": 8080, "targetPort": 30000, "protocol": "TCP"}]
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert "annotations" not in stable(context())["metadata"]


def test_objects_that_outlive_a_generation_carry_no_fingerprint() -> None:
    ctx = context()
    for child in build_object_children(ctx, "0ld0ld00"):
        assert LABEL_FINGERPRINT not in child["metadata"]["labels"]
        assert ctx.fingerprint not in child["metadata"]["name"]


def test_the_operators_namespace_may_read_only_where_it_is() -> None:
    def readers(ctx: DesiredContext) -> list[str]:
        policies = [c for c in build_children(ctx) if c["kind"] == "NetworkPolicy"]
        return [
            peer["namespaceSelector"]["matchLabels"].get("kubernetes.io/metadata.name", "")
            for policy in policies
            for rule in policy["spec"]["ingress"]
            for peer in rule.get("from", [])
            if "podSelector" in peer and "namespaceSelector" in peer
        ]

    assert readers(context(operator_namespace="ops")) == ["ops", "ops"]
    assert readers(context()) == []


# -- the worker list


def test_worker_file() -> None:
    assert json.loads(workers_file([D1, P2, P1])) == {
        "version": 1,
        "workers": [
            {"id": "u1", "url": "http://10.0.0.1:30000", "worker_type": "prefill", "bootstrap_port": 8998},
            {"id": "u2", "url": "http://10.0.0.2:30000", "worker_type": "prefill", "bootstrap_port": 8998},
            {"id": "u3", "url": "http://[fd00::3]:30010", "worker_type": "decode"},
        ],
    }
    assert json.loads(workers_file([])) == {"version": 1, "workers": []}


WORKERS = st.builds(
    Worker.of_pod,
    st.text("abc-", min_size=1, max_size=5),
    st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1"]),
    st.sampled_from([Role.PREFILL, Role.DECODE]),
)


@given(
    st.lists(WORKERS, max_size=5, unique=True), st.dictionaries(st.sampled_from("abc"), st.floats(0, 2e9), max_size=2)
)
def test_what_is_written_is_read_back_and_order_is_no_difference(
    workers: list[Worker], removed: dict[str, float]
) -> None:
    written = build_workers("pair", "ns", "uid", "f00", workers, removed)
    assert read_workers(written) == sorted(workers)
    assert read_removed(written) == removed
    backwards = dict(reversed(removed.items()))
    assert build_workers("pair", "ns", "uid", "f00", reversed(workers), backwards) == written
    assert workers_digest(reversed(workers)) == workers_digest(workers)


def test_digest_tells_lists_apart() -> None:
    lists: tuple[list[Worker], ...] = ([], [P1], [P2], [P1, P2], [D1], [Worker(P1.url, P1.role, "other")])
    assert len({workers_digest(workers) for workers in lists}) == len(lists)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"data": None},
        {"data": {}},
        {"data": {"workers.json": "{"}},
        {"data": {"workers.json": "[]"}},
        {"data": {"workers.json": '{"workers":[{"url":"x"}]}'}},
        {"data": {"workers.json": '{"workers":[{"url":"x","id":"y","worker_type":"queen"}]}'}},
    ],
)
def test_an_unreadable_list_reads_as_empty(broken: dict[str, Any]) -> None:
    assert read_workers(broken) == []


@pytest.mark.parametrize("annotation", ["{", "[]", '{"a":"b"}', '{"a":null}', ""])
def test_unreadable_departures_read_as_none(annotation: str) -> None:
    assert read_removed({"metadata": {"annotations": {ANNOTATION_REMOVED: annotation}}}) == {}
    assert read_removed({}) == {}
    assert read_removed({"metadata": {"annotations": None}}) == {}
