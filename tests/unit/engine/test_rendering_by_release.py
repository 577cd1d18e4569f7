"""The command by release: what differs, word by word, and what holds for any spec on any release."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import merged, minimal
from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.engine.command import disables_overlap, render_command
from dsv4_operator.engine.fingerprint import kv_fingerprint
from dsv4_operator.engine.flags import OWNED_ENV, owned_flag
from dsv4_operator.engine.prediction import predicted
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, Release
from dsv4_operator.engine.rendered import RENDERED_ENV, RENDERED_FLAGS, RETRACTION_BACKUP
from dsv4_operator.engine.wheel import FlagKind, env_table, flag_table, flags, releases_with_env, releases_with_flag

EVERY = list(KNOWN_RELEASES.values())
NEWEST = DEFAULT_RELEASE
BOTH = (Role.PREFILL, Role.DECODE)
Patch = dict[str, Any]


def spec_of(*patches: Patch) -> DSV4DeploymentSpec:
    found = minimal()
    for patch in patches:
        found = merged(found, {"spec": patch})
    return parse_deployment(found).spec


def words(spec: DSV4DeploymentSpec, release: Release, role: Role) -> list[str]:
    return render_command(spec, release, role).argv[3:]


def variables(spec: DSV4DeploymentSpec, release: Release, role: Role) -> dict[str, str | None]:
    return {e.name: e.value for e in render_command(spec, release, role).env if e.name.startswith("SGLANG_")}


def release(patch: int) -> Release:
    return KNOWN_RELEASES[f"0.5.{patch}"]


HICACHE: Patch = {"hiCache": {"enabled": True}}
DP: Patch = {"decode": {"parallelism": {"attentionData": 4}}, "prefill": {"parallelism": {"attentionData": 4}}}
DSPARK: Patch = {"engine": {"speculative": {"algorithm": "DSPARK", "dsparkBlockSize": 7}}}


@pytest.mark.parametrize("known", EVERY, ids=str)
@pytest.mark.parametrize("role", BOTH)
def test_attention_data_parallelism(known: Release, role: Role) -> None:
    new, old = "--attn-dp-size 4", "--dp-size 4 --enable-dp-attention"
    text = " ".join(words(spec_of(DP), known, role))
    assert (new in text, old in text) == (known >= release(22), known < release(22))
    assert "dp" not in " ".join(words(spec_of(), known, role))


@pytest.mark.parametrize("known", EVERY, ids=str)
def test_flags_that_came(known: Release) -> None:
    fp4 = words(spec_of({"indexK": {"dtype": "FP4"}}), known, Role.PREFILL)
    assert ("--enable-deepseek-v4-fp4-indexer" in fp4) is (known >= release(13))
    checksum = words(spec_of({"network": {"checksum": True}}), known, Role.DECODE)
    assert ("--disaggregation-enable-kv-checksum" in checksum) is (known >= release(21))
    dspark = words(spec_of(DSPARK), known, Role.DECODE)
    assert ("--speculative-dspark-block-size" in dspark) is (known >= release(16))
    for role in BOTH:
        backup = words(spec_of(), known, role)
        assert ("--disaggregation-decode-retraction-backup" in backup) is (known == release(21) and role is Role.DECODE)


@pytest.mark.parametrize("known", EVERY, ids=str)
@pytest.mark.parametrize("cache", [False, True])
def test_environment(known: Release, cache: bool) -> None:
    spec = spec_of(HICACHE if cache else {})
    prefill, decode = variables(spec, known, Role.PREFILL), variables(spec, known, Role.DECODE)
    early = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
    deferred = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    tree = "SGLANG_ENABLE_UNIFIED_RADIX_TREE"
    assert prefill.get(early) == ("0" if known >= release(15) else None)
    assert prefill.get(tree) == ("1" if cache and known <= release(20) else None)
    assert decode.get(deferred) == ("1" if known >= release(19) else None)
    assert not {early, tree} & decode.keys()
    assert deferred not in prefill


@pytest.mark.parametrize("known", EVERY, ids=str)
def test_overlap(known: Release) -> None:
    eagle = {"engine": {"speculative": {"algorithm": "EAGLE"}}}
    assert disables_overlap(spec_of(), known) is (known <= release(15))
    assert disables_overlap(spec_of(eagle, DP), known)
    assert not disables_overlap(spec_of({"overlapSchedule": "Enabled"}, eagle, DP), known)
    assert disables_overlap(spec_of({"overlapSchedule": "Disabled"}), known)
    assert ("--disable-overlap-schedule" in words(spec_of(), known, Role.PREFILL)) is (known <= release(15))


def test_ranges_are_those_of_the_wheels() -> None:
    """Rendered only where the wheel has it; narrower only where a reason is written down."""
    narrower = {"--dp-size", "--enable-dp-attention", RETRACTION_BACKUP.name}
    for entry in RENDERED_FLAGS.values():
        held = [r for r in EVERY if entry.name in flag_table(r)]
        assert set(entry.releases.known()) <= set(held), entry.name
        assert (entry.releases.known() == held) is (entry.name not in narrower), entry.name
        assert entry.why
        assert entry.source
    for entry in RENDERED_ENV.values():
        assert str(releases_with_env(entry.name)) == str(entry.releases), entry.name
    assert str(releases_with_flag(RETRACTION_BACKUP.name)) == "0.5.18 and later"


# -- any spec

_PARALLEL = st.sampled_from([{}, {"attentionData": 2}, {"attentionData": 4}, {"expert": 4}, {"tensor": 2}])
_SPECULATION = st.sampled_from(
    [
        {},
        {"algorithm": "EAGLE"},
        {"algorithm": "EAGLE", "numSteps": 5, "eagleTopk": 1, "numDraftTokens": 6},
        {"algorithm": "DSPARK"},
        {"algorithm": "DSPARK", "dsparkBlockSize": 7, "draftModelPath": "/draft"},
    ]
)
_SOURCES = st.sampled_from(
    [
        {},
        {"huggingFace": None, "hostPath": {"path": "/data"}},
        {"huggingFace": None, "persistentVolumeClaim": {"claimName": "c", "path": "p"}},
        {"huggingFace": {"tokenSecretRef": {"name": "n", "key": "k"}}},
    ]
)


def _role() -> st.SearchStrategy[Patch]:
    return st.fixed_dictionaries(
        {},
        optional={
            "gpus": st.sampled_from([4, 8]),
            "nodes": st.sampled_from([1, 2]),
            "parallelism": _PARALLEL,
            "replicas": st.integers(1, 3),
        },
    )


def _cache(pair: tuple[str, str]) -> st.SearchStrategy[Patch]:
    return st.fixed_dictionaries(
        {"enabled": st.booleans(), "ioBackend": st.just(pair[0]), "layout": st.just(pair[1])},
        optional={
            "ratio": st.sampled_from(["1.5", "2", "10"]),
            "writePolicy": st.sampled_from(["WriteThrough", "WriteThroughSelective", "WriteBack"]),
        },
    )


_PAIRS = [("Kernel", "LayerFirst"), ("Kernel", "PageFirst"), ("Direct", "LayerFirst"), ("Direct", "PageFirstDirect")]
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.fixed_dictionaries({"source": _SOURCES}),
        "indexK": st.fixed_dictionaries({"dtype": st.sampled_from(["FP8", "FP4", "BF16"])}),
        "hiCache": st.sampled_from(_PAIRS).flatmap(_cache),
        "overlapSchedule": st.sampled_from(["Auto", "Enabled", "Disabled"]),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "speculative": _SPECULATION,
                "contextLength": st.sampled_from([65536, 1048576]),
                "memFractionStatic": st.just("0.8"),
                "maxRunningRequests": st.integers(1, 999),
                "chunkedPrefillSize": st.sampled_from([2048, 16384]),
            },
        ),
        "prefill": _role(),
        "decode": _role(),
        "network": st.fixed_dictionaries(
            {},
            optional={
                "checksum": st.booleans(),
                "devices": st.just(["mlx5_0"]),
                "ucxTransports": st.just(["rc", "cuda_ipc"]),
            },
        ),
    },
)


def valid(patch: Patch) -> DSV4DeploymentSpec | None:
    try:
        return spec_of(patch)
    except ValueError:
        return None


ANY = SPECS.map(valid).filter(lambda spec: spec is not None)


@settings(max_examples=120, deadline=None)
@given(spec=ANY, known=st.sampled_from(EVERY), role=st.sampled_from(BOTH))
def test_no_flag_is_unknown_to_its_release(spec: DSV4DeploymentSpec, known: Release, role: Role) -> None:
    """Each flag once, spelt in full, with as many values as it takes, of its type and choices; no unknown variable."""
    table = flag_table(known)
    rendered = words(spec, known, role)
    seen: set[str] = set()
    index = 0
    while index < len(rendered):
        flag = table[rendered[index]]
        assert flag.name not in seen
        assert flag.kind is not FlagKind.RETIRED
        seen.add(flag.name)
        index += 1
        if flag.takes_value:
            value = rendered[index]
            newer_algorithm = flag.name == "--speculative-algorithm" and value == "DSPARK" and known < release(16)
            assert flag.accepts(value.replace("$(LWS_WORKER_INDEX)", "1")) or newer_algorithm, (flag.name, value)
            index += 1
    assert {flag.name for flag in flags(known) if flag.required} <= seen
    environment = env_table(known)
    assert all(name in environment and not environment[name].retired for name in variables(spec, known, role))


@settings(max_examples=60, deadline=None)
@given(spec=ANY, known=st.sampled_from(EVERY))
def test_both_roles_agree_where_they_must(spec: DSV4DeploymentSpec, known: Release) -> None:
    """What decides the meaning of KV is rendered alike: format, page, speculation, parsers, backend, checksum."""
    shared = (
        "page_size", "kv_cache_dtype", "attention_backend", "swa_full_tokens_ratio", "enable_deepseek_v4_fp4_indexer",
        "disaggregation_enable_kv_checksum", "disaggregation_transfer_backend", "speculative_algorithm",
        "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
        "speculative_dspark_block_size", "tool_call_parser", "reasoning_parser", "context_length",
    )  # fmt: skip
    prefill, decode = (predicted(spec, known, role) for role in BOTH)
    assert {name: prefill.get(name) for name in shared} == {name: decode.get(name) for name in shared}
    own = {"--disaggregation-mode", "--port"}
    kv = ("--page-size", "--kv-cache-dtype", "--enable-deepseek-v4", "--speculative", "--disaggregation-enable")
    pick = [[w for w in words(spec, known, r) if w.startswith(kv) and w not in own] for r in BOTH]
    assert pick[0] == pick[1]


@settings(max_examples=60, deadline=None)
@given(spec=ANY, known=st.sampled_from(EVERY), other=st.sampled_from(EVERY))
def test_a_release_is_part_of_the_fingerprint(spec: DSV4DeploymentSpec, known: Release, other: Release) -> None:
    same = kv_fingerprint(spec, known, "x:1") == kv_fingerprint(spec, other, "x:1")
    assert same is (known == other)


@pytest.mark.parametrize("known", EVERY, ids=str)
def test_everything_rendered_is_in_the_table_of_reasons(known: Release) -> None:
    every = {"hiCache": {"enabled": True}, "indexK": {"dtype": "FP4"}, "network": {"checksum": True}} | DP | DSPARK
    for role, dtype in product(map(Role, ENGINE_ROLES), ("FP4", "BF16")):
        every["indexK"] = {"dtype": dtype}
        command = render_command(spec_of(every), known, role)
        names = {word for word in command.argv if word.startswith("--")}
        assert names <= RENDERED_FLAGS.keys()
        assert {name for name in names if owned_flag(name) is None} <= {"--watchdog-timeout", RETRACTION_BACKUP.name}
        assert {e.name for e in command.env if e.name.startswith("SGLANG_")} <= RENDERED_ENV.keys()
        assert {e.name for e in command.env} <= OWNED_ENV.keys()


def test_the_newest_release_is_the_default() -> None:
    assert EVERY[-1] == NEWEST
