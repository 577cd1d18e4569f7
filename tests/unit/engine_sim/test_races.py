"""The table that found the ungated index-K, small: real processes, real races, counts printed.

Copier, forward and transfer are slowed down alike, so that a busy machine's jitter is small beside the windows.
"""

import asyncio
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

pytestmark = pytest.mark.processes

TOOL = Path(__file__).parents[3] / "images" / "engine-sim" / "tools" / "table.py"


def load_table():
    spec = importlib.util.spec_from_file_location("engine_sim_table", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = load_table()
SLOW = {"DSV4_SIM_HOST_BANDWIDTH_MBPS": "8", "DSV4_SIM_TRANSFER_POST_MS": "20", "DSV4_SIM_LAYER_MS": "24"}
BASE = table.Arm("bf16, HiCache, PD", sessions=12, rounds=3, words=600, env=SLOW | {"DSV4_SIM_POOL_PAGES": "72"})


def run(arm):
    outcome = asyncio.run(table.run_arm(arm))
    print(table.line(arm, outcome))
    assert outcome.total("error") == 0
    return outcome


@pytest.fixture(scope="module")
def ungated():
    return run(BASE)


def test_ungated_bf16_corrupts_reloaded_prefixes_only(ungated):
    assert ungated.bad("host") > 0
    assert ungated.total("cold") > 0
    assert ungated.bad("cold") == ungated.bad("device") == 0


def test_gated_is_clean_under_the_same_load():
    gated = run(replace(BASE, gate="on"))
    assert gated.total("host") > 0
    assert gated.bad() == 0


def test_fp8_is_hit_far_less(ungated):
    fp8 = run(replace(BASE, name="fp8, HiCache, PD", index_k="fp8"))
    assert fp8.total("host") > 0
    assert fp8.bad() * 3 <= ungated.bad()
    assert fp8.bad("cold") == 0


def test_without_hicache_nothing_is_reloaded_and_nothing_corrupted():
    off = run(replace(BASE, name="bf16, no HiCache, PD", hicache=False))
    assert (off.bad(), off.total("host"), off.total("cold")) == (0, 0, 36)


def test_one_server_is_hit_less_than_a_pair(ungated):
    alone = run(replace(BASE, name="bf16, HiCache, one server", pair=False))
    assert alone.total("host") > 0
    assert alone.bad() < ungated.bad()
    assert alone.bad("cold") == 0


# -- the same prefix again, as a canary asks it ------------------------------------------------------------------------

FILLER = "All work and no play makes the scheduler a dull loop. " * 260
ASK = 'Call the tool probe_echo exactly once with token "zk-41-quartz-ramp" and n {n}. Do not write anything else.'
RIGHT = {"token": "zk-41-quartz-ramp", "n": 7}
SMALL = SLOW | {"DSV4_SIM_POOL_PAGES": "24"}


def messages(head, n=7):
    """A head of its own in front of the tools, so that nothing is shared with other probes."""
    system = {"role": "system", "content": f"Probe {head}. " + FILLER[:1100]}
    return [system, {"role": "user", "content": FILLER + ASK.format(n=n)}]


class Probe:
    """One pair and a client of it."""

    def __init__(self, urls, load):
        self.prefill, self.decode = urls
        self.load = load

    async def ask(self, head, **extra):
        """(kind of reply, tier of its prefix)."""
        status, reply = await self.load.ask(messages(head), **extra)
        assert status == 200, reply
        return table.judge(reply["choices"][0]["message"], RIGHT), table.tier(reply)

    async def switch(self, **switches):
        for url in (self.prefill, self.decode):
            async with self.load.client.put(url + "/sim/switches", json=switches) as response:
                assert response.status == 200, await response.text()

    async def evict(self):
        """Push everything else out of a pool of 24 pages; the host keeps it."""
        for filler in ("x", "y", "z"):
            assert (await self.ask(f"evict {filler}"))[0] in ("right", *table.KINDS)

    async def metric(self, url, name):
        async with self.load.client.get(url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(row.rsplit(" ", 1)[1]) for row in lines if row.split("{")[0] == "sglang:" + name)


def probing(tmp_path, arm, scenario):
    """Run `scenario(probe)` against fresh engines of an arm."""

    async def main():
        with table.engines(arm, tmp_path) as (urls, bootstrap):
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
                load = table.Load(arm, urls, bootstrap, client)
                await load.ready()
                await scenario(Probe(urls, load))

    asyncio.run(main())


def test_a_repeated_prefix_is_right_cold_and_from_device_and_wrong_from_the_host_ungated(tmp_path):
    async def scenario(probe):
        assert await probe.ask("a") == ("right", "cold")
        assert await probe.ask("a") == ("right", "device")
        await probe.switch(gate="on")
        await probe.evict()
        assert await probe.ask("a") == ("right", "host")
        await probe.switch(gate="off")
        await probe.evict()
        kind, tier = await probe.ask("a")
        print("ungated, from the host:", kind)
        assert tier == "host"
        assert kind in table.KINDS
        assert await probe.ask("a") == ("right", "device"), "what arrived late is there now"
        assert await probe.metric(probe.prefill, "load_back_tokens_total") >= 2 * 2560
        assert await probe.metric(probe.decode, "cached_tokens_total") >= 2 * 2560

    probing(tmp_path, table.Arm("canary", env=SMALL), scenario)


@pytest.mark.parametrize(
    ("env", "guard", "hit"),
    [({}, "on", False), ({}, "off", True), ({"SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0"}, "off", False)],
)
def test_early_send_of_pages_that_another_request_is_loading(tmp_path, env, guard, hit):
    """The upstream hole up to 0.5.22: reads of index-K are gated, the sharers' early send is not."""

    async def scenario(probe):
        await probe.switch(early_send_guard=guard)
        await probe.ask("shared")
        await probe.evict()
        replies = await asyncio.gather(*(probe.ask("shared") for _ in range(4)))
        print(f"guard {guard} {env}: {replies}")
        assert {tier for _, tier in replies} == {"host"}
        assert any(kind != "right" for kind, _ in replies) == hit
        assert [kind for kind, _ in replies].count("right") >= 1, "who loads waits"

    probing(tmp_path, table.Arm("sharers", gate="on", env=SMALL | env), scenario)


def test_damaged_pods_lose_bytes_and_only_they(tmp_path):
    async def scenario(probe):
        await probe.ask("a")
        await probe.evict()
        await probe.switch(bad_pod="copier")
        kind, tier = await probe.ask("a")
        print("copier:", kind)
        assert (kind != "right", tier) == (True, "host")
        assert (await probe.ask("fresh"))[0] == "right"
        await probe.switch(bad_pod="off")
        async with probe.load.client.put(probe.prefill + "/sim/switches", json={"bad_pod": "compute"}):
            pass
        kind, tier = await probe.ask("new")
        print("compute:", kind)
        assert (kind != "right", tier) == (True, "cold")

    probing(tmp_path, table.Arm("bad pod", gate="on", env=SMALL), scenario)


def test_stream_carries_the_tiers_too(tmp_path):
    async def scenario(probe):
        body = {
            "model": table.MODEL, "messages": messages("s"), "tools": [table.TOOL], "stream": True,
            "return_cached_tokens_details": True, "bootstrap_host": "127.0.0.1",
            "bootstrap_port": probe.load.bootstrap, "bootstrap_room": 99,
        }  # fmt: skip

        async def post(url):
            async with probe.load.client.post(url + "/v1/chat/completions", json=body) as response:
                return await response.text()

        async def tiers():
            body["bootstrap_room"] += 1
            _, text = await asyncio.gather(post(probe.prefill), post(probe.decode))
            chunks = [json.loads(row[6:]) for row in text.splitlines() if row.startswith("data: {")]
            return chunks[-1].get("sglext")

        assert await tiers() is None, "upstream says nothing of a cold prompt"
        assert await tiers() == {"cached_tokens_details": {"device": 4096, "host": 0}}

    probing(tmp_path, table.Arm("stream", env=SMALL), scenario)
