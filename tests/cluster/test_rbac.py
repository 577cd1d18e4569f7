"""Rights against use: the real operator with the chart's ServiceAccount, judged by the API server's audit log.

No node exists, so no pod ever gets an address and the operator sends nothing but requests to the API server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

import pytest
import yaml

from localcluster import LocalCluster, audit, tools
from localcluster.api import ApiError
from localcluster.faults import FaultProxy
from localcluster.ports import free_port
from localcluster.waiting import wait_for

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "manifests" / "samples"
RELEASE = "dsv4-operator"
LABEL = "app.kubernetes.io/managed-by=dsv4-operator"
PATIENCE = 90.0

WORKLOADS = {"minimal": "apps/v1/deployments", "multi-node": "leaderworkerset.x-k8s.io/v1/leaderworkersets"}
"""Samples, and in which resource each runs its engines."""

Right = tuple[str, str, str]
"""(API group, resource or resource/subresource, verb)"""

LWS_STUB = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "leaderworkersets.leaderworkerset.x-k8s.io",
        # The API server wants to see a review of what claims a *.k8s.io group.
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/lws"},
    },
    "spec": {
        "group": "leaderworkerset.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "LeaderWorkerSet", "plural": "leaderworkersets", "singular": "leaderworkerset"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Stands in for the LeaderWorkerSet API: the documented group, version and kind, and no controller."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(f"rbac-{os.getpid()}") as running:
        running.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(LWS_STUB))
        yield running


@dataclass(frozen=True)
class Install:
    """The chart in one namespace, its Deployment carried out by a process of this machine."""

    cluster: LocalCluster
    namespace: str
    watched: str
    objects: list[dict[str, Any]]
    since: datetime
    webhook_port: int

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{RELEASE}"

    @property
    def arguments(self) -> list[str]:
        (deployment,) = [one for one in self.objects if one["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return [one.replace("$(POD_NAMESPACE)", self.namespace) for one in container["args"]]

    @property
    def webhook(self) -> bool:
        return "--webhook" in self.arguments

    def granted(self) -> set[Right]:
        """What the roles that are bound to the operator allow."""
        subject = {"kind": "ServiceAccount", "name": RELEASE, "namespace": self.namespace}
        bound = {
            (one["roleRef"]["kind"], one["metadata"].get("namespace"), one["roleRef"]["name"])
            for one in self.objects
            if one["kind"].endswith("Binding") and subject in one["subjects"]
        }
        rules = [
            rule
            for one in self.objects
            if (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) in bound
            for rule in one["rules"]
        ]
        return {right for rule in rules for right in product(rule["apiGroups"], rule["resources"], rule["verbs"])}

    def requests(self) -> list[audit.AuditEvent]:
        """What the operator asked for so far; watches count from when they are open."""
        stages = ("ResponseStarted", "ResponseComplete")
        return [
            event
            for stage in stages
            for event in self.cluster.audit_events(self.since, stage)
            if event.user == self.user and event.resource
        ]

    def used(self) -> set[Right]:
        """The rights that these requests needed."""
        rights = set()
        for event in self.requests():
            resource = f"{event.resource}/{event.subresource}" if event.subresource else event.resource
            rights.add((event.group, resource, event.verb))
            if event.verb == "patch" and event.status == 201:
                rights.add((event.group, resource, "create"))  # an apply that makes the object is checked for both
        return rights


def render(namespace: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    command = [str(tools.helm()), "template", RELEASE, str(ROOT / "charts/dsv4-operator"), "--namespace", namespace]
    given = {"image": {"repository": "localhost/dsv4/operator"}, **values}
    done = subprocess.run(
        [*command, "--values", "-"], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def install(cluster: LocalCluster, namespace: str, watched: str, values: dict[str, Any]) -> Install:
    since = audit.now()
    for name in (namespace, watched):
        cluster.kubectl("create", "namespace", name)
    images = {"canaryImage": "localhost/dsv4/canary:dev", "routerImage": "localhost/dsv4/router:dev"}
    objects = render(namespace, {"defaults": images, **values})
    webhook_port = free_port()
    for one in objects:
        if one["kind"] == "ValidatingWebhookConfiguration":  # no Service leads to a process of this machine
            one["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{webhook_port}/validate"}
    applied = [one for one in objects if one["kind"] != "Deployment"]
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(_list(applied)))
    for plural in ("dsv4deployments.v1alpha1.serving.dsv4.dev", "leaderworkersets.v1.leaderworkerset.x-k8s.io"):
        # Established says that the API exists, not yet that its storage answers.
        answer = partial(cluster.kubectl, "get", "--raw", _collection(plural), check=False)
        wait_for(f"{plural} to be served", answer, PATIENCE)
    return Install(cluster, namespace, watched, objects, since, webhook_port)


def _collection(resource: str) -> str:
    """Path of a collection, from `plural.version.group`."""
    plural, version, group = resource.split(".", 2)
    return f"/apis/{group}/{version}/{plural}"


def _list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


Run = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_operator(tmp_path: Path) -> Iterator[Run]:
    """Starts the operator as an installed one would run, or through a proxy; stopped at the end."""
    running: list[subprocess.Popen[bytes]] = []

    def start(installed: Install, *more: str, proxy: FaultProxy | None = None) -> subprocess.Popen[bytes]:
        port = free_port()
        kubeconfig = installed.cluster.service_account_kubeconfig(
            installed.namespace, RELEASE, tmp_path / f"{installed.namespace}.kubeconfig"
        )
        if proxy is not None:
            kubeconfig = proxy.kubeconfig(kubeconfig)
        local = [
            f"--kubeconfig={kubeconfig}",
            "--listen-host=127.0.0.1",
            f"--listen-port={port}",
            f"--webhook-listen-port={installed.webhook_port}",
            "--webhook-hosts=127.0.0.1",
            "--webhook-certificate-seconds=30",
            *more,
        ]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "operator"),
            "POD_NAME": f"{RELEASE}-0",
            "POD_NAMESPACE": installed.namespace,
        }
        command = [sys.executable, "-m", "dsv4_operator", *installed.arguments, *local]
        with (tmp_path / "operator.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        running.append(process)

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "operator.log").read_text()
            with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                return "leader" in answer.read().decode()

        wait_for("the operator to lead", ready, PATIENCE)
        return process

    yield start
    for process in running:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


class Scenario:
    """Everything the operator does, in one namespace."""

    def __init__(self, installed: Install) -> None:
        self.cluster, self.namespace = installed.cluster, installed.watched
        self.path = f"/apis/serving.dsv4.dev/v1alpha1/namespaces/{self.namespace}/dsv4deployments"

    def play(self) -> None:
        for sample, workload in WORKLOADS.items():
            raw = yaml.safe_load((SAMPLES / f"{sample}.yaml").read_text())
            raw["spec"]["indexK"] = {"dtype": "FP8"}
            raw["spec"].pop("network", None)  # ComputeDomains are refused for now
            self.cluster.api.create(self.path, raw)
            (first,) = self._generations(sample, workload, 1)
            self._router_pods_are_annotated(sample)
            # A new generation, and back: the second one goes with everything of it.
            self._change(sample, {"indexK": {"dtype": "FP4"}})
            assert first in self._generations(sample, workload, 2)
            self._change(sample, {"indexK": {"dtype": "FP8"}})
            assert self._generations(sample, workload, 1) == {first}
        self._change("minimal", {"router": {"enabled": False}})
        for kind in ("serviceaccount", "networkpolicy"):
            wait_for(f"{kind} minimal-router to go", partial(self._is_gone, kind, "minimal-router"), PATIENCE)
        for sample in WORKLOADS:
            self.cluster.api.delete(f"{self.path}/{sample}")
        wait_for("the children to go", self._nothing_left, PATIENCE)

    def meet_the_webhook(self) -> None:
        """Certificates are renewed under the operator's own rights, and the API server accepts them."""
        raw = yaml.safe_load((SAMPLES / "minimal.yaml").read_text())
        raw["spec"]["prefill"] = {"extraArgs": ["--mem-fraction-stat=0.9"]}

        def refused() -> bool:
            try:
                self.cluster.api.create(f"{self.path}?dryRun=All", raw)
            except ApiError as error:
                return "denied the request" in str(error)
            return False

        wait_for("the webhook to refuse", refused, PATIENCE)

    def _change(self, name: str, spec: dict[str, Any]) -> None:
        generation = self.cluster.api.merge(f"{self.path}/{name}", {"spec": spec})["metadata"]["generation"]

        def seen() -> bool:
            status = self.cluster.api.get(f"{self.path}/{name}").get("status", {})
            return bool(status.get("observedGeneration") == generation)

        wait_for(f"{name} to be looked at", seen, PATIENCE)

    def _generations(self, name: str, workload: str, count: int) -> set[str]:
        group_version, _, plural = workload.rpartition("/")
        collection = f"/apis/{group_version}/namespaces/{self.namespace}/{plural}"

        def found() -> set[str] | None:
            selector = f"serving.dsv4.dev/deployment={name},serving.dsv4.dev/role in (prefill,decode)"
            items = self.cluster.api.get(collection, labelSelector=selector)["items"]
            fingerprints = [item["metadata"]["labels"]["serving.dsv4.dev/fingerprint"] for item in items]
            whole = {one for one in fingerprints if fingerprints.count(one) == 2}
            return whole if len(whole) == count and len(fingerprints) == 2 * count else None

        try:
            return wait_for(f"{count} generation(s) of {name}", found, PATIENCE)
        except Exception as error:
            status = self.cluster.api.get(f"{self.path}/{name}").get("status")
            raise AssertionError(f"{error}\n{yaml.safe_dump(status)}") from error

    def _router_pods_are_annotated(self, name: str) -> None:
        selector = f"serving.dsv4.dev/deployment={name},serving.dsv4.dev/role=router"

        def annotated() -> bool:
            pods = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)["items"]
            return bool(pods) and all("serving.dsv4.dev/workers" in p["metadata"].get("annotations", {}) for p in pods)

        wait_for(f"router pods of {name} to be annotated", annotated, PATIENCE)

    def _is_gone(self, kind: str, name: str) -> bool:
        return not self.cluster.kubectl("-n", self.namespace, "get", kind, name, "--ignore-not-found").strip()

    def _nothing_left(self) -> bool:
        kinds = "deploy,leaderworkersets,svc,configmaps,secrets,serviceaccounts,pdb,networkpolicies,pods"
        return not self.cluster.kubectl("-n", self.namespace, "get", kinds, "-l", LABEL, "-o", "name").strip()


MODES: dict[str, dict[str, Any]] = {
    "cluster": {},
    "namespaced": {"watchNamespaces": ["team-namespaced"]},
    "namespaced-webhook": {"watchNamespaces": ["team-namespaced-webhook"], "webhook": {"enabled": True}},
}


@pytest.mark.parametrize("mode", MODES)
def test_rights_are_those_that_are_used(cluster: LocalCluster, run_operator: Run, mode: str) -> None:
    namespace, watched = f"operator-{mode}", f"team-{mode}"
    installed = install(cluster, namespace, watched, MODES[mode])
    assert installed.webhook is (mode != "namespaced")
    process = run_operator(installed)
    if installed.webhook:
        Scenario(installed).meet_the_webhook()
    Scenario(installed).play()
    wait_for(
        "the lease to be renewed",
        lambda: any(one.resource == "leases" and one.verb == "update" for one in installed.requests()),
        PATIENCE,
    )
    process.terminate()
    assert process.wait(60) == 0

    forbidden = {(one.verb, one.uri) for one in installed.requests() if one.status == 403}
    assert not forbidden
    used, granted = installed.used(), installed.granted()
    assert granted - used == set(), "granted and not used"
    assert used - granted == set(), "used and not granted"
    leases = {one.namespace for one in installed.requests() if one.resource == "leases"}
    assert leases == {namespace}
    reads = [one for one in installed.requests() if one.verb in {"list", "watch"}]
    unlabelled = {one.resource for one in reads if f"labelSelector={LABEL}" not in unquote(one.uri)}
    assert unlabelled == {"dsv4deployments"}, "children are read by their label alone"
    secrets = [one for one in installed.requests() if one.resource == "secrets"]
    updated = {(one.namespace, one.name) for one in secrets if one.verb == "update"}
    created = {one.namespace for one in secrets if one.verb == "create"}
    assert updated == ({(namespace, "dsv4-operator-webhook")} if installed.webhook else set())
    assert created == ({namespace, watched} if installed.webhook else {watched})
    if mode != "cluster":
        assert {one.namespace for one in installed.requests() if one.namespace} == {namespace, watched}
        cluster_wide = {(one.resource, one.name) for one in installed.requests() if not one.namespace}
        hook = ("validatingwebhookconfigurations", f"dsv4-operator.{namespace}")
        assert cluster_wide == ({hook} if installed.webhook else set())


@pytest.mark.parametrize("noticed_by", ["resync", "watch"])
def test_a_namespace_without_rights_does_not_stop_the_others(
    cluster: LocalCluster, run_operator: Run, tmp_path: Path, noticed_by: str
) -> None:
    """A namespace takes its RoleBinding with it, and from then on every request there is answered 403."""
    kept, gone = f"kept-{noticed_by}", f"gone-{noticed_by}"
    left_out = f"namespace {gone} is left out"
    cluster.kubectl("create", "namespace", gone)
    installed = install(cluster, f"operator-{noticed_by}", kept, {"watchNamespaces": [gone, kept]})

    def log() -> str:
        return (tmp_path / "operator.log").read_text()

    with FaultProxy(cluster) as proxy:
        process = run_operator(installed, f"--resync-seconds={10 if noticed_by == 'resync' else 600}", proxy=proxy)
        for namespace in (kept, gone):
            converges(cluster, namespace, "before")
        if noticed_by == "resync":
            cluster.kubectl("-n", gone, "delete", "rolebinding", RELEASE)
            wait_for("the namespace to be left out", lambda: left_out in log(), PATIENCE)
            again = {one: proxy.delay(0, path=f"/namespaces/{one}/.*watch=true", times=None) for one in (gone, kept)}
            watches = proxy.cut_connections(watches_only=True)
            wait_for("the watches to come back", lambda: again[kept].hits >= watches, PATIENCE)
            converges(cluster, kept, "meanwhile")
            assert again[gone].hits == 0, "kopf would end on a watch that is forbidden"
            process.terminate()
            assert process.wait(60) == 0
            assert log().count(left_out) == 1
        else:
            cluster.kubectl("delete", "namespace", gone)
            proxy.cut_connections(watches_only=True)
            assert process.wait(120) == 1, "kopf asks 9 times within a minute, and ends"
        before = log().count(left_out)
        run_operator(installed, proxy=proxy)
        converges(cluster, kept, "after")
        assert log().count(left_out) == before + 1


def converges(cluster: LocalCluster, namespace: str, name: str) -> None:
    """Create an object and wait until all its workloads are there, and its status."""
    raw = yaml.safe_load((SAMPLES / "minimal.yaml").read_text())
    raw["metadata"]["name"] = name
    path = f"/apis/serving.dsv4.dev/v1alpha1/namespaces/{namespace}/dsv4deployments"
    cluster.api.create(path, raw)

    def whole() -> bool:
        selector = f"serving.dsv4.dev/deployment={name}"
        found = cluster.api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments", labelSelector=selector)["items"]
        return len(found) == 3 and "status" in cluster.api.get(f"{path}/{name}")

    wait_for(f"{namespace}/{name} to be whole", whole, PATIENCE)


def test_a_process_without_rights_is_refused(cluster: LocalCluster) -> None:
    """The log shows refusals at all: an API server that allows everything would pass the test above."""
    cluster.kubectl("create", "namespace", "nobody")
    wait_for(
        "the default account",
        lambda: cluster.api.get_or_none("/api/v1/namespaces/nobody/serviceaccounts/default"),
        PATIENCE,
    )
    since = audit.now()
    kubeconfig = cluster.service_account_kubeconfig("nobody", "default")
    command = [str(tools.kubectl()), f"--kubeconfig={kubeconfig}", "get", "secrets", "-n", "nobody"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    mine = [one for one in cluster.audit_events(since) if one.user == "system:serviceaccount:nobody:default"]
    assert [one.status for one in mine if one.resource == "secrets"] == [403]
