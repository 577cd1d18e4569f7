"""Runs what needs torch and Triton where they are: in the environment of the engine's own classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).resolve().with_name("interpreted")
sys.path.insert(0, str(ROOT / "hack" / "contract"))
START = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_kernels_under_the_interpreter() -> None:
    """Values, ragged lengths, poisoned pages, permutations, store and query, against double precision."""
    import venvs

    options = ["--confcutdir", str(FOLDER), "--rootdir", str(FOLDER), "-c", os.devnull, "-p", "no:cacheprovider"]
    options += ["-q", "--import-mode=importlib", "-W", "ignore::DeprecationWarning", str(FOLDER)]
    done = subprocess.run(
        [str(venvs.make("0.5.23")), "-c", START, sysconfig.get_path("purelib"), *options],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]


def test_kernels_compile_for_every_supported_generation(tmp_path: Path) -> None:
    """SM90, SM100 and SM120: they fit the shared memory, and decode keeps key tiles in flight while it computes."""
    import venvs

    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    probe = Path(__file__).with_name("compile_probe.py")
    done = subprocess.run(
        [str(venvs.make("0.5.23")), str(probe), str(ROOT / "images" / "sglang" / "src")],
        env={**environ, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    assert {(row["kernel"], row["sm"]) for row in rows} >= {("decode_logits_kernel", sm) for sm in (90, 100, 120)}
    for row in rows:
        assert row["shared"] <= row["limit"], row
        if row["kernel"] == "decode_logits_kernel":
            assert row["left_in_flight"] >= 1, f"every step waits for all its loads: {row}"
