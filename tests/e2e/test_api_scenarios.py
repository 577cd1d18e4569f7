"""The operator against a real API server with simulated nodes: children, drift, ownership, bad input, restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcluster.api import ApiError
from operator_process import OperatorProcess
from world import World, deployment

pytestmark = pytest.mark.cluster

Start = Callable[..., OperatorProcess]


@pytest.fixture
def operator(api_world: World, start_operator: Start) -> OperatorProcess:
    """An operator that looks after the test's namespace alone."""
    return start_operator(api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}")


def test_one_object_becomes_all_children(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    fingerprint = api_world.get("pair")["status"]["fingerprint"]
    names = {key for key in api_world.children("pair") if key[0] != "Pod"}
    assert names == {
        ("Deployment", f"pair-{fingerprint}-prefill"),
        ("Deployment", f"pair-{fingerprint}-decode"),
        ("Deployment", f"pair-{fingerprint}-router"),
        ("Service", "pair"),
        ("Service", f"pair-{fingerprint}-prefill"),
        ("Service", f"pair-{fingerprint}-decode"),
        ("ConfigMap", "pair-canary"),
        ("ConfigMap", f"pair-{fingerprint}-workers"),
        ("Secret", "pair-router-key"),
        ("ServiceAccount", "pair-engine"),
        ("ServiceAccount", "pair-router"),
        ("PodDisruptionBudget", f"pair-{fingerprint}-prefill"),
        ("PodDisruptionBudget", f"pair-{fingerprint}-decode"),
        ("PodDisruptionBudget", f"pair-{fingerprint}-router"),
        ("NetworkPolicy", "pair-engine"),
        ("NetworkPolicy", "pair-router"),
    }


def test_deleted_object_leaves_no_child(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    api_world.delete("pair")
    api_world.wait("all children to be collected", lambda: not api_world.children("pair"), timeout=60)


def test_deleted_object_leaves_no_child_while_the_operator_is_down(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    operator.stop()
    api_world.delete("pair")
    api_world.wait("all children to be collected", lambda: not api_world.children("pair"), timeout=60)


@pytest.mark.parametrize(
    ("kind", "suffix", "patch", "read"),
    [
        pytest.param(
            "Deployment", "{fp}-decode", {"spec": {"replicas": 5}}, lambda o: o["spec"]["replicas"] == 1, id="replicas"
        ),
        pytest.param(
            "Service",
            "{fp}-prefill",
            {"spec": {"publishNotReadyAddresses": False}},
            lambda o: o["spec"]["publishNotReadyAddresses"],
            id="headless service",
        ),
        pytest.param(
            "ConfigMap",
            "canary",
            {"data": {"canary.json": "{}"}},
            lambda o: len(o["data"]["canary.json"]) > 5,
            id="settings",
        ),
        pytest.param(
            "NetworkPolicy", "engine", {"spec": {"ingress": []}}, lambda o: len(o["spec"]["ingress"]) == 3, id="policy"
        ),
        pytest.param(
            "PodDisruptionBudget",
            "{fp}-router",
            {"spec": {"maxUnavailable": 7}},
            lambda o: o["spec"]["maxUnavailable"] == 1,
            id="budget",
        ),
        pytest.param(
            "Deployment",
            "{fp}-prefill",
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
            lambda o: o["metadata"]["labels"].get("app.kubernetes.io/managed-by") == "dsv4-operator",
            id="label by which it is watched",
        ),
    ],
)
def test_edited_child_comes_back(
    api_world: World,
    operator: OperatorProcess,
    kind: str,
    suffix: str,
    patch: dict[str, object],
    read: Callable[[dict[str, object]], bool],
) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    name = f"pair-{suffix.format(fp=api_world.get('pair')['status']['fingerprint'])}"
    api_world.cluster.api.merge(api_world.child_path(kind, name), patch)
    api_world.wait(f"{kind} {name} to come back", lambda: read(api_world.child(kind, name) or {}), timeout=30)


@pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap", "ServiceAccount", "NetworkPolicy"])
def test_deleted_child_comes_back(api_world: World, operator: OperatorProcess, kind: str) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = {name: obj["metadata"]["uid"] for (_, name), obj in api_world.children("pair", kind).items()}
    assert before
    for name in before:
        api_world.cluster.api.delete(api_world.child_path(kind, name))

    def all_back() -> bool:
        after = {name: obj["metadata"]["uid"] for (_, name), obj in api_world.children("pair", kind).items()}
        return after.keys() == before.keys() and all(after[name] != uid for name, uid in before.items())

    api_world.wait(f"every {kind} to come back", all_back, timeout=60)
    api_world.wait_ready("pair")


def test_foreign_object_is_reported_and_left_alone(api_world: World, operator: OperatorProcess) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken", "labels": {"whose": "somebody-else"}},
        "spec": {"selector": {"app": "other"}, "ports": [{"port": 80}]},
    }
    path = f"/api/v1/namespaces/{api_world.namespace}/services"
    before = api_world.cluster.api.create(path, foreign)
    api_world.create(deployment("taken"))
    degraded = api_world.wait(
        "the conflict to be reported",
        lambda: (c := api_world.condition("taken", "Degraded")).get("status") == "True" and c,
    )
    assert degraded["reason"] == "NameConflict"
    assert "Service taken" in degraded["message"]
    after = api_world.child("Service", "taken")
    assert after is not None
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])
    assert api_world.condition("taken", "ConfigValid")["status"] == "True"
    assert len(api_world.children("taken", "Deployment")) == 3  # one fault does not stop the rest

    api_world.cluster.api.delete(f"{path}/taken")
    api_world.wait_ready("taken")


def test_refused_spec_creates_nothing_and_a_good_one_beside_it_converges(
    api_world: World, operator: OperatorProcess
) -> None:
    api_world.create(deployment("bad", engine={"image": "registry.example.com/sglang:custom"}))
    api_world.create(deployment("good"))
    api_world.wait_ready("good")
    config = api_world.wait("the finding", lambda: (c := api_world.condition("bad", "ConfigValid")) and c)
    assert (config["status"], config["reason"]) == ("False", "RefusedByPolicy")
    assert "spec.engine.release" in config["message"]
    assert "unknown-release" in config["message"]
    assert api_world.get("bad")["status"]["findings"][0]["rule"] == "unknown-release"
    assert api_world.children("bad") == {}


def test_bf16_makes_a_generation_with_the_guard_and_other_releases_are_refused(
    api_world: World, operator: OperatorProcess
) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = api_world.get("pair")["status"]["fingerprint"]
    api_world.patch("pair", {"indexK": {"dtype": "BF16"}})
    api_world.wait("the switch", lambda: api_world.get("pair")["status"]["fingerprint"] not in ("", before))
    fingerprint = api_world.get("pair")["status"]["fingerprint"]
    for role in ("prefill", "decode"):
        pod = api_world.child("Deployment", f"pair-{fingerprint}-{role}")["spec"]["template"]["spec"]
        env = {v["name"]: v.get("value") for c in (*pod["containers"], *pod["initContainers"]) for v in c["env"]}
        assert (env["SGLANG_PLUGINS"], env["DSV4_INDEX_K_DTYPE"]) == ("dsv4_guard", "bf16")
        assert env["DSV4_CANARY_REQUIRE_GUARD"] == "bf16"
    findings = api_world.get("pair")["status"]["findings"]
    assert [f["action"] for f in findings if f["rule"] == "guard-required"] == ["Set"]
    api_world.patch("pair", {"engine": {"image": "registry.example.com/sglang-dsv4:0.5.22"}})
    config = api_world.wait(
        "the refusal", lambda: (c := api_world.condition("pair", "ConfigValid"))["status"] == "False" and c
    )
    assert "[bf16-release]" in config["message"]


def test_owned_flag_in_extra_args_is_refused_by_name(api_world: World, operator: OperatorProcess) -> None:
    # Flags that may differ by role are beyond the schema's rule; policy knows them, abbreviated too.
    api_world.create(deployment("sly", engine={"extraArgs": ["--mem-fraction-stat", "0.9"]}))
    config = api_world.wait("the finding", lambda: (c := api_world.condition("sly", "ConfigValid")) and c)
    assert config["status"] == "False"
    assert "--mem-fraction-static" in config["message"]
    assert "spec.engine.memFractionStatic" in config["message"]
    assert api_world.children("sly") == {}


def test_refused_update_leaves_running_children_untouched(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()}
    templates = {key: obj["spec"]["template"] for key, obj in api_world.children("pair", "Deployment").items()}
    api_world.patch("pair", {"engine": {"image": "registry.example.com/sglang:0.4.1"}})
    api_world.wait("the refusal", lambda: api_world.condition("pair", "ConfigValid").get("status") == "False")
    assert api_world.condition("pair", "Ready")["status"] == "True"
    assert {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()} == before
    after = {key: obj["spec"]["template"] for key, obj in api_world.children("pair", "Deployment").items()}
    assert after == templates


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"prefill": {"replicas": -1}}, "spec.prefill.replicas", id="negative count"),
        pytest.param({"prefill": {"gpus": "four"}}, "spec.prefill.gpus", id="wrong type"),
        pytest.param({"hiCach": {"enabled": True}}, "spec.hiCach", id="unknown field"),
        pytest.param(
            {"model": {"source": {"hostPath": {"path": "/w"}, "huggingFace": {"repo": "a/b"}}}},
            "spec.model.source",
            id="two sources",
        ),
    ],
)
def test_the_schema_refuses_at_apply_and_names_the_field(api_world: World, spec: dict[str, object], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        api_world.create(deployment("bad", **spec))
    assert field in str(refused.value)


def test_paused_changes_nothing_but_status(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    api_world.patch("pair", {"paused": True, "hiCache": {"enabled": True}, "prefill": {"memory": "8Gi"}})
    api_world.wait(
        "the pause to be observed",
        lambda: api_world.condition("pair", "Progressing").get("reason") == "Paused",
    )
    prefill = next(o for (_, n), o in api_world.children("pair", "Deployment").items() if n.endswith("-prefill"))
    assert "--enable-hierarchical-cache" not in prefill["spec"]["template"]["spec"]["containers"][0]["args"]
    api_world.patch("pair", {"paused": False})

    def rolled() -> bool:
        name = prefill["metadata"]["name"]
        template = (api_world.child("Deployment", name) or {})["spec"]["template"]
        return "--enable-hierarchical-cache" in template["spec"]["containers"][0]["args"]

    api_world.wait("the change to be made", rolled)


def test_status_is_an_observation_and_comes_back(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    before = api_world.get("pair")["status"]["fingerprint"]
    uids = {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()}
    api_world.cluster.api.merge(f"{api_world.path('pair')}/status", {"status": None})
    api_world.wait(
        "status to come back", lambda: (api_world.get("pair").get("status") or {}).get("fingerprint") == before
    )
    assert {key: obj["metadata"]["uid"] for key, obj in api_world.children("pair").items()} == uids


def test_missing_leader_worker_set_api_is_a_condition(api_world: World, operator: OperatorProcess) -> None:
    api_world.create(deployment("wide", prefill={"nodes": 2}, decode={"nodes": 2}))
    degraded = api_world.wait(
        "the missing API to be reported",
        lambda: (c := api_world.condition("wide", "Degraded")).get("status") == "True" and c,
    )
    assert degraded["reason"] == "ApiMissing"
    assert "LeaderWorkerSet" in degraded["message"]


def test_two_replicas_share_a_lease(api_world: World, start_operator: Start) -> None:
    options = (f"--namespaces={api_world.namespace}", f"--lease-namespace={api_world.namespace}")
    first = start_operator(api_world.cluster, *options)
    api_world.wait("the first to lead", lambda: first.metric("dsv4_operator_leader") == 1.0)
    second = start_operator(api_world.cluster, *options)
    assert second.get("/healthz") == "ok (standby)\n"
    assert first.stop() == 0
    api_world.wait("the second to take over", lambda: second.metric("dsv4_operator_leader") == 1.0, timeout=30)
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")


def test_an_object_deleted_behind_an_expired_watch_is_forgotten(api_world: World, start_operator: Start) -> None:
    """What kopf never reports: an object that vanished while the watch was past compaction."""
    operator = start_operator(
        api_world.cluster, "--no-lease", f"--namespaces={api_world.namespace}", "--resync-seconds=10"
    )
    api_world.create(deployment("pair"))
    api_world.wait_ready("pair")
    series = f'dsv4_operator_generations{{name="pair",namespace="{api_world.namespace}"}}'
    assert operator.metric(series) == 1.0
    with api_world.cluster.stopped("kube-apiserver"):
        pass  # every watch is cut; what follows may be missed by them
    api_world.cluster.wait_usable()
    api_world.delete("pair")
    api_world.cluster.compact()
    api_world.wait("the object's series to go", lambda: operator.metric(series) is None, timeout=60)
