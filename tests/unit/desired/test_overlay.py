"""The user's podTemplate: it may add, and whatever it says, what makes the pair safe stays."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import merged, minimal
from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext
from dsv4_operator.desired.engine_pod import build_engine_pod_template
from dsv4_operator.desired.engine_workload import build_engine_workload
from dsv4_operator.engine.flags import OWNED_ENV
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE

Object = dict[str, Any]
CLAIM: Object = {"model": {"source": {"huggingFace": None, "persistentVolumeClaim": {"claimName": "w"}}}}
GUARDED_ENGINE = ("command", "args", "image", "ports", "startupProbe", "livenessProbe", "readinessProbe")
GUARDED_POD = (
    "serviceAccountName",
    "serviceAccount",
    "restartPolicy",
    "hostNetwork",
    "hostIPC",
    "terminationGracePeriodSeconds",
)


def context(overlay: Any = None, **spec: Any) -> DesiredContext:
    patch = merged({**CLAIM, "prefill": {"podTemplate": overlay} if overlay is not None else {}}, spec)
    parsed = parse_deployment(merged(minimal("pair"), {"spec": patch})).spec
    images = resolve_images(parsed, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
    return DesiredContext("pair", "ns", "uid", parsed, images, DEFAULT_RELEASE)


def template(overlay: Any = None, **spec: Any) -> Object:
    return build_engine_pod_template(context(overlay, **spec), Role.PREFILL)


def named(items: list[Any], name: str) -> Object:
    (found,) = (item for item in items if isinstance(item, dict) and item.get("name") == name)
    return found


def engine_of(pod: Object) -> Object:
    return named(pod["spec"]["containers"], "engine")


def engine(**fields: Any) -> Object:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


PLAIN = template()


def check_safe(pod: Object, plain: Object = PLAIN) -> None:
    """Everything that an overlay must never undo."""
    assert plain["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    for field in GUARDED_POD:
        assert pod["spec"].get(field) == plain["spec"].get(field), field
    ours, theirs = engine_of(plain), engine_of(pod)
    for field in GUARDED_ENGINE:
        assert theirs.get(field) == ours.get(field), field
    assert named(pod["spec"]["initContainers"], "canary") == named(plain["spec"]["initContainers"], "canary")
    # An entry without a name is the user's fault, and the API server says so.
    environment = [variable["name"] for variable in theirs["env"] if "name" in variable]
    assert len(environment) == len(set(environment))
    for variable in ours["env"]:
        assert variable in theirs["env"]
    assert {name for name in environment if name in OWNED_ENV} == {
        variable["name"] for variable in ours["env"] if variable["name"] in OWNED_ENV
    }
    assert theirs["lifecycle"]["preStop"] == ours["lifecycle"]["preStop"]
    for volume in ("model", "canary-settings"):
        assert named(pod["spec"]["volumes"], volume) == named(plain["spec"]["volumes"], volume)
    # A mount without a path is the user's fault as well.
    paths = {mount["mountPath"]: mount for mount in theirs["volumeMounts"] if isinstance(mount.get("mountPath"), str)}
    for mount in ours["volumeMounts"]:
        assert mount["mountPath"] in paths
    assert paths["/model"] == {"name": "model", "mountPath": "/model", "readOnly": True}
    assert not [path for path in paths if path.rstrip("/") != path or path.startswith("/model/")]
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = {"key": "nvidia.com/gpu.compute.major", "operator": "In", "values": ["10", "12"]}
    assert required["nodeSelectorTerms"]
    for term in required["nodeSelectorTerms"]:
        assert wanted in term["matchExpressions"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert not list(nulls(pod))


def nulls(value: Any, path: str = "") -> Iterator[str]:
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from nulls(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from nulls(item, f"{path}[{index}]")


ATTACKS: dict[str, Object] = {
    "nothing but a name": engine(),
    "command": engine(command=["sleep"], args=["1"]),
    "image": engine(image="evil"),
    "ports": engine(ports=[{"name": "x", "containerPort": 1}]),
    "probes": engine(startupProbe={"exec": {"command": ["true"]}}, livenessProbe=None, readinessProbe={"exec": {}}),
    "owned variables": engine(
        env=[
            {"name": "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", "value": "1"},
            {"name": "UCX_NET_DEVICES", "value": "mlx5_9:1"},
            {"name": "SGLANG_PLUGINS", "value": "none"},
            {"name": "SGLANG_HOST_IP", "value": "1.2.3.4"},
        ]
    ),
    "null environment": engine(env=None),
    "lifecycle": engine(lifecycle={"preStop": {"exec": {"command": ["true"]}}}),
    "mounts": engine(volumeMounts=[{"name": "tmp", "mountPath": "/model"}, {"name": "tmp", "mountPath": "/model/x"}]),
    "mount spelt otherwise": engine(volumeMounts=[{"name": "tmp", "mountPath": "/model/"}]),
    "mount by name": engine(volumeMounts=[{"name": "model", "mountPath": "/other"}]),
    "shm by name": engine(volumeMounts=[{"name": "shm", "mountPath": "/elsewhere"}]),
    "canary command": {"spec": {"initContainers": [{"name": "canary", "command": ["sleep"], "image": "evil"}]}},
    "canary probe": {
        "spec": {"initContainers": [{"name": "canary", "readinessProbe": {"exec": {}}, "startupProbe": {}}]}
    },
    "canary by name": {"spec": {"initContainers": [{"name": "canary"}]}},
    "canary environment": {
        "spec": {"initContainers": [{"name": "canary", "env": [{"name": "DSV4_CANARY_ROLE", "value": "decode"}]}]}
    },
    "labels": {"metadata": {"labels": {"serving.dsv4.dev/role": "router", "serving.dsv4.dev/fingerprint": "0"}}},
    "null labels": {"metadata": {"labels": None}},
    "null metadata": {"metadata": None},
    "null spec": {"spec": None},
    "null containers": {"spec": {"containers": None, "initContainers": None, "volumes": None}},
    "wrong types": {"metadata": "x", "spec": {"containers": "x", "volumes": {"a": 1}, "tolerations": 3}},
    "wrong items": {"spec": {"containers": ["x", None, 3], "volumes": ["x"], "initContainers": [["x"]]}},
    "wrong fields of the engine": engine(env="x", volumeMounts={"a": 1}, lifecycle=[1], resources=3),
    "wrong items of the engine": engine(env=["x", None], volumeMounts=["x"]),
    "account": {"spec": {"serviceAccountName": "admin", "serviceAccount": "admin"}},
    "host": {"spec": {"hostNetwork": True, "hostIPC": True, "restartPolicy": "Never"}},
    "grace": {"spec": {"terminationGracePeriodSeconds": 1}},
    "weights": {"spec": {"volumes": [{"name": "model", "hostPath": {"path": "/other"}}]}},
    "settings": {"spec": {"volumes": [{"name": "canary-settings", "configMap": {"name": "mine"}}]}},
    "one more term": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "cpu-only", "operator": "Exists"}]}]
                    }
                }
            }
        }
    },
    "wrong affinity": {"spec": {"affinity": ["x"]}},
    "toleration": {"spec": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "x"}]}},
}


@pytest.mark.parametrize("overlay", ATTACKS.values(), ids=ATTACKS)
def test_an_overlay_cannot_undo(overlay: Object) -> None:
    check_safe(template(overlay))


def test_host_namespaces_of_the_spec_stay_too() -> None:
    network = {"hostNetwork": True, "hostIPC": True}
    pod = template({"spec": {"hostNetwork": False, "hostIPC": False}}, network=network)
    check_safe(pod, template(network=network))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("overlay", ATTACKS.values(), ids=ATTACKS)
def test_the_workload_is_built_whatever_the_overlay(overlay: Object, nodes: int) -> None:
    ctx = context(overlay, prefill={"nodes": nodes})
    build_engine_workload(ctx, Role.PREFILL)
    build_engine_workload(ctx, Role.DECODE)


# -- any mixture

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.sampled_from(["x", "engine", "/model", "model"]))
NAMES = st.sampled_from(["engine", "canary", "side", "model", "shm", "cache", "canary-settings", "extra"])
ENV = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from([*OWNED_ENV, "HOME", "A", "B"])}, optional={"value": SCALARS}),
    max_size=4,
)
ODD = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))
CONTAINER = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "command": ODD,
        "args": ODD,
        "image": SCALARS,
        "ports": ODD,
        "env": st.one_of(ENV, ODD),
        "startupProbe": ODD,
        "livenessProbe": ODD,
        "readinessProbe": ODD,
        "lifecycle": ODD,
        "resources": ODD,
        "securityContext": ODD,
        "volumeMounts": st.one_of(
            ODD,
            st.lists(
                st.fixed_dictionaries(
                    {"name": NAMES, "mountPath": st.sampled_from(["/model", "/model/a", "/tmp", "/extra", "/dev/shm"])}
                ),
                max_size=3,
            ),
        ),
    },
)
OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.one_of(ODD, st.fixed_dictionaries({}, optional={"labels": ODD, "annotations": ODD})),
        "spec": st.one_of(
            ODD,
            st.fixed_dictionaries(
                {},
                optional={
                    **dict.fromkeys(GUARDED_POD, SCALARS),
                    "containers": st.one_of(ODD, st.lists(CONTAINER, max_size=3)),
                    "initContainers": st.one_of(ODD, st.lists(CONTAINER, max_size=3)),
                    "volumes": st.one_of(
                        ODD, st.lists(st.fixed_dictionaries({"name": NAMES}, optional={"emptyDir": ODD}), max_size=3)
                    ),
                    "affinity": ODD,
                    "tolerations": ODD,
                },
            ),
        ),
    },
)


@settings(max_examples=250, deadline=None)
@given(OVERLAYS)
def test_any_overlay_leaves_what_is_safe(overlay: Object) -> None:
    before = copy.deepcopy(overlay)
    pod = template(overlay)
    check_safe(pod)
    assert overlay == before
    assert template(overlay) == pod


# -- what it may do


def test_without_overlay_nothing_changes() -> None:
    assert template({}) == PLAIN


def test_it_adds() -> None:
    overlay = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"b": "c"}},
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "env": [{"name": "A", "value": "b"}],
                    "volumeMounts": [{"name": "extra", "mountPath": "/extra"}, {"name": "cache", "mountPath": "/more"}],
                    "resources": {"limits": {"ephemeral-storage": "1Gi"}},
                    "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
                },
                {"name": "side", "image": "side:1"},
            ],
            "initContainers": [{"name": "first", "image": "first:1"}],
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "tolerations": [{"key": "mine", "operator": "Exists"}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        },
    }
    pod = template(overlay)
    check_safe(pod)
    container = engine_of(pod)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"] == {"b": "c"}
    assert {"name": "A", "value": "b"} in container["env"]
    assert {"name": "extra", "mountPath": "/extra"} in container["volumeMounts"]
    assert {"name": "cache", "mountPath": "/more"} in container["volumeMounts"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"], "a second mount replaces no first"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "ephemeral-storage": "1Gi"}
    assert container["lifecycle"].keys() == {"preStop", "postStart"}
    assert [c["name"] for c in pod["spec"]["containers"]] == ["engine", "side"]
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["canary", "first"]
    assert named(pod["spec"]["volumes"], "extra") == {"name": "extra", "emptyDir": {}}
    assert {"key": "mine", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert pod["spec"]["dnsConfig"] == {"options": [{"name": "ndots", "value": "1"}]}


def test_a_name_alone_changes_nothing() -> None:
    """A volume or container of which only the name is given merges; it is no variable that replaces ours."""
    for overlay in (
        engine(),
        {"spec": {"volumes": [{"name": "tmp"}]}},
        {"spec": {"initContainers": [{"name": "canary"}]}},
    ):
        assert template(overlay) == PLAIN


def test_a_variable_changes_its_source_whole() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    side = {"spec": {"containers": [{"name": "side", "env": [{"name": "A", "value": "b"}]}]}}
    twice = copy.deepcopy(side)
    twice["spec"]["containers"].append({"name": "side", "env": [{"name": "A", "valueFrom": secret}]})
    assert named(template(twice)["spec"]["containers"], "side")["env"] == [{"name": "A", "valueFrom": secret}]
