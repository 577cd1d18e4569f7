from __future__ import annotations

import pytest

from dsv4_operator.kube import kinds
from dsv4_operator.kube.kinds import Kind, kind_of


@pytest.mark.parametrize(
    ("kind", "arguments", "path"),
    [
        (kinds.POD, (), "/api/v1/pods"),
        (kinds.POD, ("ns",), "/api/v1/namespaces/ns/pods"),
        (kinds.SERVICE, ("ns", "a"), "/api/v1/namespaces/ns/services/a"),
        (kinds.DEPLOYMENT, ("ns", "a"), "/apis/apps/v1/namespaces/ns/deployments/a"),
        (
            kinds.DSV4_DEPLOYMENT,
            ("ns", "a", "status"),
            "/apis/serving.dsv4.dev/v1alpha1/namespaces/ns/dsv4deployments/a/status",
        ),
        (
            kinds.CUSTOM_RESOURCE_DEFINITION,
            (None, "x.y.z"),
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x.y.z",
        ),
        (kinds.CUSTOM_RESOURCE_DEFINITION, ("ignored",), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        (kinds.CONFIG_MAP, ("ns", "../secrets/x?y#z"), "/api/v1/namespaces/ns/configmaps/..%2Fsecrets%2Fx%3Fy%23z"),
    ],
)
def test_path(kind: Kind, arguments: tuple[str, ...], path: str) -> None:
    assert kind.path(*arguments) == path


def test_namespaced_object_needs_its_namespace() -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        kinds.POD.path(None, "a")


def test_kind_of_knows_all_and_only_our_kinds() -> None:
    for kind in kinds.ALL_KINDS:
        assert kind_of({"apiVersion": kind.api_version, "kind": kind.kind}) is kind
    with pytest.raises(ValueError, match="apiVersion='v1', kind='Deployment'"):
        kind_of({"apiVersion": "v1", "kind": "Deployment"})
    with pytest.raises(ValueError, match="kind=None"):
        kind_of({})


def test_group() -> None:
    assert (kinds.POD.group, kinds.LEASE.group) == ("", "coordination.k8s.io")
