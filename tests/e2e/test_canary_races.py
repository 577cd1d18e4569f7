"""The incident on the real node: an ungated index-K in bf16 behind HiCache, under load, found by the canary.

One pair with a slow copier, so that the windows are large beside a busy machine's jitter: index-K of a reloaded prefix
of 13 to 20 pages comes 71 to 109 ms (bf16) or 37 to 56 ms (fp8) after its KV, and an ungated forward reads it after 60
(the operator turns the early send off, so pages leave after the forward). The gate is the only difference between the
first two arms, one field of the object between the others. Nothing is drawn at random; what is counted are the canary's
own probes, and beside them the calls of the users who make the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from canary_lab import (
    Alerts,
    Pod,
    Samples,
    UserLoad,
    added,
    alerts,
    by_name,
    line,
    ready_code,
    report,
    samples,
    total,
    wrong,
)
from localcluster.ports import free_port
from world import World, deployment, engine_url, switch

pytestmark = pytest.mark.node

ENV = {
    "DSV4_SIM_GUARD": "1",
    "DSV4_SIM_STARTUP_SECONDS": "0",
    "DSV4_SIM_HEALTH_SECONDS": "0.2",
}
PREFILL = {
    "DSV4_SIM_POOL_PAGES": "40",
    "DSV4_SIM_HOST_POOL_PAGES": "2048",
    "DSV4_SIM_HOST_BANDWIDTH_MBPS": "3",
    "DSV4_SIM_LAYER_MS": "60",
}
ASKED = 10
"""Conclusive probes of the host tier that an arm waits for."""


def variables(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


@dataclass
class Lab:
    """One pair and a Prometheus."""

    world: World
    watch: Alerts

    @property
    def engines(self) -> list[Pod]:
        return [*self.world.serving("pair", "prefill"), *self.world.serving("pair", "decode")]

    def prefill_is_accused(self) -> bool:
        """The alert fires for the pod whose host tier it is."""
        return any(labels["role"] == "prefill" for labels in self.watch.firing("DSV4Corruption"))

    def live(self) -> Samples:
        """What the plugin in decode counted of the users' tool calls."""
        (decode,) = self.world.serving("pair", "decode")
        return samples(decode, engine_url(decode))

    def arm(self, *, index_k: str, hicache: bool, gate: str) -> None:
        """Make the object so, wait for it, and set the gate."""
        self.world.patch("pair", {"indexK": {"dtype": index_k}, "hiCache": {"enabled": hicache}})
        for pod in self.engines:
            switch(pod, gate="on")
        self.world.wait_ready("pair")
        self.watch.follow()
        for pod in self.engines:
            switch(pod, gate=gate)

    def under_load(self, name: str, tier: str, asked: int, *, until: Any = None, timeout: float = 120) -> Samples:
        """Load until the canaries have ``asked`` conclusive probes of a tier (and ``until`` holds); what they found."""
        engines = self.engines
        before = by_name(engines)
        with UserLoad(self.world.serving("pair", "prefill"), self.world.serving("pair", "decode")) as users:

            def enough() -> Samples | None:
                found = added(engines, before)
                count = total(found, "dsv4_canary_probes_total", outcome={"pass", "fail"}, cache=tier)
                return found if count >= asked and (until is None or until()) else None

            try:
                found: Samples = self.world.wait(f"{asked} probes of {tier}", enough, timeout)
            except Exception as error:
                raise AssertionError(f"{error}\ncanaries: {line(added(engines, before))}\nusers: {users}") from error
        print(f"\n{name}: canaries' probes, wrong/asked: {line(found)}\n    users' calls, wrong/asked: {users}")
        return found


@pytest.fixture(scope="module")
def lab(module_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    world = module_world
    world.create(
        deployment(
            "pair",
            indexK={"dtype": "BF16"},
            hiCache={"enabled": True, "onCorruption": "Alert"},
            engine={"env": variables(ENV)},
            prefill={"env": variables(PREFILL)},
            canary={"intervalSeconds": 2, "timeoutSeconds": 10, "failureThreshold": 3, "promptTokens": 3400},
        )
    )
    world.wait_ready("pair")
    with alerts(tmp_path_factory.mktemp("prometheus"), free_port(), world, "pair", 15) as watch:
        yield Lab(world, watch)


def accused(lab: Lab) -> list[str]:
    """Pods whose corruption the status names."""
    charges = lab.world.get("pair")["status"].get("blame") or []
    return [pod for charge in charges if charge["reason"] == "Corruption" for pod in charge["pods"]]


@pytest.fixture(scope="module")
def gated(lab: Lab) -> Samples:
    lab.arm(index_k="BF16", hicache=True, gate="on")
    return lab.under_load("bf16, HiCache, gate on", "host", ASKED)


@pytest.fixture(scope="module")
def ungated(lab: Lab, gated: Samples) -> Samples:
    """After the gated arm, so that the corruption of this one is not in its window."""
    lab.arm(index_k="BF16", hicache=True, gate="off")
    return lab.under_load("bf16, HiCache, gate off", "host", ASKED, until=lab.prefill_is_accused, timeout=180)


def test_gated_bf16_under_load_has_no_corruption(lab: Lab, gated: Samples) -> None:
    assert [wrong(gated, tier) for tier in ("cold", "device", "host", "unknown")] == [0, 0, 0, 0]


def test_ungated_bf16_corrupts_reloaded_prefixes_only_and_the_alert_fires(lab: Lab, ungated: Samples) -> None:
    # Most damaged replies are leaked markup, whose class is "contract"; that only reloaded prefixes bring it is what
    # makes it evidence, and the ratio below counts it.
    assert wrong(ungated, "host") > 0
    assert total(ungated, "dsv4_canary_probes_total", outcome="pass", cache="cold") > 0
    assert [wrong(ungated, tier) for tier in ("cold", "device")] == [0, 0]
    damaged = {"leaked", "loop", "invalid_json", "unknown_tool", "schema"}
    live = {t: total(lab.live(), "dsv4_guard_tool_calls_total", outcome=damaged, cache=t) for t in ("cold", "host")}
    print(f"    damaged calls of live traffic, by the plugin: {live}")
    assert live["host"] > 0
    assert live["cold"] == 0
    (prefill,) = lab.world.serving("pair", "prefill")
    lab.world.wait("the prefill to withdraw", lambda: ready_code(prefill) == 503, timeout=90)
    lab.world.wait("the operator to say whose fault it is", lambda: accused(lab) == [prefill["metadata"]["name"]], 90)
    firing = lab.watch.firing("DSV4Corruption")
    print(f"    DSV4Corruption fires for: {sorted(labels['pod'] for labels in firing)}")
    names = {pod["metadata"]["name"] for pod in lab.engines}
    assert {labels["pod"] for labels in firing} <= names
    ratio = {tier: lab.watch.query(f'max(dsv4_canary_corruption_ratio{{cache="{tier}"}})') for tier in ("cold", "host")}
    assert float(ratio["host"][0]["value"][1]) > 0
    assert float(ratio["cold"][0]["value"][1]) == 0
    verdicts = {pod["metadata"]["name"]: report(pod)["corruption"] for pod in lab.engines}
    assert any(found["verdict"] == "Confirmed" and found["cache"] == "host" for found in verdicts.values()), verdicts


def test_ungated_fp8_is_hit_far_less(lab: Lab, ungated: Samples) -> None:
    lab.arm(index_k="FP8", hicache=True, gate="off")
    found = lab.under_load("fp8, HiCache, gate off", "host", ASKED)
    assert wrong(found, "host") * 3 <= wrong(ungated, "host")
    assert [wrong(found, tier) for tier in ("cold", "device")] == [0, 0]


def test_without_hicache_nothing_is_corrupted(lab: Lab) -> None:
    lab.arm(index_k="BF16", hicache=False, gate="off")
    found = lab.under_load("bf16, no HiCache, gate off", "cold", ASKED)
    assert total(found, "dsv4_canary_probes_total", outcome={"pass", "fail"}, cache="host") == 0
    assert [wrong(found, tier) for tier in ("cold", "device", "host", "unknown")] == [0, 0, 0, 0]
