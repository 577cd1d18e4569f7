"""Command lines and files of etcd, the API server, the controller manager and the scheduler."""

import csv
import ipaddress
import json
import secrets
from pathlib import Path

from localcluster.kubeconfig import write_kubeconfig
from localcluster.paths import write_atomically
from localcluster.pki import Pki
from localcluster.state import ClusterState, ComponentState

PORTS = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""Ports of the control plane, one free loopback port each in control-plane mode."""

NETNS_PORTS = {
    "etcd": 2379,
    "etcd-peer": 2380,
    "kube-apiserver": 6443,
    "kube-controller-manager": 10257,
    "kube-scheduler": 10259,
}
"""The usual ports, for a cluster whose network namespace is its own."""

SERVICE_CIDR = "10.96.0.0/16"
"""Service addresses in control-plane mode, where nothing serves them."""

USERS: dict[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("system:coredns", ""),
    "kwok": ("system:kwok", "system:masters"),
}
"""Users known by a static token: key -> (user name, group)."""


def node_user(node: str) -> tuple[str, str]:
    """User name and group under which the Node authorizer knows a kubelet."""
    return f"system:node:{node}", "system:nodes"


def server_host(state: ClusterState) -> str:
    """Address at which the host, and in node mode also the pods, reach the API server."""
    return state.network.node_address if state.network else "127.0.0.1"


def server_url(state: ClusterState) -> str:
    """URL of the API server."""
    return f"https://{server_host(state)}:{state.ports['kube-apiserver']}"


def service_cidr(state: ClusterState) -> str:
    """Range of the ClusterIPs."""
    return state.network.service_cidr if state.network else SERVICE_CIDR


def service_address(state: ClusterState, index: int) -> str:
    """The n-th address of the Service range; 1 is `kubernetes.default`, 10 is DNS by custom."""
    return str(ipaddress.IPv4Network(service_cidr(state))[index])


def prepare(state: ClusterState, pki: Pki, node: str | None) -> None:
    """Makes keys, tokens, kubeconfigs and the audit policy. Tokens of an earlier start are kept."""
    pki.create()
    users = dict(USERS)
    if node is not None:
        users["kubelet"] = node_user(node)
    for key in users:
        state.tokens.setdefault(key, secrets.token_urlsafe(24))
    path = state.dir / "tokens.csv"
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        for key, (user, group) in users.items():
            writer.writerow([state.tokens[key], user, user, group])
    path.chmod(0o600)
    for key in users:
        name = "kubeconfig" if key == "admin" else f"{key}.kubeconfig"
        write_kubeconfig(state.dir / name, state.name, server_url(state), pki.ca, state.tokens[key], key)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    hosts = [f"DNS:{name}" for name in [*names, "localhost"]]
    addresses = {"127.0.0.1", server_host(state), service_address(state, 1)}
    hosts += [f"IP:{address}" for address in sorted(addresses)]
    pki.issue("apiserver", "/CN=kube-apiserver", hosts)
    pki.issue("apiserver-kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    pki.issue("front-proxy-client", "/CN=front-proxy-client")
    write_atomically(state.dir / "audit-policy.json", json.dumps(audit_policy(), indent=1))


def audit_policy() -> dict[str, object]:
    """Metadata of every write, and of reads by anybody but Kubernetes' own components."""
    reads = ["get", "list", "watch"]
    system_users = [user for user, _ in USERS.values() if user.startswith("system:")] + ["system:apiserver"]
    system_groups = ["system:nodes", "system:serviceaccounts:kube-system"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi*"]},
            {"level": "None", "users": system_users, "verbs": reads},
            {"level": "None", "userGroups": system_groups, "verbs": reads},
            # Renewals of node leases by the thousand say nothing.
            {
                "level": "None",
                "users": system_users,
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {
                "level": "None",
                "userGroups": system_groups,
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
            },
            {"level": "Metadata"},
        ],
    }


def components(state: ClusterState, pki: Pki, plane: Path) -> dict[str, ComponentState]:
    """Command lines of the four components, by name."""
    netns = state.network.netns if state.network else None
    arguments = {
        "etcd": _etcd(state),
        "kube-apiserver": _apiserver(state, pki),
        "kube-controller-manager": _controller_manager(state, pki),
        "kube-scheduler": _scheduler(state),
    }
    return {
        name: ComponentState(argv=[str(plane), name, *flags], env={}, netns=netns) for name, flags in arguments.items()
    }


def etcd_url(state: ClusterState) -> str:
    """Client URL of etcd; loopback of the cluster's own namespace, or of the host in control-plane mode."""
    return f"http://127.0.0.1:{state.ports['etcd']}"


def _etcd(state: ClusterState) -> list[str]:
    peer = f"http://127.0.0.1:{state.ports['etcd-peer']}"
    return [
        f"--data-dir={state.dir}/etcd",
        f"--listen-client-urls={etcd_url(state)}",
        f"--advertise-client-urls={etcd_url(state)}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # The data lives as long as the cluster: a power cut may lose it.
        "--unsafe-no-fsync",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def _apiserver(state: ClusterState, pki: Pki) -> list[str]:
    folder = pki.folder
    flags = [
        f"--etcd-servers={etcd_url(state)}",
        f"--secure-port={state.ports['kube-apiserver']}",
        f"--bind-address={'0.0.0.0' if state.network else '127.0.0.1'}",
        f"--advertise-address={server_host(state)}",
        f"--cert-dir={folder}",
        f"--tls-cert-file={folder}/apiserver.crt",
        f"--tls-private-key-file={folder}/apiserver.key",
        f"--client-ca-file={pki.ca}",
        f"--kubelet-client-certificate={folder}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={folder}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki.ca}",
        # For aggregated APIs such as metrics; also keeps components from complaining that it is missing.
        f"--requestheader-client-ca-file={pki.ca}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/front-proxy-client.crt",
        f"--proxy-client-key-file={folder}/front-proxy-client.key",
        # Without this, exec and logs look up the node's name, which no DNS knows.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki.service_account_key}",
        f"--service-account-signing-key-file={pki.service_account_key}",
        f"--token-auth-file={state.dir}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={service_cidr(state)}",
        "--allow-privileged=true",
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        f"--audit-policy-file={state.dir}/audit-policy.json",
        f"--audit-log-path={state.dir}/audit.log",
        # One file without rotation, so that a reader's offset stays true. MB.
        "--audit-log-maxsize=4096",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    ]
    if state.network is None:
        # Loopback is no valid endpoint address, and there are no pods that would use it.
        flags.append("--endpoint-reconciler-type=none")
    return flags


def _controller_manager(state: ClusterState, pki: Pki) -> list[str]:
    kubeconfig = f"{state.dir}/kube-controller-manager.kubeconfig"
    flags = [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={state.ports['kube-controller-manager']}",
        f"--cert-dir={state.dir}/kcm",
        f"--service-account-private-key-file={pki.service_account_key}",
        f"--root-ca-file={pki.ca}",
        f"--cluster-signing-cert-file={pki.ca}",
        f"--cluster-signing-key-file={pki.folder}/ca.key",
        f"--flex-volume-plugin-dir={state.dir}/volumeplugins",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--profiling=false",
    ]
    if state.network is not None:
        prefix = ipaddress.IPv4Network(state.network.pod_cidr).prefixlen
        # The only node gets the whole range.
        flags += [
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={state.network.pod_cidr}",
            f"--node-cidr-mask-size={prefix}",
        ]
    return flags


def _scheduler(state: ClusterState) -> list[str]:
    kubeconfig = f"{state.dir}/kube-scheduler.kubeconfig"
    config = state.dir / "kube-scheduler.json"
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 500, "burst": 1000},
    }
    write_atomically(config, json.dumps(settings, indent=1))
    return [
        f"--config={config}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={state.ports['kube-scheduler']}",
        f"--cert-dir={state.dir}/scheduler",
    ]
