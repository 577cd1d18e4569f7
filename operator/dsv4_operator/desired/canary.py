"""The canary: its container in every engine pod, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dsv4_operator.api.constants import BOOTSTRAP_PORT, CANARY_PORT, CONTAINER_CANARY, ENGINE_PORT, Role
from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.engine.guard import REQUIRE_ENV, guarded_index_k

SETTINGS_KEY = "canary.json"
SETTINGS_MOUNT = "/etc/dsv4-canary"


def settings_name(name: str) -> str:
    """Name of the ConfigMap with canary settings."""
    return f"{name}-canary"


def read_prompt_tokens(settings: Mapping[str, Any]) -> int | None:
    """promptTokens of a live ConfigMap with canary settings; None when it says none that can be read."""
    try:
        return int(json.loads(settings["data"][SETTINGS_KEY])["promptTokens"])
    except (KeyError, TypeError, ValueError):
        return None


def build_canary_settings(ctx: DesiredContext, most_prompt_tokens: int | None = None) -> dict[str, Any]:
    """The ConfigMap that sidecars read again when it changes: new settings restart nothing.

    All generations read it. `most_prompt_tokens` bounds the prompts while another generation serves than the spec's,
    whose engines may take no longer ones.
    """
    canary = ctx.spec.canary
    prompt_tokens = min(canary.prompt_tokens, most_prompt_tokens or canary.prompt_tokens)
    settings = {
        "version": 1,
        "model": ctx.spec.model.id,
        "intervalSeconds": canary.interval_seconds,
        "timeoutSeconds": canary.timeout_seconds,
        "failureThreshold": canary.failure_threshold,
        "promptTokens": prompt_tokens,
        "wedgeSeconds": canary.wedge_seconds,
    }
    if canary.tokens_per_minute is not None:
        settings["tokensPerMinute"] = canary.tokens_per_minute
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": ctx.metadata(settings_name(ctx.name)),
        "data": {SETTINGS_KEY: json.dumps(settings, indent=2) + "\n"},
    }


def build_canary_container(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    """The native sidecar. The pod's readiness is this container's: it knows what `/health` does not.

    No startup probe: after a kubelet restart `started` can be forgotten or invented (kubernetes #142305, #141155).
    """
    peer_service = f"{ctx.generation_name(role.peer.value)}.{ctx.namespace}.svc.{ctx.cluster_domain}"
    env: list[dict[str, Any]] = [
        {"name": "DSV4_CANARY_CONFIG", "value": f"{SETTINGS_MOUNT}/{SETTINGS_KEY}"},
        {"name": "DSV4_CANARY_ROLE", "value": role.value},
        {"name": "DSV4_CANARY_LISTEN_PORT", "value": str(CANARY_PORT[role])},
        {"name": "DSV4_CANARY_ENGINE_URL", "value": f"http://127.0.0.1:{ENGINE_PORT[role]}"},
        {"name": "DSV4_CANARY_PEER_HOST", "value": peer_service},
        {"name": "DSV4_CANARY_PEER_PORT", "value": str(ENGINE_PORT[role.peer])},
        {"name": "DSV4_CANARY_BOOTSTRAP_PORT", "value": str(BOOTSTRAP_PORT)},
        {"name": "DSV4_CANARY_FINGERPRINT", "value": ctx.fingerprint},
        # A crashed engine that loads again refuses connections as a dead one does: give it its cold start.
        {"name": "DSV4_CANARY_ENGINE_DEAD_SECONDS", "value": str(ctx.spec.rollout.progress_deadline_seconds)},
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in (
                ("POD_NAME", "metadata.name"),
                ("POD_NAMESPACE", "metadata.namespace"),
                ("POD_UID", "metadata.uid"),
                ("POD_IP", "status.podIP"),
            )
        ),
    ]
    index_k = guarded_index_k(ctx.spec, ctx.release)
    if index_k is not None:
        env.append({"name": REQUIRE_ENV, "value": index_k})
    port = CANARY_PORT[role]
    return {
        "name": CONTAINER_CANARY,
        "image": ctx.images.canary,
        "imagePullPolicy": ctx.spec.engine.image_pull_policy,
        "restartPolicy": "Always",
        "env": env,
        "ports": [{"name": "canary", "containerPort": port, "protocol": "TCP"}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 1,
            # The answer comes from memory, so one that is late says that the node is short of CPU, not that a verdict
            # changed. A verdict is told 2 s later; one hiccup takes nobody out.
            "failureThreshold": 2,
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "192Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
        },
        "volumeMounts": [{"name": "canary-settings", "mountPath": SETTINGS_MOUNT, "readOnly": True}],
    }
