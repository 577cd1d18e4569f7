"""Services: one headless per engine role and generation, and the stable one that users call."""

from __future__ import annotations

from typing import Any

from dsv4_operator.api.constants import BOOTSTRAP_PORT, CANARY_PORT, ENGINE_PORT, ROUTER_PORT, Role
from dsv4_operator.desired.context import DesiredContext, selector


def build_headless_service(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """DNS names of a role's pods, ready or not: a canary must find a peer before either of them is Ready."""
    ports = [
        {"name": "http", "port": ENGINE_PORT[role], "targetPort": ENGINE_PORT[role], "protocol": "TCP"},
        {"name": "canary", "port": CANARY_PORT[role], "targetPort": CANARY_PORT[role], "protocol": "TCP"},
    ]
    if role is Role.PREFILL:
        ports.append({"name": "bootstrap", "port": BOOTSTRAP_PORT, "targetPort": BOOTSTRAP_PORT, "protocol": "TCP"})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": ctx.metadata(ctx.generation_name(role.value), role, generation=True),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector(ctx.name, role, ctx.fingerprint),
            "ports": ports,
        },
    }


def build_stable_service(ctx: DesiredContext, serving_fingerprint: str) -> dict[str, Any]:
    """The Service that users call. It points at the routers of the generation that serves, perhaps not the newest."""
    service = ctx.spec.router.service
    metadata = ctx.metadata(ctx.name)
    if service.annotations:
        metadata["annotations"] = dict(service.annotations)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": service.type,
            "selector": selector(ctx.name, Role.ROUTER, serving_fingerprint),
            "ports": [{"name": "http", "port": service.port, "targetPort": ROUTER_PORT, "protocol": "TCP"}],
        },
    }
