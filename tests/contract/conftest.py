"""Where the tools of the contract tests are, and one run of the real resolution per release and GPU generation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack" / "contract"))

from matrix import job, spec_of, specs
from refusals import RESOLVED, REWRITTEN
from resolving import MODEL, resolve

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.engine.releases import Release

Results = dict[str, dict[str, Any]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sglang: runs the real ServerArgs, in an environment of its own")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """DSV4_CONTRACT=parse leaves out what needs SGLang's own environment (5 GB a release); said in the summary."""
    if os.environ.get("DSV4_CONTRACT", "all") == "all":
        return
    reason = "DSV4_CONTRACT is set: the real ServerArgs was not run (make contract does)"
    for item in items:
        if item.get_closest_marker("sglang"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def resolved(request: pytest.FixtureRequest) -> Iterator[Callable[[str, str], Results]]:
    """Results of every job for (release, architecture): matrix, refusals and rewrites in one process.

    Two processes at a time work ahead of the tests that were selected.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        pending: dict[tuple[str, str], Future[Results]] = {}

        def submit(release: str, architecture: str) -> Future[Results]:
            key = (release, architecture)
            if key not in pending:
                pending[key] = pool.submit(resolve, release, architecture, jobs(release, architecture))
            return pending[key]

        for item in request.session.items:
            params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
            if "resolved" in getattr(item, "fixturenames", ()) and "release" in params:
                architecture = params.get("architecture", getattr(params.get("case"), "architecture", "SM100"))
                submit(params["release"], architecture)
        yield lambda release, architecture: submit(release, architecture).result()


def jobs(release: str, architecture: str) -> list[dict[str, Any]]:
    known = Release.parse(release)
    model = str(MODEL)
    found = []
    if architecture != "SM90":
        for name, patch in specs().items():
            found += [job(f"spec|{name}", spec_of(patch), known, Role(role), model) for role in ENGINE_ROLES]
    for case in RESOLVED:
        if case.architecture == architecture and known in case.releases:
            base = job(f"refused|{case.name}", spec_of(case.patch), known, case.role, model)
            found.append(base | {"argv": [*base["argv"], *case.add], "env": base["env"] | dict(case.env)})
    if architecture == "SM100":
        for change in REWRITTEN:
            base = job(f"rewritten|{change.name}", spec_of(change.patch), known, change.role, model)
            found.append(base | {"argv": [*base["argv"], *change.add]})
    return found
