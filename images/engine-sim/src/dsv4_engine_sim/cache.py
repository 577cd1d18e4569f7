"""KV memory of one engine: reserving pages in arrival order, and running the "forward" that fills them.

`KVCache` keeps nothing between requests. `hicache.PrefixCache` is the same with a prefix cache and a host tier; both
give a `Sequence` in three steps: `begin` (match and reserve), `forward` (compute), `end` (give back).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsv4_engine_sim.pages import PagePool, attend, new_history, write_tokens
from dsv4_engine_sim.switches import Switches

if TYPE_CHECKING:
    from dsv4_engine_sim.copier import Load

_STEP_PAGES = 8
"""Pages computed before other tasks get a turn."""


@dataclass(slots=True)
class Sequence:
    """Pages of one request. `cached`: prompt tokens that were not computed, by tier (device, host)."""

    pages: list[int]
    length: int
    tokens: Seq[int] = ()
    cached: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0})
    loads: list[Load | None] = field(default_factory=list)
    """Per cached page, from the first: the load that is filling it, or None when its bytes are there."""
    own: Load | None = None
    """The load that this request began."""
    held: list[Any] = field(default_factory=list)
    """The cache's own record of what `end` must give back."""
    keys: list[bytes] = field(default_factory=list)
    """Names of the full pages' contents."""


class KVCache:
    """Hands out pages first come, first served."""

    def __init__(self, pool: PagePool, tokens_per_second: float, switches: Switches | None = None) -> None:
        self.pool = pool
        self._rate = tokens_per_second
        self._switches = switches or Switches()
        self._waiting: deque[tuple[int, asyncio.Future[list[int]]]] = deque()

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens take."""
        return -(-tokens // self.pool.layout.page_size)

    @property
    def evictable_tokens(self) -> int:
        """Token slots that hold only cached content."""
        return 0

    @property
    def used_tokens(self) -> int:
        """Token slots that requests hold."""
        return (self.pool.pages - self.pool.free_pages) * self.pool.layout.page_size - self.evictable_tokens

    def _room(self, count: int) -> bool:
        """Whether `count` pages can be taken now."""
        return count <= self.pool.free_pages

    async def reserve(self, count: int) -> list[int]:
        """Take `count` pages, waiting for others to end when there are not enough."""
        if not self._waiting and self._room(count):
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
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            count, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
            elif self._room(count):
                self._waiting.popleft()
                future.set_result(self.pool.allocate(count))
            else:
                break

    @property
    def _lost(self) -> int | None:
        """The layer whose stores a broken pod loses."""
        return self.pool.layout.layers - 1 if self._switches["bad_pod"] == "compute" else None

    async def begin(self, tokens: Seq[int]) -> Sequence:
        """Take the pages of a prompt; they hold what they held. `end` gives them back."""
        return Sequence(await self.reserve(self.pages_for(len(tokens))), len(tokens), tokens)

    async def forward(self, sequence: Sequence) -> list[int]:
        """Compute the KV and index-K of the prompt; returns the prompt as the forward itself read it."""
        await asyncio.sleep(sequence.length / self._rate)
        size, history = self.pool.layout.page_size, new_history()
        for start in range(0, len(sequence.pages), _STEP_PAGES):
            part = sequence.pages[start : start + _STEP_PAGES]
            chunk = sequence.tokens[start * size : (start + len(part)) * size]
            write_tokens(self.pool, part, chunk, history, self._lost)
            await asyncio.sleep(0)
        return self.read(sequence.pages, sequence.length)

    def end(self, sequence: Sequence) -> None:
        """The request needs its pages no more."""
        self.release(sequence.pages)

    def flush(self) -> None:
        """Forget what is cached."""

    def stop(self) -> None:
        """End background work."""

    def read(self, pages: Seq[int], length: int) -> list[int]:
        """Tokens as the bytes in the pages say now."""
        return attend(self.pool, pages, length)
