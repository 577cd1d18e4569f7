"""The objects of a soak in the cluster: a Job, the ConfigMap for its results, and the right to write that one. Pure.

The ConfigMap owns the others, so that deleting it deletes all. manifests/soak holds the same objects for people without
dsv4ctl; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsv4_operator.api.constants import GROUP

LABEL_RUN: Final = f"{GROUP}/run"
"""On every object that a command makes: which run of a command made it."""
NAME: Final = "dsv4-soak"
"""Value of the label app.kubernetes.io/name."""
CONTAINER: Final = "soak"
METRICS_PORT: Final = 9300
RESULTS: Final = "/results"
KEY_VARIABLE: Final = "SOAK_API_KEY"
LABEL_TAG: Final = f"{GROUP}/soak"
GRACE_SECONDS: Final = 75
"""From SIGTERM to SIGKILL: requests in flight are closed, reports written and published."""
KEEP_SECONDS: Final = 24 * 3600
"""A finished Job that nobody cleaned up goes after this."""
USER_ID: Final = 65532


@dataclass(frozen=True, slots=True)
class SoakJob:
    """A soak to run in the cluster. `arguments`: options of `python -m dsv4_canary.soak run`, tag included."""

    name: str
    run: str
    tag: str
    image: str
    arguments: tuple[str, ...]
    api_key_secret: str | None = None
    api_key_key: str = "key"
    volume_claim: str | None = None
    pull_secrets: tuple[str, ...] = ()
    deadline_seconds: int = 6 * 3600


def object_name(tag: str, run: str) -> str:
    """A name for the objects: at most 52 characters, so that the Job's pods fit in 63."""
    stem = re.sub(r"[^a-z0-9]+", "-", tag.lower()).strip("-")[:36].strip("-")
    return f"soak-{stem or 'run'}-{run}"


def results_object(job: SoakJob) -> dict[str, Any]:
    """The ConfigMap, empty until the soak ends."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job, None), "data": {}}


def other_objects(job: SoakJob, owner_uid: str | None) -> list[dict[str, Any]]:
    """All others in the order of their creation."""
    metadata = _metadata(job, owner_uid)
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [job.name], "verbs": ["patch"]}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": job.name}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": [{"kind": "ServiceAccount", "name": job.name}],
        },
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": _job_spec(job)},
    ]


def labels(job: SoakJob) -> dict[str, str]:
    """Labels of all objects and of the pod."""
    found = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/part-of": "dsv4", LABEL_TAG: job.tag[:63].rstrip("._-")}
    return found | ({LABEL_RUN: job.run} if job.run else {})


def _metadata(job: SoakJob, owner_uid: str | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": job.name, "labels": labels(job)}
    if owner_uid is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": job.name, "uid": owner_uid, "controller": False}
        ]
    return metadata


def _job_spec(job: SoakJob) -> dict[str, Any]:
    return {
        # Once: a second attempt would meet warm caches, and the load is asked for once.
        "backoffLimit": 0,
        "activeDeadlineSeconds": job.deadline_seconds,
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "template": {"metadata": {"labels": labels(job)}, "spec": _pod_spec(job)},
    }


def _pod_spec(job: SoakJob) -> dict[str, Any]:
    arguments = [
        *job.arguments,
        *("--out", RESULTS, "--publish", job.name),
        *("--metrics-host", "0.0.0.0", "--metrics-port", str(METRICS_PORT)),
    ]
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": job.image,
        "command": ["python", "-m", "dsv4_canary.soak", "run"],
        "args": arguments,
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "results", "mountPath": RESULTS}],
    }
    if job.api_key_secret is not None:
        container["args"] += ["--api-key-env", KEY_VARIABLE]
        reference = {"name": job.api_key_secret, "key": job.api_key_key}
        container["env"] = [{"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": reference}}]
    volume: dict[str, Any] = {"name": "results", "emptyDir": {"sizeLimit": "1Gi"}}
    if job.volume_claim is not None:
        volume = {"name": "results", "persistentVolumeClaim": {"claimName": job.volume_claim}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": job.name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [volume],
    }
    if job.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in job.pull_secrets]
    return spec


_OPTIONS: Final = {
    "endpoint": "--endpoint",
    "tag": "--tag",
    "model": "--model",
    "sessions": "--sessions",
    "rounds": "--rounds",
    "ctx": "--ctx",
    "shared_ctx": "--shared-ctx",
    "share": "--share",
    "max_tokens": "--max-tokens",
    "timeout": "--timeout",
    "stream": "--stream",
    "concurrency": "--concurrency",
    "thinking": "--thinking",
    "seed": "--seed",
    "baseline": "--baseline",
    "reask": "--reask",
    "give_up": "--give-up",
    "max_failed": "--max-failed",
}


def arguments(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of a run as words, from values by name; unset ones are left to the harness."""
    words: list[str] = []
    for name, option in _OPTIONS.items():
        value = values.get(name)
        if value is not None:
            words += [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(words)


def finished(pod: Mapping[str, Any]) -> int | None:
    """Exit status of a pod's soak, None while it runs or has not begun."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (status.get("state") or {}).get("terminated")
        if status.get("name") == CONTAINER and ended is not None:
            return int(ended.get("exitCode", 1))
    return None


def started(pod: Mapping[str, Any]) -> bool:
    """Whether the soak has begun."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return any({"running", "terminated"} & (status.get("state") or {}).keys() for status in statuses)


def held_back(pods: Sequence[Mapping[str, Any]], job: Mapping[str, Any] | None) -> str:
    """Why the soak does not begin, as the cluster says it; empty when it says nothing."""
    for pod in pods:
        status = pod.get("status") or {}
        for item in status.get("containerStatuses") or []:
            waiting = (item.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
        for condition in status.get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    for condition in ((job or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return f"{condition.get('reason')}: {condition.get('message', '')}".rstrip(": ")
    return ""
