"""The prefix cache inside one process: matching, eviction, write-through, load-back, and what ungated readers see."""

import asyncio

import pytest

from dsv4_engine_sim import flags
from dsv4_engine_sim.hicache import PrefixCache
from dsv4_engine_sim.metrics import EngineMetrics
from dsv4_engine_sim.pages import PageLayout, PagePool
from dsv4_engine_sim.settings import resolve
from dsv4_engine_sim.switches import SwitchError, Switches


class Cache:
    """A prefix cache of some pages, and what tests ask of it."""

    def __init__(self, pages, dtype="bf16", **env):
        line = ["--model-path", "/m", "--disaggregation-mode", "prefill", "--enable-hicache"]
        env = {"DSV4_SIM_POOL_PAGES": str(pages), "DSV4_SIM_LAYER_MS": "0", "DSV4_SIM_INDEX_K_DTYPE": dtype} | env
        self.settings = resolve(flags.parse(line, "0.5.23"), env)
        self.switches = Switches()
        self.metrics = EngineMetrics(self.settings)
        self.pool = PagePool(PageLayout(256, dtype, self.settings.layers), pages)
        self.cache = PrefixCache(self.pool, self.settings, self.switches, self.metrics)

    async def run(self, ids):
        """(prompt as the forward saw it, cached tokens, pages afterwards)."""
        sequence = await self.cache.begin(ids)
        try:
            seen = await self.cache.forward(sequence)
            return seen, sequence.cached, self.cache.read(sequence.pages, sequence.length)
        finally:
            self.cache.end(sequence)

    async def backed_up(self, tokens):
        async with asyncio.timeout(10):
            while self.cache.host_tokens < tokens:
                await asyncio.sleep(0.005)

    def total(self, name):
        return self.metrics.registry.get_sample_value("sglang:" + name, self.labels(name))

    def labels(self, name):
        for metric in self.metrics.registry.collect():
            for sample in metric.samples:
                if sample.name == "sglang:" + name:
                    return sample.labels
        raise KeyError(name)


@pytest.fixture
async def make():
    made = []

    def begin(*args, **kwargs):
        made.append(Cache(*args, **kwargs))
        return made[-1]

    yield begin
    for cache in made:
        cache.cache.stop()


def prompt(seed, length):
    return [seed * 1_000_000 + number for number in range(length)]


async def test_tiers_cold_device_host(make):
    it = make(16)
    first = prompt(1, 2600)
    cold = await it.run(first)
    again = await it.run(first)
    assert cold == (first, {"device": 0, "host": 0}, first)
    assert again == (first, {"device": 2560, "host": 0}, first)
    await it.backed_up(2560)
    await it.run(prompt(2, 4000))  # 16 of 16 pages
    await it.backed_up(2560 + 3840)
    host = await it.run(first)
    assert host == (first, {"device": 0, "host": 2560}, first)
    assert it.total("load_back_tokens_total") == 2560
    assert it.total("load_back_bytes_total") == 10 * it.pool.layout.page_bytes
    assert it.total("load_back_duration_seconds_sum") > 0
    assert it.total("hicache_backup_tokens_total") == 2560 + 3840
    assert it.total("evicted_tokens_total") > 0


async def test_at_least_one_token_is_computed_and_a_common_head_is_shared(make):
    it = make(32)
    first = prompt(1, 1024)
    await it.run(first)
    assert (await it.run(first))[1] == {"device": 768, "host": 0}
    branch = first[:512] + prompt(3, 600)
    assert (await it.run(branch))[:2] == (branch, {"device": 512, "host": 0})


async def test_least_recently_used_pages_go_first_and_the_host_forgets_too(make):
    it = make(8, DSV4_SIM_HOST_POOL_PAGES="4")
    old, kept, new = prompt(1, 700), prompt(2, 700), prompt(3, 700)
    for ids in (old, kept):
        await it.run(ids)
    await it.backed_up(1024)
    await it.run(old)
    await it.run(new)  # evicts two pages: those of `kept`
    await it.backed_up(1024)
    assert (await it.run(old))[1] == {"device": 512, "host": 0}
    assert it.cache.host_tokens == 4 * 256


async def test_flush_forgets_everything(make):
    it = make(16)
    await it.run(prompt(1, 700))
    await it.backed_up(512)
    it.cache.flush()
    assert (it.cache.host_tokens, it.cache.evictable_tokens, it.pool.free_pages) == (0, 0, 16)
    assert (await it.run(prompt(1, 700)))[1] == {"device": 0, "host": 0}


@pytest.mark.parametrize(("dtype", "share"), [("fp8", 8448), ("bf16", 16384)])
async def test_load_time_follows_the_bytes(make, dtype, share):
    """The declared bandwidth is kept: the copier never runs ahead of it."""
    it = make(16, dtype, DSV4_SIM_HOST_BANDWIDTH_MBPS="50")
    await it.run(prompt(1, 2600))
    await it.backed_up(2560)
    await it.run(prompt(2, 4000))
    await it.run(prompt(1, 2600))
    size = 10 * 4 * (16384 + share)
    assert it.total("load_back_bytes_total") == size
    assert it.total("load_back_duration_seconds_sum") >= size / 50e6 * 0.99


async def test_ungated_forward_sees_index_rows_that_have_not_come_and_nothing_of_it_stays(make):
    """The forward needs no time here, so it always overtakes a slow copier."""
    it = make(16, DSV4_SIM_HOST_BANDWIDTH_MBPS="4")
    first = prompt(1, 2600)
    await it.run(first)
    await it.backed_up(2560)
    await it.run(prompt(2, 4000))
    it.switches.update({"gate": "off"})
    seen, cached, _ = await it.run(first)
    assert cached["host"] == 2560
    wrong = [place for place, (read, right) in enumerate(zip(seen, first, strict=True)) if read != right]
    assert wrong
    assert max(wrong) < 2560, "what the forward wrote itself is right"
    # Again, when the load is over, and once more from the host, gated: nothing damaged was kept.
    async with asyncio.timeout(10):
        while it.total("load_back_tokens_total") < 2560:
            await asyncio.sleep(0.005)
    assert (await it.run(first)) == (first, {"device": 2560, "host": 0}, first)
    it.switches.update({"gate": "on"})
    await it.run(prompt(3, 4000))
    assert (await it.run(first)) == (first, {"device": 0, "host": 2560}, first)


async def test_many_that_need_the_whole_pool_all_end(make):
    """Matches that are held while waiting for room must not block each other."""
    it = make(12, DSV4_SIM_HOST_BANDWIDTH_MBPS="1000")
    prompts = [prompt(seed, 2600) for seed in range(6)]
    async with asyncio.timeout(30):
        for _ in range(2):
            results = await asyncio.gather(*map(it.run, prompts))
            assert [result[0] for result in results] == prompts
        while it.cache.used_tokens:  # the last backup may still hold its pages
            await asyncio.sleep(0.005)


async def test_cancelled_requests_give_everything_back(make):
    it = make(12, DSV4_SIM_HOST_BANDWIDTH_MBPS="2")
    await it.run(prompt(1, 2600))
    await it.backed_up(2560)
    await it.run(prompt(2, 2900))
    task = asyncio.create_task(it.run(prompt(1, 2600)))  # its load takes long
    waiting = asyncio.create_task(it.run(prompt(3, 2600)))
    await asyncio.sleep(0.02)
    task.cancel()
    waiting.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
    async with asyncio.timeout(10):
        while it.cache.used_tokens:
            await asyncio.sleep(0.01)
    assert (await it.run(prompt(1, 2600)))[0] == prompt(1, 2600)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gate": "ajar"}, "one of on, off"),
        ({"drop_every": 1.5}, "whole number"),
        ({"drop_every": True}, "whole number"),
        ({"busy_seconds": -1}, "between 0 and"),
        ({"bad_link": "nowhere"}, "no [stall:]IP"),
        ({"bad_link": 7}, "is not a text"),
        ({"nonsense": 1}, "known: transfer"),
        ([], "JSON object"),
    ],
)
def test_switches_are_checked_and_changed_all_or_none(change, text):
    switches = Switches()
    with pytest.raises(SwitchError) as caught:
        switches.update({**change, "wedge": "on"} if isinstance(change, dict) else change)
    assert text in str(caught.value)
    assert switches["wedge"] == "off"


@pytest.mark.parametrize("address", ["", "10.1.0.7", "stall:10.1.0.7:30010", "[fd00::7]:30010", "fd00::7"])
def test_link_addresses(address):
    switches = Switches()
    switches.update({"bad_link": address})
    assert switches.read()["bad_link"] == address
