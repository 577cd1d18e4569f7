"""Drift: what is applied and unchanged is never written, and whatever somebody changes is found."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from crd_cases import SAMPLES, sample_objects
from dsv4_operator.api.constants import ANNOTATION_INTENT, Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext, build_children
from dsv4_operator.desired.workers import Worker, build_workers
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE
from dsv4_operator.plan.drift import drift, first_difference, quantity, with_digest

Object = dict[str, Any]
Path = tuple[str | int, ...]


def intents() -> list[Object]:
    found: list[Object] = []
    for path in SAMPLES:
        for sample in sample_objects(path):
            spec = parse_deployment(sample).spec
            images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
            ctx = DesiredContext(path.stem, "ns", "uid", spec, images, DEFAULT_RELEASE, operator_namespace="ops")
            worker = Worker.of_pod("u", "10.0.0.1", Role.PREFILL)
            found += build_children(ctx)
            found.append(build_workers(ctx.name, "ns", "uid", ctx.fingerprint, [worker], {"x": 1.0}))
    return found


INTENTS = [pytest.param(i, id=f"{n}-{i['kind']}-{i['metadata']['name']}") for n, i in enumerate(intents())]
VARIED = [
    param
    for param in INTENTS
    if param.values[0]["metadata"]["labels"]["app.kubernetes.io/instance"] in ("minimal", "rdma", "multi-node")  # type: ignore[index]
]
"""Samples that between them hold every field; each field of each is changed below."""


def live_of(intent: Object) -> Object:
    """As the API server keeps it: with what it adds, and without what it drops."""
    live = copy.deepcopy(with_digest(intent))
    live["metadata"] |= {"uid": "live", "resourceVersion": "7", "generation": 3, "managedFields": [{"manager": "x"}]}
    live["status"] = {"replicas": 1}
    spec = live.get("spec", {})
    if live["kind"] == "Deployment":
        spec["template"]["spec"] |= {"schedulerName": "default-scheduler", "restartPolicy": "Always"}
        for container in spec["template"]["spec"]["containers"]:
            container |= {"terminationMessagePath": "/dev/termination-log"}
            for variable in container["env"]:
                if variable.get("value") == "":
                    del variable["value"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in container:
                    container[probe] |= {"successThreshold": 1}
                    container[probe]["httpGet"] |= {"scheme": "HTTP"}
    if live["kind"] == "Service":
        spec |= {"clusterIPs": ["10.0.0.9"], "sessionAffinity": "None", "ipFamilies": ["IPv4"]}
        spec.setdefault("clusterIP", "10.0.0.9")
    return live


@pytest.mark.parametrize("intent", INTENTS)
def test_what_was_applied_is_as_wanted(intent: Object) -> None:
    assert drift(live_of(intent), intent) is None
    assert drift(with_digest(intent), intent) is None


@pytest.mark.parametrize("intent", INTENTS)
def test_missing(intent: Object) -> None:
    assert drift(None, intent) == "missing"


@pytest.mark.parametrize("intent", VARIED)
def test_another_intent_is_written_even_if_fields_only_vanish(intent: Object) -> None:
    less = copy.deepcopy(intent)
    del less["metadata"]["labels"]["app.kubernetes.io/part-of"]
    assert drift(live_of(intent), less) == "wanted state changed"
    without = live_of(intent)
    del without["metadata"]["annotations"][ANNOTATION_INTENT]
    assert drift(without, intent) == "wanted state changed"
    without["metadata"]["annotations"] = None
    assert drift(without, intent) == "wanted state changed"


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return {"changed": True} if isinstance(value, dict) else ["changed"]


@pytest.mark.parametrize("intent", VARIED)
def test_every_change_of_one_field_is_found(intent: Object) -> None:
    tried = 0
    for path in leaves(intent):
        if at(intent, path) == {}:
            continue  # an empty map wants nothing inside; that it is there is tested below
        live = live_of(intent)
        holder = at(live, path[:-1])
        if not isinstance(path[-1], int) and path[-1] not in holder:
            continue  # an empty value that the API server drops
        holder[path[-1]] = other(at(intent, path))
        found = drift(live, intent)
        assert found is not None, path
        assert found.endswith("was changed by somebody else"), path
        tried += 1
    assert tried > 5


@pytest.mark.parametrize("intent", VARIED)
def test_every_removal_of_one_field_is_found(intent: Object) -> None:
    for path in leaves(intent):
        for depth in range(1, len(path) + 1):
            part = path[:depth]
            if part in (("apiVersion",), ("kind",), ("metadata",)):
                continue
            live = live_of(intent)
            holder = at(live, part[:-1])
            value = at(intent, part)
            if isinstance(holder, dict) and part[-1] not in holder:
                continue
            if value in ("", []):
                continue  # dropped by the API server itself
            del holder[part[-1]]
            assert drift(live, intent) is not None, part


def deployment() -> Object:
    return of_kind("Deployment", "-prefill")


def of_kind(kind: str, ending: str = "") -> Object:
    return next(i for i in intents() if i["kind"] == kind and i["metadata"]["name"].endswith(ending))


def container(live: Object) -> Object:
    return live["spec"]["template"]["spec"]["containers"][0]  # type: ignore[no-any-return]


def test_fields_of_others_are_theirs() -> None:
    intent = deployment()
    live = live_of(intent)
    live["metadata"]["labels"]["theirs"] = "x"
    live["metadata"]["annotations"]["theirs"] = "x"
    live["spec"]["paused"] = True
    live["spec"]["template"]["spec"]["volumes"].append({"name": "theirs"})
    live["spec"]["template"]["spec"]["initContainers"].insert(0, {"name": "istio-init"})
    live["spec"]["template"]["spec"]["containers"].append({"name": "theirs"})
    container(live)["env"].insert(0, {"name": "THEIRS", "value": "x"})
    container(live)["volumeMounts"].insert(0, {"name": "tmp", "mountPath": "/theirs"})
    container(live)["resources"]["limits"]["their/device"] = "1"
    assert drift(live, intent) is None


@pytest.mark.parametrize("name", ["args", "command"])
def test_one_argument_more_is_found(name: str) -> None:
    intent = deployment()
    live = live_of(intent)
    container(live)[name].append("--more")
    assert name in str(drift(live, intent))


def test_arguments_in_another_order_are_found() -> None:
    intent = deployment()
    live = live_of(intent)
    container(live)["args"].reverse()
    assert drift(live, intent) is not None


def test_a_toleration_more_is_found() -> None:
    intent = deployment()
    live = live_of(intent)
    live["spec"]["template"]["spec"]["tolerations"].append({"operator": "Exists"})
    assert "tolerations" in str(drift(live, intent))


def test_a_selector_is_exact() -> None:
    """Server-side apply replaces these maps whole; one label more selects no pod, or other ones."""
    for intent, where in (
        (of_kind("Service"), ("spec", "selector")),
        (of_kind("PodDisruptionBudget"), ("spec", "selector", "matchLabels")),
        (of_kind("NetworkPolicy"), ("spec", "podSelector", "matchLabels")),
        (of_kind("NetworkPolicy"), ("spec", "ingress", 1, "from", 0, "podSelector", "matchLabels")),
        (deployment(), ("spec", "selector", "matchLabels")),
    ):
        live = live_of(intent)
        at(live, where)["theirs"] = "x"
        assert str(drift(live, intent)).startswith("spec"), where


def test_an_opened_port_is_found() -> None:
    """Ports inside a rule have a port each, but the rule is one thing."""
    intent = of_kind("NetworkPolicy", "-engine")
    live = live_of(intent)
    live["spec"]["ingress"][1]["ports"].append({"port": 22, "protocol": "TCP"})
    assert "ingress[1].ports" in str(drift(live, intent))
    live = live_of(intent)
    live["spec"]["ingress"].append({})
    assert "ingress" in str(drift(live, intent))


@pytest.mark.parametrize("value", [1, 0, "", "x", None])
def test_true_is_not_one(value: Any) -> None:
    assert first_difference({"a": value}, {"a": True}) == "a"


def test_an_emptied_directory_volume_is_found() -> None:
    intent = deployment()
    live = live_of(intent)
    (volume,) = (v for v in live["spec"]["template"]["spec"]["volumes"] if v["name"] == "tmp")
    del volume["emptyDir"]
    volume["hostPath"] = {"path": "/"}
    assert "emptyDir" in str(drift(live, intent))


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ("1Gi", "1024Mi", True),
        ("1536Mi", "1.5Gi", True),
        ("500m", "0.5", True),
        ("8", 8, True),
        ("1k", "1e3", True),
        ("1", "1.", True),
        ("100m", ".1", True),
        ("1Gi", "1G", False),
        ("2", "1", False),
        ("x", "1", False),
        (None, "1", False),
    ],
)
@pytest.mark.parametrize("where", ["requests", "limits"])
def test_quantities_compare_by_value(where: str, live: Any, wanted: Any, same: bool) -> None:
    mine, theirs = {"resources": {where: {"memory": live}}}, {"resources": {where: {"memory": wanted}}}
    assert (first_difference(mine, theirs) is None) is same
    assert (first_difference({"emptyDir": {"sizeLimit": live}}, {"emptyDir": {"sizeLimit": wanted}}) is None) is same


@pytest.mark.parametrize("path", [("env", [{"name": "A", "value": "1000m"}], [{"name": "A", "value": "1"}]),
                                  ("args", ["1k"], ["1000"]), ("labels", {"a": "1000m"}, {"a": "1"})])  # fmt: skip
def test_other_texts_compare_as_texts(path: tuple[str, Any, Any]) -> None:
    key, live, wanted = path
    assert first_difference({key: live}, {key: wanted}) is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", Decimal(1)),
        ("1Ki", Decimal(1024)),
        ("2Gi", Decimal(2) * 1024**3),
        ("1m", Decimal("0.001")),
        ("3n", Decimal("3e-9")),
        ("1E", Decimal(10) ** 18),
        ("1e3", Decimal(1000)),
        ("-1", Decimal(-1)),
        ("1KiB", None),
        ("", None),
        ("one", None),
        (".", None),
    ],
)
def test_quantity(text: str, value: Decimal | None) -> None:
    assert quantity(text) == value
