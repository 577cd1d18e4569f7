"""The worker list of one generation, as smg's file discovery reads it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_operator.api.constants import ANNOTATION_REMOVED, BOOTSTRAP_PORT, ENGINE_PORT, Role
from dsv4_operator.desired.context import labels, owner_reference, workers_name
from dsv4_operator.desired.router import WORKERS_KEY


@dataclass(frozen=True, slots=True, order=True)
class Worker:
    """One engine in a worker list: `id` is the pod's uid, so that a new pod at an old address is another worker."""

    url: str
    role: Role
    id: str

    @classmethod
    def of_pod(cls, uid: str, ip: str, role: Role) -> Worker:
        """The worker of an engine pod; IPv6 addresses are bracketed."""
        host = f"[{ip}]" if ":" in ip else ip
        return cls(url=f"http://{host}:{ENGINE_PORT[role]}", role=role, id=uid)


def workers_file(workers: Iterable[Worker]) -> str:
    """The manifest; one unknown field would make smg reject the whole file, so nothing else is written."""
    entries: list[dict[str, Any]] = []
    for worker in sorted(workers):
        entry: dict[str, Any] = {"id": worker.id, "url": worker.url, "worker_type": worker.role.value}
        if worker.role is Role.PREFILL:
            entry["bootstrap_port"] = BOOTSTRAP_PORT
        entries.append(entry)
    return json.dumps({"version": 1, "workers": entries}, indent=2) + "\n"


def read_workers(config_map: Mapping[str, Any]) -> list[Worker]:
    """The workers in a ConfigMap made by `build_workers`; an unreadable one reads as empty."""
    try:
        manifest = json.loads(config_map["data"][WORKERS_KEY])
        return sorted(Worker(entry["url"], Role(entry["worker_type"]), entry["id"]) for entry in manifest["workers"])
    except (KeyError, TypeError, ValueError):
        return []


def read_removed(config_map: Mapping[str, Any]) -> dict[str, float]:
    """When addresses left the list (unix seconds), from the ConfigMap's annotation."""
    annotations = config_map.get("metadata", {}).get("annotations") or {}
    try:
        removed = json.loads(annotations.get(ANNOTATION_REMOVED, "{}"))
        return {str(url): float(when) for url, when in removed.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def workers_digest(workers: Iterable[Worker]) -> str:
    """Twelve hex digits that name the content of a worker list."""
    return hashlib.sha256(workers_file(workers).encode()).hexdigest()[:12]


def build_workers(
    name: str,
    namespace: str,
    uid: str,
    fingerprint: str,
    workers: Iterable[Worker],
    removed: Mapping[str, float],
) -> dict[str, Any]:
    """The ConfigMap with a generation's worker list. Needs no spec: a generation that leaves is still routed."""
    metadata: dict[str, Any] = {
        "name": workers_name(name, fingerprint),
        "namespace": namespace,
        "labels": labels(name, Role.ROUTER, fingerprint),
        "ownerReferences": [owner_reference(name, uid)],
    }
    if removed:
        metadata["annotations"] = {ANNOTATION_REMOVED: json.dumps(dict(sorted(removed.items())), separators=(",", ":"))}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {WORKERS_KEY: workers_file(workers)},
    }
