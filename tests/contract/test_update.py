"""Adding a release: what changed is told, the data is written, and what is wrong stops with one line."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import history
import pytest
import update
import wheel_env
import wheel_flags
import wheels

from dsv4_operator.engine.releases import DEFAULT_RELEASE

NEXT = "0.5.24"
READ = ("sglang/srt/arg_groups/", "sglang/srt/server_args.py", "sglang/srt/environ.py", "sglang/srt/function_call/",
        "sglang/srt/parser/", "sglang/srt/model_executor/cuda_graph_config.py", "sglang/srt/utils/common.py",
        "sglang/srt/lora/utils.py", "sglang/kernels/ops/kv_canary/consts.py", "sglang/srt/utils/network.py",
        "sglang/srt/disaggregation/")  # fmt: skip


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release that nobody made: the newest one with a flag gone, one new, a default and a variable changed."""
    source = wheels.wheel(str(DEFAULT_RELEASE))
    monkeypatch.setattr(wheels, "WHEELS", tmp_path)
    monkeypatch.setattr(history, "ROOT_DATA", tmp_path)
    shutil.copy(wheels.ROOT / "operator/dsv4_operator/engine/data/flags.json", tmp_path)
    shutil.copy(wheels.ROOT / "operator/dsv4_operator/engine/data/env.json", tmp_path)
    made = tmp_path / f"sglang-{NEXT}-py3-none-any.whl"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            if name.startswith(READ) and name.endswith(".py"):
                text = old.read(name).decode()
                text = text.replace("hicache_io_backend: A[", "hicache_io_engine: A[")
                text = text.replace(
                    "SGLANG_ENABLE_PREFILL_WAR_READ_DONE = EnvBool(True)",
                    "SGLANG_ENABLE_PREFILL_WAR_READ_DONE = EnvBool(False)",
                )
                text = text.replace("SGLANG_DISAGGREGATION_NIXL_BACKEND = ", "SGLANG_NIXL_PLUGIN = ")
                new.writestr(name, text)
    return tmp_path


def test_a_new_release_is_read_reported_and_written(next_release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update.main([NEXT, "--report"]) == 3
    assert update.main([NEXT]) == 0
    said = capsys.readouterr().out
    for line in (
        "! gone     --hicache-io-backend",
        "  new      --hicache-io-engine (str, default 'kernel')",
        "! default  SGLANG_ENABLE_PREFILL_WAR_READ_DONE: True -> False",
        "! gone     SGLANG_DISAGGREGATION_NIXL_BACKEND",
    ):
        assert line in said, said
    written = json.loads((next_release / "flags.json").read_text())
    assert written["releases"][-1] == NEXT
    assert written["names"]["--hicache-io-backend"][NEXT] is None
    assert update.main([NEXT, "--report"]) == 0, "nothing left to say"


def test_nothing_changed_where_nothing_changed() -> None:
    known = history.load("flags")[str(DEFAULT_RELEASE)]
    assert update.differences(known, known) == []


def test_two_spellings_that_swap_places_are_no_change() -> None:
    old = {"--dp-size": {"kind": "int", "aliases": ["--data-parallel-size"]}}
    new = {"--data-parallel-size": {"kind": "int", "aliases": ["--dp-size"]}}
    assert update.differences(old, new) == []


@pytest.mark.parametrize("arguments", [["0.5.x"], ["latest"], ["v0.5.24"]])
def test_text_that_is_no_release(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert update.main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_release_at_all() -> None:
    with pytest.raises(SystemExit) as stopped:
        update.main([])
    assert stopped.value.code == 2


def test_what_is_not_understood_is_an_error(tmp_path: Path) -> None:
    """A field whose metadata the reader does not know must not be skipped."""
    path = tmp_path / "sglang-0.5.24-py3-none-any.whl"
    source = wheels.wheel(str(DEFAULT_RELEASE))
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if name.startswith(READ) and name.endswith(".py"):
                new.writestr(name, old.read(name))
        new.writestr("sglang/srt/arg_groups/fields/zz.py", "class Z:\n    strange: A[int, Mystery(1)] = 1\n")
    with pytest.raises(wheel_flags.Unknown, match="Mystery"):
        wheel_flags.read_flags(path)
    assert wheel_env.read_env(path)


def test_histories_fold_and_unfold() -> None:
    tables = {kind: history.load(kind) for kind in ("flags", "env")}
    for kind, table in tables.items():
        assert history.unfold(list(table), history.fold(table)) == table
        assert history.text(table) == history.path_of(kind).read_text()
