"""The objects of a soak in the cluster: valid, of least rights, and those that manifests/soak shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_canary.soak.cli import build_parser
from dsv4_operator.desired import soak_job
from dsv4_operator.desired.soak_job import SoakJob

ROOT = Path(__file__).resolve().parents[3]
VALUES = {"endpoint": "http://deepseek-v4.default.svc", "tag": "first", "sessions": 80, "rounds": 4, "ctx": 300,
          "max_tokens": 2500, "timeout": 180.0}  # fmt: skip


def job(**changes: Any) -> SoakJob:
    values: dict[str, Any] = {"name": "dsv4-soak", "run": "", "tag": "first", "image": "dsv4/canary:dev"}
    return SoakJob(**(values | {"arguments": soak_job.arguments(VALUES)} | changes))


def test_the_manifests_are_these_objects() -> None:
    folder = ROOT / "manifests/soak"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    shown = [item for name in names for item in yaml.safe_load_all((folder / name).read_text()) if item]
    assert shown == [soak_job.results_object(job()), *soak_job.other_objects(job(), None)]


@pytest.mark.parametrize("changes", [{}, {"api_key_secret": "keys", "api_key_key": "k", "volume_claim": "disk"}])
def test_objects_are_valid(changes: dict[str, Any]) -> None:
    made = job(run="abc123", pull_secrets=("pull",), **changes)
    for item in (soak_job.results_object(made), *soak_job.other_objects(made, "uid-1")):
        kubernetes_validate.validate(item, "1.36", strict=True)


def test_the_only_right_is_to_patch_the_own_results() -> None:
    role = next(item for item in soak_job.other_objects(job(), None) if item["kind"] == "Role")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["dsv4-soak"], "verbs": ["patch"]}
    ]


def test_the_harness_takes_the_arguments() -> None:
    made = soak_job.other_objects(job(api_key_secret="keys"), None)[-1]
    container = made["spec"]["template"]["spec"]["containers"][0]
    args = build_parser().parse_args([*container["command"][3:], *container["args"]])
    assert (args.endpoint, args.sessions, args.publish) == (VALUES["endpoint"], 80, "dsv4-soak")
    assert args.api_key_env == container["env"][0]["name"]
    assert args.metrics_port == container["ports"][0]["containerPort"]


def test_every_option_of_the_harness_is_passed_on() -> None:
    parsed = vars(build_parser().parse_args(["run", "--endpoint", "http://h", "--tag", "t"]))
    of_this_machine = {"command", "api_key_env", "out", "resume", "metrics_port", "metrics_host", "publish", "quiet",
                       "output"}  # fmt: skip
    words = soak_job.arguments(dict.fromkeys(parsed, 3))
    assert {word[2:].replace("-", "_") for word in words if word.startswith("--")} == parsed.keys() - of_this_machine


@settings(max_examples=25, deadline=None)
@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_names_and_labels_of_any_tag_are_valid(tag: str) -> None:
    made = job(name=soak_job.object_name(tag, "a1b2c3"), tag=tag, run="a1b2c3")
    # The Job's pods add eleven characters.
    assert len(made.name) <= 52
    kubernetes_validate.validate(soak_job.results_object(made), "1.36", strict=True)
    for value in soak_job.labels(made).values():
        assert len(value) <= 63
        assert value[0].isalnum()
        assert value[-1].isalnum()


def test_why_it_does_not_start() -> None:
    waiting = {"name": "soak", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    assert soak_job.held_back([{"status": {"containerStatuses": [waiting]}}], None) == "ImagePullBackOff: no such image"
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    assert soak_job.held_back([{"status": {"conditions": [unplaced]}}], None) == "Unschedulable: 0/1 nodes"
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    assert soak_job.held_back([], {"status": {"conditions": [failed]}}) == "DeadlineExceeded: too long"
    assert soak_job.held_back([{"status": {}}], {}) == ""


def test_the_exit_status_of_a_pod() -> None:
    ended = {"name": "soak", "state": {"terminated": {"exitCode": 1}}}
    assert soak_job.finished({"status": {"containerStatuses": [ended]}}) == 1
    running = {"name": "soak", "state": {"running": {}}}
    assert soak_job.finished({"status": {"containerStatuses": [running]}}) is None
    assert soak_job.started({"status": {"containerStatuses": [running]}})
    assert not soak_job.started({"status": {}})
