"""A namespace of a real cluster, with the few reads and writes that the scenarios share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from localcluster import LocalCluster
from localcluster.waiting import wait_for

API = "/apis/serving.dsv4.dev/v1alpha1"
CHILD_PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{ns}/deployments",
    "Service": "/api/v1/namespaces/{ns}/services",
    "ConfigMap": "/api/v1/namespaces/{ns}/configmaps",
    "Secret": "/api/v1/namespaces/{ns}/secrets",
    "ServiceAccount": "/api/v1/namespaces/{ns}/serviceaccounts",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
    "Pod": "/api/v1/namespaces/{ns}/pods",
}
ORDER = 'Call the tool record_order exactly once with item "blue lamp" and count 3.'
ECHO_TOOL = {
    "type": "function",
    "function": {
        "name": "record_order",
        "description": "Record an order.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["item", "count"],
        },
    },
}


def deployment(name: str, **spec: Any) -> dict[str, Any]:
    """A small DSV4Deployment with quick canaries; `spec` is merged over its fields, one level deep."""
    base: dict[str, Any] = {
        "model": {"id": "deepseek-v4", "source": {"huggingFace": {"repo": "deepseek-ai/DeepSeek-V4"}}},
        "prefill": {"gpus": 1, "sharedMemory": "64Mi"},
        "decode": {"gpus": 1, "sharedMemory": "64Mi"},
        "canary": {"intervalSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 2},
        "rollout": {"drainSeconds": 5},
    }
    for key, value in spec.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return {
        "apiVersion": "serving.dsv4.dev/v1alpha1",
        "kind": "DSV4Deployment",
        "metadata": {"name": name},
        "spec": base,
    }


@dataclass(frozen=True)
class World:
    """One namespace of one cluster."""

    cluster: LocalCluster
    namespace: str

    def path(self, name: str) -> str:
        return f"{API}/namespaces/{self.namespace}/dsv4deployments/{name}"

    def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        created: dict[str, Any] = self.cluster.api.create(
            f"{API}/namespaces/{self.namespace}/dsv4deployments?fieldValidation=Strict", obj
        )
        return created

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(self.path(name))
        return found

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self.cluster.api.merge(self.path(name), {"spec": spec})

    def delete(self, name: str) -> None:
        self.cluster.api.delete(self.path(name))

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """The condition of that type; an empty one when there is none."""
        conditions = (self.get(name).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    def children(self, name: str, *kinds: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Live objects with the deployment's label, by kind and name."""
        found = {}
        for kind in kinds or CHILD_PATHS:
            path = CHILD_PATHS[kind].format(ns=self.namespace)
            listing = self.cluster.api.get(f"{path}?labelSelector=serving.dsv4.dev/deployment={name}")
            found.update({(kind, item["metadata"]["name"]): item for item in listing["items"]})
        return found

    def child(self, kind: str, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.cluster.api.get_or_none(self.child_path(kind, name))
        return found

    def child_path(self, kind: str, name: str) -> str:
        return f"{CHILD_PATHS[kind].format(ns=self.namespace)}/{name}"

    def pods(self, name: str, role: str) -> list[dict[str, Any]]:
        """Pods of a role that are not being deleted."""
        return [
            pod
            for pod in self.children(name, "Pod").values()
            if pod["metadata"]["labels"].get("serving.dsv4.dev/role") == role
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def serving(self, name: str, role: str) -> list[dict[str, Any]]:
        """`pods` of the generation that serves; the one before may still drain."""
        label, fingerprint = "serving.dsv4.dev/fingerprint", self.get(name)["status"]["fingerprint"]
        return [pod for pod in self.pods(name, role) if pod["metadata"]["labels"][label] == fingerprint]

    def workers(self, name: str, fingerprint: str) -> list[dict[str, Any]]:
        """The published worker list of a generation."""
        config_map = self.child("ConfigMap", f"{name}-{fingerprint}-workers")
        return [] if config_map is None else json.loads(config_map["data"]["workers.json"])["workers"]

    def wait(self, what: str, probe: Callable[[], Any], timeout: float = 120) -> Any:
        return wait_for(what, probe, timeout, interval=0.25)

    def wait_ready(self, name: str, timeout: float = 180) -> None:
        """Wait for Ready=True of the newest generation of the spec, with nothing in progress."""

        def settled() -> bool:
            obj = self.get(name)
            status = obj.get("status") or {}
            conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
            return (
                status.get("observedGeneration") == obj["metadata"]["generation"]
                and conditions.get("Ready") == "True"
                and conditions.get("Progressing") == "False"
            )

        try:
            self.wait(f"{name} to be Ready", settled, timeout)
        except Exception as error:
            raise AssertionError(f"{error}\n{json.dumps(self.get(name).get('status'), indent=1)}") from error

    def chat_tool_call(self, name: str, timeout: float = 30) -> dict[str, Any]:
        """One tool call through the stable Service: the parsed arguments of the only call."""
        service = self.child("Service", name)
        assert service is not None
        port = service["spec"]["ports"][0]["port"]
        body = {
            "model": "deepseek-v4",
            "messages": [{"role": "user", "content": ORDER}],
            "tools": [ECHO_TOOL],
            "tool_choice": "auto",
            "temperature": 0,
            "max_tokens": 512,
        }
        answer = post(f"http://{service['spec']['clusterIP']}:{port}/v1/chat/completions", body, timeout)
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert len(calls) == 1
        assert calls[0]["function"]["name"] == "record_order"
        arguments: dict[str, Any] = json.loads(calls[0]["function"]["arguments"])
        return arguments


def post(url: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
    """POST JSON, get JSON. An HTTP error becomes an AssertionError with its text."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=timeout) as answer:
            parsed: dict[str, Any] = json.load(answer)
            return parsed
    except HTTPError as error:
        raise AssertionError(f"{url}: {error.code} {error.read()[:500]!r}") from error


def engine_url(pod: dict[str, Any]) -> str:
    """The engine's HTTP address of an engine pod."""
    usual = {"prefill": 30000, "decode": 30010}[pod["metadata"]["labels"]["serving.dsv4.dev/role"]]
    port = pod.get("ports", {}).get("engine", usual)
    return f"http://{pod['status']['podIP']}:{port}"


def http_status(url: str, timeout: float = 30) -> int:
    """Status code of a GET."""
    try:
        with urlopen(url, timeout=timeout) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def switch(pod: dict[str, Any], **switches: str | float) -> None:
    """Set switches of a simulated engine."""
    request = Request(f"{engine_url(pod)}/sim/switches", json.dumps(switches).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=5) as answer:
        assert answer.status == 200


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod's Ready condition is true."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
