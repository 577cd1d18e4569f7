"""The command line: what argparse accepts and refuses, and what SGLang's resolution refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4_engine_sim import flags
from dsv4_engine_sim.settings import RefusedError, resolve

SOURCES = Path(__file__).parents[3] / "images" / "engine-sim" / "src"
RELEASE = "0.5.23"


def parse(line, **env):
    return resolve(flags.parse(["--model-path", "/m", *line.split()], RELEASE), env)


def test_table_is_the_releases():
    table = flags.load_table(RELEASE)
    assert len(table) == 531
    assert len(flags.load_table("0.5.22")) == 521
    with pytest.raises(flags.ReleaseError, match=r"known: 0\.5\.22, 0\.5\.23"):
        flags.load_table("0.4.0")


def test_a_real_prefill_command_line():
    settings = parse(
        "--host 0.0.0.0 --port 30000 --disaggregation-mode prefill --disaggregation-transfer-backend nixl "
        "--disaggregation-bootstrap-port 8998 --tp 8 --attn-dp-size 2 --enable-hierarchical-cache --hicache-ratio 2 "
        "--hicache-io-backend kernel --hicache-mem-layout page_first --page-size 64 --kv-cache-dtype auto "
        "--tool-call-parser deepseekv4 --reasoning-parser deepseek-v4 --enable-metrics --mem-fraction-static 0.85 "
        "--chunked-prefill-size 16384 --watchdog-timeout 300 --disable-overlap-schedule --trust-remote-code "
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --nnodes 2 --node-rank 0 --dist-init-addr x:5000"
    )
    assert (settings.mode, settings.tp_size, settings.dp_size, settings.hicache) == ("prefill", 8, 2, True)
    assert settings.page_size == 256, "forced for this model"
    assert settings.kv_cache_dtype == "fp8_e4m3"
    assert settings.served_model_name == "SIMULATOR//m"


@pytest.mark.parametrize(
    "line",
    [
        "--no-such-flag",
        "--disaggregation-mode both",
        "--port many",
        "--cuda-graph-max-bs 8",  # retired; now an ambiguous prefix
        "--tool-call-parser deepseekv5",
        "--hicache-io-backend gpu",
        "stray",
    ],
)
def test_argparse_refuses(line, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(line)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_model_path_is_required():
    with pytest.raises(SystemExit) as stopped:
        flags.parse([], RELEASE)
    assert stopped.value.code == 2


def test_unambiguous_prefixes_and_aliases_are_accepted():
    assert parse("--tp 4").tp_size == 4
    assert parse("--disable-radix-cache --served-model x").served_model_name == "x"
    assert parse("--tensor-parallel-size 2").tp_size == 2


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--disaggregation-mode prefill --disaggregation-transfer-backend fake", "does not support 'fake'"),
        ("--enable-hierarchical-cache --disable-radix-cache", "mutually exclusive"),
        ("--disaggregation-mode decode --enable-hicache", "mutually exclusive"),
        ("--disaggregation-mode decode --disaggregation-decode-enable-radix-cache", "radix"),
        ("--enable-hierarchical-cache --hicache-size 100", "use --hicache-ratio instead"),
        ("--kv-cache-dtype fp8_e5m2", "kv_cache_dtype"),
        ("--disaggregation-mode decode --dsv4-attn-backend trtllm", "trtllm"),
        ("--speculative-algorithm NGRAM", "Only EAGLE and DSPARK"),
        ("--tool-call-parser deepseekv4 --reasoning-parser qwen3", "cannot be mixed"),
    ],
)
def test_resolution_refuses(line, text):
    with pytest.raises(RefusedError, match=text):
        parse(line)


def test_decode_accepts_the_fake_backend():
    assert parse("--disaggregation-mode decode --disaggregation-transfer-backend fake").transfer_backend == "fake"


def test_index_k_dtype_from_flag_and_variable():
    assert parse("").index_k_dtype == "fp8"
    assert parse("--enable-deepseek-v4-fp4-indexer").index_k_dtype == "fp4"
    assert parse("", DSV4_SIM_INDEX_K_DTYPE="bf16").index_k_dtype == "bf16"
    with pytest.raises(RefusedError, match="contradicts"):
        parse("--enable-deepseek-v4-fp4-indexer", DSV4_SIM_INDEX_K_DTYPE="bf16")


def test_output_handling_follows_the_release_unless_told():
    eras = {release: parse("", SGLANG_SIM_RELEASE=release).output_era for release in ("0.5.20", "0.5.22", "0.5.23")}
    assert eras == {"0.5.20": "leak", "0.5.22": "silent", "0.5.23": "token"}
    assert parse("", DSV4_SIM_OUTPUT_ERA="leak").output_era == "leak"
    with pytest.raises(RefusedError, match="DSV4_SIM_OUTPUT_ERA"):
        parse("", DSV4_SIM_OUTPUT_ERA="loud")


def test_cache_early_send_and_overlap_settings():
    plain = parse("--disaggregation-mode prefill")
    assert (plain.prefix_cache, plain.pool_pages, plain.early_send, plain.overlap) == (False, 2048, True, True)
    cached = parse(
        "--disaggregation-mode prefill --enable-hicache --hicache-ratio 1.5 --disable-overlap-schedule",
        SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX="0",
    )
    assert (cached.prefix_cache, cached.pool_pages, cached.host_pages) == (True, 128, 192)
    assert (cached.early_send, cached.overlap) == (False, False)
    assert parse("--disaggregation-mode prefill", DSV4_SIM_PREFIX_CACHE="1").prefix_cache
    assert not parse("--disaggregation-mode decode", DSV4_SIM_PREFIX_CACHE="1").prefix_cache
    assert not parse("--disable-radix-cache", DSV4_SIM_PREFIX_CACHE="1").prefix_cache


def test_config_file_comes_first_and_the_command_line_wins(tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text("tp-size: 8\nport: 1234\nenable-metrics: true\n")
    settings = parse(f"--config {config} --port 4321")
    assert (settings.tp_size, settings.port, settings.enable_metrics) == (8, 4321, True)
    config.write_text("no-such-key: 1\n")
    with pytest.raises(SystemExit):
        parse(f"--config {config}")


@pytest.mark.parametrize(("line", "status"), [("--no-such-flag", 2), ("--enable-hicache --hicache-size 1", 1)])
def test_exit_status_of_the_process(line, status):
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/m", *line.split()]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert done.stderr


GUARD = {"DSV4_SIM_GUARD": "1", "SGLANG_PLUGINS": "other, dsv4_guard", "DSV4_INDEX_K_DTYPE": "bf16"}


def test_stock_sglang_does_not_know_bf16_and_the_plugin_must_be_there_and_named():
    active = parse("", **GUARD)
    assert (active.guard, active.index_k_dtype, active.kv_layout) == (True, "bf16", "v4,c4:v4,c128:v4,index_k:bf16")
    for missing in ("DSV4_SIM_GUARD", "SGLANG_PLUGINS"):
        stock = parse("", **{name: value for name, value in GUARD.items() if name != missing})
        assert (stock.guard, stock.index_k_dtype, stock.kv_layout) == (False, "fp8", "v4,c4:v4,c128:v4")
    assert not parse("", **GUARD | {"SGLANG_PLUGINS": "dsv4_guardian"}).guard
    fp8 = parse("", **GUARD | {"DSV4_INDEX_K_DTYPE": ""})
    assert (fp8.guard, fp8.index_k_dtype, fp8.kv_layout) == (True, "fp8", "v4,c4:v4,c128:v4")


@pytest.mark.parametrize(
    ("line", "dtype", "ok"),
    [
        ("--enable-deepseek-v4-fp4-indexer", "fp4", True),
        ("--enable-deepseek-v4-fp4-indexer", "", False),
        ("", "fp4", False),
    ],
)
def test_the_plugin_compares_its_format_with_the_pool(line, dtype, ok):
    env = GUARD | {"DSV4_INDEX_K_DTYPE": dtype}
    if ok:
        assert parse(line, **env).index_k_dtype == "fp4"
        return
    with pytest.raises(RefusedError, match="the pool holds index-K as"):
        parse(line, **env)


def test_the_plugin_refuses_a_release_that_was_not_tested_unless_told():
    with pytest.raises(RefusedError, match=r"0\.5\.22 is not among the tested releases"):
        parse("", SGLANG_SIM_RELEASE="0.5.22", **GUARD)
    told = {"DSV4_GUARD_ALLOW_UNTESTED_RELEASE": "1"}
    assert parse("", SGLANG_SIM_RELEASE="0.5.22", **GUARD, **told).guard
    assert not parse("", SGLANG_SIM_RELEASE="0.5.22").guard


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("", (1, 1, False)),
        ("--tp-size 8 --dp-size 8 --enable-dp-attention", (1, 8, True)),
        ("--tp-size 8 --attn-dp-size 4", (1, 4, True)),
        ("--dp-size 2", (2, 1, False)),
    ],
)
def test_data_parallel_sizes_as_upstream_resolves_them(line, sizes):
    info = parse(line).server_info
    assert (info["dp_size"], info["attn_dp_size"], info["enable_dp_attention"]) == sizes
