"""Pytest fixtures for clusters: `control_plane`, `node_cluster`, `namespace`, `fault_proxy`.

Load it with `pytest_plugins = ["localcluster.pytest_plugin"]` in the root conftest. A cluster starts when the first
test asks for it, serves the whole run, and goes at its end; what a killed run left is removed at the next start.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator

import pytest

from localcluster import cluster as clusters
from localcluster import state
from localcluster.cluster import ClusterOptions, LocalCluster
from localcluster.faults import FaultProxy
from localcluster.waiting import wait_for


@pytest.fixture(scope="session")
def _no_orphans() -> None:
    clusters.remove_orphans()


def _session_cluster(kind: str, options: ClusterOptions) -> Iterator[LocalCluster]:
    # The pid keeps runs side by side apart; the worker id is a process of its own under pytest-xdist.
    made = LocalCluster(f"{kind}-{os.getpid()}", options)
    made.up(owned=True)
    try:
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def control_plane(_no_orphans: None) -> Iterator[LocalCluster]:
    """A real API server with controllers and scheduler, and two simulated GPU nodes."""
    yield from _session_cluster("cp", ClusterOptions(mode="control-plane", kwok_nodes=2))


@pytest.fixture(scope="session")
def node_cluster(_no_orphans: None) -> Iterator[LocalCluster]:
    """A real API server with one real node."""
    yield from _session_cluster("node", ClusterOptions(mode="node", rdma={"rdma/hca": 8}))


@pytest.fixture
def make_namespace(request: pytest.FixtureRequest) -> Iterator[Callable[[LocalCluster], str]]:
    """Makes fresh namespaces in any cluster; they are deleted after the test."""
    made: list[tuple[LocalCluster, str]] = []

    def make(cluster: LocalCluster) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
        name = f"{stem}-{secrets.token_hex(3)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        cluster.api.create("/api/v1/namespaces", body)
        made.append((cluster, name))
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        # A pod made before the controller manager has made this account is refused; after a restart that can take long.
        wait_for(f"the default ServiceAccount of {name}", lambda: cluster.api.get_or_none(account), 90)
        return name

    yield make
    for cluster, name in made:
        # A cluster of the test itself may be gone by now.
        if state.load(cluster.name) is not None:
            cluster.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(make_namespace: Callable[[LocalCluster], str], request: pytest.FixtureRequest) -> str:
    """A fresh namespace in the cluster that the test uses: `node_cluster` if it asks for that, else `control_plane`."""
    name = "node_cluster" if "node_cluster" in request.fixturenames else "control_plane"
    return make_namespace(request.getfixturevalue(name))


@pytest.fixture
def fault_proxy(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """A fault proxy in front of the cluster that the test uses, chosen as for `namespace`; without any fault yet."""
    name = "node_cluster" if "node_cluster" in request.fixturenames else "control_plane"
    with FaultProxy(request.getfixturevalue(name)) as proxy:
        yield proxy
