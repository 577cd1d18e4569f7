"""All children of every sample, byte by byte, and what Kubernetes itself demands of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from crd_cases import SAMPLES, sample_objects
from dsv4_operator.api.constants import (
    LABEL_DEPLOYMENT,
    LABEL_FINGERPRINT,
    LABEL_MANAGED_BY,
    LABEL_ROLE,
    MAX_NAME_LENGTH,
    Role,
)
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext, build_children
from dsv4_operator.desired.router import build_router_key_secret
from dsv4_operator.desired.workers import Worker, build_workers
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE
from dsv4_operator.plan.drift import drift, quantity, with_digest

KUBERNETES = "1.36"
DEFAULTS = ImageDefaults(
    engine="registry.example.com/engine-sim:0.5.23",
    canary="registry.example.com/canary:1",
    router="registry.example.com/router:1",
)
Object = dict[str, Any]
POD_TEMPLATE_KEYS = ("template", "leaderTemplate", "workerTemplate")


def context(sample: Object, **changes: Any) -> DesiredContext:
    deployment = parse_deployment(sample)
    values: dict[str, Any] = {
        "name": deployment.metadata.name,
        "namespace": "serving",
        "uid": "4b1ba4a4-0000-4000-8000-000000000001",
        "spec": deployment.spec,
        "images": resolve_images(deployment.spec, DEFAULTS),
        "release": DEFAULT_RELEASE,
        "operator_namespace": "dsv4-system",
    }
    return DesiredContext(**(values | changes))


def children(ctx: DesiredContext) -> list[Object]:
    workers = [Worker.of_pod("uid-p", "10.0.0.1", Role.PREFILL), Worker.of_pod("uid-d", "fd00::2", Role.DECODE)]
    removed = {"http://10.0.0.9:30000": 1000.5}
    return [
        build_router_key_secret(ctx, "made-at-first-apply"),
        build_workers(ctx.name, ctx.namespace, ctx.uid, ctx.fingerprint, workers, removed),
        *build_children(ctx),
    ]


class Dumper(yaml.SafeDumper):
    """No aliases, and texts of several lines as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def dump(objects: list[Object]) -> str:
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=110)


def samples() -> dict[str, Object]:
    return {path.stem: found for path in SAMPLES for found in sample_objects(path)}


ALL = {name: children(context(sample)) for name, sample in samples().items()}
EVERY = [
    pytest.param(child, id=f"{name}-{child['kind']}-{child['metadata']['name']}")
    for name, found in ALL.items()
    for child in found
]


@pytest.mark.parametrize("name", ALL)
def test_golden(name: str, update_golden: bool) -> None:
    path = Path(__file__).with_name(f"{name}.yaml")
    text = "# Made by pytest tests/golden --update-golden\n" + dump(ALL[name])
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("*.yaml")} == ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_same_context_same_bytes(name: str) -> None:
    assert dump(children(context(samples()[name]))) == dump(ALL[name])


def test_what_there_is() -> None:
    kinds = [child["kind"] for child in build_children(context(samples()["minimal"]))]
    assert sorted(kinds) == sorted(
        ["ServiceAccount"] * 2
        + ["ConfigMap"]
        + ["NetworkPolicy"] * 2
        + ["Service"] * 3
        + ["PodDisruptionBudget"] * 3
        + ["Deployment"] * 3
    )
    multi = [child["kind"] for child in build_children(context(samples()["multi-node"]))]
    assert multi.count("LeaderWorkerSet") == 2
    assert multi.count("Deployment") == 1
    bare = samples()["minimal"]
    bare["spec"] |= {"router": {"enabled": False}, "canary": {"enabled": False}}
    assert sorted(child["kind"] for child in build_children(context(bare))) == sorted(
        ["ServiceAccount", "NetworkPolicy"] + ["Service", "PodDisruptionBudget", "Deployment"] * 2
    )


# -- what Kubernetes demands


@pytest.mark.parametrize("child", EVERY)
def test_kubernetes_takes_it(child: Object) -> None:
    if child["kind"] == "LeaderWorkerSet":
        jsonschema.validate(child, LEADER_WORKER_SET)
        for template in templates(child):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    else:
        kubernetes_validate.validate(child, KUBERNETES, strict=True)


def test_the_validator_can_refuse() -> None:
    (deployment, *_) = [child for child in ALL["minimal"] if child["kind"] == "Deployment"]
    for wrong in ({"replicas": "two"}, {"replica": 1}):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(deployment | {"spec": deployment["spec"] | wrong}, KUBERNETES, strict=True)
    (workers, *_) = [child for child in ALL["multi-node"] if child["kind"] == "LeaderWorkerSet"]
    for wrong in ({"startupPolicy": "Whenever"}, {"size": 2}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(workers | {"spec": workers["spec"] | wrong}, LEADER_WORKER_SET)


INTEGER = {"type": "integer", "minimum": 0}
TEMPLATE = {
    "type": "object",
    "required": ["metadata", "spec"],
    "additionalProperties": False,
    "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
}
LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": INTEGER,
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "rolloutStrategy": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["type"],
                    "properties": {
                        "type": {"enum": ["RollingUpdate"]},
                        "rollingUpdateConfiguration": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"maxUnavailable": INTEGER, "maxSurge": INTEGER, "partition": INTEGER},
                        },
                    },
                },
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "leaderTemplate": TEMPLATE,
                        "workerTemplate": TEMPLATE,
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
                    },
                },
            },
        },
    },
}
"""Fields that we may write, after kubernetes-sigs/lws api/leaderworkerset/v1/leaderworkerset_types.go."""

LABEL_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
SERVICE_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


def templates(child: Object) -> list[Object]:
    spec = child.get("spec", {})
    holders = (spec, spec.get("leaderWorkerTemplate", {})) if isinstance(spec, dict) else ()
    return [holder[key] for holder in holders for key in POD_TEMPLATE_KEYS if key in holder]


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, f"{path}[{index}]")


@pytest.mark.parametrize("child", EVERY)
def test_form(child: Object) -> None:
    metadata = child["metadata"]
    assert len(metadata["name"]) <= 63
    assert SERVICE_NAME.match(metadata["name"])
    assert metadata["namespace"] == "serving"
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "serving.dsv4.dev/v1alpha1",
            "kind": "DSV4Deployment",
            "name": metadata["labels"][LABEL_DEPLOYMENT],
            "uid": "4b1ba4a4-0000-4000-8000-000000000001",
            "controller": True,
        }
    ]
    assert metadata["labels"][LABEL_MANAGED_BY] == "dsv4-operator"
    for labels in (metadata["labels"], *(template["metadata"]["labels"] for template in templates(child))):
        for value in labels.values():
            assert len(value) <= 63
            assert LABEL_VALUE.match(value)
    for path, value in walk(child):
        assert value is not None, path
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for key in ("name", "mountPath", "containerPort"):
                found = [item[key] for item in value if key in item]
                if key == "name" and path.endswith("volumeMounts"):
                    continue
                assert len(found) == len(set(found)), f"{path} has a {key} twice"
        if re.search(r"\.(requests|limits)\.[^.\[]+$|\.sizeLimit$", path):
            assert isinstance(value, str), path
            assert quantity(value) is not None, path


@pytest.mark.parametrize("name", ALL)
def test_names_are_unique_by_kind(name: str) -> None:
    keys = [(child["kind"], child["metadata"]["name"]) for child in ALL[name]]
    assert len(keys) == len(set(keys))


def test_the_longest_name_fits() -> None:
    sample = samples()["multi-node"]
    sample["metadata"]["name"] = "n" * MAX_NAME_LENGTH
    for child in children(context(sample)):
        assert len(child["metadata"]["name"]) <= 63
        for path, value in walk(child):
            if path.endswith(("serviceAccountName", "configMap.name", ".claimName")):
                assert len(value) <= 63, path


@pytest.mark.parametrize("child", EVERY)
def test_an_applied_child_has_no_drift(child: Object) -> None:
    assert drift(with_digest(child), child) is None


# -- what hangs together


def by_kind(name: str, kind: str) -> dict[str, Object]:
    return {child["metadata"]["name"]: child for child in ALL[name] if child["kind"] == kind}


def pod_templates(name: str) -> list[Object]:
    return [template for child in ALL[name] for template in templates(child)]


@pytest.mark.parametrize("name", ALL)
def test_what_pods_name_exists(name: str) -> None:
    accounts, maps, secrets = (by_kind(name, kind) for kind in ("ServiceAccount", "ConfigMap", "Secret"))
    for template in pod_templates(name):
        spec = template["spec"]
        assert spec["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
        for path, value in walk(spec):
            if path.endswith(".secretKeyRef.name") and value.startswith(f"{name}-"):
                assert value in secrets


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Kubernetes' label selection."""
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        selector = {"matchLabels": selector}
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        found = labels.get(rule["key"]) in rule["values"]
        if found is (rule["operator"] == "NotIn"):
            return False
    return True


@pytest.mark.parametrize("name", ALL)
def test_selectors_meet_their_pods_alone(name: str) -> None:
    pods = {}
    for child in ALL[name]:
        spec = child.get("spec", {})
        if "template" in spec:
            pods[child["metadata"]["labels"][LABEL_ROLE]] = spec["template"]["metadata"]["labels"]
        if "leaderWorkerTemplate" in spec:
            role = child["metadata"]["labels"][LABEL_ROLE]
            pods[role] = spec["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
            pods[f"{role}-worker"] = spec["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    for child in ALL[name]:
        if child["kind"] in ("Deployment", "PodDisruptionBudget"):
            chosen = {role for role, labels in pods.items() if selects(child["spec"]["selector"], labels)}
            assert chosen == {child["metadata"]["labels"][LABEL_ROLE]}
        if child["kind"] == "Service":
            chosen = {role for role, labels in pods.items() if selects(child["spec"]["selector"], labels)}
            assert chosen == {child["metadata"]["labels"].get(LABEL_ROLE, "router")}
        if child["kind"] == "NetworkPolicy":
            chosen = {role for role, labels in pods.items() if selects(child["spec"]["podSelector"], labels)}
            expected = {"router"} if child["metadata"]["name"].endswith("-router") else pods.keys() - {"router"}
            assert chosen == expected
    for labels in pods.values():
        assert labels[LABEL_FINGERPRINT] == context(samples()[name]).fingerprint


def test_every_node_of_an_engine_may_talk_to_every_other() -> None:
    """Ranks of a second node connect to the first and to the peer's: with a policy they need a rule."""
    policy = by_kind("multi-node", "NetworkPolicy")["multi-node-engine"]["spec"]
    for template in pod_templates("multi-node"):
        labels = template["metadata"]["labels"]
        if labels.get(LABEL_ROLE) == "router":
            continue
        assert any(
            "ports" not in rule and selects(rule["from"][0]["podSelector"], labels) for rule in policy["ingress"]
        )


@pytest.mark.parametrize("name", ALL)
def test_ports_hang_together(name: str) -> None:
    for child in ALL[name]:
        role = child["metadata"]["labels"].get(LABEL_ROLE)
        if child["kind"] != "Service" or role is None:
            continue
        (template, *_) = (t for t in pod_templates(name) if t["metadata"]["labels"].get(LABEL_ROLE) == role)
        containers = [*template["spec"]["containers"], *template["spec"]["initContainers"]]
        open_ports = {port["containerPort"] for container in containers for port in container["ports"]}
        assert {port["targetPort"] for port in child["spec"]["ports"]} <= open_ports
        for container in containers:
            for path, value in walk(container):
                if path.endswith(".httpGet.port"):
                    assert value in open_ports, path
