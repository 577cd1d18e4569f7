"""Transfers that stay in progress or break off, on the real NIXL managers: who waits how long, who is told when."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from cases.transfer import add, prefill, release, room, start, until
from dsv4_guard.transfer import deadline, fence, work


def guarded(seconds: float, short: float, rooms: dict[int, str]) -> Any:
    """A prefill manager with one worker that runs, and with these rooms of these decode agents."""
    fence.install(release())
    deadline.install(release(), seconds)
    deadline.SHORT = short
    manager = prefill()
    for number, agent in rooms.items():
        room(manager, number, agent)
    start(manager, seconds)
    return manager


def failed(manager: Any, number: int) -> bool:
    from sglang.srt.disaggregation.base.conn import KVPoll

    return bool(manager.request_status.get(number) == KVPoll.Failed)


def done(manager: Any, number: int, seconds: float = 20.0) -> bool:
    from sglang.srt.disaggregation.base.conn import KVPoll

    return until(lambda: manager.request_status.get(number) == KVPoll.Success, seconds)


def given_up(manager: Any, number: int) -> bool:
    """Whether the worker has given the room up; where decode counts arrivals itself the room is held first."""
    return failed(manager, number) or number in work.held(manager)


def told(manager: Any, number: int) -> bool:
    """Whether decode was told that the room failed."""
    messages = [parts for _, parts in manager.told if parts[:3] == [b"KV_STATUS", b"%d" % number, b"0"]]
    notices = [text for _, text in manager.agent.notices if text.startswith(b"%d_dsv4guard_fail_" % number)]
    return bool(messages or notices)


def aborted(gone: bool) -> dict[str, Any]:
    """Decode aborts a room whose write does not end (and prefill has forgotten it, when gone); another waits behind."""
    manager = guarded(6.0, 0.4, {1: "a", 2: "b"})
    manager.enable_deferred_decode_kv_release = True
    manager.agent.states[1] = "PROC"
    add(manager, 1)
    add(manager, 2)
    until(lambda: manager.posted)
    time.sleep(0.2)
    manager._handle_abort_notification([b"ABORT", b"1", b"127.0.0.1", b"7", b"1"])
    if gone:
        manager.request_status.pop(1)
        manager.transfer_infos.pop(1)
    begun = time.monotonic()
    other = done(manager, 2, 3.0)
    cancelled = until(lambda: len(manager.agent.released) == 2, 3.0)
    return {
        "other": other,
        "cancelled": cancelled,
        "seconds": time.monotonic() - begun,
        "acknowledged": [parts for _, parts in manager.told if parts[0] == b"ABORT_ACK"] != [],
        "released": manager.agent.released,
    }


def abort_that_settles() -> bool:
    """An abort ends nothing that is fast enough: the write settles, and the room ends as upstream ends it."""
    manager = guarded(6.0, 2.0, {1: "a"})
    manager.agent.states[1] = "PROC"
    add(manager, 1)
    until(lambda: manager.posted)
    manager._handle_abort_notification([b"ABORT", b"1", b"127.0.0.1", b"7", b"1"])
    time.sleep(0.2)
    manager.agent.states[1] = "DONE"
    time.sleep(0.3)
    return failed(manager, 1) and manager.agent.released == []


def slow_post() -> list[int]:
    """What is cancelled of a room whose limit has passed before its writes are looked at for the first time."""
    manager = guarded(1.2, 0.2, {1: "a"})
    manager.agent.states[1] = "PROC"
    original = manager.send_aux

    def send_aux(*args: Any, **kwargs: Any) -> Any:
        time.sleep(1.0)
        return original(*args, **kwargs)

    manager.send_aux = send_aux
    add(manager, 1)
    until(lambda: told(manager, 1), 5.0)
    return list(manager.agent.released)


def several_stuck() -> dict[str, Any]:
    """Five rooms of a stuck peer ahead of one of another peer, all on one worker."""
    stuck = [1, 2, 3, 4, 5]
    manager = guarded(3.0, 0.2, {**dict.fromkeys(stuck, "stuck"), 6: "other"})
    for number in stuck:
        manager.agent.states[number] = "PROC"
    begun = time.monotonic()
    for number in (*stuck, 6):
        add(manager, number)
    other = done(manager, 6, 6.0)
    seconds = time.monotonic() - begun
    return {
        "other": other,
        "seconds": seconds,
        "told": until(lambda: all(told(manager, number) for number in stuck)),
        "told_in": time.monotonic() - begun,
        "posted": [number for number, _ in manager.posted],
    }


def peer_back(settles: bool) -> dict[str, Any]:
    """A peer that was stuck gets the whole limit again: when one of its writes ends well while another is still kept,
    or when none is kept any more. Its next transfer takes longer than the short limit."""
    manager = guarded(3.0, 0.2, dict.fromkeys((1, 2, 3), "a"))
    manager.agent.states.update({1: "PROC", 2: "PROC", 3: "PROC"})
    add(manager, 1)
    if settles:
        add(manager, 2)
        until(lambda: given_up(manager, 2))
        manager.agent.states[1] = "DONE"
    until(lambda: told(manager, 1))
    kept = settles and not told(manager, 2)
    time.sleep(0.1)
    add(manager, 3)
    until(lambda: manager.posted[-1][0] == 3)
    time.sleep(0.4)
    manager.agent.states[3] = "DONE"
    return {"kept": kept, "done": done(manager, 3, 3.0)}


def peer_still_stuck() -> dict[str, Any]:
    """Writes that end in an error, or are cancelled beside others, are no sign of life."""
    manager = guarded(3.0, 0.2, dict.fromkeys((1, 2, 3), "a"))
    manager.agent.states.update({1: "PROC", 2: "PROC", 3: "PROC"})
    add(manager, 1)
    add(manager, 2)
    until(lambda: given_up(manager, 2))
    manager.agent.states[1] = "ERR"
    until(lambda: told(manager, 1))
    kept = not told(manager, 2)
    add(manager, 3)
    begun = time.monotonic()
    return {
        "kept": kept,
        "given_up": until(lambda: given_up(manager, 3), 5.0),
        "seconds": time.monotonic() - begun,
    }


def broken(how: str) -> dict[str, Any]:
    """0.5.23: a transfer that breaks off with a write that may still run. Prefill fails; decode is told later."""
    from sglang.srt.disaggregation.nixl import conn

    conn.NIXL_ERR_SETTLE_TIMEOUT_S = 0.2
    manager = guarded(2.0, 0.4, {1: "a", 2: "b"})
    if how == "unreadable":
        manager.agent.states[1] = "RAISES"
    elif how in ("sibling", "settles"):
        manager.agent.states.update({(1, "kv"): "PROC", (1, "aux"): "ERR"})
    else:
        manager.agent.states[1] = "PROC"
        manager.send_aux = refuse(manager.send_aux)
    begun = time.monotonic()
    add(manager, 1)
    add(manager, 2)
    prefill_failed, other = until(lambda: failed(manager, 1)), done(manager, 2)
    failed_in = time.monotonic() - begun
    too_early = told(manager, 1)
    if how == "settles":
        manager.agent.states[1, "kv"] = "DONE"
    heard = until(lambda: told(manager, 1), 6.0)
    return {
        "failed": prefill_failed,
        "failed_in": failed_in,
        "other": other,
        "too_early": too_early,
        "told": heard,
        "told_in": time.monotonic() - begun,
        "released": manager.agent.released,
    }


def refuse(original: Any) -> Any:
    """Posting the last part of room 1 fails."""

    def send_aux(*args: Any, **kwargs: Any) -> Any:
        if work.current.chunk.room == 1:
            raise RuntimeError("post failed")
        return original(*args, **kwargs)

    return send_aux


def release_timeout() -> float:
    """0.5.23: how long decode's own queue keeps the pages of an aborted request, with a deadline of 60 s."""
    from sglang.srt.disaggregation import decode

    deadline.install(release(), 60.0)
    decode.get_parallel = lambda: SimpleNamespace(attn_tp_group=SimpleNamespace(cpu_group=None), tp_rank=0)
    decode.get_disagg = lambda: SimpleNamespace(disaggregation_decode_host_receive_threshold=1)
    queue = decode.DecodeTransferQueue(None, None, SimpleNamespace(spec_algorithm=None), None)
    return float(queue.deferred_kv_release_timeout)
