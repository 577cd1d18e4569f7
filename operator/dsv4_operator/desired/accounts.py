"""ServiceAccounts of the pods: they may do nothing, and their tokens are not mounted."""

from __future__ import annotations

from typing import Any

from dsv4_operator.desired.context import DesiredContext


def build_service_account(ctx: DesiredContext, suffix: str) -> dict[str, Any]:
    """An account without rights, so that a pod never runs as the namespace's default account."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": ctx.metadata(f"{ctx.name}-{suffix}"),
        "automountServiceAccountToken": False,
    }
