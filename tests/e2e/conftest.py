"""Clusters with our CRD, and the operator running against them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localcluster import LocalCluster, images
from localcluster.ports import free_port
from localcluster.waiting import wait_for
from operator_process import ROOT, OperatorProcess
from world import World

CRD = ROOT / "crds" / "serving.dsv4.dev_dsv4deployments.yaml"


def install_crd(cluster: LocalCluster) -> LocalCluster:
    """Apply the CRD and wait until it serves."""
    cluster.kubectl("apply", "--server-side", "-f", str(CRD))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dsv4deployments.serving.dsv4.dev"

    def established() -> bool:
        conditions = (cluster.api.get(path).get("status") or {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    wait_for("the CRD to be established", established, 60)
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


@contextmanager
def operators(folder: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators; those that still run at the end are stopped."""
    started: list[OperatorProcess] = []

    def start(cluster: LocalCluster, *arguments: str, kubeconfig: Path | None = None) -> OperatorProcess:
        own = folder / f"operator-{len(started)}"
        own.mkdir()
        operator = OperatorProcess(kubeconfig or cluster.kubeconfig, own, free_port(), *arguments)
        started.append(operator)
        operator.start()
        return operator

    try:
        yield start
    finally:
        for operator in started:
            operator.stop()


@pytest.fixture
def start_operator(tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators; those that still run at the end are stopped."""
    with operators(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_world(serving_cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace on the real node for all tests of a module, with an operator that looks after it."""
    stem = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    name = f"{stem}-{secrets.token_hex(3)}"
    cluster = serving_cluster
    cluster.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for(f"the default ServiceAccount of {name}", lambda: cluster.api.get_or_none(account), 90)
    folder = request.getfixturevalue("tmp_path_factory").mktemp(stem)
    try:
        with operators(folder) as start:
            start(cluster, "--no-lease", f"--namespaces={name}")
            yield World(cluster, name)
    finally:
        cluster.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def api_world(api_cluster: LocalCluster, make_namespace: Callable[[LocalCluster], str]) -> World:
    """A fresh namespace on the control plane."""
    return World(api_cluster, make_namespace(api_cluster))


@pytest.fixture
def serving_world(serving_cluster: LocalCluster, make_namespace: Callable[[LocalCluster], str]) -> World:
    """A fresh namespace on the real node."""
    return World(serving_cluster, make_namespace(serving_cluster))
