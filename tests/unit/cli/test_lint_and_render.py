"""lint and render: every sample, exit codes, what goes to which stream."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.cli import judge
from dsv4_operator.policy import RULES

Ctl = Callable[..., Any]
Write = Callable[..., Path]

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))
KEYS = {"rule", "action", "path", "message", "source"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_fine(ctl: Ctl, path: Path) -> None:
    done = ctl("lint", "-f", path, "--assume-images", "-o", "json")
    assert (done.code, done.rules(), done.err) == (0, set(), "")
    assert all(set(finding) == KEYS for finding in done.json["findings"])
    done = ctl("lint", "-f", path)
    assert done.code == 1
    assert "image-unset" in done.out
    assert "--assume-images" in done.out


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_render(ctl: Ctl, path: Path) -> None:
    done = ctl("render", "-f", path, "--assume-images", "-o", "json")
    assert done.code == 0
    assert (done.json["apiVersion"], done.json["kind"]) == ("v1", "List")
    items = done.json["items"]
    assert {"Service", "ConfigMap", "Secret", "NetworkPolicy", "PodDisruptionBudget"} <= {i["kind"] for i in items}
    for item in items:
        labels = item["metadata"]["labels"]
        assert labels["serving.dsv4.dev/deployment"] == parse_deployment(yaml.safe_load(path.read_text())).metadata.name
        assert "ownerReferences" not in item["metadata"]
    roles = {item["metadata"]["labels"].get("serving.dsv4.dev/role") for item in items}
    assert {"prefill", "decode", "router"} <= roles
    as_yaml = ctl("render", "-f", path, "--assume-images")
    assert list(yaml.safe_load_all(as_yaml.out)) == items


def test_a_sample_with_a_second_object_is_not_read(ctl: Ctl, tmp_path: Path) -> None:
    folder, path = ROOT / "manifests/samples", tmp_path / "both.yaml"
    parts = (folder / "autoscaled.yaml", folder / "autoscaler/hpa.yaml")
    path.write_text("---\n".join(part.read_text() for part in parts))
    assert ctl("lint", "-f", path).code == 2


def test_images_come_from_options_and_environment(ctl: Ctl, spec: Any, write: Write, monkeypatch: Any) -> None:
    for part in ("engine", "canary", "router"):
        del spec[part]
    path = write(spec)
    assert ctl("lint", "-f", path, "-o", "json").rules() >= {"image-unset"}
    monkeypatch.setenv("DSV4CTL_CANARY_IMAGE", "registry.example.com/canary:2")
    options = (
        "--engine-image",
        "registry.example.com/sglang:0.5.23",
        "--router-image",
        "registry.example.com/router:2",
    )
    assert ctl("lint", "-f", path, *options).code == 0
    done = ctl("render", "-f", path, *options, "-o", "json")
    text = json.dumps(done.json)
    for image in ("canary:2", "sglang:0.5.23", "router:2"):
        assert f"registry.example.com/{image}" in text


def test_a_refused_spec_says_all_and_renders_with_force_alone(ctl: Ctl, spec: Any, write: Write) -> None:
    spec["rollout"] = {"soak": {}}
    spec["engine"]["extraArgs"] = ["--mem-fraction-static", "0.9"]
    spec["engine"]["image"] = "registry.example.com/sglang-dsv4:0.5.23"
    path = write(spec)
    done = ctl("lint", "-f", path, "-o", "json")
    assert done.code == 1
    assert {"not-built", "owned-flag"} <= done.rules()
    text = ctl("lint", "-f", path)
    assert text.code == 1
    for rule in ("not-built", "owned-flag"):
        assert f"Refuse {rule}" in text.out
    done = ctl("render", "-f", path, "-o", "json")
    assert (done.code, done.json["items"]) == (1, [])
    assert "Refuse owned-flag" in done.err
    assert ctl("render", "-f", path).out == ""
    forced = ctl("render", "-f", path, "--force", "-o", "json")
    assert forced.code == 1
    assert len(forced.json["items"]) > 10
    assert "Refuse owned-flag" in forced.err


def test_a_spec_that_the_schema_refuses(ctl: Ctl, spec: Any, write: Write) -> None:
    spec["hiCache"] = {"layout": "PageFirstDirect"}
    spec["indexK"] = {"dtype": "FP5"}
    spec["decoder"] = {}
    done = ctl("lint", "-f", write(spec), "-o", "json")
    assert done.code == 1
    assert {f["path"] for f in done.json["findings"]} >= {"spec.indexK.dtype", "spec.decoder"}
    rules = {finding["path"]: finding["rule"] for finding in done.json["findings"]}
    assert rules["spec.indexK.dtype"] == "schema"
    assert rules["spec.hiCache.layout"] == "hicache-layout"
    rendered = ctl("render", "-f", write(spec), "--force", "-o", "json")
    assert (rendered.code, rendered.json["items"]) == (1, [])
    assert "--force cannot" in rendered.err


def test_several_files_are_all_judged(ctl: Ctl, spec: Any, write: Write, tmp_path: Path) -> None:
    good = write(spec, "good")
    bad = write(spec | {"rollout": {"soak": {}}}, "bad")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    assert ctl("lint", "-f", good, "-f", bad).code == 1
    assert ctl("lint", "-f", good, bad).code == 1
    done = ctl("lint", "-f", good, "-f", broken, "-f", bad, "-o", "json")
    assert done.code == 2
    found = [(Path(f["file"]).name, f["rule"]) for f in done.json["findings"] if f["action"] == "Refuse"]
    assert ("broken.yaml", "unreadable") in found
    assert ("bad.yaml", "not-built") in found


def test_stdin_and_json(ctl: Ctl, spec: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    body = yaml.safe_load(write(spec).read_text())

    class Stdin:
        buffer = io.BytesIO(json.dumps(body, indent="\t").encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    done = ctl("lint", "-f", "-")
    assert done.code == 0
    assert "stdin: fine" in done.out


def test_uid_makes_owner_references(ctl: Ctl, spec: Any, write: Write) -> None:
    path = write(spec)
    body = yaml.safe_load(path.read_text())
    body["metadata"]["uid"] = "4b1ba4a4-0000-4000-8000-000000000001"
    path.write_text(yaml.safe_dump(body))
    for item in ctl("render", "-f", path, "-o", "json").json["items"]:
        assert item["metadata"]["ownerReferences"][0]["uid"] == body["metadata"]["uid"]


def test_no_secret_is_rendered(ctl: Ctl, spec: Any, write: Write) -> None:
    items = ctl("render", "-f", write(spec), "-o", "json").json["items"]
    (secret,) = [item for item in items if item["kind"] == "Secret"]
    assert not {"data", "stringData"} & secret.keys()


def test_texts_that_kubernetes_would_misread_are_quoted(ctl: Ctl, spec: Any, write: Write) -> None:
    spec["engine"]["env"] = [{"name": "A", "value": "1e3"}, {"name": "B", "value": "y"}, {"name": "C", "value": "0x1"}]
    out = ctl("render", "-f", write(spec)).out
    for text in ("'1e3'", "'y'", "'0x1'"):
        assert f"value: {text}" in out


# -- explain


def test_explain_knows_every_rule(ctl: Ctl) -> None:
    listed = {entry["rule"] for entry in ctl("explain", "-o", "json").json["rules"]}
    assert {rule.id for rule in RULES} | {rule.name for rule in judge.schema_rules()} <= listed
    for name in sorted(listed):
        done = ctl("explain", name)
        assert done.code == 0
        assert done.out.startswith(f"{name}: ")
    assert ctl("explain").out.count("\n") == len(listed)


def test_explain_of_an_unknown_rule(ctl: Ctl) -> None:
    done = ctl("explain", "hicache-layot")
    assert (done.code, done.out) == (2, "")
    assert done.err == "dsv4ctl: hicache-layot: no rule of this operator; did you mean hicache-layout?\n"
    done = ctl("explain", "hicache-layot", "-o", "json")
    assert done.json["rules"] == []
