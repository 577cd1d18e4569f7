"""`dsv4ctl bisect` on the real node, from the command line to the exit status: arm, soak Job, results, teardown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_operator.desired.soak_job import NAME
from localcluster import tools
from operator_process import IMAGES, ROOT, OperatorProcess
from world import World, deployment

pytestmark = pytest.mark.node


@pytest.fixture
def operator(serving_world: World, start_operator: Callable[..., OperatorProcess]) -> OperatorProcess:
    """An operator that looks after the test's namespace alone."""
    return start_operator(serving_world.cluster, "--no-lease", f"--namespaces={serving_world.namespace}")


def test_a_sound_setting_is_clean_and_nothing_is_left(
    serving_world: World, operator: OperatorProcess, tmp_path: Path
) -> None:
    given = deployment("pair", hiCache={"enabled": True}, prefill={"memory": "2Gi"})
    file = tmp_path / "pair.json"
    file.write_text(json.dumps(given))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dsv4_operator.cli.main", "bisect", "-f", str(file), "--factor", "hicache"]
    command += ["-n", serving_world.namespace, "--kubeconfig", str(serving_world.cluster.kubeconfig)]
    command += ["--canary-image", IMAGES["canary"], "--engine-image", IMAGES["engine"], "--out", str(out)]
    command += ["--sessions", "4", "--rounds", "2", "--batches", "1", "--shared-ctx", "400", "--ctx", "40"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "KUBECTL": str(tools.kubectl())}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Clean at 4 sessions; could have seen 52.7 % with 95 % probability.")
    assert "soak given-1: 4 sessions x 2 rounds against http://pair-bs-given" in done.stderr  # the Job's own log
    report = json.loads((out / "given-1.json").read_text())
    assert report["phases"]["load"]["verdicts"]["clean"] == 8
    assert report["settings"]["model"] == "deepseek-v4"
    api = serving_world.cluster.api
    assert api.get_or_none(serving_world.path("pair-bs-given")) is None
    for path in ("/apis/batch/v1/namespaces/{}/jobs", "/api/v1/namespaces/{}/pods", "/api/v1/namespaces/{}/configmaps"):
        listing = path.format(serving_world.namespace) + f"?labelSelector=app.kubernetes.io/name={NAME}"
        serving_world.wait(f"nothing at {listing}", lambda listing=listing: not api.get(listing)["items"], 60)
