"""Transfers that stay in progress, ended.

NIXL's prefill worker waits without limit for a transfer that neither ends nor fails, and one such peer blocks every
room that shares its worker. Here the wait for one chunk has a deadline. After three quarters of it the worker gives the
room up and serves others; a helper thread keeps the handles until their writes have settled, at the deadline cancels
them, and tells decode. Decode is told only then because it frees its pages. Prefill answers 500 when the room is given
up; where decode counts arrivals itself (before 0.5.21) prefill keeps the source pages and the room until decode is
told, so that what still arrives is right.

There is little to wait for when the room has failed already (decode aborts it, and will free its pages), and when an
earlier write to the same decode is still kept: then the worker goes on after a short time. A transfer that breaks off
with a write that may still run fails on prefill at once; its handles are kept like the others, and decode is told.
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
SHORT = 5.0
"""Takes the deadline's place, seconds: from when a room is first seen to have failed; and for the worker's patience
with a decode that is stuck. At most what the deadline leaves to settle: a write that is kept is how that is known."""
MARGIN = 15.0
"""How much longer than the deadline decode keeps an aborted request's pages, seconds."""
RELEASE_TIMEOUT = "sglang.srt.environ:envs.SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
WATCH = "_dsv4_guard_watch"


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
    peers: frozenset[str] = frozenset()
    """Decode agents that take part in the room."""
    failed: bool = False
    """One of the writes ended in an error."""


class Drain:
    """Keeps orphans until they settle, then tells decode. One thread per manager, started with the first orphan."""

    def __init__(self, check: Callable[[Any], str], release: Callable[[Any], None]) -> None:
        self._check = check
        self._release = release
        self._orphans: list[Orphan] = []
        self._stuck: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._running = False

    def stuck(self, peers: frozenset[str]) -> bool:
        """Whether writes to one of `peers` are kept here, and none that was kept has ended well since the last came."""
        return not self._stuck.isdisjoint(peers)

    def add(self, orphan: Orphan) -> None:
        """Take over an orphan."""
        with self._lock:
            self._orphans.append(orphan)
            self._stuck |= orphan.peers
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
                    self._forget(orphan)
            time.sleep(POLL)

    def _forget(self, orphan: Orphan) -> None:
        with self._lock:
            self._orphans.remove(orphan)
            self._stuck &= frozenset().union(*(kept.peers for kept in self._orphans))
            if not orphan.handles and not orphan.failed:
                self._stuck -= orphan.peers

    def step(self, orphan: Orphan) -> bool:
        """Look once; whether the room has ended on both sides and the orphan can be forgotten."""
        states = [(handle, self._state(handle)) for handle in orphan.handles]
        orphan.failed = orphan.failed or any(state == "ERR" for _, state in states)
        orphan.handles = [handle for handle, state in states if state not in SETTLED]
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
            return "unreadable"  # which proves nothing: it counts as running


class Watch:
    """What bounds the waits of a manager's workers."""

    def __init__(self, manager: Any, deadline: float, status_messages: bool) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll

        agent = manager.agent
        self._manager, self._deadline, self._status_messages = manager, deadline, status_messages
        self._short = min(SHORT, deadline * (1 - GIVE_UP))
        self._failed = KVPoll.Failed
        self._check = agent.check_xfer_state
        self._drain = Drain(self._check, agent.release_xfer_handle)
        agent.check_xfer_state = self.check_xfer_state

    def check_xfer_state(self, handle: Any) -> str:
        """As the agent's, until the worker has to give its chunk up: TransferDeadline."""
        state: str = self._check(handle)
        now = work.current
        if now.chunk is None or now.manager is not self._manager:
            return state
        if state in SETTLED:
            now.unfinished.pop(id(handle), None)
            return state
        if id(handle) not in now.unfinished:  # all of the chunk's handles are seen before any is given up
            now.unfinished[id(handle)] = handle
            return state
        give_up, until, why = self._limits()
        if time.monotonic() <= give_up:
            return state
        reason = f"{MARK}: transfer of room {now.chunk.room} was not done in time ({why}), ended"
        self._hand_over(list(now.unfinished.values()), until, reason)
        raise TransferDeadline(reason)

    def broken(self, handles: list[Any]) -> None:
        """The chunk has failed, and some of its `handles` may still write: decode must not hear of it yet."""
        _, until, _ = self._limits()
        self._hand_over(handles, until, f"{MARK}: transfer of room {work.current.chunk.room} broke off")

    def _limits(self) -> tuple[float, float, str]:
        """When the worker gives its chunk up, when the writes are cancelled at the latest, and why then."""
        now = work.current
        give_up, until = now.since + self._deadline * GIVE_UP, now.since + self._deadline
        why = f"deadline {self._deadline:g} s"
        if self._drain.stuck(self._peers()):
            give_up, why = now.since + self._short * GIVE_UP, "another transfer to its decode does not end either"
        status = self._manager.request_status.get(now.chunk.room)
        if now.lost is None and (status is None or status == self._failed):
            now.lost = time.monotonic()
        if now.lost is not None and now.lost + self._short < until:
            give_up, until = min(give_up, now.lost + self._short * GIVE_UP), now.lost + self._short
            why = "the room had failed"
        return give_up, until, why

    def _peers(self) -> frozenset[str]:
        now = work.current
        if now.peers is None:
            now.peers = frozenset(notice.peers_of(self._manager, now.chunk.room))
        return now.peers

    def _hand_over(self, handles: list[Any], until: float, reason: str) -> None:
        now = work.current
        if now.handed_over is now.chunk:
            return
        now.handed_over, room = now.chunk, now.chunk.room
        log.warning("%s; its worker goes on, its writes are kept until they settle", reason)
        end = _ender(self._manager, room, self._status_messages)
        self._drain.add(Orphan(room, reason, handles, until, end, self._peers()))


def watch(manager: Any, deadline: float, status_messages: bool) -> None:
    """Bound the waits of `manager`'s workers. `manager.agent` is there, its workers have not started yet."""
    work.held(manager)
    vars(manager)[WATCH] = Watch(manager, deadline, status_messages)


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
    """0.5.21+ swallows what check_xfer_state raises; raise it where the reason reaches both sides. And where upstream
    itself stops waiting, decode would not hear of it before its own time-out."""

    @functools.wraps(original)
    def _await_handles(self: Any, handles: list[Any], *, failure_seen: bool) -> Any:
        result = original(self, handles, failure_seen=failure_seen)
        now = work.current
        if now.chunk is None or result[0] is not False:
            return result
        if now.handed_over is not now.chunk:
            try:
                vars(self)[WATCH].broken(handles)
            except Exception:  # upstream calls this in its own handler too, where an exception ends the worker
                log.exception("%s: room %s: decode will not be told of its failure", MARK, now.chunk.room)
        elif not failure_seen:
            raise TransferDeadline(f"{MARK}: transfer of room {now.chunk.room} was not done in time, ended")
        return result

    return _await_handles


def _keep_pages(deadline: float) -> None:
    """Decode frees an aborted request's pages after a time of its own; not before the deadline, then."""
    _, name, variable = patching.resolve(RELEASE_TIMEOUT)
    chosen, needed = float(variable.get()), deadline + MARGIN
    if chosen < needed:
        variable.set(needed)
        log.warning("%s: %s is %g s here, not %g s: longer than a transfer may last", MARK, name, needed, chosen)


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
    if release.defers_release:
        _keep_pages(deadline)
