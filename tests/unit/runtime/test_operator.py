"""The operator from start to end: namespaces that refuse it, and what becomes of running passes when it must stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import kopf
import pytest

from crd_cases import minimal
from dsv4_operator.kube.client import KubeClient
from dsv4_operator.kube.errors import Conflict, Forbidden, KindNotInstalled
from dsv4_operator.kube.kinds import DSV4_DEPLOYMENT, EVENT, LEADER_WORKER_SET, LEASE, Kind
from dsv4_operator.kube.port import JsonObject, Listing
from dsv4_operator.operator import LeadershipLost, Operator
from dsv4_operator.runtime.settings import OperatorSettings

pytestmark = pytest.mark.looptime

PASS_SECONDS = 10.0


class Api:
    """An API server with objects whose spec is invalid: a pass writes a status and an event, and nothing else."""

    def __init__(self, *namespaces: str) -> None:
        self.objects: list[JsonObject] = []
        for namespace in namespaces:
            self.add(namespace, "first")
        self.refusing: set[str] = set()
        self.lws_is_served = False
        self.listed: list[tuple[Kind, str | None]] = []
        self.status_seconds = 0.0
        self.written: list[tuple[str, str]] = []
        """What was written, and where; Leases are not counted."""
        self.lease: JsonObject | None = None
        self.lease_is_stolen = False

    def add(self, namespace: str, name: str) -> None:
        obj = minimal(name)
        obj["metadata"] |= {"namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
        obj["spec"]["prefill"] = {"gpus": "many"}
        self.objects.append(obj)

    async def list(self, kind: Kind, namespace: str | None = None, label_selector: str | None = None) -> Listing:
        self.listed.append((kind, namespace))
        if namespace in self.refusing:
            raise Forbidden(f"list {kind} {namespace}: 403", status=403)
        if kind == LEADER_WORKER_SET and not self.lws_is_served:
            raise KindNotInstalled("404", status=404)
        found = self.objects if kind == DSV4_DEPLOYMENT else []
        return Listing([one for one in found if namespace in {None, one["metadata"]["namespace"]}], "1")

    async def apply_status(self, obj: Mapping[str, Any], field_manager: str) -> JsonObject:
        await asyncio.sleep(self.status_seconds)
        self.written.append(("status", obj["metadata"]["namespace"]))
        (live,) = [one for one in self.objects if one["metadata"]["uid"] == obj["metadata"]["uid"]]
        version = str(int(live["metadata"]["resourceVersion"]) + 1)
        return live | {"metadata": live["metadata"] | {"resourceVersion": version}, "status": obj["status"]}

    async def get(self, kind: Kind, namespace: str | None, name: str) -> JsonObject | None:
        if self.lease is None or not self.lease_is_stolen:
            return self.lease
        return self.lease | {"spec": self.lease["spec"] | {"holderIdentity": "another"}}

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        if obj["kind"] == EVENT.kind:
            self.written.append(("event", obj["metadata"]["namespace"]))
            return dict(obj)
        return await self.replace(obj)

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        assert obj["kind"] == LEASE.kind
        if self.lease_is_stolen:
            raise Conflict("409", status=409)
        self.lease = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
        return self.lease

    async def close(self) -> None:
        pass


class Running:
    """An operator that runs in the background against such a server; kopf is told to watch, and sees nothing."""

    def __init__(self, api: Api, operator: Operator, watched: dict[str, Any]) -> None:
        self.api, self.operator, self.watched = api, operator, watched
        self.task = asyncio.create_task(operator.run())

    def metric(self, series: str) -> float | None:
        lines = self.operator._metrics.exposition().decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{series} ")), None)

    async def stop(self) -> None:
        self.operator.stop()
        await self.task


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> Any:
    def begin(
        api: Api, *namespaces: str, lease: bool = False, watch: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> Running:
        watched: dict[str, Any] = {}

        async def connect(**_: Any) -> Api:
            return api

        async def spawn_tasks(*, insights: Any, namespaces: tuple[str, ...], **_: Any) -> list[Any]:
            insights.namespaces.update(namespaces)
            watched["namespaces"] = insights.namespaces
            return [asyncio.create_task(watch() if watch is not None else _never())]

        async def run_tasks(*_: Any, **__: Any) -> None:
            await _never()

        monkeypatch.setattr(KubeClient, "connect", connect)
        monkeypatch.setattr(kopf, "spawn_tasks", spawn_tasks)
        monkeypatch.setattr(kopf, "run_tasks", run_tasks)
        settings = OperatorSettings(
            namespaces=namespaces,
            lease=lease,
            lease_namespace="default",
            resync_seconds=60,
            listen_host="127.0.0.1",
            listen_port=unused_tcp_port,
        )
        return Running(api, Operator(settings), watched)

    return begin


async def _never() -> None:
    await asyncio.Event().wait()


# -- namespaces that refuse


async def test_a_namespace_that_refuses_at_start_is_left_out_and_the_others_work(
    start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api("a", "b", "c")
    api.refusing = {"a"}
    running = start(api, "a", "b", "c")
    await asyncio.sleep(6)
    assert {namespace for _, namespace in api.written} == {"b", "c"}
    assert running.watched["namespaces"] == {"b", "c"}
    assert running.metric("dsv4_operator_namespaces_left_out") == 1
    api.listed.clear()
    await asyncio.sleep(70)
    assert {namespace for _, namespace in api.listed} == {"b", "c"}
    assert running.metric('dsv4_operator_resync_total{result="success"}') == 2
    errors = [one.message for one in caplog.records if one.levelno >= logging.ERROR]
    assert errors == ["namespace a is left out until the next start of the operator: list DSV4Deployment a: 403"]
    await running.stop()


async def test_a_namespace_that_refuses_later_is_left_out_and_no_longer_watched(start: Any) -> None:
    api = Api("a", "b")
    running = start(api, "a", "b")
    await asyncio.sleep(1)
    assert running.metric("dsv4_operator_namespaces_left_out") == 0
    assert running.metric('dsv4_operator_generations{name="first",namespace="b"}') == 0
    api.refusing = {"b"}
    await asyncio.sleep(70)
    assert running.watched["namespaces"] == {"a"}
    assert running.metric("dsv4_operator_namespaces_left_out") == 1
    assert running.metric('dsv4_operator_generations{name="first",namespace="b"}') is None
    api.written.clear()
    api.refusing = set()
    api.add("a", "second")
    api.add("b", "second")
    await asyncio.sleep(70)
    assert {namespace for _, namespace in api.written} == {"a"}, "what is left out comes back with the next start alone"
    await running.stop()


async def test_a_namespace_that_refuses_for_a_moment_stays(start: Any) -> None:
    """As one does while an API server starts and does not know all RoleBindings yet."""
    api = Api("a", "b")
    api.refusing = {"b"}
    running = start(api, "a", "b")
    await asyncio.sleep(4)
    api.refusing = set()
    await asyncio.sleep(4)
    assert {namespace for _, namespace in api.written} == {"a", "b"}
    assert running.watched["namespaces"] == {"a", "b"}
    assert running.metric("dsv4_operator_namespaces_left_out") == 0
    await running.stop()


async def test_a_refusal_of_all_namespaces_at_start_is_retried(start: Any) -> None:
    api = Api("a", "b")
    api.refusing = {"a", "b"}
    running = start(api, "a", "b")
    await asyncio.sleep(60)
    assert not running.watched
    assert running.metric("dsv4_operator_namespaces_left_out") == 0
    api.refusing = set()
    await asyncio.sleep(10)
    assert {namespace for _, namespace in api.written} == {"a", "b"}
    assert running.watched["namespaces"] == {"a", "b"}
    await running.stop()


async def test_a_later_refusal_of_all_namespaces_is_a_failed_resync(start: Any) -> None:
    api = Api("a", "b")
    running = start(api, "a", "b")
    await asyncio.sleep(1)
    api.refusing = {"a", "b"}
    await asyncio.sleep(70)
    assert running.metric('dsv4_operator_resync_total{result="error"}') == 1
    assert running.metric("dsv4_operator_namespaces_left_out") == 0
    assert running.watched["namespaces"] == {"a", "b"}
    await running.stop()


@pytest.mark.parametrize("served", [True, False])
async def test_an_optional_kind_is_looked_for_where_nothing_refuses(start: Any, served: bool) -> None:
    api = Api("a", "b")
    api.refusing, api.lws_is_served = {"a"}, served
    running = start(api, "a", "b")
    await asyncio.sleep(6)
    api.listed.clear()
    await asyncio.sleep(70)
    assert ((LEADER_WORKER_SET, "b") in api.listed) is served
    await running.stop()


# -- the end of running passes


async def test_nothing_is_written_once_the_lease_is_lost(start: Any) -> None:
    api = Api("a")
    api.status_seconds = PASS_SECONDS
    running = start(api, "a", lease=True)
    await asyncio.sleep(1)
    api.lease_is_stolen = True
    before = asyncio.get_running_loop().time()
    with pytest.raises(LeadershipLost):
        await running.task
    assert asyncio.get_running_loop().time() - before < 4, "the next renewal says so, and then no time is left"
    await asyncio.sleep(PASS_SECONDS)
    assert api.written == []


async def test_a_clean_stop_lets_a_pass_finish(start: Any) -> None:
    api = Api("a")
    api.status_seconds = PASS_SECONDS
    running = start(api, "a", lease=True)
    await asyncio.sleep(1)
    await running.stop()
    assert [what for what, _ in api.written][:2] == ["status", "event"]
    assert api.lease is not None
    assert api.lease["spec"]["holderIdentity"] == ""


async def test_a_lease_that_is_lost_during_a_clean_stop_ends_the_passes(start: Any) -> None:
    api = Api("a")
    api.status_seconds = PASS_SECONDS
    running = start(api, "a", lease=True)
    await asyncio.sleep(1)
    running.operator.stop()
    api.lease_is_stolen = True
    await running.task
    await asyncio.sleep(PASS_SECONDS)
    assert api.written == []


# -- the end of kopf


async def test_a_watcher_that_fails_ends_the_operator_even_where_kopf_does_not_end(start: Any) -> None:
    left: list[asyncio.Task[None]] = []

    async def takes_a_cancellation_for_a_pause() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await _never()
        await _never()

    async def watch() -> None:
        left.append(asyncio.create_task(takes_a_cancellation_for_a_pause()))
        await asyncio.sleep(5)
        raise kopf.PermanentError("403")

    running = start(Api("a"), "a", watch=watch)
    with pytest.raises(kopf.PermanentError):
        await asyncio.wait_for(running.task, 30)
    try:
        assert left[0].done()
    finally:
        while not left[0].done():
            left[0].cancel()
            await asyncio.sleep(0)
