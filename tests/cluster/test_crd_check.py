"""An old CRD on a real API server is recognised at start."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_operator.kube.client import KubeClient
from dsv4_operator.runtime.crd_check import find_pruned_fields
from localcluster import ClusterOptions, LocalCluster

pytestmark = pytest.mark.cluster

CRD = Path(__file__).resolve().parents[2] / "crds" / "serving.dsv4.dev_dsv4deployments.yaml"
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def _pruned(cluster: LocalCluster, kubeconfig: Path) -> list[str]:
    client = await KubeClient.connect(user_agent="test", kubeconfig=str(kubeconfig))
    try:
        return await find_pruned_fields(client)
    finally:
        await client.close()


async def test_an_old_crd_is_recognised_and_a_current_one_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    crd: dict[str, Any] = yaml.safe_load(CRD.read_text())
    old = copy.deepcopy(crd)
    properties = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del properties["paused"]
    # A cluster of its own: the CRD of the shared one must stay as it is.
    with LocalCluster("oldcrd", ClusterOptions(mode="control-plane")) as cluster, caplog.at_level(logging.INFO):
        assert await _pruned(cluster, cluster.kubeconfig) == []
        assert "does not serve v1alpha1" in caplog.text
        cluster.api.create(PATH, old)
        assert await _pruned(cluster, cluster.kubeconfig) == ["spec.paused"]
        assert "spec.paused" in caplog.text
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
        assert await _pruned(cluster, cluster.kubeconfig) == []

        cluster.kubectl("create", "serviceaccount", "nobody", "-n", "default")
        caplog.clear()
        nobody = cluster.service_account_kubeconfig("default", "nobody")
        assert await _pruned(cluster, nobody) == []
        assert "may not be read" in caplog.text
