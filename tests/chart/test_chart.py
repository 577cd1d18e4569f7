"""The Helm chart: what it renders for many values, what it refuses, and that it agrees with everything beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dsv4_operator.runtime.settings import OperatorSettings, parse_settings
from dsv4_operator.runtime.webhook import PATH

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]

MONITORING = "monitoring.coreos.com/v1"
MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaced": {"watchNamespaces": ["team-a", "team-b", "dsv4-system"]},
    "two-replicas": {"replicas": 2, "networkPolicy": {"enabled": True}},
    "scaled-to-zero": {"replicas": 0},
    "no-webhook": {"webhook": {"enabled": False}, "networkPolicy": {"enabled": True}},
    "namespaced-webhook": {"watchNamespaces": ["team-a"], "webhook": {"enabled": True}},
    "least": {
        "crds": {"enabled": False},
        "rbac": {"create": False, "aggregateClusterRoles": False},
        "serviceAccount": {"create": False, "name": "mine"},
        "metrics": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
    "everything": {
        "nameOverride": "pd",
        "commonLabels": {"team": "serving", "app.kubernetes.io/name": "not-mine"},
        "replicas": 3,
        "clusterDomain": "example.internal",
        "image": {"repository": "r.example.com:5000/op", "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "regcred"}],
        "defaults": {"engineImage": "e:1", "canaryImage": "c:1", "routerImage": "r@sha256:" + "b" * 64},
        "log": {"format": "text", "level": "DEBUG"},
        "extraArgs": ["--workers=4", "--resync-seconds=60"],
        "extraEnv": [
            {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "crds": {"keep": False},
        "serviceAccount": {"name": "someone", "annotations": {"a": "b"}},
        "metrics": {
            "runbookBaseUrl": "https://git.example.com/dsv4/blob/main/docs/runbooks/",
            "podMonitor": {"enabled": True, "labels": {"release": "prom"}, "interval": "1m"},
            "rules": {"enabled": True, "labels": {"release": "prom"}},
            "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Serving"}},
        },
        "webhook": {"enabled": True, "failurePolicy": "Fail", "timeoutSeconds": 10},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "apiServerPorts": [16443],
        },
        "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "podAnnotations": {"prometheus.io/scrape": "true"},
        "podLabels": {"tier": "control", "app.kubernetes.io/name": "not-mine-either"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "priorityClassName": "system-cluster-critical",
    },
}

REFUSED: dict[str, dict[str, Any]] = {
    "an unknown value": {"replica": 2},
    "an unknown value inside": {"image": {"registry": "x"}},
    "a count as text": {"replicas": "two"},
    "a negative count": {"replicas": -1},
    "four replicas": {"replicas": 4},
    "a digest that is none": {"image": {"digest": "sha256:abc"}},
    "a tag with a colon": {"image": {"tag": "a:b"}},
    "an unknown pull policy": {"image": {"pullPolicy": "Sometimes"}},
    "a namespace that cannot be": {"watchNamespaces": ["Team_A"]},
    "namespaces as text": {"watchNamespaces": "team-a"},
    "a namespace twice": {"watchNamespaces": ["a", "a"]},
    "an image with a space": {"defaults": {"engineImage": "a b"}},
    "an unknown log format": {"log": {"format": "xml"}},
    "a lower-case level": {"log": {"level": "info"}},
    "an argument that is no flag": {"extraArgs": ["workers=4"]},
    "a variable without a name": {"extraEnv": [{"value": "x"}]},
    "a label that is no text": {"commonLabels": {"a": 1}},
    "a switch as text": {"crds": {"enabled": "yes"}},
    "an interval without a unit": {"metrics": {"podMonitor": {"interval": "30"}}},
    "an address of runbooks with a blank": {"metrics": {"runbookBaseUrl": "https://example.com/run books"}},
    "no API server port": {"networkPolicy": {"apiServerPorts": []}},
    "a port that cannot be": {"networkPolicy": {"apiServerPorts": [70000]}},
    "a webhook switch as text": {"webhook": {"enabled": "yes"}},
    "an unknown failure policy": {"webhook": {"failurePolicy": "Retry"}},
    "an endless time-out": {"webhook": {"timeoutSeconds": 31}},
    "a pull secret as text": {"imagePullSecrets": ["regcred"]},
}


CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingWebhookConfiguration",
}


def of_kind(objects: Objects, kind: str) -> Objects:
    return [one for one in objects if one["kind"] == kind]


def only(objects: Objects, kind: str) -> dict[str, Any]:
    (found,) = of_kind(objects, kind)
    return found


def operator_rules(objects: Objects) -> list[dict[str, Any]]:
    """Rules of a cluster-wide install, without the lease."""
    (role,) = [one for one in of_kind(objects, "ClusterRole") if one["metadata"]["name"] == "dsv4-operator"]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def container(objects: Objects) -> dict[str, Any]:
    (found,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_lint_is_content(helm: Callable[..., str], root: Path, values: dict[str, Any]) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(root / "charts/dsv4-operator"), values=values)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_every_object_is_valid(template: Render, values: dict[str, Any]) -> None:
    objects = template(values, "--api-versions", MONITORING)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    for one in objects:
        if one["apiVersion"] != MONITORING:
            kubernetes_validate.validate(one, "1.36", strict=True)
        cluster_wide = one["kind"] in CLUSTER_WIDE
        assert ("namespace" in one["metadata"]) != cluster_wide
        assert len(one["metadata"]["name"]) <= 63
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "dsv4-operator"


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_operator_takes_its_arguments(
    template: Render, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "dsv4-system")
    arguments = [one.replace("$(POD_NAMESPACE)", "dsv4-system") for one in container(template(values))["args"]]
    settings = parse_settings(arguments)
    assert sorted(settings.namespaces) == sorted(values.get("watchNamespaces", []))
    assert settings.engine_image == (values.get("defaults", {}).get("engineImage") or None)
    assert settings.metrics is values.get("metrics", {}).get("enabled", True)
    assert settings.lease


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED.keys())
def test_bad_values_are_refused(template: Render, values: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"(?s)don't meet the specifications of the schema.*" + next(iter(values))):
        template(values)


def test_an_image_is_required(template: Render) -> None:
    with pytest.raises(Exception, match=r"image\.repository is required"):
        template({"image": {"repository": ""}})


@pytest.mark.parametrize("name", ["defaults", "everything"])
def test_the_pod_is_restricted(template: Render, name: str) -> None:
    objects = template(MATRIX[name])
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is True
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    context = container(objects)["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    (mount,) = container(objects)["volumeMounts"]
    assert mount["mountPath"] == "/tmp"


def test_the_pod_is_found_by_those_who_look_for_it(template: Render) -> None:
    """Engines admit pods of this label; the Service, the budget and the Deployment select them."""
    objects = template(MATRIX["everything"], "--api-versions", MONITORING, release="rel")
    deployment = only(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "dsv4-operator"
    assert labels["tier"] == "control"
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        *(service["spec"]["selector"] for service in of_kind(objects, "Service")),
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            one["spec"]["selector"]["matchLabels"]
            for one in of_kind(objects, "PodMonitor")
            if one["metadata"]["name"] == "rel-pd"
        ),
    ]
    assert selectors == [{"app.kubernetes.io/name": "dsv4-operator", "app.kubernetes.io/instance": "rel"}] * 6
    assert deployment["metadata"]["name"] == "rel-pd"


def test_the_pod_knows_its_name_and_namespace(template: Render) -> None:
    env = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in container(template())["env"]}
    assert env == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}


def test_probes_ask_the_port_that_the_operator_listens_on(template: Render) -> None:
    spec = container(template())
    ports = [OperatorSettings.model_fields[name].default for name in ("listen_port", "webhook_listen_port")]
    assert [port["containerPort"] for port in spec["ports"]] == ports
    assert spec["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert spec["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_the_lease_role_names_the_lease(template: Render) -> None:
    objects = template({"fullnameOverride": "other"})
    role = next(one for one in of_kind(objects, "Role") if one["metadata"]["name"] == "other-lease")
    assert role["metadata"]["namespace"] == "dsv4-system"
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, ["other"]]
    assert "--lease-name=other" in container(objects)["args"]


def test_rights_of_a_namespaced_install_end_at_its_namespaces(template: Render) -> None:
    everywhere = template()
    objects = template({"watchNamespaces": ["team-a", "team-b"]})
    assert not of_kind(objects, "ClusterRoleBinding")
    roles = {
        one["metadata"]["namespace"]: one
        for one in of_kind(objects, "Role")
        if one["metadata"]["name"] == "dsv4-operator"
    }
    assert roles.keys() == {"team-a", "team-b"}
    # The CRD belongs to no namespace: it is read by an operator of the whole cluster alone.
    inside = [rule for rule in operator_rules(everywhere) if rule["resources"] != ["customresourcedefinitions"]]
    assert len(inside) == len(operator_rules(everywhere)) - 1
    assert roles["team-a"]["rules"] == roles["team-b"]["rules"] == inside
    subject = {"kind": "ServiceAccount", "name": "dsv4-operator", "namespace": "dsv4-system"}
    assert [one["subjects"] for one in of_kind(objects, "RoleBinding")] == [[subject]] * 3


def test_no_rule_is_wide(template: Render) -> None:
    for role in [*of_kind(template(), "ClusterRole"), *of_kind(template(), "Role")]:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                name = {"resourceNames": ["dsv4-operator-webhook"]} if "resourceNames" in rule else {}
                wanted = {"get", "update"} if name else {"get", "create"}
                assert set(rule["verbs"]) <= wanted
                assert rule == {"apiGroups": [""], "resources": ["secrets"], "verbs": rule["verbs"], **name}


def test_a_pod_monitor_needs_its_api(template: Render) -> None:
    values: dict[str, Any] = {"metrics": {"podMonitor": {"enabled": True}}}
    assert not of_kind(template(values), "PodMonitor")
    monitors = {
        one["metadata"]["name"]: one for one in of_kind(template(values, "--api-versions", MONITORING), "PodMonitor")
    }
    assert sorted(monitors) == ["dsv4-operator", "dsv4-operator-engines", "dsv4-operator-routers"]
    monitor = monitors["dsv4-operator"]
    ports = {port["name"]: port["containerPort"] for port in container(template(values))["ports"]}
    assert [ports[one["port"]] for one in monitor["spec"]["podMetricsEndpoints"]] == [8080]
    values["metrics"]["enabled"] = False
    left = of_kind(template(values, "--api-versions", MONITORING), "PodMonitor")
    assert [one["metadata"]["name"] for one in left] == ["dsv4-operator-engines", "dsv4-operator-routers"]


@pytest.mark.parametrize(
    ("values", "on"),
    [
        ({}, True),
        ({"watchNamespaces": ["a"]}, False),
        ({"watchNamespaces": ["a"], "webhook": {"enabled": True}}, True),
        ({"webhook": {"enabled": False}}, False),
    ],
)
def test_the_webhook_is_whole_or_absent(template: Render, values: dict[str, Any], on: bool) -> None:
    objects = template({"rbac": {"create": True}, **values})
    named = [one for one in objects if re.search(r"webhook|\.dsv4-system$", one["metadata"]["name"])]
    kinds = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Service", "ValidatingWebhookConfiguration"]
    assert sorted(one["kind"] for one in named) == (kinds if on else [])
    spec = container(objects)
    assert ("webhook" in [port["name"] for port in spec["ports"]]) is on
    assert any("webhook" in argument for argument in spec["args"]) is on


def test_what_the_webhook_is_called_by_is_what_it_serves(template: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "sys")
    objects = template({"watchNamespaces": ["a", "b"], "webhook": {"enabled": True}}, release="rel", namespace="sys")
    settings = parse_settings([one.replace("$(POD_NAMESPACE)", "sys") for one in container(objects)["args"]])
    configuration = only(objects, "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    service = webhook["clientConfig"]["service"]
    assert settings.webhook
    assert settings.webhook_hosts == (f"{service['name']}.{service['namespace']}.svc",)
    assert service["path"] == PATH
    assert settings.webhook_configuration == configuration["metadata"]["name"]
    (behind,) = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == service["name"]]
    assert [(port["port"], port["targetPort"]) for port in behind["spec"]["ports"]] == [(service["port"], "webhook")]
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "b"]
    assert "caBundle" not in webhook["clientConfig"], "the operator's own field"
    names = [rule["resourceNames"] for one in objects for rule in one.get("rules", []) if "resourceNames" in rule]
    assert [settings.webhook_configuration] in names
    assert [settings.webhook_secret] in names


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_disruption_budget_never_blocks_a_single_replica(template: Render, replicas: int, budgets: int) -> None:
    assert len(of_kind(template({"replicas": replicas}), "PodDisruptionBudget")) == budgets


@pytest.mark.parametrize("keep", [True, False])
def test_the_crd_is_the_generated_one(template: Render, root: Path, keep: bool) -> None:
    rendered = only(template({"crds": {"keep": keep}}), "CustomResourceDefinition")
    annotations = rendered["metadata"].pop("annotations", {})
    assert annotations == ({"helm.sh/resource-policy": "keep"} if keep else {})
    rendered["metadata"].pop("labels")
    (file,) = (root / "crds").glob("*.yaml")
    assert rendered == yaml.safe_load(file.read_text())


def _normal(objects: Objects) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Without what only Helm adds: its labels, the chart's version, the keep annotation."""
    result = {}
    for one in objects:
        metadata = one["metadata"]
        for label in ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"):
            metadata["labels"].pop(label, None)
        annotations = metadata.get("annotations", {})
        annotations.pop("helm.sh/resource-policy", None)
        if not annotations:
            metadata.pop("annotations", None)
        result[one["kind"], metadata.get("namespace", ""), metadata["name"]] = one
    return result


@pytest.mark.parametrize(("overlay", "values"), [("default", {}), ("namespaced", {"watchNamespaces": ["dsv4-system"]})])
def test_kustomize_renders_the_same(
    template: Render, kustomize: Callable[[str], Objects], overlay: str, values: dict[str, Any]
) -> None:
    image = {"image": {"repository": "localhost/dsv4/operator", "tag": "dev"}}
    ours = _normal(template({**image, **values}))
    theirs = _normal([one for one in kustomize(overlay) if one["kind"] != "Namespace"])
    assert theirs.keys() == ours.keys()
    for key, one in ours.items():
        assert theirs[key] == one


@pytest.mark.parametrize("overlay", ["default", "namespaced"])
def test_manifests_are_valid(kustomize: Callable[[str], Objects], overlay: str) -> None:
    for one in kustomize(overlay):
        kubernetes_validate.validate(one, "1.36", strict=True)


def test_notes_say_what_is_missing(helm: Callable[..., str], root: Path) -> None:
    arguments = ("install", "dsv4-operator", str(root / "charts/dsv4-operator"), "--namespace", "dsv4-system")
    values = {"defaults": {"engineImage": "e:1"}, "crds": {"keep": False}}
    notes = helm(*arguments, "--dry-run=client", values=values).partition("NOTES:")[2]
    assert "Not set: defaults.canaryImage, defaults.routerImage." in notes
    assert "crds.keep is false" in notes
    assert "all namespaces" in notes


# -- documentation


def _paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        path = (*above, key)
        yield from _paths(value, path) if isinstance(value, dict) and value else iter([path])


def test_generated_files_are_current(root: Path) -> None:
    command = [sys.executable, str(root / "charts/sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_documented_and_known_to_the_schema(root: Path) -> None:
    chart = root / "charts/dsv4-operator"
    rows = re.findall(r"^\| `([\w.]+)` \|", (chart / "README.md").read_text(), flags=re.MULTILINE)
    documented = {tuple(row.split(".")) for row in rows}
    for path in _paths(yaml.safe_load((chart / "values.yaml").read_text())):
        assert any(path[:length] in documented for length in range(1, len(path) + 1)), path

    def described(node: dict[str, Any], path: str) -> None:
        for key, below in node.get("properties", {}).items():
            assert below.get("description"), f"{path}.{key}"
            described(below, f"{path}.{key}")
        if node.get("properties"):
            assert node["additionalProperties"] is False, path

    described(json.loads((chart / "values.schema.json").read_text()), "values")


def _documented_rights(text: str) -> set[tuple[str, str, str]]:
    """(API group, resource, verb) of the rows of install.md's table of rights."""
    rights = set()
    row = re.compile(r"^\| ([\w.-]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", flags=re.MULTILINE)
    for group, resources, verbs in row.findall(text):
        for resource in re.findall(r"`([^`]+)`", resources):
            rights |= {("" if group == "core" else group, resource, verb.strip()) for verb in verbs.split(",")}
    return rights


def test_the_table_of_rights_is_the_chart_s(template: Render, root: Path) -> None:
    objects = template()
    bound = {one["roleRef"]["name"] for one in objects if one["kind"].endswith("Binding")}
    roles = [one for one in objects if one["kind"] in {"Role", "ClusterRole"} and one["metadata"]["name"] in bound]
    rules = [rule for role in roles for rule in role["rules"]]
    granted = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert _documented_rights((root / "docs/install.md").read_text()) == granted
