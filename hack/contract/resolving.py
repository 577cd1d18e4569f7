"""Let the real ServerArgs of a release resolve jobs, one process per release and GPU generation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from venvs import make

DRIVER = Path(__file__).with_name("resolve_driver.py")
MODEL = Path(__file__).resolve().parents[2] / "tests" / "contract" / "model"
"""A tiny DeepSeek-V4 configuration; there are no weights."""
TIMEOUT = 900
"""Seconds for one process; a matrix takes well under a minute on a free machine."""


def _run(release: str, architecture: str, arguments: list[str], text: str) -> str:
    command = [str(make(release)), str(DRIVER), architecture, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RuntimeError(f"the driver of {release} as {architecture} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout


def resolve(release: str, architecture: str, jobs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Results by job id; RuntimeError when the driver breaks or answers for fewer jobs than it was given."""
    lines = _run(release, architecture, [], "".join(json.dumps(job) + "\n" for job in jobs)).splitlines()
    found = {result["id"]: result for result in map(json.loads, lines)}
    missing = [job["id"] for job in jobs if found.get(job["id"], {}).get("outcome", "broken") == "broken"]
    if missing:
        raise RuntimeError(f"no result for {missing[:3]}: {[found.get(name) for name in missing[:3]]}")
    return found


def real_parser(release: str) -> dict[str, dict[str, Any]]:
    """Every flag of the real argparse parser of the release."""
    table: dict[str, dict[str, Any]] = json.loads(_run(release, "SM100", ["--parser"], ""))
    return table
