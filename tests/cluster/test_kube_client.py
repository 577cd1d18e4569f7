"""KubeClient against a real API server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from dsv4_operator.kube import errors
from dsv4_operator.kube import kinds as k
from dsv4_operator.kube.client import CHUNK, KubeClient
from localcluster import LocalCluster, audit

pytestmark = pytest.mark.cluster

AGENT = "dsv4-operator/test"
NAMESPACE = "client"


class Calls:
    """Notes every call; runs `hook` at each."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.hook: Any = None

    def api_call(self, verb: str, kind: str, code: str, seconds: float) -> None:
        assert 0 <= seconds < 600
        self.seen.append((verb, kind, code))
        if self.hook:
            self.hook()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(f"client-{os.getpid()}") as running:
        running.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield running


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def api(cluster: LocalCluster, calls: Calls) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(user_agent=AGENT, kubeconfig=str(cluster.kubeconfig), observer=calls) as client:
        yield client


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE} | metadata,
        "data": data or {},
    }


def deployment(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example/none"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template} | spec,
    }


def revision(obj: dict[str, Any] | None) -> int:
    assert obj is not None
    return int(obj["metadata"]["resourceVersion"])


async def test_apply_creates_updates_and_leaves_the_same_alone(api: KubeClient, calls: Calls) -> None:
    created = await api.apply(config_map("apply", {"a": "1", "b": "1"}), "op")
    again = await api.apply(config_map("apply", {"a": "1", "b": "1"}), "op")
    assert revision(again) == revision(created)
    changed = await api.apply(config_map("apply", {"a": "2"}), "op")
    assert changed["data"] == {"a": "2"}, "a field no longer sent is removed"
    assert await api.get(k.CONFIG_MAP, NAMESPACE, "apply") == changed
    assert calls.seen == [("apply", "ConfigMap", code) for code in ("201", "200", "200")] + [
        ("get", "ConfigMap", "200")
    ]


async def test_apply_conflict_names_the_fields_and_force_takes_them(api: KubeClient) -> None:
    await api.apply(config_map("owned", {"a": "1", "b": "1"}), "somebody")
    with pytest.raises(errors.Conflict) as caught:
        await api.apply(config_map("owned", {"a": "2"}), "op")
    assert [cause.field for cause in caught.value.causes] == [".data.a"]
    assert 'conflict with "somebody"' in caught.value.causes[0].message
    assert str(caught.value).startswith(f"apply ConfigMap {NAMESPACE}/owned: 409")
    taken = await api.apply(config_map("owned", {"a": "2"}), "op", force=True)
    assert taken["data"] == {"a": "2", "b": "1"}


async def test_absent_object_absent_namespace_absent_kind(api: KubeClient) -> None:
    assert await api.get(k.CONFIG_MAP, NAMESPACE, "absent") is None
    assert await api.delete(k.CONFIG_MAP, NAMESPACE, "absent", None) is False
    with pytest.raises(errors.NotFound):
        await api.annotate(k.CONFIG_MAP, NAMESPACE, "absent", {"a": "b"})
    elsewhere = config_map("x") | {"metadata": {"name": "x", "namespace": "absent"}}
    for write in (api.apply(elsewhere, "op"), api.create(elsewhere)):
        with pytest.raises(errors.NotFound, match='namespaces "absent" not found'):
            await write
    group = {"apiVersion": k.LEADER_WORKER_SET.api_version, "kind": k.LEADER_WORKER_SET.kind}
    for call in (
        api.get(k.LEADER_WORKER_SET, NAMESPACE, "x"),
        api.list(k.LEADER_WORKER_SET),
        api.apply(group | {"metadata": {"name": "x", "namespace": NAMESPACE}}, "op"),
        api.delete(k.LEADER_WORKER_SET, NAMESPACE, "x", None),
    ):
        with pytest.raises(errors.KindNotInstalled):
            await call


async def test_create_and_replace_are_optimistic(api: KubeClient) -> None:
    first = await api.create(config_map("replace", {"a": "1"}))
    with pytest.raises(errors.AlreadyExists):
        await api.create(config_map("replace"))
    second = await api.replace(first | {"data": {"a": "2"}})
    with pytest.raises(errors.Conflict):
        await api.replace(first | {"data": {"a": "3"}})
    assert await api.get(k.CONFIG_MAP, NAMESPACE, "replace") == second


async def test_annotate_merges_and_removes(api: KubeClient) -> None:
    await api.apply(config_map("annotated", annotations={"keep": "1", "drop": "1"}), "op")
    changed = await api.annotate(k.CONFIG_MAP, NAMESPACE, "annotated", {"new": "1", "drop": None})
    assert changed["metadata"]["annotations"] == {"keep": "1", "new": "1"}


async def test_delete_spares_a_successor_of_the_same_name(api: KubeClient) -> None:
    old = await api.create(config_map("reborn"))
    assert await api.delete(k.CONFIG_MAP, NAMESPACE, "reborn", old["metadata"]["uid"]) is True
    new = await api.create(config_map("reborn"))
    assert await api.delete(k.CONFIG_MAP, NAMESPACE, "reborn", old["metadata"]["uid"]) is False
    assert await api.get(k.CONFIG_MAP, NAMESPACE, "reborn") == new


async def test_status_is_written_beside_the_spec(api: KubeClient) -> None:
    live = await api.apply(deployment("status"), "op")
    report = {"type": "Progressing", "status": "True", "reason": "Test", "message": "m"}
    body = deployment("status", replicas=7) | {"metadata": live["metadata"], "status": {"conditions": [report]}}
    body["metadata"].pop("managedFields")
    body["metadata"].pop("resourceVersion")
    written = await api.apply_status(body, "op-status")
    assert written["spec"]["replicas"] == 0, "the spec in the body is not sent"
    assert any(entry["manager"] == "op-status" for entry in written["metadata"]["managedFields"])
    stale = body | {"metadata": body["metadata"] | {"uid": "of-a-predecessor"}}
    with pytest.raises(errors.Conflict):
        await api.apply_status(stale, "op-status")
    with pytest.raises(errors.Conflict):
        await api.apply_status(body | {"metadata": body["metadata"] | {"resourceVersion": "1"}}, "op-status")
    gone = body | {"metadata": {"name": "nobody", "namespace": NAMESPACE}}
    with pytest.raises(errors.NotFound):
        await api.apply_status(gone, "op-status")


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({"replicas": -1}, {"spec.replicas"}, id="bad value"),
        pytest.param({"replicas": "many"}, {"spec.replicas"}, id="wrong type"),
        pytest.param({"nonsense": 1}, {"spec.nonsense"}, id="unknown field"),
    ],
)
async def test_invalid_objects_name_their_fields(api: KubeClient, spec: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await api.apply(deployment("invalid", **spec), "op")
    assert {cause.field for cause in caught.value.causes} == fields


async def test_errors_about_a_secret_do_not_quote_it(api: KubeClient) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": NAMESPACE}}
    for bad in ({"stringData": {"k": "v"}, "type": "hunter2/x y"}, {"stringData": {"bad?hunter": "hunter2"}}):
        with pytest.raises(errors.ApiError) as caught:
            await api.apply(secret | {"data": {"k": "aHVudGVyMg==", "z": "!hunter2!"}} | bad, "op")
        assert "hunter2" not in str(caught.value)
        assert f"Secret {NAMESPACE}/s" in str(caught.value)


@pytest.fixture(scope="module")
def many(cluster: LocalCluster) -> int:
    """More ConfigMaps than fit into two chunks, all with a label."""
    count = 2 * CHUNK + 50

    async def create() -> None:
        connecting = KubeClient.connect(user_agent="test-setup", kubeconfig=str(cluster.kubeconfig))
        async with await connecting as client:
            for start in range(0, count, 50):
                names = [f"many-{n:04}" for n in range(start, start + 50)]
                await asyncio.gather(*(client.create(config_map(name, labels={"many": "yes"})) for name in names))

    asyncio.run(create())
    return count


async def test_list_reads_chunks_and_names_the_kind(
    api: KubeClient, calls: Calls, cluster: LocalCluster, many: int
) -> None:
    start = audit.now()
    items, version = await api.list(k.CONFIG_MAP, NAMESPACE, "many=yes")
    assert [item["metadata"]["name"] for item in items] == [f"many-{n:04}" for n in range(many)]
    assert {(item["apiVersion"], item["kind"]) for item in items} == {("v1", "ConfigMap")}
    assert int(version) >= max(revision(item) for item in items)
    assert calls.seen == [("list", "ConfigMap", "200")] * 3
    asked = [event.uri for event in cluster.audit_events(since=start) if event.user_agent == AGENT]
    assert len(asked) == 3
    assert all(f"limit={CHUNK}" in uri and "labelSelector=many%3Dyes" in uri for uri in asked)
    everywhere = await api.list(k.CONFIG_MAP)
    assert {item["metadata"]["namespace"] for item in everywhere.items} > {NAMESPACE, "kube-system"}
    assert (await api.list(k.CONFIG_MAP, NAMESPACE, "many=no")).items == []


async def test_list_survives_compaction_between_chunks(
    api: KubeClient, calls: Calls, cluster: LocalCluster, many: int
) -> None:
    def compact_once() -> None:
        calls.hook = None
        cluster.api.merge(f"/api/v1/namespaces/{NAMESPACE}/configmaps/many-0000", {"data": {"touched": "yes"}})
        cluster.compact()
        cluster.restart("kube-apiserver")  # its watch cache could still serve the compacted revision

    calls.hook = compact_once
    items, version = await api.list(k.CONFIG_MAP, NAMESPACE, "many=yes")
    codes = [code for _, _, code in calls.seen]
    assert codes == ["200", "410", "200"]
    assert len(items) == len({item["metadata"]["name"] for item in items}) == many
    assert int(version) >= max(revision(item) for item in items)
    assert items[0]["data"] == {"touched": "yes"}, "nothing of the first, older chunk is left"


async def test_no_discovery_and_our_name(api: KubeClient, cluster: LocalCluster) -> None:
    start = audit.now()
    await api.apply(config_map("agent"), "op")
    await api.list(k.POD)
    mine = [event for event in cluster.audit_events(since=start) if event.user_agent == AGENT]
    assert [(event.verb, event.resource) for event in mine] == [("patch", "configmaps"), ("list", "pods")]


async def test_forbidden_names_who_and_what(cluster: LocalCluster) -> None:
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, "default")
    async with await KubeClient.connect(user_agent=AGENT, kubeconfig=str(kubeconfig)) as client:
        for call in (
            client.get(k.SECRET, NAMESPACE, "x"),
            client.list(k.POD),
            client.apply(config_map("forbidden"), "op"),
        ):
            with pytest.raises(errors.Forbidden):
                await call
        with pytest.raises(errors.Forbidden, match=f"system:serviceaccount:{NAMESPACE}:default"):
            await client.list(k.DEPLOYMENT)


async def test_credentials_are_read_again_after_401(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = yaml.safe_load(cluster.kubeconfig.read_text())
    token = good["users"][0]["user"]["token"]
    good["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    (tmp_path / "config").write_text(yaml.safe_dump(good))
    (tmp_path / "token").write_text("of-yesterday")
    calls = Calls()
    async with await KubeClient.connect(
        user_agent=AGENT, kubeconfig=str(tmp_path / "config"), observer=calls
    ) as client:
        with pytest.raises(errors.Unauthorized):
            await client.get(k.CONFIG_MAP, NAMESPACE, "x")
        (tmp_path / "token").write_text(token)
        loads, load = [], client._load

        async def counted(configuration: Any) -> None:
            loads.append(1)
            await load(configuration)

        monkeypatch.setattr(client, "_load", counted)
        many = [client.get(k.CONFIG_MAP, NAMESPACE, "absent") for _ in range(5)]
        assert await asyncio.gather(*many) == [None] * 5
        assert {code for _, _, code in calls.seen} == {"401", "404"}
        assert loads == [1], "calls that fail together read the credentials once"
        before = len(calls.seen)
        await client.get(k.CONFIG_MAP, NAMESPACE, "absent")
        assert len(calls.seen) == before + 1, "the new token stays in use"


async def test_service_account_of_a_pod_and_its_rotated_token(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]["token"]
    host, port = cluster.server.removeprefix("https://").split(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(cluster.ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    (tmp_path / "token").write_text("of-yesterday")
    async with await KubeClient.connect(user_agent=AGENT) as client:
        (tmp_path / "token").write_text(token)  # as kubelet does
        assert await client.get(k.CONFIG_MAP, NAMESPACE, "absent") is None


async def test_server_down_and_up_again(api: KubeClient, calls: Calls, cluster: LocalCluster) -> None:
    await api.get(k.CONFIG_MAP, NAMESPACE, "absent")
    with cluster.stopped("kube-apiserver"):
        for call in (api.get(k.CONFIG_MAP, NAMESPACE, "x"), api.apply(config_map("down"), "op"), api.list(k.POD)):
            with pytest.raises(errors.ApiUnavailable) as caught:
                await call
            assert caught.value.reason == "ConnectionFailed"
    assert await api.get(k.CONFIG_MAP, NAMESPACE, "absent") is None
    assert [code for _, _, code in calls.seen] == ["404", "error", "error", "error", "404"]


async def test_server_that_does_not_answer_times_out(cluster: LocalCluster, tmp_path: Path) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{hole.sockets[0].getsockname()[1]}"}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    calls = Calls()
    async with (
        hole,
        await KubeClient.connect(
            user_agent=AGENT, kubeconfig=str(tmp_path / "config"), request_timeout=0.2, observer=calls
        ) as client,
    ):
        async with asyncio.timeout(10):
            with pytest.raises(errors.ApiUnavailable) as caught:
                await client.list(k.POD)
    assert caught.value.reason == "Timeout"
    assert calls.seen == [("list", "Pod", "timeout")]
