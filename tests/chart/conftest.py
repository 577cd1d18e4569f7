"""Real helm and kubectl, as fixtures that render."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import tools

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "dsv4-operator"
CI_VALUES = CHART / "ci" / "default-values.yaml"

Objects = list[dict[str, Any]]


class HelmError(Exception):
    """What helm said when it refused."""


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs helm in a home of its own; raises HelmError."""
    home = tmp_path_factory.mktemp("helm")
    places = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **places}

    def run(*arguments: str, values: dict[str, Any] | None = None) -> str:
        given = json.dumps(values or {})
        command = [str(tools.helm()), *arguments, "--values", str(CI_VALUES), "--values", "-"]
        done = subprocess.run(command, input=given, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout

    return run


@pytest.fixture(scope="session")
def template(helm: Callable[..., str]) -> Callable[..., Objects]:
    """Objects that the chart renders for some values, in namespace dsv4-system."""

    def render(
        values: dict[str, Any] | None = None,
        *flags: str,
        release: str = "dsv4-operator",
        namespace: str = "dsv4-system",
    ) -> Objects:
        text = helm("template", release, str(CHART), "--namespace", namespace, *flags, values=values)
        return [one for one in yaml.safe_load_all(text) if one]

    return render


@pytest.fixture(scope="session")
def kustomize() -> Callable[[str], Objects]:
    """Objects of one overlay under manifests/."""

    def render(overlay: str) -> Objects:
        command = [str(tools.kubectl()), "kustomize", str(ROOT / "manifests" / overlay)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return render
