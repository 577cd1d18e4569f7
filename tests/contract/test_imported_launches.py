"""What `dsv4ctl import` makes of public launch configurations, before the real argument parser and resolution."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from resolving import MODEL, resolve

from dsv4_operator.engine.releases import DEFAULT_RELEASE, OLDEST_RECOMMENDED, Release

ROOT = Path(__file__).resolve().parents[2]


def _table() -> Any:
    loader = importlib.util.spec_from_file_location("import_table", ROOT / "hack/import_table.py")
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules["import_table"] = module
    loader.loader.exec_module(module)
    return module


@pytest.mark.sglang
@pytest.mark.parametrize("release", [DEFAULT_RELEASE, OLDEST_RECOMMENDED], ids=str)
def test_the_real_server_args_accept_what_was_imported(release: Release) -> None:
    table = _table()
    jobs = []
    for launch in json.loads(table.LAUNCHES.read_text()):
        for role, argv in table.outcome(launch, release).commands.items():
            words = [
                word.replace("$(LWS_WORKER_INDEX)", "0").replace("$(LWS_LEADER_ADDRESS)", "127.0.0.1")
                for word in argv[3:]
            ]
            words[words.index("--model-path") + 1] = str(MODEL)
            jobs.append({"id": f"{launch['id']}|{role.value}", "argv": words, "env": {}})
    assert len(jobs) >= 28
    found = resolve(str(release), "SM100", jobs)
    refused = {name: result["error"] for name, result in found.items() if result["outcome"] != "accepted"}
    # L08 speculates with DSPARK, whose resolution imports modules that need more than the wheel itself.
    assert {name: error for name, error in refused.items() if "ModuleNotFoundError" not in error} == {}
