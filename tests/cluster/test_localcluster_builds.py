"""Programs and images are built once per content, also when two processes ask at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster import ClusterError, builds, dockerfile, images, tools

pytestmark = pytest.mark.cluster

_FOLDER = images.REPOSITORY / "tests" / "cluster"


def _start_build(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "DSV4_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "localcluster", "build", "pause"]
    return subprocess.Popen(
        command, cwd=_FOLDER, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_two_processes_build_the_same_program_once(tmp_path: Path) -> None:
    both = [_start_build(tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("built pause" in progress for _, progress in outputs) == 1
    assert len({path for path, _ in outputs}) == 1
    built = Path(outputs[0][0].strip())
    assert [entry.name for entry in built.iterdir()] == ["pause"]
    assert sorted(entry.name for entry in built.parent.iterdir()) == sorted([built.name, "lock"])


def test_a_failed_build_leaves_no_half_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(builds, "GO_DIR", tmp_path)
    (tmp_path / "pause").mkdir()
    (tmp_path / "pause" / "go.mod").write_text("module example.com/broken\n\ngo 1.26.0\n")
    (tmp_path / "pause" / "main.go").write_text("package main\n\nfunc main() { undefinedFunction() }\n")
    with pytest.raises(ClusterError, match="undefined: undefinedFunction"):
        builds.build("pause")
    assert [entry.name for entry in (tmp_path / "cache" / "dsv4-operator" / "pause").iterdir()] == ["lock"]


def test_the_key_follows_sources_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "GO_DIR", tmp_path)
    (tmp_path / "pause").mkdir()
    (tmp_path / "pause" / "go.mod").write_text("module m\n")
    source = tmp_path / "pause" / "main.go"
    source.write_text("package main\n")
    component = builds.COMPONENTS["pause"]
    first = builds.build_key(component)
    assert builds.build_key(component) == first
    source.write_text("package main // changed\n")
    second = builds.build_key(component)
    other_flags = builds.Component("pause", (builds.Program("pause", ".", tags="x"),))
    assert len({first, second, builds.build_key(other_flags)}) == 3


def test_helm_and_kubectl_are_the_pinned_versions() -> None:
    def output(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert f"v{tools.HELM_VERSION}" in output(str(tools.helm()), "version", "--short")
    assert f"v{tools.KUBECTL_VERSION}" in output(str(tools.kubectl()), "version", "--client")


def test_only_what_a_dockerfile_copies_enters_the_build(tmp_path: Path) -> None:
    for name in ("a/one.py", "a/__pycache__/one.pyc", "a/b/two.py", "c.txt", "d d.txt", "unused.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    recipe = tmp_path / "Dockerfile"
    recipe.write_text(
        "FROM x AS build\n# COPY unused.txt /\nCOPY --chown=1:1 a/ \\\n  c.t?t /app/\n"
        'COPY ["d d.txt", "/app/"]\nCOPY --from=build /app /app\nRUN echo COPY unused.txt\n'
    )
    assert dockerfile.copied_sources(recipe.read_text()) == ["a/", "c.t?t", "d d.txt"]
    found = [str(path.relative_to(tmp_path)) for path in dockerfile.context_files(recipe, tmp_path)]
    assert found == ["a/b/two.py", "a/one.py", "c.txt", "d d.txt"]
    recipe.write_text("FROM x\nCOPY missing /\n")
    with pytest.raises(ClusterError, match="missing"):
        dockerfile.context_files(recipe, tmp_path)
