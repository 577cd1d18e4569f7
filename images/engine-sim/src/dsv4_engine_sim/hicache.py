"""Prefix cache on prefill, with a host tier: what HiCache does for DeepSeek-V4, with real bytes and real races.

Full pages are named by a digest of their tokens and of all tokens before. A page that was computed stays in the pool
until its place is needed (least recently used first) and is written through to the host at once. A prompt whose first
pages are named in the pool takes them as they are; those that only the host has get pool pages and a load by the
`Copier`, and from that moment they are in the pool for everybody, though their bytes are still on the way.

Who waits for those bytes (upstream ``wait_layer_transfer``):

* the forward waits, layer by layer, for the layer's KV; with the gate on also for its index-K;
* with the gate off it reads index-K when its projections are done, `layer_seconds` after the KV came;
* the transfer: see `prefill`.

The forward reads cached pages as they are at that moment. What it computes itself does not depend on that reading (the
first token does), so a race damages one reply and is never cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from dsv4_engine_sim.cache import KVCache, Sequence
from dsv4_engine_sim.copier import Copier, Load
from dsv4_engine_sim.metrics import EngineMetrics
from dsv4_engine_sim.pages import Folded, PagePool, assemble, chain, fold, new_history, selective, write_tokens
from dsv4_engine_sim.settings import SimSettings
from dsv4_engine_sim.switches import Switches

_STEP_PAGES = 8


@dataclass(eq=False, slots=True)
class _Page:
    """A cached page in the pool. `holders`: requests, loads and backups that need it to stay."""

    key: bytes
    page: int
    holders: int = 0
    load: Load | None = None


class PrefixCache(KVCache):
    """`KVCache` that remembers. Must be made in a running loop; `stop` ends its thread."""

    def __init__(self, pool: PagePool, settings: SimSettings, switches: Switches, metrics: EngineMetrics) -> None:
        super().__init__(pool, settings.prefill_tokens_per_second, switches)
        self._layer_seconds = settings.layer_seconds
        self._host_pages = settings.host_pages if settings.hicache else 0
        self._metrics = metrics
        self._device: dict[bytes, _Page] = {}
        self._idle: OrderedDict[bytes, _Page] = OrderedDict()
        """Cached pages that nobody holds, least recently used first."""
        self._host: OrderedDict[bytes, bytes] = OrderedDict()
        self._admission = asyncio.Lock()
        rate = settings.host_bytes_per_second
        self._copier = Copier(pool, rate, switches, self._loaded) if self._host_pages else None

    @property
    def evictable_tokens(self) -> int:
        return len(self._idle) * self.pool.layout.page_size

    @property
    def host_tokens(self) -> int:
        """Tokens in the host tier."""
        return len(self._host) * self.pool.layout.page_size

    def _room(self, count: int) -> bool:
        missing = count - self.pool.free_pages
        if missing > len(self._idle):
            return False
        for _ in range(missing):
            key, page = self._idle.popitem(last=False)
            del self._device[key]
            self.pool.release([page.page])
        if missing > 0:
            self._metrics.evicted(missing * self.pool.layout.page_size)
        return True

    # -- holding ----------------------------------------------------------------------------------------------------

    def _hold(self, page: _Page) -> None:
        page.holders += 1
        self._idle.pop(page.key, None)

    def _drop(self, pages: Seq[_Page]) -> None:
        for page in reversed(pages):  # the end of a prefix is evicted before its beginning
            page.holders -= 1
            if page.holders == 0 and self._device.get(page.key) is page:
                self._idle[page.key] = page
        self._serve()

    # -- a request's way --------------------------------------------------------------------------------------------

    async def begin(self, tokens: Seq[int]) -> Sequence:
        size = self.pool.layout.page_size
        history = new_history()
        keys = [chain(history, tokens[start : start + size]) for start in range(0, len(tokens) - size + 1, size)]
        # One at a time: who waits for room must be the only one who waits while holding matches.
        async with self._admission:
            hits: list[_Page] = []
            fetch: dict[int, bytes] = {}
            for key in keys[: (len(tokens) - 1) // size]:  # at least one token is always computed
                page = self._device.get(key)
                if page is None:
                    copy = self._host.get(key)
                    if copy is None:
                        break
                    self._host.move_to_end(key)
                    fetch[len(hits)] = copy
                    page = _Page(key, -1)
                self._hold(page)
                hits.append(page)
            try:
                fresh = await self.reserve(self.pages_for(len(tokens)) - len(hits) + len(fetch))
            except BaseException:
                self._drop([page for page in hits if page.page >= 0])
                raise
            own = self._fetch(hits, fetch, fresh)
        loads = [page.load for page in hits]
        coming = sum(load is not None for load in loads) * size
        return Sequence(
            pages=[page.page for page in hits] + fresh,
            length=len(tokens),
            tokens=tokens,
            cached={"device": len(hits) * size - coming, "host": coming},
            loads=loads,
            own=own,
            held=hits,
            keys=keys,
        )

    def _fetch(self, hits: list[_Page], fetch: dict[int, bytes], fresh: list[int]) -> Load | None:
        """Put the pages that only the host has into the pool and begin their load."""
        if not fetch or self._copier is None:
            return None
        for number in fetch:
            page = hits[number]
            page.page = fresh.pop()
            page.holders += 1  # the load's own
            self._device[page.key] = page
        load = self._copier.load([(copy, hits[number].page) for number, copy in fetch.items()])
        for number in fetch:
            hits[number].load = load
        return load

    def _loaded(self, load: Load) -> None:
        pages = [page for page in self._device.values() if page.load is load]
        for page in pages:
            page.load = None
        self._drop(pages)
        self._metrics.loaded(len(pages) * self.pool.layout.page_size, load.bytes, load.seconds)

    async def forward(self, sequence: Sequence) -> list[int]:
        layout, count = self.pool.layout, len(sequence.loads)
        loads = {load for load in sequence.loads if load is not None}
        gated = self._switches["gate"] == "on"
        pace = self._layer_seconds + (sequence.length - count * layout.page_size) / self._rate / layout.layers
        seen: list[list[Folded]] = [[] for _ in sequence.pages]
        for layer in range(layout.layers):
            for load in loads:
                await load.kv[layer].wait()
                if gated:
                    await load.index[layer].wait()
            await asyncio.sleep(pace)
            for number in range(count):
                seen[number].append(fold(self.pool, layer, sequence.pages[number]))
        await self._write(sequence, count)
        for number in range(count, len(sequence.pages)):
            seen[number] = [fold(self.pool, layer, sequence.pages[number]) for layer in range(layout.layers)]
        self._keep(sequence)
        return assemble(layout, seen, sequence.length, sparse=selective(layout, sequence.length))

    async def _write(self, sequence: Sequence, count: int) -> None:
        size, history = self.pool.layout.page_size, new_history()
        for number in range(count):
            chain(history, sequence.tokens[number * size : (number + 1) * size])
        for start in range(count, len(sequence.pages), _STEP_PAGES):
            part = sequence.pages[start : start + _STEP_PAGES]
            chunk = sequence.tokens[start * size : (start + len(part)) * size]
            write_tokens(self.pool, part, chunk, history, self._lost)
            await asyncio.sleep(0)

    def _keep(self, sequence: Sequence) -> None:
        """Full pages that were computed become cached, and are written through to the host."""
        new: list[_Page] = []
        for number in range(len(sequence.loads), len(sequence.keys)):
            key = sequence.keys[number]
            if key in self._device:  # somebody else computed the same meanwhile; this copy stays private
                continue
            page = self._device[key] = _Page(key, sequence.pages[number], holders=1)
            sequence.held.append(page)
            if key not in self._host:
                new.append(page)
        if self._copier is None or not new:
            return
        for page in new:
            page.holders += 1  # the backup's own

        def done(copies: list[bytes], seconds: float) -> None:
            for page, copy in zip(new, copies, strict=True):
                self._host[page.key] = copy
            while len(self._host) > self._host_pages:
                self._host.popitem(last=False)
            self._drop(new)
            size = self.pool.layout.page_size
            self._metrics.backed_up(len(new) * size, sum(map(len, copies)), seconds)

        self._copier.backup([page.page for page in new], done)

    def end(self, sequence: Sequence) -> None:
        kept = {page.page for page in sequence.held}
        self.pool.release([page for page in sequence.pages if page not in kept])
        self._drop(sequence.held)

    def flush(self) -> None:
        self.pool.release([page.page for page in self._idle.values()])
        for key in self._idle:
            del self._device[key]
        self._idle.clear()
        self._host.clear()

    def stop(self) -> None:
        if self._copier is not None:
            self._copier.stop()
