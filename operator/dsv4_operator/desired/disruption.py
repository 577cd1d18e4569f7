"""PodDisruptionBudgets: a node drain may take one engine or router at a time."""

from __future__ import annotations

from typing import Any

from dsv4_operator.api.constants import Role
from dsv4_operator.desired.context import DesiredContext, selector


def build_disruption_budget(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """At most one pod of the role may be evicted at a time; pods that are not Ready may always be."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": ctx.metadata(ctx.generation_name(role.value), role, generation=True),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(ctx.name, role, ctx.fingerprint)},
        },
    }
