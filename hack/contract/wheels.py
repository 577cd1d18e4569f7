"""SGLang's wheels: the cache, and how a wheel gets there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "dsv4-operator"
WHEELS = CACHE / "wheels"
ROOT = Path(__file__).resolve().parents[2]
ROOT_DATA = ROOT / "operator" / "dsv4_operator" / "engine" / "data"


def cached(release: str) -> Path | None:
    """The wheel of `release` in the cache, or None."""
    return next(iter(sorted(WHEELS.glob(f"sglang-{release}-*.whl"))), None)


def wheel(release: str) -> Path:
    """The wheel of `release`, downloaded once; raises RuntimeError with pip's last words when it cannot be had."""
    found = cached(release)
    if found is not None:
        return found
    WHEELS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "-d", str(WHEELS), f"sglang=={release}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = cached(release)
    if done.returncode or found is None:
        raise RuntimeError(f"the wheel of sglang {release} cannot be downloaded: {done.stderr.strip()[-400:]}")
    return found
