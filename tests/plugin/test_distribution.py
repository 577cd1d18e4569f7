"""The plugin as a distribution, and the image that carries it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dsv4_guard
from dsv4_guard import releases, settings

SGLANG = Path(__file__).resolve().parents[2] / "images" / "sglang"


def project() -> dict[str, object]:
    loaded: dict[str, object] = tomllib.loads((SGLANG / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return loaded


def test_sglang_finds_the_plugin_under_its_name() -> None:
    points = project()["entry-points"]
    assert points == {"sglang.srt.plugins": {"dsv4_guard": "dsv4_guard:register"}}
    assert callable(dsv4_guard.register)


def test_the_image_names_the_plugin_and_builds_on_the_default_release() -> None:
    dockerfile = (SGLANG / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ENV SGLANG_PLUGINS=dsv4_guard$", dockerfile, re.MULTILINE)
    base = re.search(r"^ARG BASE_IMAGE=lmsysorg/sglang:v(\S+)$", dockerfile, re.MULTILINE)
    assert base is not None
    assert base.group(1) in releases.SUPPORTED


def test_no_method_of_a_release_is_in_two_lists() -> None:
    for release in releases.SUPPORTED.values():
        names = [*release.gated, *release.writers, *release.others]
        assert len(names) == len(set(names)), release.version


def test_untested_releases_take_the_data_of_the_nearest_older_one() -> None:
    def chosen(version: str) -> str:
        return releases.choose(version, allow_untested=True).version

    assert chosen("0.5.22") == "0.5.17"
    assert chosen("0.5.24") == "0.5.23"
    assert chosen("0.5.23.post1") == "0.5.23"
    assert chosen("0.5.12") == "0.5.17"


@pytest.mark.parametrize(
    ("environ", "argv", "index_k"),
    [
        ({}, [], "fp8"),
        ({}, ["--tp-size", "4", settings.FP4_FLAG], "fp4"),
        ({"DSV4_INDEX_K_DTYPE": "BF16 "}, [], "bf16"),
        # Said twice and differently: the variable holds here, and the pool's own format decides at the start.
        ({"DSV4_INDEX_K_DTYPE": "fp8"}, [settings.FP4_FLAG], "fp8"),
    ],
)
def test_the_format_follows_the_variable_else_the_flag(environ: dict[str, str], argv: list[str], index_k: str) -> None:
    assert settings.read(environ, argv).index_k == index_k


def test_what_the_plugin_costs_can_be_measured() -> None:
    done = subprocess.run(
        [sys.executable, str(SGLANG / "proof" / "cost.py")],
        env={**os.environ, "PYTHONPATH": str(SGLANG / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["per"] for line in done.stdout.splitlines()} >= {
        "layer and call",
        "chunk",
        "poll",
        "request",
    }
