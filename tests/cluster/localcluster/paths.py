"""Where things lie on disk: the build cache and the run folders, and locks between processes."""

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from localcluster.errors import ClusterError

PACKAGE_DIR = Path(__file__).resolve().parent
GO_DIR = PACKAGE_DIR.parent / "go"


def cache_dir(component: str) -> Path:
    """Folder of everything cached by content for one component; made when missing.

    `DSV4_CACHE_DIR` wins over `XDG_CACHE_HOME`, which wins over `~/.cache`.
    """
    root = os.environ.get("DSV4_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(root).expanduser().resolve() / "dsv4-operator" / component
    path.mkdir(parents=True, exist_ok=True)
    return path


def run_root() -> Path:
    """Folder above all run folders. Kept short, because unix socket paths end at 108 bytes.

    `DSV4_RUN_DIR` overrides it. It lies in a world-writable folder, so the owner and mode are checked.
    """
    path = Path(os.environ.get("DSV4_RUN_DIR") or f"/tmp/dsv4-{os.getuid()}")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ClusterError(f"{path} is not a folder of this user; remove it or set DSV4_RUN_DIR")
    if found.st_mode & 0o022:
        raise ClusterError(f"{path} is writable by other users; chmod 700 it or set DSV4_RUN_DIR")
    return path


def lock_path(name: str) -> Path:
    """Lock file of a cluster, or of a decision that all clusters share (`plan`). The dot tells it from a run folder."""
    return run_root() / f".{name}.lock"


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes; the kernel releases it when the holder dies.

    The holder may unlink the file: who waited for the old file notices, and locks the new one instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_file_at(handle.fileno(), path):
                yield
                return


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a text file so that a reader sees the old or the new content, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text)
    part.chmod(mode)
    part.replace(path)


def rename_into_place(part: Path, final: Path) -> None:
    """Makes a finished folder visible under its final name; a half-built one is never seen there."""
    if final.exists():
        shutil.rmtree(part)
        return
    part.rename(final)
