"""The copy engine between host memory and the pool: a real thread with a declared bandwidth.

A load-back copies, layer by layer, first the KV and then the index-K of all its pages, and records an event after each.
`Load.kv` is what readers of the main KV pool know and wait for; `Load.index` is known to those who are gated. In one
buffer all pages advance together, a stripe at a time, as one copy kernel does it, so until the last stripe a page is a
mixture of what was there and what comes. Bytes land when their time has come: ``bytes / bandwidth`` after the load
began. A copier that was held up catches up.

Nothing else orders the copies with anybody's reads.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dsv4_engine_sim.pages import INDEX_K, KV, PagePool
from dsv4_engine_sim.switches import Switches

_STRIPES = 4
_QUANTUM_SECONDS = 0.0005
"""Copies that are due within this time are made together, to keep the thread cheap."""


@dataclass(eq=False)
class Load:
    """One load-back: host copies and the device pages they go to. Events are set in the event loop."""

    items: list[tuple[bytes, int]]
    layers: int
    kv: list[asyncio.Event] = field(init=False)
    index: list[asyncio.Event] = field(init=False)
    bytes: int = 0
    seconds: float = 0.0
    """Span of the copies, without the wait in the queue."""

    def __post_init__(self) -> None:
        self.kv = [asyncio.Event() for _ in range(self.layers)]
        self.index = [asyncio.Event() for _ in range(self.layers)]


@dataclass(frozen=True, eq=False)
class _Backup:
    pages: Sequence[int]
    done: Callable[[list[bytes], float], None]


class Copier:
    """Serves loads in order, backups when no load waits. `finished` is called in the loop after each load."""

    def __init__(
        self, pool: PagePool, bytes_per_second: float, switches: Switches, finished: Callable[[Load], None]
    ) -> None:
        self._pool = pool
        self._rate = bytes_per_second
        self._switches = switches
        self._finished = finished
        self._loop = asyncio.get_running_loop()
        self._loads: queue.SimpleQueue[Load] = queue.SimpleQueue()
        self._backups: queue.SimpleQueue[_Backup] = queue.SimpleQueue()
        self._work = threading.Semaphore(0)
        self._stopping = False
        sys.setswitchinterval(0.0005)  # the engine must not keep the copier from its time, as a GPU's cannot
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()

    def load(self, items: list[tuple[bytes, int]]) -> Load:
        """Begin to copy host pages into device pages."""
        load = Load(items, self._pool.layout.layers)
        self._loads.put(load)
        self._work.release()
        return load

    def backup(self, pages: Sequence[int], done: Callable[[list[bytes], float], None]) -> None:
        """Copy device pages to the host; `done` is called in the loop with the copies and the seconds it took."""
        self._backups.put(_Backup(pages, done))
        self._work.release()

    def stop(self) -> None:
        """End the thread; loads in flight are abandoned."""
        self._stopping = True
        self._work.release()
        self._thread.join(5)

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._work.acquire()
            if self._stopping:
                return
            try:
                if not self._loads.empty():
                    self._copy_in(self._loads.get())
                else:
                    self._copy_out(self._backups.get())
            except RuntimeError:  # the loop is closed
                return

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(call, *arguments)

    def _copy_in(self, load: Load) -> None:
        start = time.monotonic()
        owed = 0  # bytes whose time has not been spent yet
        due: list[tuple[memoryview, memoryview]] = []
        spent = 0

        def land() -> None:
            nonlocal owed, spent
            spent += owed
            owed = 0
            wait = start + spent / self._rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            for target, source in due:
                target[:] = source
            due.clear()

        quantum = self._rate * _QUANTUM_SECONDS
        for layer in range(load.layers):
            for region, event in ((KV, load.kv[layer]), (INDEX_K, load.index[layer])):
                broken = (
                    region == INDEX_K and layer == load.layers - 1 and self._switches["bad_pod"] == "copier"
                )  # the copy is never made, though its event comes
                for target, source in self._stripes(load, layer, region):
                    if self._stopping:
                        return
                    if not broken:
                        due.append((target, source))
                    owed += len(source)
                    if owed >= quantum:
                        land()
                land()
                if region == INDEX_K and layer == load.layers - 1:
                    load.bytes, load.seconds = spent, time.monotonic() - start
                    self._tell(self._finished, load)
                self._tell(event.set)

    def _stripes(self, load: Load, layer: int, region: int) -> Iterator[tuple[memoryview, memoryview]]:
        layout = self._pool.layout
        size, offset = layout.item_bytes(region), layout.offset(layer, region)
        for number in range(_STRIPES):
            first, last = number * size // _STRIPES, (number + 1) * size // _STRIPES
            for host, page in load.items:
                source = memoryview(host)[offset + first : offset + last]
                yield self._pool.view(layer, region, page)[first:last], source

    def _copy_out(self, backup: _Backup) -> None:
        start = time.monotonic()
        layers = range(self._pool.layout.layers)
        copies = [
            b"".join(self._pool.view(layer, region, page) for layer in layers for region in (KV, INDEX_K))
            for page in backup.pages
        ]
        self._tell(backup.done, copies, time.monotonic() - start)
