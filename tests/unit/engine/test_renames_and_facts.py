"""Renamed flags, sizes, what the handshake compares, host memory, and what is thought of releases."""

from __future__ import annotations

from typing import Any

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.engine import facts
from dsv4_operator.engine.memory import host_pool_estimate, kv_bytes_per_token
from dsv4_operator.engine.releases import (
    DEFAULT_RELEASE,
    KNOWN_RELEASES,
    OLDEST_RECOMMENDED,
    OLDEST_USABLE,
    Release,
    recommended_releases,
    verdict,
)
from dsv4_operator.engine.renames import RENAMES, current_name, deprecation
from dsv4_operator.engine.wheel import flag_table


@pytest.mark.parametrize(
    ("flag", "release", "instead"),
    [
        ("--cuda-graph-max-bs", "0.5.23", "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-max-bs", "0.5.19", None),
        ("--cuda-graph-max-bs=128", "0.5.23", "--cuda-graph-max-bs-decode"),
        ("--attn-dp-size", "0.5.21", "--dp-size"),
        ("--attn-dp-size", "0.5.22", None),
        ("--dp-size", "0.5.23", None),
        ("--enable-nsa-prefill-context-parallel", "0.5.23", "--enable-prefill-cp"),
        ("--enable-prefill-cp", "0.5.12", "--enable-nsa-prefill-context-parallel"),
        ("--enable-prefill-cp", "0.5.13", "--enable-nsa-prefill-context-parallel"),
        ("--optimistic-prefill-retries", "0.5.16", "--optimistic-prefill-attempts"),
        ("--optimistic-prefill-attempts", "0.5.15", "--optimistic-prefill-retries"),
        ("--enforce-piecewise-cuda-graph", "0.5.20", "--cuda-graph-backend-prefill=tc_piecewise"),
        ("--enforce-piecewise-cuda-graph", "0.5.23", None),
        ("--stream-output", "0.5.23", "--incremental-streaming-output"),
        ("--speculative-dflash-draft-window-size", "0.5.23", "--speculative-draft-window-size"),
        ("--no-such-flag", "0.5.23", None),
        ("SGLANG_NSA_FUSE_TOPK", "0.5.23", "SGLANG_DSA_FUSE_TOPK"),
        ("SGLANG_NO_SUCH", "0.5.23", None),
    ],
)
def test_current_name(flag: str, release: str, instead: str | None) -> None:
    found = current_name(flag, KNOWN_RELEASES[release])
    assert (found.new if found else None) == instead
    if found is not None:
        assert found.old == flag.split("=", maxsplit=1)[0]


def test_every_rename_leads_somewhere() -> None:
    """For each release that lacks the old name, the new one is there, or nothing is claimed."""
    for rename in RENAMES:
        assert rename.gone is None or rename.since <= rename.gone
        for release in KNOWN_RELEASES.values():
            found = current_name(rename.old, release)
            if found is not None:
                assert rename.old not in flag_table(release)
                assert found.new.split("=")[0] in flag_table(release)


def test_the_table_says_what_upstream_says() -> None:
    """Where a release names the successor itself, ours is the same."""
    for rename in RENAMES:
        said = {flag.use for r in KNOWN_RELEASES.values() if (flag := flag_table(r).get(rename.old)) and flag.use}
        if said and rename.old not in ("--enable-dp-attention",):
            assert rename.new in said, rename.old


def test_deprecations() -> None:
    assert deprecation("--enable-dp-attention", DEFAULT_RELEASE) == "--attn-dp-size <dp-size>"
    assert deprecation("--enable-dp-attention", KNOWN_RELEASES["0.5.21"]) is None
    assert deprecation("SGLANG_USE_TRITON_ROUTER_SUM", DEFAULT_RELEASE) == "SGLANG_USE_CUSTOM_ROUTER_SUM"
    assert deprecation("--tp-size", DEFAULT_RELEASE) is None
    assert deprecation("SGLANG_NO_SUCH", DEFAULT_RELEASE) is None


def test_sizes() -> None:
    """The figures that were read from the pools: bytes per token and C4 layer, and per page."""
    assert facts.INDEX_K_BYTES == {IndexKDtype.FP8: 33, IndexKDtype.FP4: 17, IndexKDtype.BF16: 64}
    assert facts.INDEX_K_PAGE_BYTES == {IndexKDtype.FP8: 8448, IndexKDtype.FP4: 4352, IndexKDtype.BF16: 16384}
    assert (facts.C4_PAGE_BYTES, facts.C128_PAGE_BYTES, facts.SWA_PAGE_BYTES) == (37440, 1728, 149760)


def test_bf16_costs_about_a_tenth() -> None:
    fp8, bf16 = (kv_bytes_per_token(dtype, 21, 20, 43) for dtype in (IndexKDtype.FP8, IndexKDtype.BF16))
    assert 0.08 < bf16 / fp8 - 1 < 0.12


def spec_of(patch: dict[str, Any]) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal(), {"spec": patch})).spec


B300 = {"accelerator": {"architecture": "SM103"}, "prefill": {"gpus": 8}}


@pytest.mark.parametrize(
    ("patch", "gigabytes"),
    [
        ({**B300, "hiCache": {"enabled": True}}, 950),
        ({**B300, "hiCache": {"enabled": True, "ratio": "1"}}, 475),
        ({**B300, "hiCache": {"enabled": True}, "prefill": {"gpus": 8, "nodes": 2}}, 950),
        ({**B300}, None),
        ({**B300, "hiCache": {"enabled": True}, "prefill": {"gpus": 4}}, None),
        ({"hiCache": {"enabled": True}, "prefill": {"gpus": 8}}, None),
        ({**B300, "hiCache": {"enabled": True}, "accelerator": {"architecture": "SM100"}}, None),
    ],
)
def test_host_pools(patch: dict[str, Any], gigabytes: int | None) -> None:
    found = host_pool_estimate(spec_of(patch), DEFAULT_RELEASE, Role.PREFILL)
    assert (round(found.bytes / 1e9) if found else None) == gigabytes
    assert host_pool_estimate(spec_of(patch), DEFAULT_RELEASE, Role.DECODE) is None
    if found is not None:
        assert found.bytes == found.per_rank * found.ranks
        assert found.ranks == 8
        assert "B300" in found.basis


def test_verdicts() -> None:
    assert [str(r) for r in recommended_releases()] == ["0.5.21", "0.5.22", "0.5.23"]
    assert (str(OLDEST_USABLE), str(OLDEST_RECOMMENDED)) == ("0.5.18", "0.5.21")
    for release in KNOWN_RELEASES.values():
        found = verdict(release)
        assert found.usable or not found.recommended
        assert found.note
        assert found.source
    unknown = verdict(Release((9, 9, 9)))
    assert not unknown.usable
    assert not unknown.recommended


def test_handshake_names_what_is_not_compared() -> None:
    unchecked = {check.what for check in facts.HANDSHAKE if check.checked is None}
    assert {"index-K format", "SGLang version", "model and weights"} <= unchecked
