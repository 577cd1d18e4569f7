"""Go programs of the cluster, built from pinned modules and cached by the content of everything that decides them."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.paths import GO_DIR, cache_dir, file_lock, rename_into_place
from localcluster.report import say

KUBERNETES_VERSION = "v1.36.3"
COREDNS_VERSION = "v1.15.0"
KWOK_VERSION = "v0.8.0"
PROGRESS_SECONDS = 5.0
KEPT_BUILDS = 3


def _kubernetes_ldflags() -> str:
    major, minor, _ = KUBERNETES_VERSION.lstrip("v").split(".")
    values = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        flags += [f"-X {package}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)


@dataclass(frozen=True)
class Program:
    """One `go build` call: a package of a module below tests/cluster/go and how to compile it."""

    binary: str
    package: str
    tags: str = ""
    ldflags: str = "-s -w"
    cgo: bool = False


@dataclass(frozen=True)
class Component:
    """Programs of one Go module that are built, cached and used together."""

    name: str
    programs: tuple[Program, ...]
    extra_folders: dict[str, str] = field(default_factory=dict)
    """Folders copied out of a dependency: name in the cache -> `module:path` in the module's source."""

    @property
    def module_dir(self) -> Path:
        return GO_DIR / self.name


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CONTAINERD_TAGS = "no_btrfs no_devmapper no_zfs no_aufs"

COMPONENTS = {
    component.name: component
    for component in (
        Component("plane", (Program("plane", ".", ldflags=_kubernetes_ldflags()),)),
        Component(
            "node",
            (
                Program("containerd", f"{_CONTAINERD}/containerd", tags=_CONTAINERD_TAGS),
                Program("containerd-shim-runc-v2", f"{_CONTAINERD}/containerd-shim-runc-v2", tags=_CONTAINERD_TAGS),
                Program("ctr", f"{_CONTAINERD}/ctr", tags=_CONTAINERD_TAGS),
                # Without the seccomp tag every pod with seccompProfile RuntimeDefault fails to start.
                Program("runc", "github.com/opencontainers/runc", tags="seccomp", cgo=True),
            ),
        ),
        Component("coredns", (Program("coredns", "."),)),
        Component(
            "kwok",
            (Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),),
            extra_folders={"stages": "sigs.k8s.io/kwok:kustomize/stage"},
        ),
        Component("pause", (Program("pause", "."),)),
    )
}


def _go() -> str:
    found = shutil.which("go")
    if not found:
        raise ClusterError("the Go toolchain is missing: install Go 1.26 or newer and put `go` on PATH")
    return found


@functools.cache
def _go_version() -> str:
    # GOFLAGS and friends of the user do not enter: only what decides the bytes of a static build does.
    return subprocess.run([_go(), "env", "GOVERSION", "GOARCH"], capture_output=True, text=True, check=True).stdout


def build_key(component: Component) -> str:
    """Content key: module files, Go sources, Go version and flags; the same key means the same programs."""
    digest = hashlib.sha256()
    digest.update(_go_version().encode())
    digest.update(repr((component.programs, sorted(component.extra_folders.items()))).encode())
    sources = sorted(p for p in component.module_dir.rglob("*") if p.suffix in {".go", ".mod", ".sum"})
    if not sources:
        raise ClusterError(f"no Go module in {component.module_dir}")
    for path in sources:
        digest.update(f"\0{path.relative_to(component.module_dir)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(name: str) -> Path:
    """Folder of the built programs of one component; builds when the cache has none. Safe between processes."""
    component = COMPONENTS[name]
    home = cache_dir(name)
    final = home / build_key(component)
    if final.exists():
        return final
    with file_lock(home / "lock"):
        if final.exists():
            return final
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=home))
        try:
            for program in component.programs:
                _compile(component, program, part)
            for folder, source in component.extra_folders.items():
                module, _, below = source.partition(":")
                shutil.copytree(_module_dir(component, module) / below, part / folder)
            rename_into_place(part, final)
            _prune(home)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return final


def _prune(home: Path) -> None:
    """Keeps the newest few builds of a component: a running cluster may still restart programs of an older one."""
    builds = sorted((entry for entry in home.iterdir() if entry.is_dir()), key=lambda entry: entry.stat().st_mtime)
    for old in builds[:-KEPT_BUILDS]:
        shutil.rmtree(old, ignore_errors=True)


def binary(component: str, program: str) -> Path:
    """Path of one built program."""
    return build(component) / program


def _module_dir(component: Component, module: str) -> Path:
    done = subprocess.run(
        [_go(), "list", "-m", "-f", "{{.Dir}}", module],
        cwd=component.module_dir,
        env=_environment(cgo=False),
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


def _environment(cgo: bool) -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "1" if cgo else "0", "GOFLAGS": "-buildvcs=false -mod=readonly"}


def _flags(program: Program) -> list[str]:
    return ["-trimpath", "-tags", program.tags, "-ldflags", program.ldflags]


def _compile(component: Component, program: Program, out: Path) -> None:
    if program.cgo:
        _check_seccomp_headers()
    environment = _environment(program.cgo)
    say(f"building {program.binary}: downloading modules")
    listed = subprocess.run(
        [_go(), "list", "-deps", "-tags", program.tags, program.package],
        cwd=component.module_dir,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        raise ClusterError(f"cannot resolve the packages of {program.binary}:\n{listed.stderr[-2000:]}")
    total = len(listed.stdout.splitlines())
    command = [_go(), "build", "-v", *_flags(program), "-o", str(out / program.binary), program.package]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=component.module_dir, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    progress = _Progress(program.binary, total, started)
    ticker = threading.Thread(target=progress.run, daemon=True)
    ticker.start()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            progress.line(line)
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        progress.stop()
        ticker.join()
    if process.returncode:
        raise ClusterError(f"go build of {program.binary} failed:\n" + "\n".join(progress.errors[-30:]))
    size = (out / program.binary).stat().st_size / 1e6
    say(f"built {program.binary}: {time.monotonic() - started:.0f} s, {size:.0f} MB")


_PACKAGE_LINE = re.compile(r"^[\w.~/+-]+$")


class _Progress:
    """Counts the package names that `go build -v` prints and says every few seconds how far it is."""

    def __init__(self, name: str, total: int, started: float) -> None:
        self._name = name
        self._total = total
        self._started = started
        self._compiled = 0
        self._stopped = threading.Event()
        self.errors: list[str] = []

    def line(self, line: str) -> None:
        text = line.rstrip()
        if _PACKAGE_LINE.match(text):
            self._compiled += 1
        elif text:
            self.errors.append(text)

    def run(self) -> None:
        while not self._stopped.wait(PROGRESS_SECONDS):
            elapsed = time.monotonic() - self._started
            say(f"building {self._name}: {elapsed:.0f} s, {self._compiled} of at most {self._total} packages compiled")

    def stop(self) -> None:
        self._stopped.set()


def _check_seccomp_headers() -> None:
    pkg_config = shutil.which("pkg-config")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler or not pkg_config or subprocess.run([pkg_config, "--exists", "libseccomp"], check=False).returncode:
        raise ClusterError(
            "building runc needs a C compiler, pkg-config and libseccomp-dev: run install-prerequisites.sh node"
        )
