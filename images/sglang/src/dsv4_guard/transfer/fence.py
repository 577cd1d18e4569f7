"""The wait event of the forward, honoured by NIXL.

Early send hands over pages that the forward before may still be writing, with a CUDA event of that forward. Mooncake
and MoRI wait for it; NIXL drops it: 0.5.23's manager takes the argument and forgets it, older ones leave it on the
sender. Here it travels with the queued chunk, and the transfer worker waits for it: never the scheduler loop.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dsv4_guard import patching
from dsv4_guard.refusal import GuardError
from dsv4_guard.releases import NIXL, Release
from dsv4_guard.transfer import work

POLL = 0.0005
"""Between two looks at an event, seconds. Polling costs less than cudaEventSynchronize, which spins."""
EVENTS = "dsv4_guard_events"
CHUNK = f"{NIXL}:TransferKVChunk"
MANAGER = f"{NIXL}:NixlKVManager"
SENDER = f"{NIXL}:NixlKVSender"


class _Carried(threading.local):
    events: tuple[Any, ...] = ()


_carried = _Carried()


@contextmanager
def carrying(*events: Any) -> Iterator[None]:
    """Chunks made inside carry these events."""
    before = _carried.events
    _carried.events = (*before, *(event for event in events if event is not None))
    try:
        yield
    finally:
        _carried.events = before


def _chunk(original: Any) -> Any:
    class FencedChunk(original):  # type: ignore[misc]
        """A chunk that carries the events to wait for before its source pages are read."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            setattr(self, EVENTS, _carried.events)

    FencedChunk.__name__ = original.__name__
    FencedChunk.__qualname__ = original.__qualname__
    return FencedChunk


def _add(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_transfer_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with carrying(kwargs.get("wait_event"), kwargs.get("indices_event")):
            return original(self, *args, **kwargs)

    return add_transfer_request


def _send(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        event, self._early_send_wait_event = getattr(self, "_early_send_wait_event", None), None
        with carrying(event):
            return original(self, *args, **kwargs)

    return send


def wait(manager: Any, chunk: Any) -> None:
    """Wait, in the worker, until everything that the chunk's pages depend on is done."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    events: tuple[Any, ...] = getattr(chunk, EVENTS, ())
    for event in events:
        while not event.query():
            if manager.request_status.get(chunk.room) == KVPoll.Failed:
                return
            time.sleep(POLL)
    setattr(chunk, EVENTS, ())


def install(release: Release) -> None:
    """Carry and honour the event, and prove it on a manager without a network."""
    work.install()
    work.before_each(wait)
    patching.wrap(CHUNK, _chunk)
    if release.transfer_takes_event:
        patching.wrap(f"{MANAGER}.add_transfer_request", _add)
    else:
        patching.wrap(f"{SENDER}.send", _send)
    prove(release)


class _Event:
    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 2


class _Peer:
    dst_port = 1


def prove(release: Release) -> None:
    """GuardError unless an event given with a request is on the queued chunk and is waited for when it is taken."""
    import numpy as np
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import DisaggregationMode

    _, _, manager_class = patching.resolve(MANAGER)
    queued: list[Any] = []

    class Queue:
        def put(self, chunk: Any) -> None:
            queued.append(chunk)

        def get(self) -> Any:
            return queued.pop(0)

    manager = object.__new__(manager_class)
    manager.disaggregation_mode = DisaggregationMode.PREFILL
    manager.enable_staging = False
    manager.transfer_infos = {1: {"peer": _Peer()}}
    manager.request_status = {1: KVPoll.WaitingForInput}
    queue = Queue()
    manager.transfer_queues = [queue]
    event = _Event()
    pages: Any = np.zeros(1, dtype=np.int32)
    if release.transfer_takes_event:
        manager.add_transfer_request(1, pages, slice(0, 1), False, wait_event=event)
    else:
        with carrying(event):
            manager.add_transfer_request(1, pages, slice(0, 1), False, 0)
    if len(queued) != 1 or getattr(queued[0], EVENTS, ()) != (event,):
        raise GuardError(f"target {MANAGER}.add_transfer_request: the queued chunk does not carry the event")
    work.ChunkSource(manager, queue).get()
    if event.asked < 3:
        raise GuardError(
            f"target {MANAGER}.transfer_worker: the event is not waited for before the chunk is handed out"
        )
