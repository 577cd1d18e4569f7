"""Transfers that stay in progress, ended.

NIXL's prefill worker waits without limit for a transfer that neither ends nor fails, and one such peer blocks every
room that shares its worker. Here the wait for one chunk has a deadline. After three quarters of it the worker gives the
room up and serves others; a helper thread keeps the handles until their writes have settled, at the deadline cancels
them, and tells decode. Decode is told only then because it frees its pages. Prefill answers 500 when the room is given
up; where decode counts arrivals itself (before 0.5.21) prefill keeps the source pages and the room until decode is
told, so that what still arrives is right.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsv4_guard import MARK, patching
from dsv4_guard.releases import NIXL, Release
from dsv4_guard.transfer import notice, work

log = logging.getLogger(MARK)
MANAGER = f"{NIXL}:NixlKVManager"
POLL = 0.05
GIVE_UP = 0.75
"""Share of the deadline after which the worker stops waiting; the rest is for the writes to settle."""
SETTLED = ("DONE", "ERR")


class TransferDeadline(RuntimeError):
    """A chunk stayed in progress for longer than the deadline."""


@dataclass
class Orphan:
    """Handles of a room that was given up."""

    room: int
    reason: str
    handles: list[Any]
    until: float
    end: Callable[[str], None]
    """Fails the room on both sides."""


class Drain:
    """Keeps orphans until they settle, then tells decode. One thread per manager, started with the first orphan."""

    def __init__(self, check: Callable[[Any], str], release: Callable[[Any], None]) -> None:
        self._check = check
        self._release = release
        self._orphans: list[Orphan] = []
        self._lock = threading.Lock()
        self._running = False

    def add(self, orphan: Orphan) -> None:
        """Take over an orphan."""
        with self._lock:
            self._orphans.append(orphan)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="dsv4_guard-drain", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                orphans = list(self._orphans)
                if not orphans:
                    self._running = False
                    return
            for orphan in orphans:
                try:
                    done = self.step(orphan)
                except Exception:
                    log.exception("%s: drain of room %s", MARK, orphan.room)
                    done = True
                if done:
                    with self._lock:
                        self._orphans.remove(orphan)
            time.sleep(POLL)

    def step(self, orphan: Orphan) -> bool:
        """Look once; whether the room has ended on both sides and the orphan can be forgotten."""
        orphan.handles = [handle for handle in orphan.handles if self._state(handle) not in SETTLED]
        if orphan.handles and time.monotonic() < orphan.until:
            return False
        if orphan.handles:
            log.warning("%s: room %s: writes have not settled, cancelled", MARK, orphan.room)
            for handle in orphan.handles:
                try:
                    self._release(handle)
                except Exception as error:
                    log.warning("%s: room %s: cancel: %s", MARK, orphan.room, error)
        orphan.end(orphan.reason)
        return True

    def _state(self, handle: Any) -> str:
        try:
            return self._check(handle)
        except Exception:
            return "ERR"


def watch(manager: Any, deadline: float, status_messages: bool) -> None:
    """Bound the waits of `manager`'s workers. `manager.agent` is there, its workers have not started yet."""
    agent = manager.agent
    check = agent.check_xfer_state
    drain = Drain(check, agent.release_xfer_handle)
    work.held(manager)

    def check_xfer_state(handle: Any) -> str:
        state: str = check(handle)
        now = work.current
        if now.chunk is None or now.manager is not manager:
            return state
        if state in SETTLED:
            now.unfinished.pop(id(handle), None)
            return state
        now.unfinished[id(handle)] = handle
        if time.monotonic() - now.since <= deadline * GIVE_UP:
            return state
        room = now.chunk.room
        reason = f"{MARK}: transfer of room {room} was not done in time (deadline {deadline:g} s), ended"
        if now.handed_over is not now.chunk:
            now.handed_over = now.chunk
            log.warning("%s: transfer of room %s does not end, given up by its worker", MARK, room)
            end = _ender(manager, room, status_messages)
            drain.add(Orphan(room, reason, list(now.unfinished.values()), now.since + deadline, end))
        raise TransferDeadline(reason)

    agent.check_xfer_state = check_xfer_state


def _ender(manager: Any, room: int, status_messages: bool) -> Callable[[str], None]:
    tell = notice.teller(manager, room, status_messages)
    if status_messages:
        return tell  # decode goes by what prefill says: prefill's own side has failed already
    rooms = work.held(manager)
    rooms.add(room)

    def end(reason: str) -> None:
        rooms.discard(room)
        log.warning("%s", reason)
        work.fail_room(manager, room, reason)
        tell(reason)

    return end


def _update_status(original: Callable[..., Any]) -> Callable[..., Any]:
    """A room whose source pages may still be read does not end yet, whoever asks for it."""

    @functools.wraps(original)
    def update_status(self: Any, bootstrap_room: int, status: Any) -> Any:
        if bootstrap_room in work.held(self):
            return None
        return original(self, bootstrap_room, status)

    return update_status


def _register(deadline: float, status_messages: bool) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def register_buffer_to_engine(self: Any, *args: Any, **kwargs: Any) -> Any:
            from sglang.srt.disaggregation.utils import DisaggregationMode

            if self.disaggregation_mode == DisaggregationMode.PREFILL:
                watch(self, deadline, status_messages)
            elif not status_messages:
                notice.listen(self)
            return original(self, *args, **kwargs)

        return register_buffer_to_engine

    return make


def _await(original: Callable[..., Any]) -> Callable[..., Any]:
    """0.5.21+ swallows what check_xfer_state raises; raise it where the reason reaches both sides."""

    @functools.wraps(original)
    def _await_handles(self: Any, handles: list[Any], *, failure_seen: bool) -> Any:
        result = original(self, handles, failure_seen=failure_seen)
        now = work.current
        if not failure_seen and now.chunk is not None and now.handed_over is now.chunk and result[0] is False:
            raise TransferDeadline(f"{MARK}: transfer of room {now.chunk.room} ended at the deadline")
        return result

    return _await_handles


def install(release: Release, deadline: float) -> None:
    """Bound every transfer to `deadline` seconds for one chunk."""
    work.install()
    patching.wrap(f"{MANAGER}.register_buffer_to_engine", _register(deadline, release.status_messages))
    patching.resolve(f"{MANAGER}.record_failure")
    if release.status_messages:
        patching.wrap(f"{MANAGER}._await_handles", _await)
        patching.resolve(f"{MANAGER}.send_kv_status_message")
        patching.resolve(f"{MANAGER}._room_notify_targets")
    else:
        patching.wrap(f"{MANAGER}.update_status", _update_status)
