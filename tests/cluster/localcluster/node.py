"""Files and command lines of a real node: containerd, kubelet, kube-proxy and CoreDNS in the cluster's namespace."""

import json
import os
from datetime import datetime
from pathlib import Path

from localcluster.api import Api, ApiError
from localcluster.controlplane import service_address
from localcluster.errors import ClusterError
from localcluster.paths import write_atomically
from localcluster.pki import Pki
from localcluster.state import ClusterState, ComponentState, Network
from localcluster.waiting import wait_for

NODE_NAME = "node"
PAUSE_IMAGE = "localhost/pause:1"
CLUSTER_DOMAIN = "cluster.local"
DNS_SERVICE_INDEX = 10
DNS_TTL_SECONDS = 1
CNI_BIN_DIRS = ("/usr/lib/cni", "/opt/cni/bin")


def containerd_socket(folder: Path) -> Path:
    """Socket of the cluster's containerd."""
    return folder / "containerd.sock"


def cni_network_name(state: ClusterState) -> str:
    """Name of the pod network; unique on the machine, since CNI keeps results of all networks in one folder."""
    return f"dsv4-{state.name}"


def _network(state: ClusterState) -> Network:
    if state.network is None:
        raise ClusterError(f"cluster {state.name} has no node: it runs in {state.mode} mode")
    return state.network


def prepare(state: ClusterState, pki: Pki) -> None:
    """Writes the configuration of the node's components below the run folder."""
    network = _network(state)
    pki.issue("kubelet", f"/CN={NODE_NAME}", [f"DNS:{NODE_NAME}", f"IP:{network.node_address}"])
    folder = state.dir
    (folder / "cni").mkdir(exist_ok=True)
    write_atomically(folder / "cni" / "10-ptp.conflist", json.dumps(_cni(state), indent=1))
    write_atomically(folder / "kubelet.json", json.dumps(_kubelet_config(state, pki), indent=1))
    write_atomically(folder / "kube-proxy.json", json.dumps(_proxy_config(state), indent=1))
    write_atomically(folder / "Corefile", _corefile(state))
    # Pods resolve through CoreDNS alone; nothing of the host's resolver leaks into them.
    write_atomically(folder / "resolv.conf", f"nameserver {network.node_address}\n", mode=0o644)


def components(state: ClusterState, plane: Path, node_dir: Path, coredns: Path) -> dict[str, ComponentState]:
    """Command lines of the node's components, by name, in the order of starting."""
    network = _network(state)
    folder = state.dir
    write_atomically(folder / "containerd.toml", _containerd_config(folder, node_dir))
    labels = ",".join(f"{key}={value}" for key, value in state.options["node_labels"].items())
    kubelet = [
        f"--config={folder}/kubelet.json",
        f"--kubeconfig={folder}/kubelet.kubeconfig",
        f"--root-dir={folder}/kubelet",
        f"--cert-dir={folder}/pki",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={network.node_address}",
        *([f"--node-labels={labels}"] if labels else []),
    ]
    path = {"PATH": f"{node_dir}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}

    def one(*argv: str) -> ComponentState:
        return ComponentState(argv=list(argv), env=path, netns=network.netns)

    return {
        "containerd": one(str(node_dir / "containerd"), f"--config={folder}/containerd.toml"),
        "kubelet": one(str(plane), "kubelet", *kubelet),
        "kube-proxy": one(str(plane), "kube-proxy", f"--config={folder}/kube-proxy.json"),
        "coredns": one(str(coredns), "-conf", f"{folder}/Corefile"),
    }


def install(state: ClusterState, api: Api) -> None:
    """Creates the objects that CoreDNS needs: its rights, and the Service kube-dns that leads to it."""
    network = _network(state)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    core = ["endpoints", "services", "pods", "namespaces"]
    verbs = ["list", "watch"]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": core, "verbs": verbs},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
    }
    names = [("dns", "UDP"), ("dns-tcp", "TCP")]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {
            "clusterIP": service_address(state, DNS_SERVICE_INDEX),
            "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in names],
        },
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {
                "kubernetes.io/service-name": "kube-dns",
                "endpointslice.kubernetes.io/managed-by": "localcluster",
            },
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.node_address], "conditions": {"ready": True}}],
        "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in names],
    }
    api.apply(f"{rbac}/clusterroles/system:coredns", role)
    api.apply(f"{rbac}/clusterrolebindings/system:coredns", binding)
    api.apply("/api/v1/namespaces/kube-system/services/kube-dns", service)
    api.apply("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/kube-dns", endpoints)


def set_extended_resources(api: Api, node: str, resources: dict[str, str]) -> None:
    """Sets device counts on a node as a device plugin would; the kubelet keeps what it does not manage."""
    if resources:
        status = {"capacity": resources, "allocatable": resources}
        api.merge(f"/api/v1/nodes/{node}/status", {"status": status})


def node_is_ready(api: Api, node: str) -> bool:
    """True when the node exists, is Ready and has an address range for its pods."""
    found = api.get_or_none(f"/api/v1/nodes/{node}")
    if found is None or not found["spec"].get("podCIDR"):
        return False
    conditions = found.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def kubelet_has_synced(api: Api, node: str, since: datetime) -> bool:
    """True when a kubelet that started at `since` has reported its node and knows the pods bound to it.

    Before that, exec and logs answer "pod does not exist" and device counts may still be reset.
    """
    found = api.get(f"/api/v1/nodes/{node}")
    beats = [one["lastHeartbeatTime"] for one in found["status"]["conditions"] if one["type"] == "Ready"]
    # The API keeps whole seconds.
    if not beats or datetime.fromisoformat(beats[0]) < since.replace(microsecond=0):
        return False
    bound = api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node},status.phase=Running")["items"]
    try:
        known = api.get(f"/api/v1/nodes/{node}/proxy/pods").get("items") or []
    except ApiError:  # 503: it does not listen yet
        return False
    return {pod["metadata"]["uid"] for pod in bound} <= {pod["metadata"]["uid"] for pod in known}


def wait_registered(api: Api, node: str, timeout: float) -> None:
    """Waits until the kubelet has made its node object."""
    wait_for(f"node {node} to register", lambda: api.get_or_none(f"/api/v1/nodes/{node}"), timeout)


def _containerd_config(folder: Path, node_dir: Path) -> str:
    bin_dirs = json.dumps([path for path in CNI_BIN_DIRS if Path(path).is_dir()])
    return f"""version = 3
root = "{folder}/ctd"
state = "{folder}/run"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{containerd_socket(folder)}"

[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"

[plugins.'io.containerd.shim.v1.manager']
  socket_dir = "{folder}/s"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  # Lowering a score needs CAP_SYS_RESOURCE, which containers and small machines often lack; no sandbox starts then.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "{node_dir}/containerd-shim-runc-v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{node_dir}/runc"
        Root = "{folder}/runc"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = {bin_dirs}
    conf_dir = "{folder}/cni"
    use_internal_loopback = true
"""


def _cni(state: ClusterState) -> dict[str, object]:
    # ptp and not a bridge: packets between pods are routed, so kube-proxy and firewalls see them without br_netfilter.
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": _network(state).pod_cidr}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{state.dir}/ipam",
    }
    return {
        "cniVersion": "1.0.0",
        "name": cni_network_name(state),
        "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}],
    }


def _kubelet_config(state: ClusterState, pki: Pki) -> dict[str, object]:
    folder = state.dir
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{containerd_socket(folder)}",
        "cgroupDriver": "cgroupfs",
        # The machine may still have cgroup v1, and one without delegation of the pod hierarchy.
        "failCgroupV1": False,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "address": _network(state).node_address,
        "tlsCertFile": f"{pki.folder}/kubelet.crt",
        "tlsPrivateKeyFile": f"{pki.folder}/kubelet.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [service_address(state, DNS_SERVICE_INDEX)],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": f"{folder}/resolv.conf",
        "podLogsDir": f"{folder}/podlogs",
        "volumePluginDir": f"{folder}/volumeplugins",
        "makeIPTablesUtilChains": False,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "3s",
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        # A test machine's disk may be nearly full: only a real shortage evicts.
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
    }


def _proxy_config(state: ClusterState) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{state.dir}/kube-proxy.kubeconfig"},
        "clusterCIDR": _network(state).pod_cidr,
        "detectLocalMode": "ClusterCIDR",
        "hostnameOverride": NODE_NAME,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
        "healthzBindAddress": f"{_network(state).node_address}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nftables": {"minSyncPeriod": "200ms", "syncPeriod": "30s"},
    }


def _corefile(state: ClusterState) -> str:
    return f""". {{
    errors
    health 127.0.0.1:8080
    ready {_network(state).node_address}:8181
    cache {DNS_TTL_SECONDS}
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {state.dir}/coredns.kubeconfig {state.name}
        pods insecure
        ttl {DNS_TTL_SECONDS}
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
