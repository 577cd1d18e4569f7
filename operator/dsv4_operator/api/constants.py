"""Names that every part shares: the API group, label and annotation keys, ports, container names."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "serving.dsv4.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DSV4Deployment"
PLURAL: Final = "dsv4deployments"
SINGULAR: Final = "dsv4deployment"
SHORT_NAME: Final = "dsv4"

FIELD_MANAGER: Final = "dsv4-operator"
"""Server-side-apply field manager of all children."""
STATUS_FIELD_MANAGER: Final = "dsv4-operator-status"
"""Server-side-apply field manager of status; its own, so that neither write drops the other's fields."""

LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_FINGERPRINT: Final = f"{GROUP}/fingerprint"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "dsv4-operator"

ANNOTATION_INTENT: Final = f"{GROUP}/intent"
"""On every child: digest of what the operator last applied, so that a restart need not write anything."""
ANNOTATION_INPUTS: Final = f"{GROUP}/fingerprint-inputs"
"""On engine workloads: digest of every fingerprint input by field path, so that a new generation can say which field
made it. Digests, since environment variables are among them."""
ANNOTATION_WORKERS: Final = f"{GROUP}/workers"
"""On router pods: digest of the workers file; changing it makes the kubelet refresh the mount at once (0.1 to 0.2 s
against 55 to 83 s, measured with smg 1.13.0 on Kubernetes 1.36)."""
ANNOTATION_REMOVED: Final = f"{GROUP}/removed-workers"
"""On the workers ConfigMap: when an address left the list (JSON object of URL to unix seconds), because smg loses an
address that comes back inside its own five-second drain."""

MAX_NAME_LENGTH: Final = 40
"""Longest DSV4Deployment name: name, fingerprint and role must fit in 63 characters."""


class Role(StrEnum):
    """What a pod does; also the value of the role label."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"

    @property
    def peer(self) -> Role:
        """The other engine role."""
        return {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}[self]


ENGINE_ROLES: Final = (Role.PREFILL, Role.DECODE)

CONTAINER_ENGINE: Final = "engine"
CONTAINER_CANARY: Final = "canary"
CONTAINER_ROUTER: Final = "router"

ENGINE_PORT: Final = {Role.PREFILL: 30000, Role.DECODE: 30010}
"""HTTP port of the engine by role. They differ so that both roles can share one host's network."""
CANARY_PORT: Final = {Role.PREFILL: 30002, Role.DECODE: 30012}
DIST_INIT_PORT: Final = {Role.PREFILL: 30005, Role.DECODE: 30015}
BOOTSTRAP_PORT: Final = 8998
"""SGLang's default of --disaggregation-bootstrap-port."""
ROUTER_PORT: Final = 30000
ROUTER_METRICS_PORT: Final = 29000
SERVICE_PORT: Final = 80
