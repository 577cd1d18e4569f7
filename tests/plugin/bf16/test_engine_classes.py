"""Index-K in bf16 on the real classes of both supported releases (cases/bf16.py; how: ../conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

INDEXER = "sglang.srt.layers.attention.dsv4.indexer"


@pytest.fixture
def bf16(value: Callable[..., Any], release: str) -> Callable[..., Any]:
    """Value of a case of cases/bf16.py for `release`."""

    def call(case: str, env: dict[str, str] | None = None, **arguments: Any) -> Any:
        return value("bf16", case, env, version=release, **arguments)

    return call


def test_every_target_carries_our_wrapper_in_a_scheduler_and_none_in_the_api(bf16: Callable[..., Any]) -> None:
    targets = bf16("installed")
    assert f"{INDEXER}:C4IndexerBackendMixin.forward_c4_indexer" in targets
    assert len(targets) == 9
    assert bf16("in_api") == []


def test_buffers_hold_16384_bytes_a_page_and_pd_sends_them(bf16: Callable[..., Any]) -> None:
    found = bf16("buffers")
    assert found["class"] == "Bf16IndexerPool" and found["original"] == "DeepSeekV4IndexerPool"
    assert found["bytes_per_slot"] == 256
    assert found["shape"][1] == 16384 and found["dtype"] == "torch.uint8"
    assert found["items"].count(16384) == 2, "item lengths that prefill/decode transfer registers"


def test_budget_counts_64_bytes_a_token_and_layer(bf16: Callable[..., Any]) -> None:
    found = bf16("budget")
    assert (found["before"], found["after"]) == (33.0, 64.0)
    assert found.get("fp4", 68) == 68


def test_host_cache_moves_whole_pages_and_tags_what_it_stores(bf16: Callable[..., Any], release: str) -> None:
    found = bf16("host")
    assert found.get("regions", [[16384, True]]) == [[16384, True]]
    for method in ("backup_from_device_all_layer", "load_to_device_per_layer"):
        assert "page" in found[method], "a copy of part of a page must be refused"
    assert found["tag"] == ("index-k-bf16" if release == "0.5.23" else None)


@pytest.mark.parametrize("decode", [True, False], ids=["decode", "extend"])
def test_indexer_selects_what_double_precision_selects(bf16: Callable[..., Any], decode: bool) -> None:
    found = bf16("indexer", decode=decode)
    assert found["wrong_counts"] == []
    assert found["common"] >= 0.98 * found["of"], f"{found['common']} of {found['of']} slots"
    assert found["order"] == ["write", "read"], "keys of this step are written before the pool is read"
    assert found["schedule"] is None, "no schedule of DeepGEMM is made"


def test_padded_rows_are_left_out(bf16: Callable[..., Any]) -> None:
    found = bf16("indexer", decode=True, padded=3)
    assert found["wrong_counts"] == [] and found["common"] >= 0.98 * found["of"]


@pytest.mark.parametrize("release", ["0.5.23"])
def test_rows_in_chunks_select_the_same(bf16: Callable[..., Any], release: str) -> None:
    """0.5.17 makes all logits at once."""
    found = bf16("indexer", decode=False, rows_per_chunk=2)
    assert found["wrong_counts"] == [] and found["common"] >= 0.98 * found["of"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"enable_hisparse": True}, "--enable-hisparse"),
        ({"enable_deepseek_v4_fp4_indexer": True}, "--enable-deepseek-v4-fp4-indexer"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
        ({"enable_nvidia_megakernel": True}, "--enable-nvidia-megakernel"),
        ({"device": "npu"}, "--device npu"),
        ({"compress_ratios": [0, 1, 2]}, "DeepSeek-V4.1"),
        ({"compress_ratios": [0, 4, 128]}, ""),
    ],
    ids=str,
)
def test_arguments_that_it_cannot_serve(bf16: Callable[..., Any], given: dict[str, Any], words: str) -> None:
    line = bf16("arguments", **given)
    assert (words in line) if words else line == ""


def test_stored_pages_need_a_format_tag(bf16: Callable[..., Any], release: str) -> None:
    line = bf16("arguments", hicache_storage_backend="file")
    assert ("--hicache-storage-backend" in line) == (release == "0.5.17")


def test_variables_of_other_indexers_are_refused(bf16: Callable[..., Any]) -> None:
    for name in ("SGLANG_OPT_USE_TILELANG_INDEXER", "SGLANG_OPT_USE_AITER_INDEXER"):
        assert name in bf16("environment", {name: "1"})


@pytest.mark.parametrize("case", ["fp4_pool", "wide_heads", "scheduler_ends"])
def test_what_is_found_later_ends_the_process_in_one_line(run: Callable[..., Any], release: str, case: str) -> None:
    outcome = run("bf16", case, None, version=release)
    assert outcome.exit == 1
    assert outcome.output.strip().startswith("dsv4_guard: refused: ")
    assert len(outcome.output.strip().splitlines()) == 1


def test_a_missing_or_changed_target_is_named(bf16: Callable[..., Any]) -> None:
    gone = f"{INDEXER}:C4Indexer.compute_q"
    assert gone in bf16("refused", break_target=gone)
    changed = f"{INDEXER}:C4IndexerBackendMixin.forward_c4_indexer"
    line = bf16("refused", edit=changed)
    assert changed in line and "digest" in line
