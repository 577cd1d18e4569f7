"""What a transfer worker thread is working on: one chunk at a time, taken from its queue."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from dsv4_guard import patching
from dsv4_guard.releases import NIXL

Before = Callable[[Any, Any], None]
"""Called in the worker thread with (manager, chunk) before the worker sees the chunk."""

_before: list[Before] = []


class Current(threading.local):
    """The chunk in the hands of this thread."""

    manager: Any = None
    chunk: Any = None
    since: float = 0.0
    """When the worker got it, by time.monotonic, after every `Before` has run."""
    unfinished: dict[int, Any]
    """Transfer handles of the chunk last seen in progress, by id; kept alive here, since freeing one cancels it."""
    handed_over: Any = None
    """The chunk whose deadline has passed, once its handles are someone else's."""
    lost: float | None = None
    """When the chunk's room was first seen failed or gone, by time.monotonic."""
    peers: frozenset[str] | None = None
    """Decode agents of the chunk's room, once asked for."""

    def __init__(self) -> None:
        self.unfinished = {}


current = Current()


def before_each(action: Before) -> None:
    """Run `action` in the worker before every chunk."""
    if action not in _before:
        _before.append(action)


class ChunkSource:
    """The worker's queue, with `before_each` between it and the worker."""

    def __init__(self, manager: Any, queue: Any) -> None:
        self._manager = manager
        self._queue = queue

    def get(self) -> Any:
        """The next chunk. Nothing may leave here as an exception: it would end the worker thread for good."""
        current.manager = current.chunk = current.handed_over = current.lost = current.peers = None
        current.unfinished = {}
        chunk = self._queue.get()
        while chunk.room in held(self._manager):
            chunk = self._queue.get()
        for action in _before:
            try:
                action(self._manager, chunk)
            except Exception as error:
                end_room(self._manager, chunk.room, f"dsv4_guard: {type(error).__name__}: {error}")
                break
        current.manager, current.chunk, current.since = self._manager, chunk, time.monotonic()
        return chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


_HELD = "_dsv4_guard_held"


def held(manager: Any) -> set[int]:
    """Rooms that were given up and have not ended yet: nothing more of them is sent, and nobody ends them."""
    rooms: set[int] | None = vars(manager).get(_HELD)
    if rooms is None:
        rooms = vars(manager).setdefault(_HELD, set())
    return rooms


def fail_room(manager: Any, room: int, reason: str) -> None:
    """Mark the room failed on this side; the worker skips its chunks and the scheduler answers 500."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    manager.record_failure(room, reason)
    manager.update_status(room, KVPoll.Failed)


def end_room(manager: Any, room: int, reason: str) -> None:
    """Fail a room of which nothing is in flight, on both sides."""
    from dsv4_guard.transfer import notice

    tell = notice.teller(manager, room, hasattr(manager, "send_kv_status_message"))
    fail_room(manager, room, reason)
    tell(reason)


def _worker(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def transfer_worker(self: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, ChunkSource(self, queue), *args, **kwargs)

    return transfer_worker


def install() -> None:
    """Put a ChunkSource in front of every worker."""
    patching.wrap(f"{NIXL}:NixlKVManager.transfer_worker", _worker)
