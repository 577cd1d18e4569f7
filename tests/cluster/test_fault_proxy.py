"""Each fault of the proxy, as a client of the API server feels it."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import RemoteDisconnected

import pytest
import yaml

from localcluster import Fault, FaultProxy, LocalCluster
from localcluster.api import Api, ApiError
from localcluster.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(control_plane: LocalCluster, fault_proxy: FaultProxy) -> Api:
    """A client that goes through the proxy."""
    return Api(fault_proxy.url, control_plane.ca, control_plane.state.tokens["admin"])


class Watch:
    """A watch on ConfigMaps of one namespace, read in a thread."""

    def __init__(self, proxy: FaultProxy, cluster: LocalCluster, namespace: str) -> None:
        context = ssl.create_default_context(cafile=str(cluster.ca))
        host, _, port = proxy.url.removeprefix("https://").partition(":")
        self.connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
        headers = {"Authorization": f"Bearer {cluster.state.tokens['admin']}"}
        self.connection.request("GET", f"/api/v1/namespaces/{namespace}/configmaps?watch=true", headers=headers)
        self.answer = self.connection.getresponse()
        self.names: list[str] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            while line := self.answer.readline():
                self.names.append(json.loads(line)["object"]["metadata"]["name"])
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.error = error

    def ended(self) -> bool:
        self.thread.join(timeout=0.01)
        return not self.thread.is_alive()


@pytest.fixture
def watch(control_plane: LocalCluster, fault_proxy: FaultProxy, namespace: str) -> Iterator[Watch]:
    made = Watch(fault_proxy, control_plane, namespace)
    yield made
    fault_proxy.cut_connections()
    made.thread.join()
    made.connection.close()


def _create(cluster: LocalCluster, namespace: str, name: str) -> None:
    cluster.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}})


def _exists(cluster: LocalCluster, namespace: str, name: str) -> bool:
    return cluster.api.get_or_none(f"/api/v1/namespaces/{namespace}/configmaps/{name}") is not None


def test_without_a_rule_it_is_transparent(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    large = {"data": "x" * 700_000}
    api.create(maps, {"metadata": {"name": "large"}, "data": large})
    assert api.get(f"{maps}/large")["data"] == large
    with pytest.raises(ApiError, match="404"):
        api.get(f"{maps}/none")
    config = yaml.safe_load(fault_proxy.kubeconfig().read_text())
    assert config["clusters"][0]["cluster"]["server"] == fault_proxy.url
    assert "large" in control_plane.kubectl(f"--kubeconfig={fault_proxy.kubeconfig()}", "-n", namespace, "get", "cm")


def test_later_answers_on_a_kept_connection_arrive_whole(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(path, {"metadata": {"name": "large"}, "data": {"data": "x" * 700_000}})
    context = ssl.create_default_context(cafile=str(control_plane.ca))
    host, _, port = fault_proxy.url.removeprefix("https://").partition(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
    headers = {"Authorization": f"Bearer {control_plane.state.tokens['admin']}"}
    for _ in range(5):
        connection.request("GET", f"{path}/large", headers=headers)
        assert len(json.loads(connection.getresponse().read())["data"]["data"]) == 700_000
    connection.close()


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503])
def test_it_answers_an_error_so_often_and_only_where_the_rule_matches(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str, status: int
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    rule = fault_proxy.respond(status, method="POST", path=r"/configmaps$", times=2)
    for name in ("first", "second"):
        with pytest.raises(ApiError, match=str(status)) as caught:
            api.create(maps, {"metadata": {"name": name}})
        assert caught.value.status == status
        assert not _exists(control_plane, namespace, name)
    api.get(maps)
    api.create(maps, {"metadata": {"name": "third"}})
    assert rule.hits == 2


def test_a_throttling_answer_says_when_to_come_back(control_plane: LocalCluster, fault_proxy: FaultProxy) -> None:
    rule = fault_proxy.respond(429, path="/api/v1/namespaces/default$")
    # kubectl's client obeys Retry-After and repeats by itself.
    kubeconfig = f"--kubeconfig={fault_proxy.kubeconfig()}"
    assert "default" in control_plane.kubectl(kubeconfig, "get", "namespace", "default")
    assert rule.hits == 1


def test_cut_before_hides_the_request_and_cut_after_hides_only_the_answer(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    fault_proxy.cut(method="POST")
    with pytest.raises((OSError, RemoteDisconnected)):
        api.create(maps, {"metadata": {"name": "unseen"}})
    assert not _exists(control_plane, namespace, "unseen")
    fault_proxy.cut(method="POST", after=True)
    with pytest.raises((OSError, RemoteDisconnected)):
        api.create(maps, {"metadata": {"name": "done"}})
    assert _exists(control_plane, namespace, "done")


def test_a_delay_holds_the_request_back(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str
) -> None:
    seconds = 1.0
    fault_proxy.delay(seconds, method="POST")
    started = time.monotonic()
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "late"}})
    # A lower bound alone: how much later it arrives is the machine's business.
    assert time.monotonic() - started >= seconds
    assert _exists(control_plane, namespace, "late")


def test_a_hanging_request_ends_with_the_clients_patience(fault_proxy: FaultProxy, api: Api) -> None:
    fault_proxy.add(Fault("hang", path="/version"))
    with pytest.raises(OSError, match="timed out"):
        api.request("GET", "/version", timeout=0.5)
    assert api.get("/version")["major"] == "1"


def test_a_watch_is_streamed_and_cut_without_touching_it(
    control_plane: LocalCluster, fault_proxy: FaultProxy, namespace: str, watch: Watch
) -> None:
    _create(control_plane, namespace, "seen")
    wait_for("the event", lambda: "seen" in watch.names, 10)
    assert fault_proxy.watches == 1
    assert fault_proxy.cut_connections(watches_only=True) == 1
    wait_for("the watch to end", watch.ended, 10)
    assert fault_proxy.watches == 0


def test_an_answer_is_cut_in_its_middle(
    control_plane: LocalCluster, fault_proxy: FaultProxy, api: Api, namespace: str
) -> None:
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    api.create(maps, {"metadata": {"name": "long"}, "data": {"a": "x" * 50_000}})
    fault_proxy.add(Fault("cut-stream", path="/long$", stream_bytes=1000))
    with pytest.raises((OSError, http.client.HTTPException)):
        api.get(f"{maps}/long")
    assert api.get(f"{maps}/long")["data"]["a"]


def test_a_client_that_leaves_a_silent_watch_is_noticed(
    control_plane: LocalCluster, fault_proxy: FaultProxy, namespace: str
) -> None:
    watch = Watch(fault_proxy, control_plane, namespace)
    assert fault_proxy.watches == 1
    watch.connection.sock.shutdown(2)
    wait_for("the proxy to close the watch", lambda: fault_proxy.watches == 0, 10)
    watch.thread.join()
    watch.connection.close()


def test_refusing_looks_like_a_dead_api_server(fault_proxy: FaultProxy, api: Api, watch: Watch) -> None:
    fault_proxy.refuse()
    wait_for("the watch to end", watch.ended, 10)
    with pytest.raises(OSError, match=r"."):
        api.get("/version")
    fault_proxy.refuse(False)
    assert api.get("/version")["major"] == "1"
