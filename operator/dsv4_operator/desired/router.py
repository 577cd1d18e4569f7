"""The router of one generation: smg with file discovery, so that the operator alone decides its workers.

The command is the set that was run in front of rolling engines with no failed request:
docs/design/0003-router-by-file-discovery.md.
"""

from __future__ import annotations

from typing import Any, Final

from dsv4_operator.api.constants import (
    CONTAINER_ROUTER,
    ROUTER_METRICS_PORT,
    ROUTER_PORT,
    Role,
)
from dsv4_operator.desired.context import DesiredContext, labels, router_key_name, selector, workers_name

WORKERS_KEY: Final = "workers.json"
WORKERS_MOUNT: Final = "/members"
KEY_NAME: Final = "key"
SHUTDOWN_GRACE_SECONDS: Final = 60
_POLICY: Final = {"CacheAware": "cache_aware", "PowerOfTwo": "power_of_two", "Random": "random"}


def build_router_deployment(ctx: DesiredContext) -> dict[str, Any]:
    """The router Deployment. A restarted router finds its workers in the file, with no operator and no rights."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": ctx.metadata(ctx.generation_name(Role.ROUTER.value), Role.ROUTER, generation=True),
        "spec": {
            "replicas": ctx.spec.router.replicas,
            "selector": {"matchLabels": selector(ctx.name, Role.ROUTER, ctx.fingerprint)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": ctx.spec.rollout.progress_deadline_seconds,
            "template": {
                "metadata": {"labels": labels(ctx.name, Role.ROUTER, ctx.fingerprint)},
                "spec": _pod_spec(ctx),
            },
        },
    }


def _arguments(ctx: DesiredContext) -> list[str]:
    arguments = [
        *("--host", "0.0.0.0", "--port", str(ROUTER_PORT)),
        "--pd-disaggregation",
        *("--discovery-provider", "file", "--discovery-file", f"{WORKERS_MOUNT}/{WORKERS_KEY}"),
        *("--discovery-check-interval-secs", "5"),
        # Membership is the operator's: a worker that smg forgot would come back with no one deciding so.
        "--no-remove-unhealthy-workers",
        *("--prefill-policy", _POLICY[ctx.spec.router.policy]),
        # Never round robin on both sides: it runs in lockstep, and a bad prefill opens its decode's breaker too.
        *("--decode-policy", "random"),
        *("--health-check-interval-secs", "5", "--health-check-timeout-secs", "25"),
        *("--health-check-endpoint", ctx.release.ready_endpoint),
        *("--retry-max-retries", "3"),
        *("--prometheus-host", "0.0.0.0", "--prometheus-port", str(ROUTER_METRICS_PORT)),
        *("--shutdown-grace-period-secs", str(SHUTDOWN_GRACE_SECONDS)),
        *("--control-plane-api-keys", "op:operator:admin:$(ROUTER_CONTROL_KEY)"),
    ]
    if ctx.spec.router.api_key_secret_ref is not None:
        arguments += ["--api-key", "$(ROUTER_API_KEY)"]
    return arguments


def _pod_spec(ctx: DesiredContext) -> dict[str, Any]:
    env = [_secret_env("ROUTER_CONTROL_KEY", router_key_name(ctx.name), KEY_NAME)]
    if ctx.spec.router.api_key_secret_ref is not None:
        reference = ctx.spec.router.api_key_secret_ref
        env.append(_secret_env("ROUTER_API_KEY", reference.name, reference.key))
    spec: dict[str, Any] = {
        "serviceAccountName": f"{ctx.name}-router",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": SHUTDOWN_GRACE_SECONDS + 15,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER_ROUTER,
                "image": ctx.images.router,
                "imagePullPolicy": ctx.spec.engine.image_pull_policy,
                "args": _arguments(ctx),
                "env": env,
                "ports": [
                    {"name": "http", "containerPort": ROUTER_PORT, "protocol": "TCP"},
                    {"name": "metrics", "containerPort": ROUTER_METRICS_PORT, "protocol": "TCP"},
                ],
                # /health is 200 with no workers at all; /readiness needs a healthy prefill and a healthy decode.
                "readinessProbe": {
                    "httpGet": {"path": "/readiness", "port": ROUTER_PORT},
                    "periodSeconds": 2,
                    "timeoutSeconds": 2,
                    "failureThreshold": 2,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/liveness", "port": ROUTER_PORT},
                    "periodSeconds": 10,
                    "timeoutSeconds": 5,
                    "failureThreshold": 6,
                },
                "resources": {
                    "requests": {"cpu": "250m", "memory": "256Mi"},
                    "limits": {"memory": "2Gi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                },
                "volumeMounts": [
                    # A directory, never subPath: a subPath mount is not refreshed.
                    {"name": "members", "mountPath": WORKERS_MOUNT, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "members", "configMap": {"name": workers_name(ctx.name, ctx.fingerprint)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if ctx.spec.engine.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret.name} for secret in ctx.spec.engine.image_pull_secrets]
    return spec


def _secret_env(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def build_router_key_secret(ctx: DesiredContext, key: str) -> dict[str, Any]:
    """The Secret with the key that guards the routers' /workers. `key` is made once, when no Secret exists."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": ctx.metadata(router_key_name(ctx.name), Role.ROUTER),
        "type": "Opaque",
        "stringData": {KEY_NAME: key},
    }
