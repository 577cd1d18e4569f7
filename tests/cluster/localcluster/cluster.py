"""`LocalCluster`: starting, using and removing one cluster."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from localcluster import audit, builds, components, controlplane, kwok, network, node, preflight, state, teardown
from localcluster.api import Api
from localcluster.errors import ClusterError
from localcluster.kubeconfig import write_kubeconfig
from localcluster.oci import load_pause
from localcluster.paths import file_lock, lock_path
from localcluster.pki import Pki
from localcluster.processes import this_process
from localcluster.report import say
from localcluster.waiting import wait_for

Mode = Literal["control-plane", "node"]

GPU_LABELS = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.compute.major": "10",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.product": "NVIDIA-B200",
}
"""Labels that NVIDIA's feature discovery puts on a Blackwell node."""


@dataclass(frozen=True)
class ClusterOptions:
    """What kind of cluster it is. A running cluster keeps the options it was started with."""

    mode: Mode = "control-plane"
    gpus: int = 16
    """`nvidia.com/gpu` of every node, real or simulated."""
    rdma: dict[str, int] = field(default_factory=dict)
    """Further extended resources of every node, such as {"rdma/hca": 8}."""
    kwok_nodes: int = 0
    """Simulated nodes; control-plane mode only."""
    node_labels: dict[str, str] = field(default_factory=lambda: dict(GPU_LABELS))

    @property
    def resources(self) -> dict[str, str]:
        """Extended resources as the API spells them."""
        counts = ({"nvidia.com/gpu": self.gpus} if self.gpus else {}) | self.rdma
        return {name: str(count) for name, count in counts.items()}


class LocalCluster:
    """One cluster of this machine, by name. The same name in another process means the same cluster."""

    def __init__(self, name: str, options: ClusterOptions | None = None) -> None:
        self.name = name
        self.options = options or ClusterOptions()
        self.dir = state.cluster_dir(name)

    # Life

    def up(self, owned: bool = False) -> Self:
        """Starts the cluster, or completes one that runs in part; returns when it is ready for use.

        With `owned` the cluster belongs to the calling process: `remove_orphans` removes it when that is gone.
        Raises ClusterError when a component does not start, or when the running cluster has other options.
        """
        if self.options.mode == "node" and self.options.kwok_nodes:
            raise ClusterError("simulated nodes and a real node do not go together: use control-plane mode")
        if self.options.mode == "node":
            preflight.check_node_mode()
        programs = self._build()
        with file_lock(lock_path(self.name)):
            found = state.load(self.name)
            if found is not None and found.ready:
                self._check_options(found)
            else:
                self._remove_locked()
                found = self._plan(owned)
            try:
                self._start(found, programs)
            except BaseException:
                if not found.ready:
                    components.print_log_tails(self.dir / "logs")
                    self._remove_locked()
                raise
            found.ready = True
            found.save()
        say(f"cluster {self.name} is ready: {controlplane.server_url(found)}")
        return self

    def down(self) -> bool:
        """Removes the cluster and everything of it. False when there was none."""
        lock = lock_path(self.name)
        with file_lock(lock):
            removed = self._remove_locked()
            lock.unlink()
            return removed

    def __enter__(self) -> Self:
        return self.up(owned=True)

    def __exit__(self, *_: object) -> None:
        self.down()

    def _remove_locked(self) -> bool:
        found = state.load(self.name)
        if found is None:
            return teardown.remove_unrecorded(self.name)
        self._copy_logs()
        teardown.remove(found)
        say(f"cluster {self.name} is removed")
        return True

    def _build(self) -> dict[str, Path]:
        names = ["plane"]
        if self.options.mode == "node":
            names += ["node", "coredns", "pause"]
        if self.options.kwok_nodes:
            names += ["kwok"]
        return {name: builds.build(name) for name in names}

    def _check_options(self, found: state.ClusterState) -> None:
        if found.options != asdict(self.options):
            raise ClusterError(f"cluster {self.name} runs with other options {found.options}: take it down first")

    def _plan(self, owned: bool) -> state.ClusterState:
        owner = asdict(this_process()) if owned else None
        made = state.ClusterState(self.name, self.options.mode, asdict(self.options), owner)
        with file_lock(lock_path("plan")):
            if self.options.mode == "node":
                made.network = network.plan(self.name)
                made.ports = dict(controlplane.NETNS_PORTS)
            else:
                made.ports = network.plan_ports(controlplane.PORTS, state.all_states())
            self.dir.mkdir(mode=0o700)
            made.save()
        return made

    def _start(self, found: state.ClusterState, programs: dict[str, Path]) -> None:
        pki = Pki(self.dir / "pki")
        plane = programs["plane"] / "plane"
        is_node = found.network is not None
        if found.network is not None and not found.ready:
            network.create(found.network)
        if not found.components:
            controlplane.prepare(found, pki, node.NODE_NAME if is_node else None)
            planned = controlplane.components(found, pki, plane)
            if is_node:
                node.prepare(found, pki)
                planned |= node.components(found, plane, programs["node"], programs["coredns"] / "coredns")
            if self.options.kwok_nodes:
                planned["kwok"] = kwok.component(found, programs["kwok"])
            found.components = planned
            # Recorded before anything starts, so that a crash at any moment leaves nothing unknown.
            found.save()
        components.forget_dead(found)
        kubelet_since = None if is_node and found.components["kubelet"].alive else audit.now()
        first = ["etcd", "kube-apiserver", *(["containerd"] if is_node else [])]
        components.start_missing(found, first)
        components.wait_api(found, self.api)
        components.start_missing(found, list(found.components))
        if is_node:
            self._prepare_node(found, programs, kubelet_since)
        if self.options.kwok_nodes:
            say(f"making {self.options.kwok_nodes} simulated nodes")
            kwok.ensure_nodes(self.api, self.options.kwok_nodes, self.options.node_labels, self.options.resources)
            count = self.options.kwok_nodes
            self._wait("simulated nodes to be Ready", lambda: kwok.ready_nodes(self.api, count), 120)
        self._wait("the default ServiceAccount", self._default_account, 60)

    def _prepare_node(
        self, found: state.ClusterState, programs: dict[str, Path], kubelet_since: datetime | None
    ) -> None:
        self._wait("containerd", self._containerd_answers, 60)
        if not found.ready:
            load_pause(self, programs["pause"] / "pause")
            node.install(found, self.api)
        node.wait_registered(self.api, node.NODE_NAME, 60)
        self.wait_usable(kubelet_since)

    def _default_account(self) -> bool:
        return self.api.get_or_none("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _wait(self, what: str, probe: Any, timeout: float) -> None:
        def checked() -> bool:
            components.check_alive(self.state)
            return bool(probe())

        say(f"waiting for {what}")
        wait_for(what, checked, timeout)

    def _copy_logs(self) -> None:
        """Keeps component logs and the audit log where `DSV4_CLUSTER_LOGS` says, for a look after a CI run."""
        target = os.environ.get("DSV4_CLUSTER_LOGS")
        if target and (self.dir / "logs").is_dir():
            copy = Path(target) / self.name
            shutil.copytree(self.dir / "logs", copy, dirs_exist_ok=True)
            if (self.dir / "audit.log").is_file():
                shutil.copy(self.dir / "audit.log", copy)

    # Use

    @property
    def state(self) -> state.ClusterState:
        """What is recorded of the running cluster. Raises ClusterError when there is none."""
        found = state.load(self.name)
        if found is None:
            raise ClusterError(f"there is no cluster {self.name}: start it with `up`")
        return found

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator, good on the host."""
        return self.dir / "kubeconfig"

    @property
    def ca(self) -> Path:
        """Certificate of the cluster's authority."""
        return self.dir / "pki" / "ca.crt"

    @property
    def server(self) -> str:
        """URL of the API server, good on the host and, in node mode, in pods."""
        return controlplane.server_url(self.state)

    @property
    def node_address(self) -> str:
        """Address of the node; in control-plane mode loopback."""
        return controlplane.server_host(self.state)

    @property
    def host_address(self) -> str:
        """Address of this machine as the cluster's pods see it; in control-plane mode loopback."""
        found = self.state.network
        return found.host_address if found else "127.0.0.1"

    @property
    def api(self) -> Api:
        """API client of the administrator."""
        return Api(self.server, self.ca, self.state.tokens["admin"])

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Runs kubectl as the administrator and returns its output. Raises ClusterError with its message."""
        command = [str(builds.binary("plane", "plane")), "kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def service_account_kubeconfig(
        self, namespace: str, name: str, path: Path | None = None, server: str = "", seconds: int = 86400
    ) -> Path:
        """Writes a kubeconfig with a fresh token of a ServiceAccount; `server` replaces the API server's URL."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
        token = self.api.create(f"{account}/token", request)["status"]["token"]
        target = path or self.dir / f"sa-{namespace}-{name}.kubeconfig"
        write_kubeconfig(target, self.name, server or self.server, self.ca, token, name, namespace)
        return target

    def audit_events(self, since: datetime | None = None, stage: str = "ResponseComplete") -> list[audit.AuditEvent]:
        """Requests that the API server finished, received at `since` or later; see localcluster.audit."""
        return list(audit.read_events(self.dir / "audit.log", since, stage))

    def ctr(self, *arguments: str) -> str:
        """Runs containerd's client in the namespace that the kubelet uses. Node mode only."""
        program = builds.binary("node", "ctr")
        command = [str(program), f"--address={node.containerd_socket(self.dir)}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # Faults

    def stop(self, component: str, grace: float = 3.0) -> None:
        """Stops one component and leaves it stopped: SIGTERM, SIGKILL after `grace` seconds (open watches hold it)."""
        with file_lock(lock_path(self.name)):
            components.stop(self.state, component, grace)

    def start(self, component: str) -> None:
        """Starts a stopped component and waits until the cluster is usable again."""
        started = audit.now()
        with file_lock(lock_path(self.name)):
            components.start_missing(self.state, [component])
        self.wait_usable(started if component in {"kubelet", "containerd"} else None)

    def restart(self, component: str) -> None:
        """Stops and starts one component."""
        self.stop(component)
        self.start(component)

    def wait_usable(self, kubelet_since: datetime | None = None) -> None:
        """Waits until what runs does its work; with `kubelet_since` until the kubelet has synced after that time."""
        found = self.state
        running = {name for name, one in found.components.items() if one.alive}
        if not {"etcd", "kube-apiserver"} <= running:
            return
        components.wait_api(found, self.api)
        if found.network is None:
            return
        if "containerd" in running:
            self._wait("containerd", self._containerd_answers, 60)
        if {"containerd", "kubelet"} <= running:
            if kubelet_since is not None:
                since = kubelet_since
                self._wait("the kubelet", lambda: node.kubelet_has_synced(self.api, node.NODE_NAME, since), 60)
            # A kubelet without a device checkpoint sets device counts to zero at its start.
            node.set_extended_resources(self.api, node.NODE_NAME, self.options.resources)
            self._wait("the node to be Ready", lambda: node.node_is_ready(self.api, node.NODE_NAME), 90)
        for name, port in (("coredns", "8181/ready"), ("kube-proxy", "10256/livez")):
            if name in running:
                url = f"http://{self.node_address}:{port}"
                self._wait(name, functools.partial(components.answers, url), 60)

    def _containerd_answers(self) -> bool:
        try:
            return bool(self.ctr("version"))
        except ClusterError:
            return False

    def compact(self) -> int:
        """Compacts etcd at its present revision, which it returns: older watches get 410 Gone."""
        return components.compact_etcd(self.state)

    @contextlib.contextmanager
    def stopped(self, component: str) -> Iterator[None]:
        """A component is stopped inside the block and runs again after it."""
        self.stop(component)
        try:
            yield
        finally:
            self.start(component)


def remove_orphans() -> list[str]:
    """Removes clusters whose owning process is gone, and returns their names."""
    names = [found.name for found in state.all_states() if found.orphaned]
    for name in names:
        LocalCluster(name).down()
    return names


def attach(name: str) -> LocalCluster:
    """The running cluster of this name with the options it was started with."""
    found = state.load(name)
    if found is None:
        print(f"known clusters: {[one.name for one in state.all_states()]}", file=sys.stderr)
        raise ClusterError(f"there is no cluster {name}")
    return LocalCluster(name, ClusterOptions(**found.options))
