"""All children of one deployment, in the order in which they are applied."""

from __future__ import annotations

from typing import Any

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.desired.accounts import build_service_account
from dsv4_operator.desired.canary import build_canary_settings
from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.desired.disruption import build_disruption_budget
from dsv4_operator.desired.engine_workload import build_engine_workload
from dsv4_operator.desired.network_policy import build_engine_network_policy, build_router_network_policy
from dsv4_operator.desired.router import build_router_deployment
from dsv4_operator.desired.services import build_headless_service, build_stable_service


def build_object_children(
    ctx: DesiredContext, serving_fingerprint: str, most_prompt_tokens: int | None = None
) -> list[dict[str, Any]]:
    """Children that outlive a generation. `serving_fingerprint` says where the stable Service points;
    `most_prompt_tokens`: see build_canary_settings."""
    children = [build_service_account(ctx, "engine")]
    if ctx.spec.canary.enabled:
        children.append(build_canary_settings(ctx, most_prompt_tokens))
    children.append(build_engine_network_policy(ctx))
    if ctx.spec.router.enabled:
        children += [
            build_service_account(ctx, "router"),
            build_router_network_policy(ctx),
            build_stable_service(ctx, serving_fingerprint),
        ]
    return children


def build_generation_children(ctx: DesiredContext) -> list[dict[str, Any]]:
    """Children of the generation that the spec describes; the workers ConfigMap is membership's (desired.workers)."""
    children: list[dict[str, Any]] = []
    for role in ENGINE_ROLES:
        children += [
            build_headless_service(ctx, role),
            build_disruption_budget(ctx, role),
            build_engine_workload(ctx, role),
        ]
    if ctx.spec.router.enabled:
        children += [build_disruption_budget(ctx, Role.ROUTER), build_router_deployment(ctx)]
    return children


def build_children(ctx: DesiredContext, serving_fingerprint: str | None = None) -> list[dict[str, Any]]:
    """Every child of the spec's own generation and of the object, in order of application."""
    return [
        *build_object_children(ctx, serving_fingerprint or ctx.fingerprint),
        *build_generation_children(ctx),
    ]
