"""What each flag and variable becomes; what renders comes back; nothing is dropped without a word."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.cli.importer.arguments import split_arguments
from dsv4_operator.cli.importer.flags import SPELLINGS
from dsv4_operator.cli.importer.launch import RULES, FlagUse, Launch
from dsv4_operator.cli.importer.result import Imported, Target, import_pair
from dsv4_operator.engine.command import render_command
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, Release
from dsv4_operator.engine.wheel import env_table, flag_table
from dsv4_operator.policy import refusals

Ctl = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[3]
LAUNCHES = json.loads(Path(__file__).with_name("launches.json").read_text())
BASE = "--model-path deepseek-ai/DeepSeek-V4 --served-model-name v4 --tp-size 8"


def imported(
    prefill: str = "",
    decode: str = "",
    *,
    env: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    release: str = str(DEFAULT_RELEASE),
    base: str = BASE,
    **options: Any,
) -> Imported:
    launches = {
        role: Launch(role, split_arguments(f"{base} {words}".split())[0], dict(variables))
        for role, words, variables in zip(ENGINE_ROLES, (prefill, decode), env, strict=True)
    }
    target = Target(name="pair", release=KNOWN_RELEASES[release], **options)
    return import_pair(launches, target)


def spec_of(result: Imported) -> DSV4DeploymentSpec:
    return parse_deployment(result.deployment).spec


def rules(result: Imported) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in result.findings:
        found.setdefault(finding.rule, set()).add(finding.path)
    return found


def messages(result: Imported, rule: str) -> str:
    return " ".join(finding.message for finding in result.findings if finding.rule == rule)


def test_a_plain_pair_needs_no_finding() -> None:
    result = imported()
    assert result.findings == []
    assert result.deployment == {
        "apiVersion": "serving.dsv4.dev/v1alpha1",
        "kind": "DSV4Deployment",
        "metadata": {"name": "pair"},
        "spec": {
            "model": {"id": "v4", "source": {"huggingFace": {"repo": "deepseek-ai/DeepSeek-V4"}}},
            "engine": {"release": "0.5.23"},
            "prefill": {"gpus": 8},
            "decode": {"gpus": 8},
        },
    }


def test_typed_fields() -> None:
    words = (
        "--revision abc --context-length 131072 --mem-fraction-static 0.850 --max-running-requests 64 "
        "--enable-deepseek-v4-fp4-indexer --disable-overlap-schedule --speculative-algo eagle "
        "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 "
        "--disaggregation-ib-device mlx5_0,mlx5_1 --disaggregation-transfer-backend nixl "
        "--disaggregation-enable-kv-checksum --ep 4 --attn-dp-size 2"
    )
    prefill = "--chunked-prefill-size 4096 --enable-hicache --hicache-ratio 1.50 --hicache-write-policy write_back"
    result = imported(f"{words} {prefill}", words)
    assert result.findings == []
    spec = spec_of(result)
    engine = spec.engine
    assert spec.model.source.hugging_face is not None
    assert spec.model.source.hugging_face.revision == "abc"
    assert (engine.context_length, engine.mem_fraction_static, engine.max_running_requests) == (131072, "0.85", 64)
    assert engine.chunked_prefill_size == 4096
    assert (engine.speculative.algorithm, engine.speculative.num_steps) == ("EAGLE", 2)
    assert (spec.index_k.dtype, spec.overlap_schedule) == ("FP4", "Disabled")
    assert (spec.hi_cache.enabled, spec.hi_cache.ratio, spec.hi_cache.write_policy) == (True, "1.5", "WriteBack")
    assert (spec.network.devices, spec.network.checksum) == (["mlx5_0", "mlx5_1"], True)
    assert (spec.prefill.parallelism.expert, spec.decode.parallelism.attention_data) == (4, 2)
    assert engine.extra_args == spec.prefill.extra_args == spec.decode.extra_args == []


def test_what_passes_through_goes_to_one_role_or_both() -> None:
    env = ({"NCCL_DEBUG": "WARN", "NCCL_TIMEOUT": "1"}, {"NCCL_DEBUG": "WARN", "NCCL_TIMEOUT": "2"})
    result = imported("--trust-remote-code --stream-interval 4", "--trust-remote-code --stream-interval 8", env=env)
    spec = spec_of(result)
    assert spec.engine.extra_args == ["--trust-remote-code"]
    assert (spec.prefill.extra_args, spec.decode.extra_args) == (["--stream-interval", "4"], ["--stream-interval", "8"])
    assert [(v.name, v.value) for v in spec.engine.env] == [("NCCL_DEBUG", "WARN")]
    assert [(v.name, v.value) for v in spec.decode.env] == [("NCCL_TIMEOUT", "2")]


FINDINGS: dict[str, tuple[str, str]] = {
    "--host 0.0.0.0": ("import-owned", "--host"),
    "--port 30000": ("import-owned", "--port"),
    "--base-gpu-id 4": ("import-owned", "--base-gpu-id"),
    "--node-rank 0": ("import-owned", "--node-rank"),
    "--enable-metrics": ("import-owned", "--enable-metrics"),
    "--page-size 256": ("import-default", "--page-size"),
    "--page-size 64": ("import-changed", "--page-size"),
    "--kv-cache-dtype fp8_e4m3": ("import-default", "--kv-cache-dtype"),
    "--kv-cache-dtype bfloat16": ("import-changed", "--kv-cache-dtype"),
    "--tool-call-parser deepseekv31": ("import-changed", "--tool-call-parser"),
    "--watchdog-timeout 3600": ("import-changed", "--watchdog-timeout"),
    "--disable-radix-cache": ("import-changed", "--disable-radix-cache"),
    "--hicache-storage-backend file": ("import-unsupported", "--hicache-storage-backend"),
    "--hicache-size 100": ("import-unsupported", "--hicache-size"),
    "--hicache-size 0": ("import-default", "--hicache-size"),
    "--hicache-host-memory-fraction 0.5": ("import-unsupported", "--hicache-host-memory-fraction"),
    "--pp-size 4": ("import-unsupported", "--pp-size"),
    "--pp-size 1": ("import-default", "--pp-size"),
    "--enable-hisparse": ("import-unsupported", "--enable-hisparse"),
    "--dp-size 4": ("import-unsupported", "--dp-size"),
    "--speculative-algorithm NGRAM": ("import-unsupported", "--speculative-algorithm"),
    "--api-key s3cret": ("import-secret", "--api-key"),
    "--api-key s3cret --api-key s3cret": ("import-repeated", "--api-key"),
    "--context-length 128k": ("import-value", "--context-length"),
    "--mem-fraction-static lots": ("import-value", "--mem-fraction-static"),
    "--tokenizer-path <path>": ("import-placeholder", "--tokenizer-path"),
    "--disaggregation-mode decode": ("import-role-conflict", "--disaggregation-mode"),
    "--disaggregation-transfer-backend mooncake": ("import-transport", "--disaggregation-transfer-backend"),
    "--cuda-graph-max-bs 128": ("import-renamed", "--cuda-graph-max-bs"),
    "--nsa-prefill-cp-mode round-robin-split": ("import-renamed", "--nsa-prefill-cp-mode"),
    "--stream-interv 4": ("import-renamed", "--stream-interv"),
    "--optimistic-prefill-retries 2": ("import-gone", "--optimistic-prefill-retries"),
    "--cuda-graph 4": ("import-gone", "--cuda-graph"),
    "--prefill-round-robin-balance": ("import-default", "--prefill-round-robin-balance"),
    "--no-such-flag 4": ("import-unknown-flag", "--no-such-flag"),
    "--dyn-tool-call-parser deepseek_v4": ("import-foreign", "--dyn-tool-call-parser"),
    "--stream-interval 4 --stream-interval 8": ("import-repeated", "--stream-interval"),
}


@pytest.mark.parametrize("words", FINDINGS)
def test_findings_of_flags(words: str) -> None:
    result = imported(words)
    rule, flag = FINDINGS[words]
    assert f"prefill: {flag}" in rules(result)[rule]
    assert "s3cret" not in json.dumps(result.as_json())


VARIABLES = {
    "SGLANG_HOST_IP": ("10.0.0.1", "import-owned"),
    "CUDA_VISIBLE_DEVICES": ("0,1", "import-owned"),
    "NVIDIA_VISIBLE_DEVICES": ("all", "import-owned"),
    "SGLANG_SIMULATE_ACC_LEN": ("2.4", "import-test-variable"),
    "SGLANG_TEST_DISAGG_FAILURE_PROB": ("0.1", "import-test-variable"),
    "SGLANG_RADIX_FORCE_MISS": ("1", "import-test-variable"),
    "HF_TOKEN": ("s3cret", "import-secret"),
    "AWS_SECRET_ACCESS_KEY": ("s3cret", "import-secret"),
    "OPENAI_API_KEY": ("s3cret", "import-secret"),
    "MC_SLICE_SIZE": ("1", "import-foreign"),
    "DYN_LOG": ("info", "import-foreign"),
    "PATH": ("/bin", "import-foreign"),
    "SGLANG_ENABLE_SPEC_V2": ("1", "import-no-effect"),
    "SGLANG_MADE_UP": ("1", "import-no-effect"),
    "SGLANG_DISAGGREGATION_NIXL_BACKEND": ("LIBFABRIC", "import-changed"),
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": ("1", "import-changed"),
    "SGLANG_PLUGINS": ("x", "import-changed"),
    "DSV4_INDEX_K_DTYPE": ("fp16", "import-unsupported"),
    "UCX_TLS": ("^ib", "import-unsupported"),
    "SOME_DIR": ("<path>", "import-placeholder"),
    "NOT-A-NAME": ("1", "import-value"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_findings_of_variables(name: str) -> None:
    value, rule = VARIABLES[name]
    result = imported(env=({name: value}, {}))
    assert f"prefill: ${name}" in rules(result)[rule]
    assert "s3cret" not in json.dumps(result.as_json())
    assert [v.name for v in spec_of(result).prefill.env] == (["SGLANG_MADE_UP"] if name == "SGLANG_MADE_UP" else [])


def test_gone_flags_carry_the_new_name() -> None:
    assert "--optimistic-prefill-attempts" in messages(imported("--optimistic-prefill-retries 2"), "import-gone")
    result = imported("--cuda-graph-max-bs 128 --disable-piecewise-cuda-graph --nsa-prefill-cp-mode in-seq-split")
    assert spec_of(result).prefill.extra_args == [
        "--cuda-graph-max-bs-decode",
        "128",
        "--cuda-graph-backend-prefill",
        "disabled",
        "--cp-strategy",
        "zigzag",
    ]
    old = imported("--cuda-graph-max-bs 128", release="0.5.12")
    assert spec_of(old).prefill.extra_args == ["--cuda-graph-max-bs", "128"]


def test_attention_data_parallelism_in_both_spellings() -> None:
    for words in ("--dp-size 8 --enable-dp-attention", "--dp 8 --enable-dp-attention", "--attn-dp-size 8"):
        result = imported(words, words)
        assert result.findings == []
        assert spec_of(result).prefill.parallelism.attention_data == 8


def test_several_nodes() -> None:
    words = "--nnodes 2 --node-rank 0 --dist-init-addr leader:5000"
    spec = spec_of(imported(words, words))
    assert (spec.prefill.nodes, spec.prefill.gpus, spec.prefill.tensor) == (2, 4, 8)
    spec = spec_of(imported(gpus_per_node=4))
    assert (spec.decode.nodes, spec.decode.gpus) == (2, 4)
    assert "import-unsupported" in rules(imported("--nnodes 3"))


def test_where_the_weights_are() -> None:
    def source(model: str) -> dict[str, Any]:
        found: dict[str, Any] = imported(base="--tp 8", model=model).deployment["spec"]["model"]["source"]
        return found

    assert source("/data/v4") == {"hostPath": {"path": "/data/v4"}}
    assert source("pvc:weights") == {"persistentVolumeClaim": {"claimName": "weights"}}
    assert source("pvc:weights/v4/pro") == {"persistentVolumeClaim": {"claimName": "weights", "path": "v4/pro"}}
    assert source("a/b") == {"huggingFace": {"repo": "a/b"}}
    assert "import-model" in rules(imported(base="--tp 8"))
    assert "import-model" in rules(imported(base="--tp 8 --model-path ./here"))
    assert "import-model" in rules(imported(base="--tp 8 --model-path deepseek-ai/DeepSeek-V4.1-Flash"))
    assert "import-model" in rules(imported(base="--tp 8 --model-path deepseek-ai/DeepSeek-V3.2"))
    result = imported("--model-path a/b", "--model-path c/d", base="--tp 8")
    assert "import-role-conflict" in rules(result)
    for fine in ("deepseek-ai/DeepSeek-V4-Flash-0731", "nvidia/DeepSeek-V4-Pro-NVFP4"):
        assert "import-model" not in rules(imported(base=f"--tp 8 --model-path {fine}"))
    no_refusal = imported(base="--tp 8 --model-path <path>", model="a/b")
    assert "import-placeholder" not in rules(no_refusal)


# -- roles that disagree


def test_speculation_on_one_role() -> None:
    words = "--speculative-algorithm EAGLE --speculative-num-steps 3"
    result = imported("", words)
    assert "spec.engine.speculative.algorithm" in rules(result)["import-roles"]
    assert spec_of(result).engine.speculative.algorithm == "EAGLE"
    result = imported(words, f"{words} --speculative-num-draft-tokens 8")
    assert "spec.engine.speculative" in rules(result)["import-roles"]
    assert spec_of(result).engine.speculative.num_draft_tokens == 8


def test_devices_that_disagree_or_override() -> None:
    result = imported("--disaggregation-ib-device mlx5_0", env=({"UCX_NET_DEVICES": "mlx5_1:1"}, {}))
    assert "prefill: $UCX_NET_DEVICES" in rules(result)["import-roles"]
    assert spec_of(result).network.devices == ["mlx5_1"]
    result = imported(env=({"UCX_NET_DEVICES": "mlx5_0:1"}, {"UCX_NET_DEVICES": "mlx5_1:1"}))
    assert rules(result)["import-role-conflict"] == {"spec.network.devices"}
    result = imported(env=({"UCX_TLS": "rc"}, {"UCX_TLS": "tcp"}))
    assert rules(result)["import-role-conflict"] == {"spec.network.ucxTransports"}


def test_one_value_for_both_roles() -> None:
    prefill = "--mem-fraction-static 0.8 --max-running-requests 32 --context-length 9000"
    decode = "--mem-fraction-static 0.9 --max-running-requests 64 --context-length 8000"
    result = imported(prefill, decode)
    engine = spec_of(result).engine
    assert (engine.mem_fraction_static, engine.max_running_requests, engine.context_length) == ("0.8", 64, 8000)
    assert len(rules(result)["import-roles"]) == 3
    result = imported("--enable-deepseek-v4-fp4-indexer --disable-overlap-schedule")
    assert rules(result)["import-roles"] == {"spec.indexK.dtype", "spec.overlapSchedule"}
    result = imported("--served-model-name a", "--served-model-name b")
    assert rules(result)["import-role-conflict"] == {"spec.model.id"}


def test_values_that_a_field_does_not_take() -> None:
    result = imported("--speculative-algorithm EAGLE --speculative-eagle-topk 4 --mem-fraction-static 1.5")
    assert rules(result)["import-field"] == {"spec.engine.speculative.eagleTopk", "spec.engine.memFractionStatic"}


def test_hicache_as_sglang_resolves_it() -> None:
    result = imported("--enable-hierarchical-cache --hicache-io-backend direct")
    cache = spec_of(result).hi_cache
    assert (cache.io_backend, cache.layout) == ("Direct", "PageFirstDirect")
    assert "hiCache" not in imported("--hicache-ratio 3").deployment["spec"]
    assert "import-unsupported" in rules(imported("", "--enable-hierarchical-cache"))


# -- nothing is dropped silently


FLAG = st.sampled_from(sorted({spelling for r in KNOWN_RELEASES.values() for spelling in flag_table(r)}))
NAME = st.sampled_from(sorted({name for r in KNOWN_RELEASES.values() for name in env_table(r)}))
WORD = st.sampled_from(["1", "8", "0.5", "auto", "nixl", "prefill", "<x>", "", "a/b", "{}"])
RELEASE = st.sampled_from(list(KNOWN_RELEASES.values()))


@settings(deadline=None)
@given(st.lists(st.tuples(FLAG, st.lists(WORD, max_size=2)), max_size=12), st.dictionaries(NAME, WORD), RELEASE)
def test_every_flag_and_variable_is_accounted_for(
    flags: list[tuple[str, list[str]]], env: dict[str, str], release: Release
) -> None:
    uses = [FlagUse(flag, tuple(values)) for flag, values in flags]
    launches = {Role.PREFILL: Launch(Role.PREFILL, uses, env), Role.DECODE: Launch(Role.DECODE, [], {})}
    result = import_pair(launches, Target("x", release))
    told = [finding.path for finding in result.findings] + [source for source, _ in result.mapped]
    for use in uses:
        names = {use.flag, SPELLINGS.get(use.flag, use.flag)}
        assert any(name in text for text in told for name in names), use.flag
    for name in env:
        assert any(f"${name}" in text for text in told), name
    assert all(finding.rule in RULES for finding in result.findings)
    yaml.safe_dump(result.deployment)
    if not refusals(result.findings):
        parse_deployment(result.deployment)


# -- what renders comes back

ROLE = st.builds(
    lambda nodes, gpus, dp, expert: {
        "gpus": gpus,
        "nodes": nodes,
        "parallelism": {"attentionData": dp} | ({"expert": gpus * nodes} if expert else {}),
    },
    st.sampled_from([1, 2]),
    st.sampled_from([4, 8]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
EAGLE = {"algorithm": "EAGLE", "numSteps": 2, "eagleTopk": 1, "numDraftTokens": 3}
DSPARK = {"algorithm": "DSPARK", "dsparkBlockSize": 5, "draftModelPath": "/model/dspark"}
SPEC = st.fixed_dictionaries(
    {
        "model": st.just(
            {"id": "v4", "source": {"huggingFace": {"repo": "deepseek-ai/DeepSeek-V4", "revision": "r1"}}}
        ),
        "engine": st.fixed_dictionaries(
            {"speculative": st.sampled_from([{}, EAGLE, DSPARK])},
            optional={
                "contextLength": st.sampled_from([65536, 1048576]),
                "memFractionStatic": st.sampled_from(["0.8", "0.875"]),
                "maxRunningRequests": st.integers(1, 4096),
                "chunkedPrefillSize": st.sampled_from([4096, 16384]),
                "extraArgs": st.just(["--trust-remote-code", "--stream-interval", "4"]),
                "env": st.just([{"name": "NCCL_DEBUG", "value": "WARN"}]),
            },
        ),
        "indexK": st.sampled_from([{"dtype": "FP8"}, {"dtype": "FP4"}]),
        "hiCache": st.sampled_from(
            [
                {"enabled": False},
                {"enabled": True, "ratio": "1.5", "writePolicy": "WriteBack"},
                {"enabled": True, "ioBackend": "Direct", "layout": "LayerFirst"},
            ]
        ),
        "overlapSchedule": st.sampled_from(["Enabled", "Disabled"]),
        "prefill": ROLE,
        "decode": ROLE,
        "network": st.fixed_dictionaries(
            {"checksum": st.booleans()},
            optional={
                "devices": st.just(["mlx5_0", "mlx5_1"]),
                "ucxTransports": st.just(["rc", "cuda_copy"]),
            },
        ),
    }
)


@settings(deadline=None)
@given(SPEC, st.sampled_from([r for r in KNOWN_RELEASES.values() if r >= Release((0, 5, 18))]))
def test_importing_what_was_rendered_gives_the_spec_back(body: dict[str, Any], release: Release) -> None:
    spec = DSV4DeploymentSpec.model_validate(body)
    launches = {}
    for role in ENGINE_ROLES:
        command = render_command(spec, release, role)
        env = {entry.name: entry.value or f"$({entry.name})" for entry in command.env}
        flags, stray = split_arguments(command.argv[3:])
        assert stray == []
        launches[role] = Launch(role, flags, env)
    result = import_pair(launches, Target("pair", release))
    back = spec_of(result)
    assert back.model == spec.model
    assert back.engine.model_copy(update={"release": None}) == spec.engine
    assert (back.index_k, back.hi_cache) == (spec.index_k, spec.hi_cache)
    assert (back.overlap_schedule == "Disabled") == (spec.overlap_schedule == "Disabled")
    assert back.network.devices == spec.network.devices
    has_checksum = "--disaggregation-enable-kv-checksum" in flag_table(release)
    assert back.network.checksum == (spec.network.checksum and has_checksum)
    if spec.network.ucx_transports:
        assert back.network.ucx_transports == spec.network.ucx_transports
    for role in ENGINE_ROLES:
        mine, theirs = (spec.prefill, back.prefill) if role is Role.PREFILL else (spec.decode, back.decode)
        assert (theirs.gpus, theirs.nodes, theirs.tensor) == (mine.gpus, mine.nodes, mine.tensor)
        assert theirs.parallelism == mine.parallelism
        assert theirs.extra_args == theirs.env == []
    assert {finding.rule for finding in result.findings} <= {"import-owned", "import-default"}


# -- public configurations


def _table() -> Any:
    loader = importlib.util.spec_from_file_location("import_table", ROOT / "hack/import_table.py")
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules["import_table"] = module
    loader.loader.exec_module(module)
    return module


TABLE = _table()


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch["id"])
@pytest.mark.parametrize("release", ["0.5.18", str(DEFAULT_RELEASE)])
def test_a_public_configuration(launch: dict[str, Any], release: str) -> None:
    found = TABLE.outcome(launch, KNOWN_RELEASES[release])
    assert found.unknown == []
    if found.commands:
        for role, argv in found.commands.items():
            table = flag_table(KNOWN_RELEASES[release])
            uses, stray = split_arguments(argv[3:])
            assert stray == []
            for use in uses:
                flag = table[use.flag]
                assert bool(use.values) == flag.takes_value, (role, use)
                assert flag.nargs or len(use.values) <= 1, (role, use)
                assert all(flag.accepts(value) or value.startswith("$(") for value in use.values), (role, use)
            assert len({table[use.flag].name for use in uses}) == len(uses), "a flag stands there twice"
    else:
        assert found.refused


def test_outcomes_that_were_looked_at_by_hand() -> None:
    outcomes = {launch["id"]: TABLE.outcome(launch) for launch in LAUNCHES}
    assert {name for name, one in outcomes.items() if not one.refused} == {"L02", "L08", "L10", "L11", "L26"}
    assert {name for name, one in outcomes.items() if one.unreadable} == {"L16", "L24", "L32"}
    reasons = {
        name: {finding.rule for finding in one.imported.findings if finding.action == "Refuse"}
        for name, one in outcomes.items()
        if one.imported is not None
    }
    assert reasons["L13"] == {"import-placeholder", "import-model"}
    assert reasons["L28"] == {"import-model"}
    assert reasons["L18"] == reasons["L20"] == {"import-test-variable"}
    assert "import-unsupported" in reasons["L06"] & reasons["L30"]
    assert "import-unknown-flag" in reasons["L34"]


def test_through_the_command_line(ctl: Ctl, tmp_path: Path) -> None:
    path = Path(__file__).with_name("launches.json")
    done = ctl("import", "--prefill", f"{path}#L10", "--decode", f"{path}#L10", "--name", "l10", "-o", "json")
    assert (done.code, set(done.json)) == (0, {"deployment", "findings", "mapped"})
    written = tmp_path / "l10.yaml"
    written.write_text(ctl("import", "--prefill", f"{path}#L10", "--decode", f"{path}#L10", "--name", "l10").out)
    assert yaml.safe_load(written.read_text()) == done.json["deployment"]
    assert ctl("lint", "-f", written, "--assume-images").code == 0
    assert len(ctl("render", "-f", written, "--assume-images", "-o", "json").json["items"]) > 10
    args = ("import", "--prefill", f"{path}#L10", "--decode", f"{path}#L10", "--image", "registry.example.com/s:0.5.22")
    assert ctl(*args).yaml["spec"]["engine"]["image"] == "registry.example.com/s:0.5.22"
    assert "release" not in ctl(*args).yaml["spec"]["engine"]
    assert ctl(*args, "--release", "0.5.21").yaml["spec"]["engine"]["release"] == "0.5.21"
