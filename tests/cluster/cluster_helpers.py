"""Small things that tests of a local cluster share: pods from the base image, and what is left of a cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

from localcluster import LocalCluster, images
from localcluster.errors import ClusterError
from localcluster.network import ip
from localcluster.state import Network
from localcluster.teardown import mounts_below
from localcluster.waiting import wait_for


def python_pod(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    """A pod of one container `main` on the local base image, with the restrictions our own pods have."""
    container = {
        "name": "main",
        "image": images.BASE_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def sleeping_pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that does nothing until it is told to end."""
    return python_pod(name, "python3", "-c", "import signal; signal.sigwait({signal.SIGTERM})", **spec)


def serving_pod(name: str, port: int = 8000, **spec: Any) -> dict[str, Any]:
    """A pod whose HTTP server answers /hostname with the pod's name."""
    probe = {"httpGet": {"path": "/hostname", "port": port}, "periodSeconds": 1}
    pod = python_pod(name, "python3", "-m", "http.server", str(port), "--directory", "/etc", **spec)
    pod["spec"]["containers"][0]["readinessProbe"] = probe
    return pod


def create_pod(cluster: LocalCluster, namespace: str, pod: dict[str, Any]) -> None:
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)


def get_pod(cluster: LocalCluster, namespace: str, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return pod


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def wait_ready(cluster: LocalCluster, namespace: str, name: str, timeout: float = 60) -> dict[str, Any]:
    """The pod once it is Ready; its description is in the error otherwise."""

    def probe() -> dict[str, Any] | None:
        pod = get_pod(cluster, namespace, name)
        return pod if is_ready(pod) else None

    try:
        return wait_for(f"pod {name} to be Ready", probe, timeout)
    except ClusterError as error:
        described = cluster.kubectl("-n", namespace, "describe", "pod", name, check=False)
        raise ClusterError(f"{error}\n{described}") from error


def python_in_pod(cluster: LocalCluster, namespace: str, pod: str, code: str) -> Any:
    """Runs Python in a pod's container `main`; the code prints JSON, which is returned."""
    return json.loads(cluster.kubectl("-n", namespace, "exec", pod, "-c", "main", "--", "python3", "-c", code))


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name a run folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in line:
            found.append(line)
    return found


def left_of(cluster: LocalCluster, network: Network | None, pods: list[str]) -> dict[str, Any]:
    """Everything on this machine that belongs to a cluster; empty values when nothing is left."""
    name = cluster.name
    left: dict[str, Any] = {
        "processes": processes_of(cluster.dir),
        "mounts": mounts_below(cluster.dir),
        "run folder": [str(cluster.dir)] if cluster.dir.exists() else [],
        "log links": [
            link.name for link in _entries("/var/log/containers") if str(cluster.dir) in str(link.readlink())
        ],
        "CNI results": [entry.name for entry in _entries("/var/lib/cni/results") if f"dsv4-{name}-" in entry.name],
        "cgroups": [str(path) for pod in pods for path in Path("/sys/fs/cgroup").glob(f"**/{pod}")],
    }
    if network is not None:
        left["namespaces"] = [entry.name for entry in _entries("/run/netns") if entry.name == network.netns]
        left["interfaces"] = [one for one in _names(ip("-j", "link", "show")) if one == network.host_link]
        routes = json.loads(ip("-j", "-4", "route", "show", "table", "all"))
        left["routes"] = [route["dst"] for route in routes if route.get("dev") == network.host_link]
    return left


def host_rules() -> str:
    """The host's nftables rules and forwarding switch: what kube-proxy and CNI plugins would change."""
    rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    return rules + Path("/proc/sys/net/ipv4/ip_forward").read_text()


def _entries(folder: str) -> list[Path]:
    path = Path(folder)
    return sorted(path.iterdir()) if path.is_dir() else []


def _names(links: str) -> list[str]:
    return [link["ifname"] for link in json.loads(links)]
