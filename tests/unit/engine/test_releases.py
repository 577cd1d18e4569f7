"""Which release an image holds, whether its reference can move, and which images a deployment uses."""

from __future__ import annotations

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.engine.images import ImageDefaults, Images, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, Release, image_tag, is_moving, release_of

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "declared", "release"),
    [
        ("lmsysorg/sglang:v0.5.23", None, "0.5.23"),
        ("lmsysorg/sglang:0.5.23", None, "0.5.23"),
        ("lmsysorg/sglang:v0.5.23-cu130", None, "0.5.23"),
        ("registry:5000/a/sglang:0.5.23-b200", None, "0.5.23"),
        ("x:gated-0.5.23-3", None, "0.5.23"),
        ("x:0.5.23.post1", None, "0.5.23"),
        (f"x:0.5.23@{DIGEST}", None, "0.5.23"),
        ("x:cuda13.0.1-0.5.23", None, "0.5.23"),
        ("x:0.5.22", None, "0.5.22"),
        ("x:0.5.23rc1", None, None),
        ("x:0.5.23-rc2", None, None),
        ("x:0.5.23.dev4", None, None),
        ("x:0.5.23.4", None, None),
        ("x:10.5.234", None, "10.5.234"),
        ("x:latest", None, None),
        ("x", None, None),
        ("registry:5000/x", None, None),
        (f"x@{DIGEST}", None, None),
        ("0.5.23/x", None, None),
        ("", None, None),
        ("x:latest", "0.5.23", "0.5.23"),
        ("x:0.5.22", "0.5.23", "0.5.23"),
        ("x:latest", "0.5.23.post2", "0.5.23"),
    ],
)
def test_release_of(image: str, declared: str | None, release: str | None) -> None:
    assert release_of(image, declared) == release


@pytest.mark.parametrize(
    ("image", "moving"),
    [
        ("x", True),
        ("registry:5000/x", True),
        ("x:latest", True),
        ("x:dev", True),
        ("x:latest-cu130", True),
        ("x:dev-cu13", True),
        ("x:nightly", True),
        ("x:nightly-20261101", False),
        ("x:nightly-dev-20261101-1a2b3c4d", False),
        ("x:main-1a2b3c4d", False),
        ("x:0.5.23", False),
        ("x:v0.5.23-cu130", False),
        (f"x@{DIGEST}", False),
        (f"x:latest@{DIGEST}", False),
        ("x:mainline", False),
    ],
)
def test_is_moving(image: str, moving: bool) -> None:
    assert is_moving(image) is moving


def test_image_tag() -> None:
    assert image_tag("registry:5000/a/b:t@sha256:0") == "t"
    assert image_tag("registry:5000/a/b") is None


def test_known_releases() -> None:
    assert KNOWN_RELEASES[str(DEFAULT_RELEASE)] is DEFAULT_RELEASE
    assert max(KNOWN_RELEASES.values()) == DEFAULT_RELEASE
    assert Release((0, 5, 9)) < Release((0, 5, 23)), "releases compare as numbers, not as text"
    assert DEFAULT_RELEASE.ready_endpoint == "/ready"


def test_images_of_the_spec_come_first() -> None:
    defaults = ImageDefaults(engine="e:0", canary="c:0", router="r:0")
    unset = parse_deployment(merged(minimal(), {"spec": {"engine": {"image": None}}})).spec
    assert resolve_images(unset, defaults) == Images("e:0", "c:0", "r:0")
    assert resolve_images(unset, ImageDefaults()) == Images(None, None, None)
    patch = {"engine": {"image": "e:1"}, "canary": {"image": "c:1"}, "router": {"image": "r:1"}}
    own = parse_deployment(merged(minimal(), {"spec": patch})).spec
    assert resolve_images(own, defaults) == Images("e:1", "c:1", "r:1")
