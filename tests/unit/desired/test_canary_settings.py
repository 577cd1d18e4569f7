"""The settings file of the canaries: what the operator writes is what the sidecar reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crd_cases import merged, minimal
from dsv4_canary.settings import parse_settings
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.desired import DesiredContext
from dsv4_operator.desired.canary import SETTINGS_KEY, build_canary_settings, read_prompt_tokens
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE


def written(canary: dict[str, Any]) -> str:
    spec = parse_deployment(merged(minimal("pair"), {"spec": {"canary": canary}})).spec
    images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
    text: str = build_canary_settings(DesiredContext("pair", "ns", "uid", spec, images, DEFAULT_RELEASE))["data"][
        SETTINGS_KEY
    ]
    return text


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("intervalSeconds", 5, "interval"),
        ("timeoutSeconds", 9, "timeout"),
        ("failureThreshold", 2, "failure_threshold"),
        ("promptTokens", 3000, "prompt_tokens"),
        ("wedgeSeconds", 90, "wedge"),
        ("tokensPerMinute", 9000, "tokens_per_minute"),
    ],
)
def test_the_sidecar_reads_what_the_operator_writes(field: str, value: int, read: str) -> None:
    settings, unknown = parse_settings(written({field: value}))
    assert unknown == ()
    assert getattr(settings, read) == value


def test_an_unset_budget_is_left_to_the_sidecar() -> None:
    assert "tokensPerMinute" not in json.loads(written({}))


@pytest.mark.parametrize(("asked", "most", "told"), [(9000, None, 9000), (9000, 2600, 2600), (2600, 9000, 2600)])
def test_prompts_are_no_longer_than_what_serves_can_take(asked: int, most: int | None, told: int) -> None:
    spec = parse_deployment(merged(minimal("pair"), {"spec": {"canary": {"promptTokens": asked}}})).spec
    images = resolve_images(spec, ImageDefaults(engine="e:0.5.23", canary="c:1", router="r:1"))
    settings = build_canary_settings(DesiredContext("pair", "ns", "uid", spec, images, DEFAULT_RELEASE), most)
    assert read_prompt_tokens(settings) == told


@pytest.mark.parametrize("data", [None, {}, {"canary.json": "{"}, {"canary.json": "{}"}, {"canary.json": "[]"}])
def test_settings_that_cannot_be_read_bound_nothing(data: dict[str, str] | None) -> None:
    assert read_prompt_tokens({"data": data}) is None
