"""The Kubernetes kinds the operator reads or writes, as constants: no API discovery, so no right to discover.

Paths follow the API concepts page: `/api/v1/...` for the core group, `/apis/<group>/<version>/...` otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource type of the API server. Compares and hashes by value, so it serves as a dictionary key."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of a collection (no name) or of one object; every segment is percent-encoded.

        Raises ValueError when an object of a namespaced kind is named without its namespace.
        """
        parts = ["api" if "/" not in self.api_version else "apis", *self.api_version.split("/")]
        if self.namespaced:
            if namespace:
                parts += ["namespaces", namespace]
            elif name:
                raise ValueError(f"{self.kind} {name}: a namespaced object needs a namespace")
        parts.append(self.plural)
        if name:
            parts.append(name)
            if subresource:
                parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)

    def __str__(self) -> str:
        return self.kind


DSV4_DEPLOYMENT: Final = Kind("serving.dsv4.dev/v1alpha1", "DSV4Deployment", "dsv4deployments")
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("v1", "Secret", "secrets")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
POD_DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
# https://github.com/kubernetes-sigs/lws: v1 since LWS 0.5.
LEADER_WORKER_SET: Final = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
# https://github.com/NVIDIA/k8s-dra-driver-gpu
COMPUTE_DOMAIN: Final = Kind("resource.nvidia.com/v1beta1", "ComputeDomain", "computedomains")
CUSTOM_RESOURCE_DEFINITION: Final = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
VALIDATING_WEBHOOK_CONFIGURATION: Final = Kind(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)

ALL_KINDS: Final[tuple[Kind, ...]] = (
    DSV4_DEPLOYMENT,
    DEPLOYMENT,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD,
    EVENT,
    LEASE,
    LEADER_WORKER_SET,
    COMPUTE_DOMAIN,
    CUSTOM_RESOURCE_DEFINITION,
    VALIDATING_WEBHOOK_CONFIGURATION,
)
_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """The Kind of an object by its apiVersion and kind. Raises ValueError for one that the operator does not
    know.
    """
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    found = _BY_NAME.get((str(api_version), str(kind)))
    if found is None:
        raise ValueError(f"unknown kind: apiVersion={api_version!r}, kind={kind!r}")
    return found
