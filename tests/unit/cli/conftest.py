"""Runs dsv4ctl in this process, as a user would type it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_operator.cli.main import IMAGES, main, variable

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def yaml(self) -> Any:
        return yaml.safe_load(self.out)

    def rules(self, action: str = "Refuse") -> set[str]:
        return {finding["rule"] for finding in self.json["findings"] if finding["action"] == action}


Ctl = Callable[..., Done]


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ctl:
    for image in IMAGES:
        monkeypatch.delenv(variable(image), raising=False)

    def run(*words: object) -> Done:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def spec() -> dict[str, Any]:
    """A spec that nothing refuses, with images of its own."""
    return {
        "model": {
            "id": "deepseek-v4",
            "source": {"huggingFace": {"repo": "deepseek-ai/DeepSeek-V4", "revision": "v1"}},
        },
        "engine": {"image": "registry.example.com/sglang-dsv4:0.5.23"},
        "canary": {"image": "registry.example.com/canary:1"},
        "router": {"image": "registry.example.com/router:1"},
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes an object with a spec into a file."""

    def write_object(spec: dict[str, Any], name: str = "new", object_name: str = "pair") -> Path:
        path = tmp_path / f"{name}.yaml"
        body = {
            "apiVersion": "serving.dsv4.dev/v1alpha1",
            "kind": "DSV4Deployment",
            "metadata": {"name": object_name},
            "spec": spec,
        }
        path.write_text(yaml.safe_dump(body))
        return path

    return write_object
