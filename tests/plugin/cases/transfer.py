"""The transfer parts on the real NIXL managers, with an agent that moves nothing."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from dsv4_guard import patching, releases
from dsv4_guard.transfer import deadline, fence, notice, work


class Agent:
    """NIXL's agent. A handle is a part of a room; its state is looked up when asked."""

    name = "prefill-agent"

    def __init__(self) -> None:
        self.states: dict[int | tuple[int, str], str] = {}
        """By room, or by room and part; RAISES is a state that cannot be read."""
        self.released: list[int] = []
        self.notices: list[tuple[str, bytes]] = []
        self.incoming: dict[str, list[bytes]] = {}

    def check_xfer_state(self, handle: Any) -> str:
        state = self.states.get((handle.room, handle.part)) or self.states.get(handle.room, "DONE")
        if state == "RAISES":
            raise RuntimeError("no such handle")
        return state

    def release_xfer_handle(self, handle: Any) -> None:
        self.released.append(handle.room)

    def send_notif(self, peer: str, message: bytes) -> None:
        self.notices.append((peer, message))

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        found, self.incoming = self.incoming, {}
        return found


class Handle:
    def __init__(self, room: int, part: str) -> None:
        self.room, self.part = room, part


class Peer(SimpleNamespace):
    """What decode told prefill about itself; is_dummy is a method before 0.5.21 and a field after."""


def version() -> str:
    import sglang.version

    return str(sglang.version.__version__)


def release() -> releases.Release:
    return releases.choose(version(), allow_untested=False)


def prefill(queues: int = 1) -> Any:
    """A real prefill manager, made without a network: state that its transfer worker uses, sends that are recorded."""
    from collections import defaultdict

    from sglang.srt.disaggregation.nixl.conn import FastQueue, NixlKVManager
    from sglang.srt.disaggregation.utils import DisaggregationMode

    manager = object.__new__(NixlKVManager)
    manager.agent = Agent()
    manager.disaggregation_mode = DisaggregationMode.PREFILL
    manager.enable_staging = False
    manager.is_mla_backend = manager.is_hybrid_mla_backend = True
    manager.attn_tp_size = 1
    manager.transfer_source_rank = 0
    manager.kv_args = SimpleNamespace(kv_data_ptrs=[1], kv_layer_ids=[], state_types=[], engine_rank=0, pp_rank=0)
    manager.request_status, manager.failure_records, manager.exceptions = {}, {}, {}
    manager.failure_lock = threading.Lock()
    manager.transfer_infos, manager.req_to_decode_prefix_len, manager.decode_kv_args_table = {}, {}, {}
    manager.transfer_queues = [FastQueue() for _ in range(queues)]
    manager._staging_outstanding = defaultdict(int)
    manager._staging_ctx = None
    manager._dcp_pack_buffers = None
    manager.deferred_bootstrap = None
    manager.enable_deferred_decode_kv_release = False
    manager._deferred_ack_targets, manager._deferred_ack_poisoned_rooms = {}, set()
    manager.posted = []
    manager.told = []
    manager._prefill_unique_rank = lambda: 0
    manager._reload_invalidated_peers = lambda _: None
    manager._send_multipart_locked = lambda to, parts, is_ipv6=False: manager.told.append((to, parts))

    def send(agent: str, pages: Any, *_: Any, **__: Any) -> Any:
        manager.posted.append((work.current.chunk.room, [int(page) for page in pages]))
        return Handle(work.current.chunk.room, "kv")

    manager.send_kvcache = send
    manager.send_aux = lambda *_, **__: Handle(work.current.chunk.room, "aux")
    return manager


def room(manager: Any, number: int, agent: str = "decode-agent") -> None:
    """Decode has told its addresses for a room."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    old = not release().status_messages
    peer = Peer(
        room=number,
        agent_name=agent,
        endpoint="127.0.0.1",
        dst_ip="127.0.0.1",
        dst_port=7,
        dst_kv_indices=np.arange(100, dtype=np.int32),
        dst_aux_index=0,
        dst_state_indices=[],
        decode_prefix_len=0,
        is_dummy=(lambda: False) if old else False,
    )
    manager.transfer_infos[number] = {agent: peer}
    manager.request_status[number] = KVPoll.WaitingForInput
    manager.decode_kv_args_table[agent] = SimpleNamespace(
        decode_tp_size=1,
        decode_tp_rank=0,
        requires_dcp_relayout=False,
        staging=None,
        kv_xfer_segments=None,
        dst_homogeneous_mem_kind="VRAM",
        dst_kv_ptrs=[1],
        dst_aux_ptrs=[1],
        dst_state_data_ptrs=[],
        dst_state_item_lens=[],
        dst_state_dim_per_tensor=[],
        dst_state_layer_ids=[],
        gpu_id=0,
    )


def add(manager: Any, number: int, *, last: bool = True, event: Any = None, pages: int = 1) -> None:
    """Queue a chunk as the sender does."""
    indices = np.arange(pages, dtype=np.int32)
    if release().transfer_takes_event:
        aux = 0 if last else None
        manager.add_transfer_request(number, indices, slice(0, pages), last, aux, wait_event=event)
    else:
        with fence.carrying(event):
            manager.add_transfer_request(number, indices, slice(0, pages), last, 0, 0 if last else None)


def start(manager: Any, seconds: float = 60.0) -> None:
    """Watch the agent and run one worker, as the manager's constructor does."""
    deadline.watch(manager, seconds, release().status_messages)
    threading.Thread(target=manager.transfer_worker, args=(manager.transfer_queues[0],), daemon=True).start()


def until(condition: Any, seconds: float = 20.0) -> bool:
    """Poll for a condition."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


class Event:
    """A CUDA event that a test completes; notes who asks."""

    def __init__(self) -> None:
        self.done = False
        self.threads: set[str] = set()

    def query(self) -> bool:
        self.threads.add(threading.current_thread().name)
        return self.done

    def synchronize(self) -> None:
        raise AssertionError("waited for with a spin")


def event() -> dict[str, Any]:
    """A chunk with an event: nothing is posted before the event, and the thread that queues it never waits."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    fence.install(release())
    deadline.install(release(), 60.0)
    manager, pending = prefill(), Event()
    room(manager, 1)
    start(manager)
    begun = time.monotonic()
    add(manager, 1, event=pending)
    queued_in = time.monotonic() - begun
    asked = until(lambda: pending.threads)
    posted_before = list(manager.posted)
    pending.done = True
    done = until(lambda: manager.request_status[1] == KVPoll.Success)
    return {
        "asked": asked,
        "by": threading.current_thread().name not in pending.threads,
        "posted_before": posted_before,
        "posted": manager.posted,
        "done": done,
        "queued_in": queued_in,
    }


def stock_event() -> dict[str, Any]:
    """The same without the plugin's fence: upstream's manager drops the event."""
    manager, pending = prefill(), Event()
    room(manager, 1)
    if release().transfer_takes_event:
        manager.add_transfer_request(1, np.arange(1, dtype=np.int32), slice(0, 1), False, wait_event=pending)
    else:
        manager.add_transfer_request(1, np.arange(1, dtype=np.int32), slice(0, 1), False, 0)
    chunk = manager.transfer_queues[0].get()
    return {"carried": [name for name, value in vars(chunk).items() if value is pending]}


def sender_event() -> dict[str, Any]:
    """0.5.17: the event that the scheduler leaves on the sender goes with the next chunk, once."""
    from sglang.srt.disaggregation.nixl.conn import NixlKVSender

    fence.install(release())
    manager, pending = prefill(), Event()
    room(manager, 1)
    sender = object.__new__(NixlKVSender)
    sender.kv_mgr, sender.bootstrap_room, sender.chunk_id, sender.aux_index = manager, 1, 0, 0
    sender._send_failed, sender._transfer_start_time = False, None
    sender.conclude_state, sender.trace_ctx = None, SimpleNamespace(copy_for_thread=lambda: None)
    sender._prepare_send_indices = lambda pages, states: (pages, slice(0, len(pages)), False, False)
    sender._record_transfer_indices = lambda *_: None
    manager.prepare_send_state_indices = lambda states: states
    sender._early_send_wait_event = pending
    sender.send(np.arange(2, dtype=np.int32))
    sender.send(np.arange(2, dtype=np.int32))
    chunks = [manager.transfer_queues[0].get() for _ in range(2)]
    return {"events": [[value is pending for value in getattr(chunk, fence.EVENTS)] for chunk in chunks]}


def broken_event() -> dict[str, Any]:
    """An event that cannot be read fails its room, and the worker lives on."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    class Broken:
        def query(self) -> bool:
            raise RuntimeError("CUDA error")

    fence.install(release())
    deadline.install(release(), 60.0)
    manager = prefill()
    for number in (1, 2):
        room(manager, number)
    start(manager)
    add(manager, 1, event=Broken())
    add(manager, 2)
    return {
        "failed": until(lambda: manager.request_status[1] == KVPoll.Failed),
        "other": until(lambda: manager.request_status[2] == KVPoll.Success),
        "reason": manager.failure_records[1],
        "told": until(lambda: [parts for _, parts in manager.told if parts[1] == b"1"] or manager.agent.notices),
    }


def stuck(settles: bool = False) -> dict[str, Any]:
    """A transfer that stays in progress: bounded, told, and the worker serves the next room meanwhile."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    seconds = 2.0
    fence.install(release())
    deadline.install(release(), seconds)
    manager = prefill()
    for number in (1, 2):
        room(manager, number)
    manager.agent.states[1] = "PROC"
    start(manager, seconds)
    begun = time.monotonic()
    add(manager, 1)
    add(manager, 2)
    other = until(lambda: manager.request_status[2] == KVPoll.Success)
    other_in = time.monotonic() - begun
    held = manager.request_status[1] != KVPoll.Failed
    if settles:
        manager.agent.states[1] = "DONE"
    failed = until(lambda: manager.request_status[1] == KVPoll.Failed)
    told = until(lambda: [parts for _, parts in manager.told if parts[1] == b"1"] or manager.agent.notices)
    return {
        "other": other,
        "other_in": other_in,
        "held_meanwhile": held,
        "failed": failed,
        "failed_in": time.monotonic() - begun,
        "told": told,
        "released": manager.agent.released,
        "reason": manager.failure_records.get(1, ""),
        "notices": [[peer, message.decode()] for peer, message in manager.agent.notices],
        "messages": [[part.decode() for part in parts] for _, parts in manager.told],
    }


def stock_stuck() -> dict[str, Any]:
    """The same without the plugin, for two seconds: the other room never gets its turn."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    work_only = prefill()
    work.install()
    for number in (1, 2):
        room(work_only, number)
    work_only.agent.states[1] = "PROC"
    threading.Thread(target=work_only.transfer_worker, args=(work_only.transfer_queues[0],), daemon=True).start()
    add_plain(work_only, 1)
    add_plain(work_only, 2)
    return {"other": until(lambda: work_only.request_status[2] == KVPoll.Success, 2.0)}


def add_plain(manager: Any, number: int) -> None:
    indices = np.arange(1, dtype=np.int32)
    if release().transfer_takes_event:
        manager.add_transfer_request(number, indices, slice(0, 1), True, 0)
    else:
        manager.add_transfer_request(number, indices, slice(0, 1), True, 0, 0)


def told_decode() -> dict[str, Any]:
    """Decode hears of the failure: the real receiver ends, and SGLang's own notifications pass."""
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager, NixlKVReceiver

    manager = object.__new__(NixlKVManager)
    manager.agent = Agent()
    manager.request_status = {1: KVPoll.WaitingForInput, 2: KVPoll.WaitingForInput}
    manager.failure_records, manager.failure_lock = {}, threading.Lock()
    manager.deferred_bootstrap = None
    manager.defer_decode_allocation = False
    receiver = object.__new__(NixlKVReceiver)
    receiver.kv_mgr, receiver.bootstrap_room, receiver.conclude_state, receiver.started_transfer = (
        manager,
        1,
        None,
        True,
    )
    receiver.trace_ctx = SimpleNamespace(trace_req_finish=lambda: None)
    receiver.init_time = None
    if release().status_messages:
        sender = prefill()
        room(sender, 1)
        notice.teller(sender, 1, True)("late")
        parsed = manager.parse_kv_status_message(sender.told[0][1])
        manager.apply_prefill_status(
            bootstrap_room=parsed[0], status=parsed[1], prefill_rank=parsed[2], failure_reason=parsed[3]
        )
        rest: Any = "not used"
    else:
        from collections import defaultdict

        from sglang.srt.disaggregation.nixl.conn import TransferStatus

        manager.transfer_statuses = defaultdict(TransferStatus)
        notice.listen(manager)
        sender = prefill()
        room(sender, 1)
        notice.teller(sender, 1, False)("late")
        manager.agent.incoming = {"p": [sender.agent.notices[0][1], b"2_state_0", b"3_dsv4guard_unknown_x"]}
        manager.update_transfer_status()
        rest = sorted(manager.transfer_statuses[2].received_state_per_pp)
    status = receiver.poll()
    return {
        "failed": status == KVPoll.Failed,
        "reason": manager.failure_records.get(1),
        "other": int(manager.request_status[2]),
        "rest": rest,
    }


def verified() -> list[str]:
    return list(patching.verify())
