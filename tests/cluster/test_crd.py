"""The CRD on a real API server: it is accepted whole, holds its rules, fills its defaults, and reads well."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crd_cases import (
    REPOSITORY,
    SAMPLES,
    Object,
    RuleCase,
    enum_fields,
    messages,
    minimal,
    placed_rules,
    rule_cases,
    sample_objects,
    with_value,
)
from dsv4_operator.api import constants
from dsv4_operator.api.crd import CRD_NAME, DEFAULT_PATH
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from localcluster import LocalCluster
from localcluster.api import ApiError
from localcluster.waiting import wait_for

pytestmark = pytest.mark.cluster

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MESSAGES = messages()
CASES = rule_cases()


@pytest.fixture(scope="module")
def crd(control_plane: LocalCluster) -> Iterator[Object]:
    """The CRD as the API server holds it, once it serves."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / DEFAULT_PATH))

    def established() -> Object | None:
        found: Object = control_plane.api.get(f"{CRDS}/{CRD_NAME}")
        conditions = {item["type"]: item["status"] for item in found["status"]["conditions"] or ()}
        return found if conditions.get("Established") == "True" else None

    yield wait_for("the CRD to be established", established, timeout=30)


@pytest.fixture
def objects(crd: Object, control_plane: LocalCluster, namespace: str) -> Objects:
    """Calls on DSV4Deployments of one namespace."""
    return Objects(control_plane, namespace)


class Objects:
    """DSV4Deployments of one namespace."""

    def __init__(self, cluster: LocalCluster, namespace: str) -> None:
        self._api = cluster.api
        self._path = f"/apis/{constants.API_VERSION}/namespaces/{namespace}/{constants.PLURAL}"

    def create(self, raw: Object, *, dry_run: bool = False) -> Object:
        """Create as kubectl does: unknown and repeated fields are errors."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        created: Object = self._api.request("POST", self._path, raw, query)
        return created

    def refusal(self, raw: Object) -> str:
        """The API server's text when it refuses to create."""
        with pytest.raises(ApiError) as caught:
            self.create(raw, dry_run=True)
        assert caught.value.status in (400, 422), caught.value
        return str(caught.value)

    def get(self, name: str) -> Object:
        """The stored object."""
        found: Object = self._api.get(f"{self._path}/{name}")
        return found

    def patch(self, name: str, patch: Object, subresource: str = "") -> Object:
        """Merge patch on the object or a subresource."""
        patched: Object = self._api.merge(f"{self._path}/{name}{subresource}", patch)
        return patched


def test_established_and_structural(crd: Object) -> None:
    conditions = {item["type"]: item["status"] for item in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}, "NonStructuralSchema would stand here"
    assert crd["status"]["acceptedNames"]["shortNames"] == [constants.SHORT_NAME]
    written = yaml.safe_load((REPOSITORY / DEFAULT_PATH).read_text())["spec"]["versions"][0]
    kept = crd["spec"]["versions"][0]
    for column in kept["additionalPrinterColumns"]:
        if column.get("priority") == 0:
            del column["priority"]
    assert kept == written, "the API server dropped or changed something of the schema"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_is_stored_with_its_defaults(
    path: Path, objects: Objects, control_plane: LocalCluster, namespace: str
) -> None:
    control_plane.kubectl("apply", "--server-side", "--validate=strict", "-n", namespace, "-f", str(path))
    for raw in sample_objects(path):
        stored = objects.get(raw["metadata"]["name"])
        assert stored["spec"] == parse_deployment(raw).spec.as_stored()
        assert parse_deployment(stored).spec == parse_deployment(raw).spec
        assert "status" not in stored


def test_every_rule_has_a_case() -> None:
    """A new rule without a value that breaks it fails here."""
    assert {(case.path, case.rule) for case in CASES if case.breaks} == set(placed_rules())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: RuleCase, objects: Objects) -> None:
    if not case.breaks:
        objects.create(case.object(), dry_run=True)
        return
    text = objects.refusal(case.object())
    message = MESSAGES[case.path, case.rule]
    assert message in text
    with pytest.raises(InvalidSpecError) as caught:
        parse_deployment(case.object())
    paths = [path for path, found in caught.value.problems if found.startswith(message)]
    assert any(f"{path}: Invalid value" in text for path in paths), "API server and parser name the same field"


@pytest.mark.parametrize(("path", "values"), enum_fields(), ids=[path for path, _ in enum_fields()])
def test_enumeration(path: str, values: list[str], objects: Objects) -> None:
    text = objects.refusal(with_value(path, "Wrong"))
    supported = ", ".join(f'"{value}"' for value in values)
    assert f'{path}: Unsupported value: "Wrong": supported values: {supported}' in text


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.hicache", {}, 'unknown field "spec.hicache"'),
        ("spec.prefill.gpu", 4, 'unknown field "spec.prefill.gpu"'),
        ("spec.prefill.replicas", -1, "spec.prefill.replicas in body should be greater than or equal to 1"),
        ("spec.replicas", -1, "spec.replicas in body should be greater than or equal to 0"),
        ("spec.prefill.gpus", "4", 'spec.prefill.gpus in body must be of type integer: "string"'),
        ("spec.paused", "yes", 'spec.paused in body must be of type boolean: "string"'),
        ("spec.prefill.memory", "-1Gi", "spec.prefill.memory in body should match"),
        ("spec.engine.release", "latest", "spec.engine.release in body should match"),
        ("spec.network.devices", ["mlx5_0", "mlx5_0"], 'spec.network.devices[1]: Duplicate value: "mlx5_0"'),
        (
            "spec.engine.env",
            [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
            'spec.engine.env[1]: Duplicate value: {"name":"A"}',
        ),
    ],
)
def test_bad_field_is_refused_by_server_and_parser(path: str, value: Any, message: str, objects: Objects) -> None:
    raw = with_value(path, value)
    assert message in objects.refusal(raw)
    with pytest.raises(InvalidSpecError):
        parse_deployment(raw)


def test_missing_model_is_refused(objects: Objects) -> None:
    raw = minimal()
    del raw["spec"]["model"]
    assert "spec.model: Required value" in objects.refusal(raw)


def test_quantity_may_be_a_number(objects: Objects) -> None:
    stored = objects.create(with_value("spec.prefill", {"cpu": 8}, "quantity"))
    assert stored["spec"]["prefill"]["cpu"] == 8
    assert parse_deployment(stored).spec.prefill.cpu == "8"


def test_null_takes_the_default(objects: Objects) -> None:
    raw = minimal("null-default")
    raw["spec"]["prefill"] = None
    assert objects.create(raw)["spec"]["prefill"]["gpus"] == 4


def test_overlay_keeps_fields_of_kubernetes(objects: Objects) -> None:
    overlay = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["x"]}]},
    }
    stored = objects.create(with_value("spec.prefill", {"podTemplate": overlay}, "overlay"))
    assert stored["spec"]["prefill"]["podTemplate"] == overlay


def test_explain_reads_well(crd: Object, control_plane: LocalCluster) -> None:
    def explained() -> str | None:
        text = control_plane.kubectl("explain", "dsv4.spec.hiCache", check=False)
        return text if "FIELDS" in text else None

    text = " ".join(wait_for("the description of the API to be published", explained, timeout=60).split())
    assert "HiCache, the prefix cache in host memory, on prefill" in text
    assert "layout <string> enum: LayerFirst, PageFirst, PageFirstDirect Host layout; V4 accepts" in text
    assert 'Ratio 2 at TP8 took about 950 GB on B300. Default: "2".' in text


def test_columns_and_status_subresource(objects: Objects, control_plane: LocalCluster, namespace: str) -> None:
    raw = minimal("columns")
    raw["status"] = {"fingerprint": "smuggled"}
    assert "status" not in objects.create(raw), "a user's write does not reach status"
    now = "2026-01-01T00:00:00Z"

    def condition(kind: str, status: str, message: str) -> Object:
        return {"type": kind, "status": status, "reason": "Serving", "message": message, "lastTransitionTime": now}

    status = {
        "conditions": [condition("Ready", "True", "All is well"), condition("CanaryPassing", "True", "")],
        "prefill": {"summary": "1/1"},
        "decode": {"summary": "2/2"},
        "fingerprint": "abc123",
        "endpoint": "http://columns",
    }
    patched = objects.patch("columns", {"status": status, "spec": {"paused": True}}, "/status")
    assert patched["status"] == status
    assert patched["spec"]["paused"] is False, "a write of status does not reach spec"
    assert patched["metadata"]["generation"] == 1
    assert objects.patch("columns", {"status": None, "spec": {"paused": True}})["status"] == status

    narrow = control_plane.kubectl("get", "dsv4", "columns", "-n", namespace).splitlines()
    assert narrow[0].split() == ["NAME", "READY", "PREFILL", "DECODE", "INDEX-K", "HICACHE", "CANARY", "AGE"]
    assert narrow[1].split()[:-1] == ["columns", "True", "1/1", "2/2", "FP8", "false", "True"]
    wide = control_plane.kubectl("get", "dsv4", "columns", "-n", namespace, "-o", "wide").splitlines()
    assert wide[0].split()[8:] == ["FINGERPRINT", "ENDPOINT", "MESSAGE"]
    assert re.search(r"abc123\s+http://columns\s+All is well$", wide[1])


def test_status_is_checked_too(objects: Objects) -> None:
    objects.create(minimal("status"))
    twice = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for conditions in ([{**twice, "status": "Perhaps"}], [{**twice, "reason": ""}], [twice, twice]):
        with pytest.raises(ApiError) as caught:
            objects.patch("status", {"status": {"conditions": conditions}}, "/status")
        assert caught.value.status == 422


def test_scale(objects: Objects, control_plane: LocalCluster, namespace: str) -> None:
    objects.create(minimal("scaled"))
    control_plane.kubectl("scale", "dsv4/scaled", "--replicas=2", "-n", namespace)
    assert objects.get("scaled")["spec"]["replicas"] == 2
    objects.patch("scaled", {"status": {"replicas": 1, "selector": "a=b"}}, "/status")
    path = f"/apis/{constants.API_VERSION}/namespaces/{namespace}/{constants.PLURAL}/scaled/scale"
    scale = control_plane.api.get(path)
    assert (scale["spec"]["replicas"], scale["status"]) == (2, {"replicas": 1, "selector": "a=b"})


def test_update_that_breaks_a_rule_leaves_the_object_as_it_was(objects: Objects) -> None:
    before = objects.create(minimal("kept"))
    with pytest.raises(ApiError) as caught:
        objects.patch("kept", {"spec": {"hiCache": {"ioBackend": "Direct"}}})
    assert MESSAGES["spec.hiCache", "hicache-layout"] in str(caught.value)
    assert objects.get("kept") == before


def test_a_second_apply_of_the_same_object_changes_nothing(objects: Objects) -> None:
    """Defaults are static, so that an object read and written back is the same object."""
    stored = objects.create(minimal("same"))
    again = copy.deepcopy(stored)
    assert (
        objects.patch("same", {"spec": again["spec"]})["metadata"]["resourceVersion"]
        == (stored["metadata"]["resourceVersion"])
    )


def test_the_autoscaler_of_a_sample_is_accepted(crd: Object, control_plane: LocalCluster, namespace: str) -> None:
    path = REPOSITORY / "manifests" / "samples" / "autoscaler" / "hpa.yaml"
    control_plane.kubectl("-n", namespace, "apply", "--validate=strict", "-f", str(path))
    assert "DSV4Deployment/autoscaled" in control_plane.kubectl("-n", namespace, "get", "hpa", "autoscaled")
