"""Container images without a registry: a local Debian base, builds of ordinary Dockerfiles on it, and loading."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import dockerfile
from localcluster.cluster import LocalCluster
from localcluster.errors import ClusterError
from localcluster.oci import load_archive
from localcluster.paths import PACKAGE_DIR, cache_dir, file_lock
from localcluster.report import say
from localcluster.teardown import unmount_below

BASE_IMAGE = "localhost/dsv4/base:1"
BASE_PACKAGES = ("ca-certificates", "python3", "python3-venv", "python-is-python3")
REPOSITORY = PACKAGE_DIR.parents[2]
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_CONFIG = Path("/etc/pip.conf")
_BASE_RECIPE = 1
"""Raise it when the way the base is made changes."""
_TIMESTAMP = os.environ.get("SOURCE_DATE_EPOCH", "1767225600")
"""Unix time of every file and layer of a build, so that equal sources give equal images (reproducible-builds.org)."""
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def _home() -> Path:
    return cache_dir("images")


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is missing: run tests/cluster/install-prerequisites.sh node") from error
    if done.returncode:
        raise ClusterError(f"{what} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def _buildah(*arguments: str, what: str) -> str:
    # A store of our own: neither the user's images nor a leftover of another tool decide a build.
    store = _home() / "storage"
    return _run(["buildah", f"--root={store}", f"--runroot={store}/run", *arguments], what)


def _release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _suite() -> str:
    release = _release()
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") not in {"debian", "ubuntu"} or not codename:
        raise ClusterError("images are built on Debian or Ubuntu only: their packages make the base")
    return codename


def base_key() -> str:
    """Content key of the local base: suite, packages, and the host's CA bundle and pip settings that it carries."""
    digest = hashlib.sha256(repr((_BASE_RECIPE, _suite(), BASE_PACKAGES, _EXCLUDED)).encode())
    for path in (_CA_BUNDLE, _PIP_CONFIG):
        digest.update(path.read_bytes() if path.is_file() else b"-")
    return digest.hexdigest()[:16]


def base() -> str:
    """Makes sure that the local base is in the build store and returns its name with the key."""
    name = f"{BASE_IMAGE.rpartition(':')[0]}:{base_key()}"
    with file_lock(_home() / "lock"):
        if not _buildah("images", "--quiet", "--filter", f"reference={name}", what="listing images").strip():
            archive = _home() / f"base-{base_key()}.tar"
            if not archive.exists():
                _bootstrap(archive)
            say("importing the local base image")
            with tempfile.TemporaryDirectory(dir=_home()) as folder:
                os.link(archive, Path(folder) / "base.tar")
                (Path(folder) / "Dockerfile").write_text('FROM scratch\nADD base.tar /\nCMD ["python3"]\n')
                _buildah("bud", "--isolation=chroot", "--tag", name, folder, what="importing the base")
        _buildah("tag", name, BASE_IMAGE, what="naming the base")
        unmount_below(_home() / "storage")
    return name


def _bootstrap(archive: Path) -> None:
    """Makes the root file system of the base with mmdebstrap."""
    suite = _suite()
    say(f"making the local base image: {suite} with {', '.join(BASE_PACKAGES)} (about half a minute)")
    hooks = []
    # What the host needs to reach its package index, in the local base alone, never in a Dockerfile.
    if _CA_BUNDLE.is_file():
        hooks.append(f"--customize-hook=upload {_CA_BUNDLE} {_CA_BUNDLE}")
    if _PIP_CONFIG.is_file():
        hooks.append(f"--customize-hook=upload {_PIP_CONFIG} {_PIP_CONFIG}")
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    components = "main,universe" if _release()["ID"] == "ubuntu" else "main"
    mirror = os.environ.get("DSV4_DEBIAN_MIRROR")
    part = archive.with_suffix(".part.tar")
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}"]
    command += [f"--components={components}", *excluded, *hooks, suite, str(part), *([mirror] if mirror else [])]
    try:
        _run(command, "mmdebstrap")
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def build(dockerfile_dir: Path, context: Path, tag: str, build_args: Mapping[str, str] | None = None) -> Path:
    """Builds `dockerfile_dir`/Dockerfile on the local base and returns a docker-archive, cached by content.

    The Dockerfile takes its base as build argument BASE_IMAGE. Only files that its COPY and ADD instructions name
    enter the context and the key; a package index that changed meanwhile does not.
    """
    recipe = dockerfile_dir / "Dockerfile"
    arguments = dict(build_args or {})
    files = dockerfile.context_files(recipe, context)
    digest = hashlib.sha256(repr((base_key(), tag, sorted(arguments.items()), _TIMESTAMP)).encode())
    digest.update(recipe.read_bytes())
    for path in files:
        digest.update(f"\0{path.relative_to(context)}\0{path.stat().st_mode & 0o111}\0".encode())
        digest.update(path.read_bytes())
    name = tag.rpartition("/")[2].replace(":", "-")
    archive = _home() / f"{name}-{digest.hexdigest()[:16]}.tar"
    if archive.exists():
        return archive
    base_name = base()
    with file_lock(_home() / "lock"):
        if archive.exists():
            return archive
        say(f"building image {tag}")
        try:
            with tempfile.TemporaryDirectory(dir=_home()) as folder:
                _copy_files(files, context, Path(folder))
                all_arguments = {"BASE_IMAGE": base_name} | arguments
                flags = [f"--build-arg={key}={value}" for key, value in all_arguments.items()]
                flags += ["--isolation=chroot", "--pull-never", "--layers=false", f"--timestamp={_TIMESTAMP}"]
                flags += ["--identity-label=false", "--tag", tag, "--file", str(recipe)]
                _buildah("bud", *flags, folder, what=f"building {tag}")
                _push(tag, archive)
                # What this tag meant before has no name any more.
                _buildah("rmi", "--prune", what="removing unnamed images")
        finally:
            unmount_below(_home() / "storage")
        for old in _home().glob(f"{name}-*.tar"):
            if old != archive:
                old.unlink(missing_ok=True)
        say(f"built image {tag}: {archive.stat().st_size / 1e6:.0f} MB")
    return archive


def _copy_files(files: list[Path], context: Path, target: Path) -> None:
    for path in files:
        copy = target / path.relative_to(context)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)


def _push(image: str, archive: Path) -> None:
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    # This format leaves layers uncompressed: quicker to write and to load, and it never leaves this machine.
    _buildah("push", "--quiet", image, f"docker-archive:{part}:{image}", what=f"saving {image}")
    part.replace(archive)


def base_archive() -> Path:
    """A docker-archive of the local base itself, named BASE_IMAGE: enough for pods that need only Python."""
    archive = _home() / f"base-archive-{base_key()}.tar"
    if not archive.exists():
        base()
        with file_lock(_home() / "lock"):
            if not archive.exists():
                _push(BASE_IMAGE, archive)
            unmount_below(_home() / "storage")
    return archive


def remove(tag: str) -> None:
    """Removes an image from the build store; archives stay until a newer build of the same tag replaces them."""
    with file_lock(_home() / "lock"):
        _buildah("rmi", tag, what=f"removing {tag}")
        unmount_below(_home() / "storage")


def load(cluster: LocalCluster, archive: Path) -> None:
    """Imports an archive into the node's containerd; does nothing when this very archive was imported before."""
    marker = cluster.dir / "images" / archive.name
    if marker.exists():
        return
    say(f"loading {archive.name} into {cluster.name}")
    load_archive(cluster, archive)
    marker.parent.mkdir(exist_ok=True)
    marker.touch()


@dataclass(frozen=True)
class ProductImage:
    """An image of this repository: images/<name>/Dockerfile, with the repository's root as its context."""

    name: str
    tag: str

    def build(self) -> Path:
        """Builds it, or finds it in the cache."""
        return build(REPOSITORY / "images" / self.name, REPOSITORY, self.tag)


PRODUCT_IMAGES = {
    image.name: image
    for image in (
        ProductImage("operator", "localhost/dsv4/operator:dev"),
        ProductImage("canary", "localhost/dsv4/canary:dev"),
        ProductImage("router", "localhost/dsv4/router:dev"),
        # The tag carries the SGLang release that the simulator imitates.
        ProductImage("engine-sim", "localhost/dsv4/engine-sim:0.5.23"),
    )
}
