"""What the builders need to know about one deployment, and the names and labels that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dsv4_operator.api.constants import (
    API_VERSION,
    KIND,
    LABEL_DEPLOYMENT,
    LABEL_FINGERPRINT,
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    MANAGED_BY,
    Role,
)
from dsv4_operator.api.v1alpha1.roles import RoleSpec
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.fingerprint import input_digests, kv_fingerprint
from dsv4_operator.engine.images import Images
from dsv4_operator.engine.releases import Release


@dataclass(frozen=True)
class DesiredContext:
    """One deployment as the builders see it.

    `operator_namespace` is where the operator runs (its pods may read canaries and routers); None when it runs
    outside the cluster. `cluster_domain` is the DNS suffix of the cluster.
    """

    name: str
    namespace: str
    uid: str
    spec: DSV4DeploymentSpec
    images: Images
    release: Release
    operator_namespace: str | None = None
    cluster_domain: str = "cluster.local"

    @cached_property
    def fingerprint(self) -> str:
        """KV fingerprint of the spec."""
        return kv_fingerprint(self.spec, self.release, self.images.engine or "")

    @cached_property
    def fingerprint_inputs(self) -> dict[str, str]:
        """Digest of each input of the fingerprint, by the path of its field."""
        return input_digests(self.spec, self.release, self.images.engine or "")

    def role_spec(self, role: Role) -> RoleSpec:
        """The spec of an engine role."""
        return self.spec.prefill if role is Role.PREFILL else self.spec.decode

    def generation_name(self, suffix: str) -> str:
        """Name of a child that belongs to this fingerprint."""
        return generation_name(self.name, self.fingerprint, suffix)

    def metadata(self, name: str, role: Role | None = None, *, generation: bool = False) -> dict[str, Any]:
        """Metadata of a child: name, namespace, labels, and the owner reference that garbage collection follows."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": labels(self.name, role, self.fingerprint if generation else None),
            "ownerReferences": [owner_reference(self.name, self.uid)],
        }


def generation_name(name: str, fingerprint: str, suffix: str) -> str:
    """`<name>-<fingerprint>-<suffix>`, at most 63 characters since names are at most 40."""
    return f"{name}-{fingerprint}-{suffix}"


def workers_name(name: str, fingerprint: str) -> str:
    """Name of the ConfigMap that holds a generation's worker list."""
    return generation_name(name, fingerprint, "workers")


def router_key_name(name: str) -> str:
    """Name of the Secret that holds the key of the routers' control plane."""
    return f"{name}-router-key"


def selector(name: str, role: Role, fingerprint: str) -> dict[str, str]:
    """The immutable labels by which a workload selects its pods."""
    return {LABEL_DEPLOYMENT: name, LABEL_ROLE: role.value, LABEL_FINGERPRINT: fingerprint}


def labels(name: str, role: Role | None = None, fingerprint: str | None = None) -> dict[str, str]:
    """Labels of a child."""
    result = {
        "app.kubernetes.io/name": "dsv4",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/part-of": "dsv4",
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_DEPLOYMENT: name,
    }
    if role is not None:
        result["app.kubernetes.io/component"] = role.value
        result[LABEL_ROLE] = role.value
    if fingerprint is not None:
        result[LABEL_FINGERPRINT] = fingerprint
    return result


def owner_reference(name: str, uid: str) -> dict[str, Any]:
    """The controlling owner; children of a deleted deployment are collected by the cluster itself.

    blockOwnerDeletion is left out: it would need the right to update finalizers of the owner, and nothing of ours
    waits for foreground deletion.
    """
    return {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid, "controller": True}
