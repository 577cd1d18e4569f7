"""How Prometheus finds our targets: PodMonitors, and the same as a plain scrape configuration."""

from __future__ import annotations

from typing import Any, Final

LABEL_PREFIX: Final = "serving.dsv4.dev/"
TARGET_LABELS: Final = ("deployment", "fingerprint", "role")
"""Labels of a pod that every series of it carries, under their short names."""
INTERVAL: Final = "30s"
TIMEOUT: Final = "10s"

_ENGINES: Final = ("prefill", "decode")


def _relabelings() -> list[dict[str, Any]]:
    return [
        {
            "action": "replace",
            "sourceLabels": [f"__meta_kubernetes_pod_label_serving_dsv4_dev_{label}"],
            "targetLabel": label,
        }
        for label in TARGET_LABELS
    ]


def _endpoint(port: str) -> dict[str, Any]:
    return {
        "port": port,
        "path": "/metrics",
        "interval": INTERVAL,
        "scrapeTimeout": TIMEOUT,
        "relabelings": _relabelings(),
    }


def _monitor(roles: tuple[str, ...], ports: tuple[str, ...]) -> dict[str, Any]:
    return {
        "namespaceSelector": {"any": True},
        "selector": {
            "matchExpressions": [
                {"key": f"{LABEL_PREFIX}deployment", "operator": "Exists"},
                {"key": f"{LABEL_PREFIX}role", "operator": "In", "values": list(roles)},
            ]
        },
        "podMetricsEndpoints": [_endpoint(port) for port in ports],
    }


def pod_monitors() -> dict[str, dict[str, Any]]:
    """The spec of each PodMonitor of engines and routers, by the last part of its name."""
    return {
        "engines": _monitor(_ENGINES, ("http", "canary")),
        "routers": _monitor(("router",), ("metrics",)),
    }


def operator_monitor() -> dict[str, Any]:
    """The spec of the operator's own PodMonitor. Its series name their object in `namespace`, which must stay."""
    return {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "dsv4-operator"}},
        "podMetricsEndpoints": [
            {"port": "http", "path": "/metrics", "interval": INTERVAL, "scrapeTimeout": TIMEOUT, "honorLabels": True}
        ],
    }


def scrape_configs() -> list[dict[str, Any]]:
    """The same for a Prometheus without its operator: entries of `scrape_configs`."""
    roles = "|".join((*_ENGINES, "router"))
    return [
        _plain("dsv4-pods", f"{LABEL_PREFIX}role", roles, "http|canary|metrics", honor=False),
        _plain("dsv4-operator", "app.kubernetes.io/name", "dsv4-operator", "http", honor=True),
    ]


def _plain(job: str, label: str, values: str, ports: str, *, honor: bool) -> dict[str, Any]:
    def keep(source: list[str], regex: str, action: str = "keep") -> dict[str, Any]:
        return {"source_labels": source, "regex": regex, "action": action}

    def copy(source: str, target: str) -> dict[str, Any]:
        return {"source_labels": [source], "target_label": target, "action": "replace"}

    meta = "__meta_kubernetes_pod_label_" + "".join(c if c.isalnum() else "_" for c in label)
    rules = [
        keep([meta], values),
        keep(["__meta_kubernetes_pod_container_port_name"], ports),
        keep([meta, "__meta_kubernetes_pod_container_port_name"], "router;http", "drop"),
        keep(["__meta_kubernetes_pod_phase"], "Failed|Succeeded", "drop"),
        copy("__meta_kubernetes_namespace", "namespace"),
        copy("__meta_kubernetes_pod_name", "pod"),
        copy("__meta_kubernetes_pod_container_name", "container"),
    ]
    if not honor:
        rules += [copy(f"__meta_kubernetes_pod_label_serving_dsv4_dev_{name}", name) for name in TARGET_LABELS]
    return {
        "job_name": job,
        "honor_labels": honor,
        "scrape_interval": INTERVAL,
        "scrape_timeout": TIMEOUT,
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": rules,
    }
