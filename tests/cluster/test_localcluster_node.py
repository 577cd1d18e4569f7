"""What only a real kubelet, container runtime, service proxy and DNS can show."""

import json
import socket
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

import cluster_helpers as helpers
from localcluster import ClusterOptions, LocalCluster, images
from localcluster.network import ip
from localcluster.processes import this_process
from localcluster.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.node]

_RESOLVE = "import json, socket; print(json.dumps(sorted({a[4][0] for a in socket.getaddrinfo(%r, 80)})))"
_FETCH = "import json, urllib.request; print(json.dumps(urllib.request.urlopen(%r, timeout=5).read().decode().strip()))"
_CALL_API = """
import json, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
context = ssl.create_default_context(cafile=folder + "/ca.crt")
token = open(folder + "/token").read()
request = urllib.request.Request("https://kubernetes.default/apis/authentication.k8s.io/v1/selfsubjectreviews",
    data=json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).encode(),
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, context=context, timeout=5))
print(json.dumps(answer["status"]["userInfo"]["username"]))
"""


@pytest.fixture
def node(node_cluster: LocalCluster) -> LocalCluster:
    """The node cluster with the base image loaded."""
    images.load(node_cluster, images.base_archive())
    return node_cluster


def _service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80, "targetPort": 8000}], **spec}}


def _fetch(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as answer:
        return str(answer.read().decode().strip())


def test_a_pod_with_a_native_sidecar_is_ready_only_when_the_sidecar_is(node: LocalCluster, namespace: str) -> None:
    pod = helpers.serving_pod("pair")
    # The sidecar is ready when somebody has asked for /on, until then its own probe fails.
    code = (
        "import http.server\n"
        "on = []\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.path == '/on' and on.append(1)\n"
        "        self.send_response(200 if on else 503); self.end_headers()\n"
        "http.server.ThreadingHTTPServer(('', 8001), Handler).serve_forever()\n"
    )
    side = dict(pod["spec"]["containers"][0], name="canary", restartPolicy="Always", command=["python3", "-c", code])
    side["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": 8001}, "periodSeconds": 1}
    pod["spec"]["initContainers"] = [side]
    helpers.create_pod(node, namespace, pod)

    def main_is_ready() -> Any:
        status = helpers.get_pod(node, namespace, "pair")["status"]
        return all(one["ready"] for one in status.get("containerStatuses", [{"ready": False}])) and status

    status = wait_for("the main container to be ready", main_is_ready, 60)
    assert not status["initContainerStatuses"][0]["ready"]
    assert not helpers.is_ready({"status": status})
    _fetch(f"http://{status['podIP']}:8001/on")
    helpers.wait_ready(node, namespace, "pair")


def test_a_headless_service_resolves_to_pods_that_are_not_ready(node: LocalCluster, namespace: str) -> None:
    services = f"/api/v1/namespaces/{namespace}/services"
    pod = helpers.serving_pod("slow")
    pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] = "/never"
    helpers.create_pod(node, namespace, pod)
    headless = {"clusterIP": "None", "selector": {"app": "slow"}}
    node.api.create(services, _service("all", publishNotReadyAddresses=True, **headless))
    node.api.create(services, _service("ready-only", **headless))
    helpers.create_pod(node, namespace, helpers.sleeping_pod("asking"))
    helpers.wait_ready(node, namespace, "asking")
    address = wait_for("an address", lambda: helpers.get_pod(node, namespace, "slow")["status"].get("podIP"), 30)

    def resolves(name: str) -> list[str]:
        code = f"try:\n {_RESOLVE % name}\nexcept OSError as e:\n print(json.dumps([str(e)]))"
        found: list[str] = helpers.python_in_pod(node, namespace, "asking", f"import json\n{code}")
        return found

    wait_for("the name to resolve", lambda: resolves("all") == [address], 20)
    assert resolves(f"all.{namespace}.svc.cluster.local") == [address]
    assert "not known" in resolves("ready-only")[0]
    assert "not known" in resolves("example.org")[0]
    assert not helpers.is_ready(helpers.get_pod(node, namespace, "slow"))
    # The name is gone within the TTL of a second or so after the pod is.
    node.api.delete(f"/api/v1/namespaces/{namespace}/pods/slow")
    wait_for("the name to vanish", lambda: resolves("all") != [address], 20)


def test_a_cluster_address_leads_to_a_pod_from_pods_from_itself_and_from_the_host(
    node: LocalCluster, namespace: str
) -> None:
    helpers.create_pod(node, namespace, helpers.serving_pod("web"))
    helpers.create_pod(node, namespace, helpers.sleeping_pod("client"))
    made = node.api.create(f"/api/v1/namespaces/{namespace}/services", _service("front", selector={"app": "web"}))
    pod = helpers.wait_ready(node, namespace, "web")
    helpers.wait_ready(node, namespace, "client")
    assert _fetch(f"http://{pod['status']['podIP']}:8000/hostname") == "web"
    address = made["spec"]["clusterIP"]
    wait_for("kube-proxy", lambda: _fetch(f"http://{address}/hostname") == "web", 20)
    assert helpers.python_in_pod(node, namespace, "client", _FETCH % "http://front/hostname") == "web"
    assert helpers.python_in_pod(node, namespace, "web", _FETCH % "http://front/hostname") == "web"


def test_a_pod_calls_the_api_with_its_service_account(node: LocalCluster, namespace: str) -> None:
    helpers.create_pod(node, namespace, helpers.sleeping_pod("caller"))
    helpers.wait_ready(node, namespace, "caller")
    user = helpers.python_in_pod(node, namespace, "caller", _CALL_API)
    assert user == f"system:serviceaccount:{namespace}:default"


def test_a_pod_reaches_a_server_on_this_machine(node: LocalCluster, namespace: str) -> None:
    helpers.create_pod(node, namespace, helpers.sleeping_pod("caller"))
    helpers.wait_ready(node, namespace, "caller")
    code = (
        "import json, socket; s = socket.create_connection((%r, %d), 5); "
        "s.sendall(b'hello'); s.close(); print(json.dumps(None))"
    )
    with socket.create_server((node.host_address, 0)) as server:
        server.settimeout(30)
        helpers.python_in_pod(node, namespace, "caller", code % server.getsockname())
        connection, _ = server.accept()
        with connection:
            assert connection.recv(16) == b"hello"


def test_extended_resources_are_counted_by_scheduler_and_kubelet(node: LocalCluster, namespace: str) -> None:
    limits = {"container": {"resources": {"limits": {"nvidia.com/gpu": "10", "rdma/hca": "2"}}}}
    helpers.create_pod(node, namespace, helpers.sleeping_pod("first", **limits))
    helpers.wait_ready(node, namespace, "first")
    helpers.create_pod(node, namespace, helpers.sleeping_pod("second", **limits))

    def refused() -> bool:
        conditions = helpers.get_pod(node, namespace, "second")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in one.get("message", "") for one in conditions)

    wait_for("the second pod to be refused", refused, 30)
    node.api.delete(f"/api/v1/namespaces/{namespace}/pods/first")
    helpers.wait_ready(node, namespace, "second")


def test_devices_and_pods_outlive_a_restart_of_the_kubelet_and_containerd(node: LocalCluster, namespace: str) -> None:
    limits = {"container": {"resources": {"limits": {"nvidia.com/gpu": "16"}}}}
    helpers.create_pod(node, namespace, helpers.serving_pod("kept", 8000, **limits))
    before = helpers.wait_ready(node, namespace, "kept")["status"]["containerStatuses"][0]["containerID"]
    for component in ("kubelet", "containerd", "kube-proxy", "coredns"):
        node.restart(component)
    status = node.api.get("/api/v1/nodes/node")["status"]
    assert status["allocatable"]["nvidia.com/gpu"] == "16"
    after = helpers.wait_ready(node, namespace, "kept")["status"]["containerStatuses"][0]
    assert after["containerID"] == before
    assert after["restartCount"] == 0
    assert helpers.python_in_pod(node, namespace, "kept", _FETCH % "http://127.0.0.1:8000/hostname") == "kept"


def test_an_image_built_from_a_dockerfile_runs(
    node: LocalCluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    context = tmp_path_factory.mktemp("image")
    (context / "app").mkdir()
    (context / "app" / "greet.py").write_text("print('hello from the image', flush=True)\n")
    (context / "unused.txt").write_text("1")
    (context / "Dockerfile").write_text(
        "ARG BASE_IMAGE=python:3.13-slim\nFROM ${BASE_IMAGE}\nARG WORD\nENV WORD=${WORD}\n"
        'COPY --chown=65532:65532 app/ /app/\nUSER 65532\nENTRYPOINT ["python3", "/app/greet.py"]\n'
    )
    tag = f"localhost/dsv4/test-{this_process().pid}:1"
    archive = images.build(context, context, tag, {"WORD": "one"})
    try:
        (context / "unused.txt").write_text("2")
        assert images.build(context, context, tag, {"WORD": "one"}) == archive
        images.load(node, archive)
        pod = helpers.python_pod("built", restartPolicy="Never")
        pod["spec"]["containers"][0] |= {"image": tag}
        del pod["spec"]["containers"][0]["command"]
        helpers.create_pod(node, namespace, pod)
        wait_for(
            "the pod to end", lambda: helpers.get_pod(node, namespace, "built")["status"]["phase"] == "Succeeded", 60
        )
        assert node.kubectl("-n", namespace, "logs", "built") == "hello from the image\n"
        (context / "app" / "greet.py").write_text("print('changed')\n")
        changed = images.build(context, context, tag, {"WORD": "one"})
        assert changed != archive
        archive = changed
    finally:
        archive.unlink()
        images.remove(tag)


def test_two_nodes_side_by_side_share_nothing(
    node: LocalCluster, namespace: str, make_namespace: Callable[[LocalCluster], str]
) -> None:
    with LocalCluster(f"twin-{this_process().pid}", ClusterOptions(mode="node", gpus=4)) as twin:
        images.load(twin, images.base_archive())
        there = make_namespace(twin)
        addresses = {}
        for cluster, space in ((node, namespace), (twin, there)):
            helpers.create_pod(cluster, space, helpers.serving_pod("web"))
            cluster.api.create(f"/api/v1/namespaces/{space}/services", _service("front", selector={"app": "web"}))
            addresses[cluster.name] = helpers.wait_ready(cluster, space, "web")["status"]["podIP"]
            assert helpers.python_in_pod(cluster, space, "web", _RESOLVE % "front") != []
        assert len(set(addresses.values())) == 2
        for address in addresses.values():
            assert _fetch(f"http://{address}:8000/hostname") == "web"
        status = twin.api.get("/api/v1/nodes/node")["status"]
        assert status["allocatable"]["nvidia.com/gpu"] == "4"
        assert twin.state.network is not None
        routes = {route["dst"] for route in json.loads(ip("-j", "-4", "route"))}
        assert twin.state.network.pod_cidr in routes
    # The twin's end takes nothing of the other.
    assert _fetch(f"http://{addresses[node.name]}:8000/hostname") == "web"
    assert helpers.python_in_pod(node, namespace, "web", _FETCH % "http://front/hostname") == "web"
