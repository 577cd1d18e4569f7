"""Why pods are replaced, in words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext
from dsv4_operator.desired.engine_pod import build_engine_pod_template
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE
from dsv4_operator.plan.replacement import why_replaced


def template(patch: dict[str, Any] | None = None, role: Role = Role.PREFILL, canary: str = "c:1") -> dict[str, Any]:
    spec = parse_deployment(merged(minimal("pair"), {"spec": patch or {}})).spec
    images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary=canary, router="r:1"))
    ctx = DesiredContext("pair", "ns", "uid", spec, images, DEFAULT_RELEASE)
    return build_engine_pod_template(ctx, role)


HICACHE = [
    "engine --enable-hierarchical-cache added",
    "engine --hicache-ratio 2 added",
    "engine --hicache-write-policy write_through added",
    "engine --hicache-io-backend kernel added",
    "engine --hicache-mem-layout page_first added",
]


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        ({}, {}, []),
        ({}, {"hiCache": {"enabled": True}}, HICACHE),
        (
            {"hiCache": {"enabled": True}},
            {},
            [
                "engine --enable-hierarchical-cache removed",
                "engine --hicache-ratio removed",
                "engine --hicache-write-policy removed",
                "engine --hicache-io-backend removed",
                "engine --hicache-mem-layout removed",
            ],
        ),
        (
            {"hiCache": {"enabled": True}},
            {"hiCache": {"enabled": True, "ratio": "3"}},
            ["engine --hicache-ratio 2 -> 3"],
        ),
        ({}, {"prefill": {"memory": "1Gi"}}, ["engine resources.requests.memory changed"]),
        ({"prefill": {"memory": "1024Mi"}}, {"prefill": {"memory": "1Gi"}}, []),
        (
            {},
            {"prefill": {"env": [{"name": "TOKEN", "value": "hunter2"}]}},
            ["engine variable TOKEN added"],
        ),
        (
            {"prefill": {"env": [{"name": "TOKEN", "value": "hunter1"}]}},
            {"prefill": {"env": [{"name": "TOKEN", "value": "hunter2"}]}},
            ["engine variable TOKEN changed"],
        ),
        ({"prefill": {"env": [{"name": "TOKEN", "value": "x"}]}}, {}, ["engine variable TOKEN removed"]),
        ({}, {"prefill": {"nodeSelector": {"a": "b"}}}, ["nodeSelector changed"]),
        ({"prefill": {"nodeSelector": {"a": "b", "c": "d"}}}, {"prefill": {"nodeSelector": {"a": "b"}}},
         ["nodeSelector.c changed"]),
        ({}, {"prefill": {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}}, ["metadata.annotations changed"]),
        ({}, {"decode": {"memory": "1Gi"}}, []),
        ({}, {"canary": {"intervalSeconds": 5}}, []),
        (
            {"prefill": {"extraArgs": ["--a", "1", "--b", "2"]}},
            {"prefill": {"extraArgs": ["--b", "2", "--a", "1"]}},
            ["engine arguments reordered"],
        ),
    ],
)  # fmt: skip
def test_reasons(before: dict[str, Any], after: dict[str, Any], reasons: list[str]) -> None:
    assert why_replaced(template(before), template(after)) == reasons


def test_images() -> None:
    assert why_replaced(template(canary="c:1"), template(canary="c:2")) == ["canary image c:1 -> c:2"]


def test_the_canary_comes_and_goes() -> None:
    off = {"canary": {"enabled": False}}
    assert why_replaced(template(off), template())[0] == "container canary added"
    assert why_replaced(template(), template(off))[0] == "container canary removed"


def test_the_order_of_reasons_is_stable() -> None:
    wanted = template()
    wanted["spec"]["containers"] += [{"name": name} for name in "dcab"]
    assert why_replaced(template(), wanted) == [f"container {name} added" for name in "abcd"]


def test_what_the_cluster_adds_is_no_reason() -> None:
    live = copy.deepcopy(template())
    live["spec"] |= {"schedulerName": "default-scheduler", "restartPolicy": "Always"}
    live["spec"]["containers"].append({"name": "istio-proxy", "image": "x"})
    live["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
    live["metadata"]["creationTimestamp"] = None
    assert why_replaced(live, template()) == []
