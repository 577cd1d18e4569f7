"""Real sidecars beside simulated pairs, as processes: no false alarm in 500 probes, and what a sidecar takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from canary_lab import CONCLUSIVE, Samples, UserLoad, added, corrupted, line, ready_code, report, samples, total
from local_pairs import LocalPair, local_pairs, until

pytestmark = pytest.mark.processes

PROBES = 500
GUARDED = {"DSV4_SIM_GUARD": "1", "SGLANG_PLUGINS": "dsv4_guard", "DSV4_INDEX_K_DTYPE": "bf16"}
BUSY = {
    "DSV4_SIM_POOL_PAGES": "96",
    "DSV4_SIM_HOST_POOL_PAGES": "512",
    "DSV4_SIM_HOST_BANDWIDTH_MBPS": "64",
    "DSV4_SIM_LAYER_MS": "4",
}


def start_sidecars(pairs: list[LocalPair]) -> None:
    for pair in pairs:
        pair.start_sidecars()
    pods = [pair.pod(role) for pair in pairs for role in ("prefill", "decode")]
    until("all sidecars to be ready", pairs, lambda: all(ready_code(pod) == 200 for pod in pods))


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[list[LocalPair]]:
    """Six healthy pairs as the product renders them: bf16 with the plugin, HiCache, gate on. One is noisy."""
    how: dict[str, Any] = {
        "prefill_flags": ("--enable-hierarchical-cache",),
        "sidecar_env": {"DSV4_CANARY_REQUIRE_GUARD": "bf16"},
        "settings": {"tokensPerMinute": 1e9},  # the pace is the interval's alone
    }
    noisy = {"DSV4_SIM_LOGPROB_NOISE": "0.25"}
    with (
        local_pairs(tmp_path / "calm", 5, env=GUARDED | BUSY, **how) as calm,
        local_pairs(tmp_path / "noisy", 1, env=GUARDED | BUSY | noisy, **how) as loud,
    ):
        yield [*calm, *loud]


def test_five_hundred_probes_under_healthy_load_raise_no_alarm(pairs: list[LocalPair]) -> None:
    """Users' prompts evict the canaries' prefixes, so every tier is asked; every answer is right."""
    start_sidecars(pairs)
    pods = [pair.pod(role) for pair in pairs for role in ("prefill", "decode")]
    loads = [UserLoad([pair.pod("prefill")], [pair.pod("decode")], workers=1, prompts=12, pause=0.4) for pair in pairs]
    worst = {"dsv4_canary_corruption_verdict": 0.0, "dsv4_engine_wedged": 0.0}

    def enough() -> Samples | None:
        found = added(pods)
        for name, value in worst.items():
            worst[name] = max(value, total(found, name))
        return found if total(found, "dsv4_canary_probes_total", outcome=CONCLUSIVE) >= PROBES else None

    with ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        found = until(f"{PROBES} probes", pairs, enough, 300)
    asked = total(found, "dsv4_canary_probes_total", outcome=CONCLUSIVE)
    print(f"\n{asked:.0f} probes; wrong/asked: {line(found)}; users: {[str(load) for load in loads]}")
    megabytes = {n: p.resident_bytes(n) / 1e6 for p in pairs for n in p.processes if n.startswith("sidecar")}
    print(f"resident memory of the sidecars: {max(megabytes.values()):.1f} MB at most")
    assert set(worst.values()) == {0}
    assert [corrupted(found, tier) for tier in ("cold", "device", "host", "unknown")] == [0, 0, 0, 0]
    assert total(found, "dsv4_canary_probes_total", outcome={"pass"}, cache="host") > 0
    assert total(found, "dsv4_canary_probes_total", outcome={"pass"}, cache="cold") > 0
    assert {report(pod)["corruption"]["verdict"] for pod in pods} == {"None"}
    assert all(ready_code(pod) == 200 for pod in pods)
    assert max(megabytes.values()) < 64 * 1.048576


def test_a_plugin_that_is_not_loaded_by_mistake_is_missed(tmp_path: Path) -> None:
    """The image has it, ``SGLANG_PLUGINS`` was left out: the engine serves fp8 as stock SGLang, nothing is Ready."""
    env = {name: value for name, value in GUARDED.items() if name != "SGLANG_PLUGINS"}
    with local_pairs(tmp_path, 1, env=env, sidecar_env={"DSV4_CANARY_REQUIRE_GUARD": "bf16"}) as (pair,):
        pair.start_sidecars()
        pods = [pair.pod(role) for role in ("prefill", "decode")]
        until(
            "the missing marker",
            [pair],
            lambda: all(report(pod)["reason"] == "GuardMissing" and ready_code(pod) == 503 for pod in pods),
        )
        for pod in pods:
            found = samples(pod)
            guard = [total(found, f"dsv4_canary_guard_{what}") for what in ("required", "present")]
            assert (guard, report(pod)["guard"]["required"], report(pod)["guard"]["present"]) == ([1, 0], True, False)
