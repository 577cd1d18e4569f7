"""Simulated nodes for scale tests: the KWOK controller makes their pods Ready without running anything."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster.api import Api, Object
from localcluster.state import ClusterState, ComponentState

_ANNOTATION = "kwok.x-k8s.io/node"
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast")
_PARALLEL = 16


def component(state: ClusterState, kwok_dir: Path) -> ComponentState:
    """Command line of the KWOK controller with the upstream stages for fast pods."""
    files = [path for stage in _STAGES for path in _yaml_files(kwok_dir / "stages" / stage)]
    argv = [
        str(kwok_dir / "kwok"),
        f"--kubeconfig={state.dir}/kwok.kubeconfig",
        *[f"--config={path}" for path in files],
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={_ANNOTATION}=fake",
        "--node-lease-duration-seconds=40",
        # Multicast: the API server takes such pod addresses, and a TCP connection to one fails at once without a
        # packet. What talks to pods (the operator does) must never reach a real machine of the same address.
        "--cidr=239.191.0.0/16",
        "--node-ip=239.190.0.1",
    ]
    # A home of its own: kwok reads and makes ~/.kwok otherwise.
    return ComponentState(argv=argv, env={"HOME": str(state.dir), "KWOK_WORKDIR": str(state.dir / "kwok")}, netns=None)


def _yaml_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.glob("*.yaml") if file.name != "kustomization.yaml")


def node_name(index: int) -> str:
    """Name of the n-th simulated node."""
    return f"kwok-{index:04d}"


def ensure_nodes(api: Api, count: int, labels: dict[str, str], resources: dict[str, str]) -> None:
    """Makes nodes kwok-0000 up to `count`; those that exist stay."""
    existing = {item["metadata"]["name"] for item in api.get("/api/v1/nodes")["items"]}
    missing = [node_name(index) for index in range(count) if node_name(index) not in existing]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(lambda name: api.create("/api/v1/nodes", _node(name, labels, resources)), missing))


def _node(name: str, labels: dict[str, str], resources: dict[str, str]) -> Object:
    capacity = {"cpu": "224", "memory": "2048Gi", "pods": "250", "ephemeral-storage": "10Ti"} | resources
    fixed = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": fixed | labels, "annotations": {_ANNOTATION: "fake"}},
        "status": {"allocatable": capacity, "capacity": capacity},
    }


def ready_nodes(api: Api, count: int) -> bool:
    """True when all simulated nodes are Ready."""
    ready = 0
    for item in api.get("/api/v1/nodes")["items"]:
        conditions = item.get("status", {}).get("conditions", [])
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        ready += is_ready and item["metadata"]["name"].startswith("kwok-")
    return ready >= count
