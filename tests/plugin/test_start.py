"""Start: what is installed where, and that nothing starts unguarded."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4_guard import marker
from dsv4_guard.refusal import GuardError

SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
NIXL = "sglang.srt.disaggregation.nixl.conn"
POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool"
CHAT = "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat"


def test_a_scheduler_gets_every_part(value: Callable[..., Any], release: str) -> None:
    targets = value("plugins", "scheduler")
    assert {
        f"{NIXL}:NixlKVManager.transfer_worker",
        f"{NIXL}:NixlKVManager.register_buffer_to_engine",
        f"{NIXL}:TransferKVChunk",
        f"{SCHEDULER}.get_init_info",
    } <= set(targets)
    early = f"{SCHEDULER}.maybe_send_cached_prefix_chunk"
    assert (early in targets) == (release == "0.5.17")
    assert ("sglang.srt.disaggregation.checksum:KvChecksumComputer.compute" in targets) == (release == "0.5.23")


def test_other_processes_get_what_is_theirs(value: Callable[..., Any]) -> None:
    assert value("plugins", "api") == [
        "sglang.srt.entrypoints.engine:_wait_for_scheduler_ready",
        f"{CHAT}._build_chat_response",
        f"{CHAT}._generate_chat_stream",
        f"{CHAT}._generate_stream_content",
    ]
    assert value("plugins", "detokenizer") == []


@pytest.mark.parametrize(
    "target",
    [
        f"{SCHEDULER}.get_init_info",
        f"{SCHEDULER}.maybe_send_cached_prefix_chunk",
        f"{NIXL}:NixlKVManager.transfer_worker",
        f"{NIXL}:NixlKVManager.add_transfer_request",
        f"{NIXL}:TransferKVChunk",
        f"{POOL}.get_indexer_compress_states",
    ],
)
def test_a_renamed_target_ends_the_scheduler_with_its_name(run: Callable[..., Any], target: str) -> None:
    outcome = run("plugins", "scheduler", rename=target)
    assert outcome.exit == 1
    lines = [line for line in outcome.output.splitlines() if "refused" in line]
    assert len(lines) == 1, outcome.output
    assert target.rsplit(".", 1)[-1].rsplit(":", 1)[-1] in lines[0]


def test_an_unknown_release_is_refused(run: Callable[..., Any]) -> None:
    outcome = run("plugins", "scheduler", release="0.5.24")
    assert outcome.exit == 1
    assert "SGLang 0.5.24 is not a release that this plugin was tested with" in outcome.output


def test_an_unknown_release_may_be_tried(run: Callable[..., Any], release: str) -> None:
    patch = f"{release}.post1"
    outcome = run("plugins", "scheduler", env={"DSV4_GUARD_ALLOW_UNTESTED_RELEASE": "1"}, release=patch)
    assert outcome.exit == 0, outcome.output


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DSV4_INDEX_K_DTYPE", "bf17"),
        ("DSV4_GUARD_TRANSFER_DEADLINE_SECONDS", "soon"),
        ("DSV4_GUARD_ALWAYS_WAIT", "perhaps"),
        ("DSV4_GUARD_SKIP", "everything"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(run: Callable[..., Any], name: str, text: str) -> None:
    outcome = run("plugins", "scheduler", env={name: text})
    assert outcome.exit == 1
    assert name in outcome.output


@pytest.mark.parametrize("skip", ["", "deadline", "checksum"])
def test_an_index_digest_that_would_do_nothing_is_refused(run: Callable[..., Any], release: str, skip: str) -> None:
    """At once: in the API process already. 0.5.23 has the KV checksum instead; before, it needs those parts."""
    env = {"DSV4_GUARD_INDEX_DIGEST": "1", "DSV4_GUARD_SKIP": skip}
    for process in ("api", "scheduler"):
        outcome = run("plugins", process, env=env)
        if release == "0.5.17" and not skip:
            assert outcome.exit == 0, outcome.output
            continue
        assert outcome.exit == 1
        lines = [line for line in outcome.output.splitlines() if "refused" in line]
        assert len(lines) == 1, outcome.output
        assert "DSV4_GUARD_INDEX_DIGEST=1" in lines[0]
        assert ("--disaggregation-enable-kv-checksum" if release == "0.5.23" else skip) in lines[0]


def test_a_failing_import_of_the_plugin_ends_the_process(run: Callable[..., Any]) -> None:
    outcome = run("plugins", "broken_import")
    assert outcome.exit == 1
    assert "the plugin does not import" in outcome.output


def test_a_wrapper_that_was_replaced_later_is_noticed(run: Callable[..., Any]) -> None:
    outcome = run("plugins", "replaced_later")
    assert outcome.exit == 1
    assert "something replaced our wrapper" in outcome.output


def test_the_api_process_ends_when_a_scheduler_did_not_report(run: Callable[..., Any]) -> None:
    outcome = run("plugins", "silent_scheduler")
    assert outcome.exit == 1
    assert "did not load the plugin" in outcome.output


def test_the_marker_is_on_the_metrics_of_both_processes(value: Callable[..., Any], release: str) -> None:
    lines = value("plugins", "marker")
    assert sorted(lines) == [
        f'dsv4_guard_info{{index_k="fp8",process="{process}",release="{release}",version="0.1.0"}} 1.0'
        for process in ("api", "scheduler")
    ]


def test_no_marker_with_a_part_left_out(value: Callable[..., Any]) -> None:
    assert value("plugins", "marker", env={"DSV4_GUARD_SKIP": "fence"}) == []


@pytest.mark.parametrize(("slot", "found"), [(132, "fp8"), (68, "fp4"), (256, "bf16")])
def test_the_format_in_the_pool_must_be_the_one_asked_for(run: Callable[..., Any], slot: int, found: str) -> None:
    outcome = run("plugins", "pool_format", slot=slot)
    if found == "fp8":
        assert outcome.exit == 0, outcome.output
    else:
        assert outcome.exit == 1
        assert f"the pool holds index-K as {found}" in outcome.output


def test_a_scheduler_that_refuses_ends_although_threads_run(value: Callable[..., Any]) -> None:
    assert value("plugins", "refusal_beside_threads") == 1


def test_bf16_is_refused_where_the_model_keeps_no_index_k() -> None:
    scheduler = SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=object))
    with pytest.raises(GuardError, match="the model keeps no index-K"):
        marker.report(scheduler, "0.5.23", "bf16", complete=True)
