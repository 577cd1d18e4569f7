"""The images' recipes, as far as they can be judged without building."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from smg.launch_router import parse_router_args  # type: ignore[import-untyped, unused-ignore]

from dsv4_operator.api.v1alpha1.deployment import parse_deployment
from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.desired.router import build_router_deployment
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import KNOWN_RELEASES


def pinned(lock: Path) -> dict[str, str]:
    """Versions by name; every one has hashes, and nothing names an index."""
    text = lock.read_text()
    assert "://" not in text
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    for entry in entries:
        match = re.match(r"([a-z0-9._-]+)==(\S+)", entry)
        assert match, entry[:60]
        assert "--hash=sha256:" in entry, match[1]
        found[canonicalize_name(match[1])] = match[2]
    return found


def test_the_operator_s_lock_holds_what_the_project_asks_for(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(one) for one in [*project["dependencies"], *project["optional-dependencies"]["operator"]]]
    locked = pinned(root / "images/operator/requirements.lock")
    for one in wanted:
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), one


def test_the_router_s_lock_holds_the_release_that_tests_use(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (wanted,) = [Requirement(o) for o in project["optional-dependencies"]["test"] if o.startswith("smg")]
    assert wanted.specifier.contains(pinned(root / "images/router/requirements.lock")["smg"])


@pytest.mark.parametrize("name", ["operator", "router"])
def test_recipes_are_for_any_base_and_no_root(root: Path, name: str) -> None:
    lines = (root / "images" / name / "Dockerfile").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM")] == ["${BASE_IMAGE}"] * 2
    assert "USER 65532:65532" in lines
    assert any("--require-hashes" in line for line in lines)
    copied = [line for line in lines if line.startswith("COPY")]
    assert not any("dsv4_canary" in line for line in copied)


def test_the_operator_s_user_has_a_name(root: Path) -> None:
    """Kopf asks for it, and a uid that is in no passwd file has none: the operator would not start in a pod."""
    assert re.search(r"^ +USER=\w+ \\$", (root / "images/operator/Dockerfile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("router", [{}, {"policy": "PowerOfTwo", "apiKeySecretRef": {"name": "s", "key": "k"}}])
def test_the_router_takes_the_operator_s_arguments(root: Path, router: dict[str, Any]) -> None:
    raw = yaml.safe_load((root / "manifests/samples/minimal.yaml").read_text())
    raw["metadata"] |= {"namespace": "ns", "uid": "uid"}
    raw["spec"]["router"] = router
    spec = parse_deployment(raw).spec
    images = resolve_images(spec, ImageDefaults("e:0.5.23", "c:1", "r:1"))
    ctx = DesiredContext("minimal", "ns", "uid", spec, images, KNOWN_RELEASES["0.5.23"])
    (container,) = build_router_deployment(ctx)["spec"]["template"]["spec"]["containers"]
    assert "command" not in container  # the image's entry point is `smg launch`
    parsed = parse_router_args(container["args"])
    assert parsed.pd_disaggregation
    assert parsed.discovery_file == "/members/workers.json"
    assert parsed.prefill_policy == ("power_of_two" if router else "cache_aware")
    assert parsed.prometheus_port == 29000
    assert (parsed.api_key is not None) == bool(router)
