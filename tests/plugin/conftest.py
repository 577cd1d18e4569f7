"""Tests of the plugin against the real modules of two SGLang releases, without a GPU.

One environment (SGLang 0.5.23's, which the contract suite makes) serves both: SGLang itself is unpacked from each
release's wheel. See host.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "hack" / "contract"))
import venvs  # noqa: E402
import wheels  # noqa: E402

RELEASES = ("0.5.23", "0.5.17")
ENVIRONMENT = "0.5.23"


@dataclass
class Outcome:
    """What a case in the host came to."""

    exit: int
    value: Any
    output: str


Run = Callable[..., Outcome]


def unpacked(release: str) -> Path:
    """The wheel of a release, unpacked once into the cache."""
    target = wheels.CACHE / "sglang-source" / release
    if not (target / ".ready").exists():
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        with zipfile.ZipFile(wheels.wheel(release)) as archive:
            left_out = ("sglang/multimodal_gen/", "sglang/test/", "sglang/benchmark/")
            archive.extractall(target, [name for name in archive.namelist() if not name.startswith(left_out)])
        (target / ".ready").touch()
    return target


class Host:
    """A host process of one release; cases run in forks of it."""

    def __init__(self, release: str, log: Path) -> None:
        python = venvs.make(ENVIRONMENT)
        environ = {**os.environ, "DSV4_TEST_SITE": sysconfig.get_path("purelib")}
        for name in [name for name in environ if name.startswith(("DSV4_GUARD", "DSV4_LAB", "SGLANG_"))]:
            del environ[name]
        environ.pop("DSV4_INDEX_K_DTYPE", None)
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(python), str(Path(__file__).with_name("host.py")), str(unpacked(release))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                text=True,
            )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the host of SGLang {release} did not start: {log.read_text()[-3000:]}")

    def run(self, module: str, case: str, env: dict[str, str] | None = None, **arguments: Any) -> Outcome:
        """Run cases.module.case(**arguments) in a fork."""
        assert self.process.stdin is not None and self.process.stdout is not None
        job = {"module": module, "case": case, "arguments": arguments, "env": env or {}}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_hosts: dict[str, Host] = {}


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Host]]:
    """A host per release, started when first needed."""
    folder = tmp_path_factory.mktemp("hosts")

    def host(release: str) -> Host:
        if release not in _hosts:
            _hosts[release] = Host(release, folder / f"{release}.log")
        return _hosts[release]

    yield host
    for started in _hosts.values():
        started.stop()
    _hosts.clear()


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Every supported release."""
    return str(request.param)


@pytest.fixture
def run(hosts: Callable[[str], Host], release: str) -> Run:
    """Run a case against `release`."""
    return hosts(release).run


@pytest.fixture
def value(run: Run) -> Callable[..., Any]:
    """As `run`, for cases that must succeed: their value."""

    def succeed(module: str, case: str, env: dict[str, str] | None = None, **arguments: Any) -> Any:
        outcome = run(module, case, env, **arguments)
        assert outcome.exit == 0, outcome.output
        return outcome.value

    return succeed
