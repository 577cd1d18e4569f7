"""Where the demo plays: the embedded cluster, or one that KUBECONFIG names."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from localcluster import LocalCluster, images, tools
from localcluster.cluster import ClusterOptions
from localcluster.errors import ClusterError

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_NAMESPACE = "dsv4-system"
PRODUCT_IMAGES = ("operator", "canary", "router", "engine-sim")


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass
class Stage:
    """A cluster to play on. `prepare` makes it ready for helm; `remove` undoes everything the demo made."""

    console: Console
    kubeconfig: Path
    kubectl: Path
    helm: Path
    namespace: str
    image_values: list[str]
    prepare: Callable[[], None]
    remove: Callable[[], None]
    embedded: bool

    def run_kubectl(self, *arguments: str, check: bool = True) -> str:
        """kubectl's output."""
        return self._run([str(self.kubectl), *arguments], check)

    def run_helm(self, *arguments: str) -> str:
        """helm's output."""
        return self._run([str(self.helm), *arguments], check=True)

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, parsed; None when there is nothing."""
        text = self.run_kubectl("-n", self.namespace, "get", *arguments, "-o", "json", check=False)
        return json.loads(text) if text.strip() else None

    def environment(self) -> dict[str, str]:
        """The environment of commands that talk to the cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def _run(self, command: Sequence[str], check: bool) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment(), check=False)
        if check and done.returncode:
            raise DemoError(f"{' '.join(command[:4])} ... failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def embedded_stage(console: Console, name: str) -> Stage:
    """The cluster that is built from Go modules and runs in a network namespace of this machine."""
    if os.geteuid() != 0:
        raise DemoError("the embedded cluster runs a real kubelet and containerd and needs root; use sudo make demo")
    cluster = LocalCluster(name, ClusterOptions(mode="node"))
    stage: Stage

    def prepare() -> None:
        console.rule("[bold]1. a cluster")
        console.print("Building what is not cached (Kubernetes itself takes six to ten minutes the first time).")
        script = ROOT / "tests" / "cluster" / "install-prerequisites.sh"
        if subprocess.run([str(script), "node"], check=False).returncode:
            raise DemoError("prerequisites could not be installed; see above")
        try:
            cluster.up()
            for image in PRODUCT_IMAGES:
                archive = images.PRODUCT_IMAGES[image].build()
                images.load(cluster, archive)
                if image == "operator":  # the tag stays the same: have a changed image roll the pod
                    stage.image_values.append(f"podAnnotations.demo-image={archive.stem}")
        except ClusterError as error:
            raise DemoError(str(error)) from error

    def remove() -> None:
        cluster.down()
        console.print("the demo's cluster is gone; built programs and images stay cached")

    stage = Stage(
        console=console,
        kubeconfig=cluster.dir / "kubeconfig",
        kubectl=tools.kubectl(),
        helm=tools.helm(),
        namespace="demo",
        image_values=[
            "image.repository=localhost/dsv4/operator",
            "image.tag=dev",
            "defaults.engineImage=localhost/dsv4/engine-sim:0.5.23",
            "defaults.canaryImage=localhost/dsv4/canary:dev",
            "defaults.routerImage=localhost/dsv4/router:dev",
        ],
        prepare=prepare,
        remove=remove,
        embedded=True,
    )
    return stage


def foreign_stage(console: Console, kubeconfig: Path) -> Stage:
    """The user's own cluster (kind, say): nothing is built or loaded there, and only two namespaces are touched."""
    registry = os.environ.get("DSV4_DEMO_IMAGES", "localhost/dsv4")
    stage: Stage

    def prepare() -> None:
        console.rule("[bold]1. your cluster")
        server = stage.run_kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
        console.print(f"Using KUBECONFIG={kubeconfig} ({server}).", soft_wrap=True)
        console.print(
            f"The demo will: install the CRD and the operator into namespace {SYSTEM_NAMESPACE}, create namespace demo "
            "with one DSV4Deployment of simulated engines, and change that object twice. `make demo-down` removes the "
            "two namespaces, the release and the CRD.\n"
            f"Images are taken from {registry} (DSV4_DEMO_IMAGES): build them with docker from images/ and load them, "
            "with kind: `kind load docker-image`.\n"
            "Nodes need allocatable nvidia.com/gpu and the label nvidia.com/gpu.compute.major=10, also without GPUs.",
            soft_wrap=True,
        )

    def remove() -> None:
        stage.run_kubectl("delete", "namespace", "demo", "--ignore-not-found")
        stage.run_helm("uninstall", "dsv4-operator", "-n", SYSTEM_NAMESPACE, "--ignore-not-found")
        stage.run_kubectl("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found")
        stage.run_kubectl("delete", "crd", "dsv4deployments.serving.dsv4.dev", "--ignore-not-found")
        console.print("the demo's objects are gone from your cluster")

    stage = Stage(
        console=console,
        kubeconfig=kubeconfig,
        kubectl=tools.kubectl(),
        helm=tools.helm(),
        namespace="demo",
        image_values=[
            f"image.repository={registry}/operator",
            "image.tag=dev",
            f"defaults.engineImage={registry}/engine-sim:0.5.23",
            f"defaults.canaryImage={registry}/canary:dev",
            f"defaults.routerImage={registry}/router:dev",
        ],
        prepare=prepare,
        remove=remove,
        embedded=False,
    )
    return stage
