"""The engine's command line and environment, field by field, and against the flag table of the real release."""

from __future__ import annotations

from typing import Any

import pytest

from crd_cases import SAMPLES, merged, minimal, sample_objects
from dsv4_engine_sim.flags import build_parser, load_table
from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.api.v1alpha1.arguments import OWNED_VARIABLES
from dsv4_operator.engine.command import EnvEntry, render_command, ucx_transports
from dsv4_operator.engine.flags import OWNED_ENV, OWNED_FLAGS, owned_flag
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES
from dsv4_operator.engine.wheel import env_names, releases_with_env

RELEASE = str(DEFAULT_RELEASE)
TABLE = {name: flag for flag in load_table(RELEASE) for name in flag["names"]}
BOTH = (Role.PREFILL, Role.DECODE)
HF = {"model": {"source": {"huggingFace": {"repo": "acme/v4", "revision": "abc"}}}}


def spec_of(patch: dict[str, Any] | None = None) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal(), {"spec": patch or {}})).spec


def source(value: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"source": {"huggingFace": None, **value}}}


def argv(patch: dict[str, Any] | None, role: Role) -> list[str]:
    return render_command(spec_of(patch), DEFAULT_RELEASE, role).argv


def env(patch: dict[str, Any] | None, role: Role) -> dict[str, EnvEntry]:
    entries = render_command(spec_of(patch), DEFAULT_RELEASE, role).env
    assert len({entry.name for entry in entries}) == len(entries)
    return {entry.name: entry for entry in entries}


def base(role: str, port: int) -> list[str]:
    """What is rendered for a spec of which only the model is set."""
    words = (
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V4 --revision main "
        f"--served-model-name deepseek-v4 --host 0.0.0.0 --port {port} "
        "--tool-call-parser deepseekv4 --reasoning-parser deepseek-v4 --enable-metrics --enable-cache-report "
        f"--watchdog-timeout 300 --disaggregation-mode {role} --disaggregation-transfer-backend nixl "
        "--disaggregation-bootstrap-port 8998 --tp-size 4 --page-size 256 --kv-cache-dtype auto"
    )
    return words.split()


BASE = {Role.PREFILL: base("prefill", 30000), Role.DECODE: base("decode", 30010)}


@pytest.mark.parametrize("role", BOTH)
def test_defaults_word_by_word(role: Role) -> None:
    assert argv(None, role) == BASE[role]


def nodes(role: str) -> dict[str, Any]:
    return {role: {"nodes": 2, "gpus": 4}}


# (spec patch, words added to prefill, words added to decode, words that leave both)
CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("devices", {"network": {"devices": ["mlx5_0", "mlx5_1"]}}, "--disaggregation-ib-device mlx5_0,mlx5_1", "same", ""),
    ("checksum", {"network": {"checksum": True}}, "--disaggregation-enable-kv-checksum", "same", ""),
    ("fp4", {"indexK": {"dtype": "FP4"}}, "--enable-deepseek-v4-fp4-indexer", "same", ""),
    ("bf16 is the plugin's", {"indexK": {"dtype": "BF16"}}, "", "", ""),
    ("context", {"engine": {"contextLength": 65536}}, "--context-length 65536", "same", ""),
    ("memory", {"engine": {"memFractionStatic": "0.85"}}, "--mem-fraction-static 0.85", "same", ""),
    ("running", {"engine": {"maxRunningRequests": 64}}, "--max-running-requests 64", "same", ""),
    ("chunk", {"engine": {"chunkedPrefillSize": 4096}}, "--chunked-prefill-size 4096", "", ""),
    ("overlap off", {"overlapSchedule": "Disabled"}, "--disable-overlap-schedule", "same", ""),
    ("overlap on", {"overlapSchedule": "Enabled"}, "", "", ""),
    (
        "eagle",
        {"engine": {"speculative": {"algorithm": "EAGLE"}}},
        "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4",
        "same",
        "",
    ),
    (
        "eagle numbers",
        {"engine": {"speculative": {"algorithm": "EAGLE", "numSteps": 5, "eagleTopk": 1, "numDraftTokens": 6}}},
        "--speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 6",
        "same",
        "",
    ),
    (
        "dspark",
        {"engine": {"speculative": {"algorithm": "DSPARK", "draftModelPath": "/d", "dsparkBlockSize": 7}}},
        "--speculative-algorithm DSPARK --speculative-draft-model-path /d --speculative-dspark-block-size 7",
        "same",
        "",
    ),
    (
        "hicache",
        {"hiCache": {"enabled": True}},
        "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through "
        "--hicache-io-backend kernel --hicache-mem-layout page_first",
        "",
        "",
    ),
    (
        "hicache in full",
        {
            "hiCache": {
                "enabled": True,
                "ratio": "1.5",
                "writePolicy": "WriteThroughSelective",
                "ioBackend": "Direct",
                "layout": "PageFirstDirect",
            }
        },
        "--enable-hierarchical-cache --hicache-ratio 1.5 --hicache-write-policy write_through_selective "
        "--hicache-io-backend direct --hicache-mem-layout page_first_direct",
        "",
        "",
    ),
    (
        "hicache write back",
        {"hiCache": {"enabled": True, "writePolicy": "WriteBack", "layout": "LayerFirst"}},
        "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_back "
        "--hicache-io-backend kernel --hicache-mem-layout layer_first",
        "",
        "",
    ),
    ("hicache set but off", {"hiCache": {"ratio": "9"}}, "", "", ""),
    ("prefill gpus", {"prefill": {"gpus": 8}}, "--tp-size 8", "", ""),
    ("decode tensor", {"decode": {"gpus": 8, "parallelism": {"tensor": 8}}}, "", "--tp-size 8", ""),
    (
        "attention data",
        {"decode": {"parallelism": {"attentionData": 4}}},
        "",
        "--attn-dp-size 4 --enable-metrics-for-all-schedulers",
        "",
    ),
    ("expert", {"prefill": {"parallelism": {"expert": 2}}}, "--ep-size 2", "", ""),
    (
        "prefill nodes",
        nodes("prefill"),
        "--tp-size 8 --nnodes 2 --node-rank $(LWS_WORKER_INDEX) --dist-init-addr $(LWS_LEADER_ADDRESS):30005",
        "",
        "",
    ),
    (
        "decode nodes",
        nodes("decode"),
        "",
        "--tp-size 8 --nnodes 2 --node-rank $(LWS_WORKER_INDEX) --dist-init-addr $(LWS_LEADER_ADDRESS):30015",
        "",
    ),
    ("engine extra", {"engine": {"extraArgs": ["--max-queued-requests", "9"]}}, "--max-queued-requests 9", "same", ""),
    ("role extra", {"decode": {"extraArgs": ["--log-level=debug"]}}, "", "--log-level=debug", ""),
    ("model id", {"model": {"id": "other"}}, "--served-model-name other", "same", ""),
    ("repository", HF, "--model-path acme/v4 --revision abc", "same", ""),
    ("host path", source({"hostPath": {"path": "/data"}}), "--model-path /model", "same", "--revision main"),
    (
        "claim",
        source({"persistentVolumeClaim": {"claimName": "c", "path": "a/b"}}),
        "--model-path /model/a/b",
        "same",
        "--revision main",
    ),
    (
        "claim root",
        source({"persistentVolumeClaim": {"claimName": "c"}}),
        "--model-path /model",
        "same",
        "--revision main",
    ),
]


def flags(words: list[str]) -> dict[str, str]:
    """Flags with their values; every flag stands once."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            assert word not in found, f"{word} stands twice"
            name = word
            found[name] = ""
        else:
            found[name] += f" {word}".strip()
    return found


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("role", BOTH)
def test_each_field(role: Role, case: tuple[str, dict[str, Any], str, str, str]) -> None:
    _, patch, for_prefill, for_decode, gone = case
    added = for_prefill if role is Role.PREFILL or for_decode == "same" else for_decode
    expected = flags(BASE[role][3:])
    for name in flags(gone.split()):
        del expected[name]
    assert flags(argv(patch, role)[3:]) == {**expected, **flags(added.split())}


def test_arguments_of_the_role_come_last() -> None:
    words = argv({"engine": {"extraArgs": ["--a"]}, "prefill": {"extraArgs": ["--b"]}}, Role.PREFILL)
    assert words[-2:] == ["--a", "--b"]


@pytest.mark.parametrize(
    ("schedule", "algorithm", "attention", "off"),
    [
        ("Auto", "None", 1, False),
        ("Auto", "EAGLE", 1, False),
        ("Auto", "DSPARK", 4, False),
        ("Auto", "None", 4, False),
        ("Auto", "EAGLE", 4, True),
        ("Enabled", "EAGLE", 4, False),
        ("Disabled", "None", 1, True),
    ],
)
@pytest.mark.parametrize("role", BOTH)
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_overlap(where: str, role: Role, schedule: str, algorithm: str, attention: int, off: bool) -> None:
    patch = {
        "overlapSchedule": schedule,
        "engine": {"speculative": {"algorithm": algorithm}},
        where: {"parallelism": {"attentionData": attention}},
    }
    assert ("--disable-overlap-schedule" in argv(patch, role)) is off


@pytest.mark.parametrize("role", BOTH)
def test_environment_by_default(role: Role) -> None:
    common = {
        "POD_NAME": EnvEntry("POD_NAME", field_path="metadata.name"),
        "POD_IP": EnvEntry("POD_IP", field_path="status.podIP"),
        "SGLANG_HOST_IP": EnvEntry("SGLANG_HOST_IP", field_path="status.podIP"),
        "SGLANG_DISAGGREGATION_NIXL_BACKEND": EnvEntry("SGLANG_DISAGGREGATION_NIXL_BACKEND", "UCX"),
        "UCX_TLS": EnvEntry("UCX_TLS", "cuda_copy,cuda_ipc,tcp"),
    }
    own = {
        Role.PREFILL: EnvEntry("SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", "0"),
        Role.DECODE: EnvEntry("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", "1"),
    }[role]
    assert env(None, role) == common | {own.name: own}


@pytest.mark.parametrize("role", BOTH)
@pytest.mark.parametrize(
    ("patch", "release", "index_k"),
    [
        ({}, "0.5.23", None),
        ({"indexK": {"dtype": "FP4"}}, "0.5.23", None),
        ({"indexK": {"dtype": "BF16"}}, "0.5.23", "bf16"),
        ({"indexK": {"dtype": "BF16"}}, "0.5.17", "bf16"),
        ({"network": {"checksum": True}}, "0.5.23", "fp8"),
        ({"network": {"checksum": True}}, "0.5.17", None),
        ({"network": {"checksum": True}, "indexK": {"dtype": "BF16"}}, "0.5.23", "bf16"),
    ],
)
def test_the_guard_where_it_is_needed(patch: dict[str, Any], release: str, index_k: str | None, role: Role) -> None:
    entries = {e.name: e.value for e in render_command(spec_of(patch), KNOWN_RELEASES[release], role).env}
    wanted = {} if index_k is None else {"SGLANG_PLUGINS": "dsv4_guard", "DSV4_INDEX_K_DTYPE": index_k}
    assert {name: value for name, value in entries.items() if name in OWNED_BY_GUARD} == wanted


OWNED_BY_GUARD = ("SGLANG_PLUGINS", "DSV4_INDEX_K_DTYPE")


def test_environment_of_the_user() -> None:
    patch = {
        "engine": {"env": [{"name": "A", "value": "engine"}, {"name": "B", "value": ""}]},
        "prefill": {
            "env": [{"name": "A", "value": "prefill"}, {"name": "S", "secretKeyRef": {"name": "n", "key": "k"}}]
        },
    }
    prefill, decode = env(patch, Role.PREFILL), env(patch, Role.DECODE)
    assert (prefill["A"].value, decode["A"].value) == ("prefill", "engine")
    assert (prefill["B"].value, decode["B"].value) == ("", "")
    assert prefill["S"].secret is not None
    assert prefill["S"].secret.key == "k"
    assert "S" not in decode


def test_what_is_owned_wins_even_over_a_spec_that_slipped_through() -> None:
    spec = spec_of({"engine": {"env": [{"name": "A", "value": "x"}]}})
    (variable,) = spec.engine.env
    name = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
    engine = spec.engine.model_copy(update={"env": [variable.model_copy(update={"name": name, "value": "1"})]})
    entries = render_command(spec.model_copy(update={"engine": engine}), DEFAULT_RELEASE, Role.PREFILL).env
    assert [entry.value for entry in entries if entry.name == name] == ["0"]


def test_token_of_the_hub() -> None:
    patch = {"model": {"source": {"huggingFace": {"tokenSecretRef": {"name": "hub", "key": "token"}}}}}
    for role in BOTH:
        secret = env(patch, role)["HF_TOKEN"].secret
        assert secret is not None
        assert (secret.name, secret.key) == ("hub", "token")
        assert "HF_TOKEN" not in env(None, role)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ({}, "cuda_copy,cuda_ipc,tcp"),
        ({"devices": ["mlx5_0"]}, "rc,cuda_copy,cuda_ipc,tcp"),
        ({"rdmaResource": {"name": "rdma/hca"}}, "rc,cuda_copy,cuda_ipc,tcp"),
        ({"ucxTransports": ["rc", "cuda_copy"], "devices": ["mlx5_0"]}, "rc,cuda_copy"),
    ],
)
def test_transports(network: dict[str, Any], expected: str) -> None:
    assert ucx_transports(spec_of({"network": network}).network) == expected
    assert env({"network": network}, Role.DECODE)["UCX_TLS"].value == expected


# -- against the real release


def all_argvs() -> list[list[str]]:
    specs = [spec_of(case[1]) for case in CASES]
    specs += [parse_deployment(found).spec for path in SAMPLES for found in sample_objects(path)]
    return [render_command(spec, DEFAULT_RELEASE, role).argv for spec in specs for role in BOTH]


@pytest.mark.parametrize("words", all_argvs(), ids=range(len(all_argvs())))
def test_the_release_takes_the_command(words: list[str]) -> None:
    assert words[:3] == ["python3", "-m", "sglang.launch_server"]
    known = [word.replace("$(LWS_WORKER_INDEX)", "1") for word in words[3:] if word not in ("--a", "--b")]
    build_parser(RELEASE).parse_args(known)
    for word in known:
        if word.startswith("--"):
            assert word.split("=")[0] in TABLE, f"{word} is an abbreviation or unknown"


def test_the_parser_can_refuse() -> None:
    for wrong in (["--hicache-mem-layout", "sideways"], ["--tp-size", "many"], ["--no-such-flag"]):
        with pytest.raises(SystemExit):
            build_parser(RELEASE).parse_args([*BASE[Role.PREFILL][3:], *wrong])


@pytest.mark.parametrize("flag", OWNED_FLAGS, ids=[flag.name for flag in OWNED_FLAGS])
def test_owned_flag_exists(flag: Any) -> None:
    assert flag.name in TABLE
    names = TABLE[flag.name]["names"]
    for spelling in flag.aliases:
        abbreviates = {name for name in TABLE if name.startswith(spelling)}
        assert spelling in names or abbreviates <= set(names), f"{spelling} is no spelling of {flag.name}"
    assert set(names) <= {flag.name, *flag.aliases}, "a spelling of the flag is not owned"


def test_everything_rendered_is_owned_or_meant_to_be_overridden() -> None:
    rendered = {word for words in all_argvs() for word in words if word.startswith("--") and word not in ("--a", "--b")}
    ours = {name for name in rendered if owned_flag(name) is None}
    assert ours == {"--watchdog-timeout", "--max-queued-requests", "--log-level=debug"}


def test_no_other_flag_is_taken_for_an_owned_one() -> None:
    owned = {spelling for flag in OWNED_FLAGS for spelling in (flag.name, *flag.aliases)}
    assert len(TABLE) > 500
    assert {name for name in TABLE if owned_flag(name) is not None} == owned & TABLE.keys()


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("--tp-size", "--tp-size"),
        ("--tp-size=8", "--tp-size"),
        ("--tp", "--tp-size"),
        ("--tensor-parallel-size=2", "--tp-size"),
        ("--enable-hicache", "--enable-hierarchical-cache"),
        ("--hicache-rat", "--hicache-ratio"),
        ("--hicache-rat=3", "--hicache-ratio"),
        ("--disaggregation-mod", "--disaggregation-mode"),
        ("8", None),
        ("tp-size", None),
        ("--max-queued-requests", None),
        ("--page-size-of-something-else", None),
        ("--", None),
        ("-t", None),
    ],
)
def test_owned_spellings(argument: str, name: str | None) -> None:
    flag = owned_flag(argument)
    assert (flag.name if flag else None) == name


def test_unique_abbreviations_of_owned_flags_are_owned() -> None:
    """What argparse takes for an owned flag must not slip through."""
    for flag in OWNED_FLAGS:
        for name in TABLE[flag.name]["names"]:
            for end in range(4, len(name)):
                meant = {other for other in TABLE if other.startswith(name[:end])}
                if meant <= set(TABLE[flag.name]["names"]):
                    found = owned_flag(name[:end])
                    assert found is not None, name[:end]
                    assert found.name == flag.name, name[:end]


EXTERNAL = {"UCX_TLS", "UCX_NET_DEVICES", "HF_TOKEN", "HOST_IP", "POD_NAME", "POD_IP", "DSV4_INDEX_K_DTYPE"}
"""Read by other software of the image, or (HOST_IP, POD_*) without SGLang's prefix; the rest is in the wheels' data."""


def test_variables_exist() -> None:
    rendered = {
        entry.name
        for patch in (
            None,
            {"model": {"source": {"huggingFace": {"tokenSecretRef": {"name": "n", "key": "k"}}}}},
            {"indexK": {"dtype": "BF16"}},
        )
        for role in BOTH
        for entry in env(patch, role).values()
    }
    assert rendered <= OWNED_ENV.keys(), "a rendered variable is not owned"
    assert rendered - EXTERNAL <= env_names(DEFAULT_RELEASE)
    assert all(releases_with_env(name) is not None for name in OWNED_ENV.keys() - EXTERNAL)
    assert OWNED_VARIABLES.keys() <= OWNED_ENV.keys(), "the API refuses what the engine does not own"
