"""Bytes of pages: what is written is read, and every byte counts."""

import asyncio
import random

import pytest

from dsv4_engine_sim import pages, tokens
from dsv4_engine_sim.cache import KVCache
from dsv4_engine_sim.pages import INDEX_K, KV, OutOfPagesError, PageLayout, PagePool

TEXT = "".join(f"word{number} " for number in range(700))


@pytest.mark.parametrize("dtype", ["fp8", "bf16", "fp4"])
@pytest.mark.parametrize(("size", "layers"), [(256, 4), (64, 1), (100, 3)])
def test_round_trip(dtype, size, layers):
    pool = PagePool(PageLayout(size, dtype, layers), 64)
    ids = tokens.encode(TEXT)
    mine = pool.allocate(-(-len(ids) // size))
    pages.write_tokens(pool, mine, ids)
    assert pages.read_tokens(pool, mine, len(ids)) == ids


def test_item_sizes_are_the_real_ones():
    sizes = {dtype: PageLayout(256, dtype, 1).item_bytes(INDEX_K) for dtype in ("fp8", "bf16", "fp4")}
    assert sizes == {"fp8": 8448, "bf16": 16384, "fp4": 4352}


@pytest.mark.parametrize(("region", "sparse"), [(KV, False), (INDEX_K, True)])
def test_any_single_flipped_byte_of_an_owning_layer_changes_the_text(region, sparse):
    pool = PagePool(PageLayout(256, "fp8", 1), 2)
    ids = list(range(1000, 1256))
    mine = pool.allocate(1)
    pages.write_tokens(pool, mine, ids)
    rng = random.Random(1)
    view = pool.view(0, region, mine[0])
    for offset in rng.sample(range(len(view)), 200):
        view[offset] ^= 1
        assert pages.read_tokens(pool, mine, 256, sparse=sparse) != ids, offset
        view[offset] ^= 1
    assert pages.read_tokens(pool, mine, 256, sparse=sparse) == ids


def test_index_k_matters_only_beyond_the_top_k():
    """512 slots of 4 tokens: up to 2,048 tokens every key is selected, whatever the index says."""
    pool = PagePool(PageLayout(256, "bf16", 4), 9)
    ids = list(range(5000, 5000 + 2049))
    mine = pool.allocate(9)
    pages.write_tokens(pool, mine, ids)
    for layer in range(4):
        pool.view(layer, INDEX_K, mine[3])[:] = bytes(pool.layout.item_bytes(INDEX_K))
    assert pages.attend(pool, mine, 2048) == ids[:2048]
    far = pages.attend(pool, mine, 2049)
    wrong = {position // 256 for position, (read, right) in enumerate(zip(far, ids, strict=True)) if read != right}
    assert wrong == {3}
    assert set(far) <= set(ids)


def test_stale_index_rows_give_other_tokens_of_the_same_page():
    pool = PagePool(PageLayout(256, "fp8", 4), 4)
    first, second = tokens.encode(TEXT)[:256], tokens.encode(TEXT)[256:512]
    old, new = pool.allocate(1), pool.allocate(1)
    pages.write_tokens(pool, old, first)
    pages.write_tokens(pool, new, second)
    pool.view(1, INDEX_K, new[0])[:] = pool.view(1, INDEX_K, old[0])
    read = pages.read_tokens(pool, new, 256)
    wrong = [position for position in range(256) if read[position] != second[position]]
    assert wrong
    assert {pool.layout.owner(position) for position in wrong} == {1}
    assert set(read) <= set(second)


def test_pages_keep_their_bytes_when_freed():
    pool = PagePool(PageLayout(256, "fp8", 2), 2)
    ids = tokens.encode(TEXT)[:200]
    mine = pool.allocate(1)
    pages.write_tokens(pool, mine, ids)
    pool.release(mine)
    again = pool.allocate(1)
    assert again == mine
    assert pages.read_tokens(pool, again, 200) == ids
    with pytest.raises(OutOfPagesError):
        pool.allocate(2)


async def test_reservations_are_served_in_order():
    cache = KVCache(PagePool(PageLayout(256, "fp8", 1), 3), 1e9)
    held = await cache.reserve(2)
    large = asyncio.create_task(cache.reserve(3))
    small = asyncio.create_task(cache.reserve(1))
    await asyncio.sleep(0)
    assert not large.done()
    assert not small.done(), "a later small one must not overtake"
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    cache.release(held)
    assert len(await small) == 1
