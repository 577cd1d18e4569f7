"""Which files of a build context a Dockerfile uses: they decide the image's key, and the build sees no others."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from localcluster.errors import ClusterError

_IGNORED_FOLDERS = frozenset(
    {"__pycache__", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".venv", "node_modules", "build", "dist"}
)
_IGNORED_SUFFIXES = frozenset({".pyc", ".pyo"})


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    pending = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        pending += stripped.removesuffix("\\") + " "
        if not stripped.endswith("\\"):
            word, _, rest = pending.strip().partition(" ")
            yield word.upper(), rest.strip()
            pending = ""


def copied_sources(text: str) -> list[str]:
    """Sources of all COPY and ADD instructions that read the context, as written."""
    found: list[str] = []
    for word, rest in _instructions(text):
        if word not in {"COPY", "ADD"}:
            continue
        tokens = shlex.split(rest) if "[" not in rest else rest.split(" ", rest[: rest.index("[")].count(" "))
        options = [token for token in tokens if token.startswith("--")]
        if any(option.startswith("--from=") for option in options):
            continue
        values = tokens[len(options) :]
        if values and values[0].startswith("["):
            values = json.loads(" ".join(values))
        found += values[:-1]
    return found


def context_files(dockerfile: Path, context: Path) -> list[Path]:
    """Files below `context` that the Dockerfile copies, sorted. Raises ClusterError for a source without any file."""
    found: set[Path] = set()
    for source in copied_sources(dockerfile.read_text()):
        relative = source.strip("/")
        matches = [context] if relative in {".", ""} else sorted(context.glob(relative.removeprefix("./")))
        if not matches:
            raise ClusterError(f"{dockerfile}: nothing in {context} matches {source}")
        for match in matches:
            found.update(_files(match))
    return sorted(found)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for entry in sorted(path.iterdir()):
        if entry.is_dir():
            if entry.name not in _IGNORED_FOLDERS and not entry.name.endswith(".egg-info"):
                yield from _files(entry)
        elif entry.suffix not in _IGNORED_SUFFIXES:
            yield entry
