"""NetworkPolicies: engines talk to each other and to their routers; only the router is for everybody."""

from __future__ import annotations

from typing import Any, Final

from dsv4_operator.api.constants import (
    CANARY_PORT,
    ENGINE_PORT,
    ENGINE_ROLES,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    Role,
)
from dsv4_operator.desired.context import DesiredContext

_NO_ROUTER: Final = {"key": LABEL_ROLE, "operator": "NotIn", "values": [Role.ROUTER.value]}


def build_engine_network_policy(ctx: DesiredContext) -> dict[str, Any]:
    """Who may reach engine pods.

    Engines of one deployment reach each other on every TCP port: each prefill rank listens on a random one, and a
    decode posts to the prefill's API port. Routers reach the engine's API; scrapers and the
    operator reach the API (its /metrics) and the canary. Nobody else does: the engine's API knows no keys.

    Engine pods are all that are no routers: pods of an engine's further nodes carry no role.
    """
    own = {LABEL_DEPLOYMENT: ctx.name}
    engine_pods = {"matchLabels": own, "matchExpressions": [_NO_ROUTER]}
    engines = {"podSelector": engine_pods}
    routers = {"podSelector": {"matchLabels": {**own, LABEL_ROLE: Role.ROUTER.value}}}
    canaries = [{"port": CANARY_PORT[role], "protocol": "TCP"} for role in ENGINE_ROLES]
    apis = [{"port": ENGINE_PORT[role], "protocol": "TCP"} for role in ENGINE_ROLES]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ctx.metadata(f"{ctx.name}-engine"),
        "spec": {
            "podSelector": engine_pods,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [engines]},
                {"from": [routers], "ports": apis},
                {"from": _scrapers(ctx), "ports": [*canaries, *apis]},
            ],
        },
    }


def build_router_network_policy(ctx: DesiredContext) -> dict[str, Any]:
    """Who may reach routers: everybody the API port, scrapers and the operator the metrics."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ctx.metadata(f"{ctx.name}-router"),
        "spec": {
            "podSelector": {"matchLabels": {LABEL_DEPLOYMENT: ctx.name, LABEL_ROLE: Role.ROUTER.value}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": ROUTER_PORT, "protocol": "TCP"}]},
                {"from": _scrapers(ctx), "ports": [{"port": ROUTER_METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def _scrapers(ctx: DesiredContext) -> list[dict[str, Any]]:
    """Namespaces that may read metrics and canaries: those labelled for it, and the operator's own."""
    peers: list[dict[str, Any]] = [
        {"namespaceSelector": {"matchLabels": {"serving.dsv4.dev/scrape": "true"}}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    ]
    if ctx.operator_namespace is not None:
        peers.append(
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ctx.operator_namespace}},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": "dsv4-operator"}},
            }
        )
    return peers
