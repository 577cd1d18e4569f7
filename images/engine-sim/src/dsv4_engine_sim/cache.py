"""KV memory of one engine: reserving pages in arrival order, and running the "forward" that fills them.

`KVCache.prefill` is the one place where prompt tokens become pages, and `Sequence` the one thing callers see of it,
so a prefix cache with a host tier belongs here: it would return pages that are cached, being loaded, or new,
and say which.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from dsv4_engine_sim.pages import PagePool, new_history, read_tokens, write_tokens

_STEP_PAGES = 8
"""Pages computed before other tasks get a turn."""


@dataclass(slots=True)
class Sequence:
    """Pages of one request. `cached`: prompt tokens that were not computed, by tier (device, host)."""

    pages: list[int]
    length: int
    cached: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0})


class KVCache:
    """Hands out pages first come, first served."""

    def __init__(self, pool: PagePool, tokens_per_second: float) -> None:
        self.pool = pool
        self._rate = tokens_per_second
        self._waiting: deque[tuple[int, asyncio.Future[list[int]]]] = deque()

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens take."""
        return -(-tokens // self.pool.layout.page_size)

    @property
    def used_tokens(self) -> int:
        """Token slots handed out."""
        return (self.pool.pages - self.pool.free_pages) * self.pool.layout.page_size

    async def reserve(self, count: int) -> list[int]:
        """Take `count` pages, waiting for others to end when there are not enough."""
        if not self._waiting and count <= self.pool.free_pages:
            return self.pool.allocate(count)
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    def release(self, pages: Seq[int]) -> None:
        """Give pages back and serve who waits."""
        self.pool.release(pages)
        while self._waiting:
            count, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
            elif count <= self.pool.free_pages:
                self._waiting.popleft()
                future.set_result(self.pool.allocate(count))
            else:
                break

    async def prefill(self, tokens: Seq[int]) -> Sequence:
        """Compute the KV and index-K of a prompt into pages. The caller releases the pages."""
        pages = await self.reserve(self.pages_for(len(tokens)))
        try:
            await asyncio.sleep(len(tokens) / self._rate)
            write_steps = range(0, len(pages), _STEP_PAGES)
            size, history = self.pool.layout.page_size, new_history()
            for start in write_steps:
                part = pages[start : start + _STEP_PAGES]
                write_tokens(self.pool, part, tokens[start * size : (start + len(part)) * size], history)
                await asyncio.sleep(0)
        except BaseException:
            self.release(pages)
            raise
        return Sequence(pages, len(tokens))

    def read(self, pages: Seq[int], length: int) -> list[int]:
        """Tokens as the bytes in the pages say."""
        return read_tokens(self.pool, pages, length)
