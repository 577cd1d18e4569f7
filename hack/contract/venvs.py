"""One Python environment per SGLang release in which its real ServerArgs resolves, without GPU and without kernels.

Made in the cache (about 5 GB each, nearly all of it torch's CUDA libraries, without which torch does not import),
apart from the project's own environment. Versions come from the wheel's own metadata; kernel packages are left out
and stood in for by the driver, because the resolution only asks whether they are there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

from wheels import CACHE, wheel

from dsv4_operator.engine.releases import DEFAULT_RELEASE, OLDEST_RECOMMENDED

VENVS = CACHE / "sglang-venv"
NEEDED = frozenset(
    {
        "aiohttp",
        "compressed-tensors",
        "einops",
        "fastapi",
        "gguf",
        "interegular",
        "ipython",
        "msgspec",
        "numpy",
        "nvidia-ml-py",
        "openai",
        "orjson",
        "packaging",
        "partial-json-parser",
        "pillow",
        "prometheus-client",
        "psutil",
        "pybase64",
        "pydantic",
        "python-dateutil",
        "python-multipart",
        "pyzmq",
        "regex",
        "requests",
        "sentencepiece",
        "setproctitle",
        "tiktoken",
        "tokenizers",
        "torch",
        "torchvision",
        "tqdm",
        "transformers",
        "uvicorn",
        "uvloop",
        "xxhash",
        "zstandard",
    }
)
"""What the import of sglang.srt.server_args and the resolution for V4 need of SGLang's requirements."""
BROUGHT = ("dill",)
"""What a left-out requirement (datasets) would have brought along."""
FREE_GIB = 12
"""Room that making one environment may take, with what is downloaded for it."""


def requirements(path: Path) -> list[str]:
    """The lines of the wheel's metadata that NEEDED names, with their versions."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    found = []
    for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE):
        requirement, _, marker = line.partition(";")
        project = re.split(r"[\[<>=!~ (]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")
        if project in NEEDED and "extra" not in marker and "aarch64" not in marker:
            found.append(requirement.strip())
    return sorted(found)


def _uv() -> list[str] | None:
    """uv, several times quicker than pip, where it is installed."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None and importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    return [found] if found else None


def python_of(release: str) -> Path:
    """The environment's interpreter, whether or not it exists."""
    return VENVS / release / "bin" / "python"


def _stamp(release: str) -> str:
    return hashlib.sha256("\n".join([*requirements(wheel(release)), *BROUGHT]).encode()).hexdigest()


def ready(release: str) -> bool:
    """Whether the environment is complete and made from this list."""
    stamp = VENVS / release / ".ready"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _stamp(release)


def obstacle(release: str) -> str | None:
    """Why the environment cannot be made here, or None."""
    VENVS.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(VENVS).free >> 30
    return f"{free} GiB are free in {VENVS}, {FREE_GIB} are needed for SGLang {release}" if free < FREE_GIB else None


_MAKING = threading.Lock()


def make(release: str) -> Path:
    """As `_make`, one at a time."""
    with _MAKING:
        return _make(release)


def _make(release: str) -> Path:
    """The interpreter of the environment, made where needed; RuntimeError when it cannot be made."""
    if ready(release):
        return python_of(release)
    why = obstacle(release)
    if why is not None:
        raise RuntimeError(why)
    target = VENVS / release
    shutil.rmtree(target, ignore_errors=True)
    _run([sys.executable, "-m", "venv", *(["--without-pip"] if _uv() else []), str(target)])
    install = [*_uv(), "pip", "install", "-q", "--python", str(python_of(release))] if _uv() else None  # type: ignore[misc]
    install = install or [str(python_of(release)), "-m", "pip", "install", "-q"]
    _run([*install, *requirements(wheel(release)), *BROUGHT])
    _run([*install, "--no-deps", str(wheel(release))])
    (target / ".ready").write_text(_stamp(release), encoding="utf-8")
    return python_of(release)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-600:]}")


def _main(releases: list[str]) -> None:
    """Make the environments of the releases, by default those that the tests resolve with."""
    if not releases:
        releases = [str(DEFAULT_RELEASE), str(OLDEST_RECOMMENDED)]
    for release in releases:
        if not ready(release):
            print(f"engines: installing what resolves arguments as SGLang {release} does, about 5 GB", flush=True)
        print(make(release), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
