"""Clusters with our CRD, and the operator running against them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster import LocalCluster, images
from operator_process import ROOT, OperatorProcess
from world import World

CRD = ROOT / "crds" / "serving.dsv4.dev_dsv4deployments.yaml"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def install_crd(cluster: LocalCluster) -> LocalCluster:
    """Apply the CRD and wait until it serves."""
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    cluster.kubectl("wait", "--for=condition=Established", "crd/dsv4deployments.serving.dsv4.dev", "--timeout=30s")
    return cluster


@pytest.fixture(scope="session")
def api_cluster(control_plane: LocalCluster) -> LocalCluster:
    """A real control plane without kubelets, with our CRD."""
    return install_crd(control_plane)


@pytest.fixture(scope="session")
def serving_cluster(node_cluster: LocalCluster) -> LocalCluster:
    """A real node with our CRD and all our images."""
    for name in ("engine-sim", "canary", "router"):
        images.load(node_cluster, images.PRODUCT_IMAGES[name].build())
    return install_crd(node_cluster)


@pytest.fixture
def start_operator(tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators; those that still run at the end are stopped."""
    started: list[OperatorProcess] = []

    def start(cluster: LocalCluster, *arguments: str, kubeconfig: Path | None = None) -> OperatorProcess:
        folder = tmp_path / f"operator-{len(started)}"
        folder.mkdir()
        operator = OperatorProcess(kubeconfig or cluster.kubeconfig, folder, free_port(), *arguments)
        started.append(operator)
        operator.start()
        return operator

    yield start
    for operator in started:
        operator.stop()


@pytest.fixture
def api_world(api_cluster: LocalCluster, make_namespace: Callable[[LocalCluster], str]) -> World:
    """A fresh namespace on the control plane."""
    return World(api_cluster, make_namespace(api_cluster))


@pytest.fixture
def serving_world(serving_cluster: LocalCluster, make_namespace: Callable[[LocalCluster], str]) -> World:
    """A fresh namespace on the real node."""
    return World(serving_cluster, make_namespace(serving_cluster))
