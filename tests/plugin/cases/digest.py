"""The sampled index-K digest between two real NIXL managers of 0.5.17."""

from __future__ import annotations

import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cases import transfer
from dsv4_guard.transfer import digest, notice


def exchange(damage: bool, notice_lost: bool = False) -> dict[str, Any]:
    """Send twelve pages, in two chunks; damage one of decode's, or lose the notice."""
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager, NixlKVReceiver, TransferStatus

    digest.PATIENCE = 0.2
    digest.install()
    buffers = [torch.randint(0, 256, (40, 8448), dtype=torch.uint8) for _ in range(3)]
    pool = SimpleNamespace(c4_indexer_kv_pool=SimpleNamespace(index_k_with_scale_buffer=buffers))
    digest._pools.append(pool)
    source, target = list(range(5, 17)), list(range(25, 37))
    sender = transfer.prefill()
    transfer.room(sender, 1)
    for start, last in ((0, False), (8, True)):
        pages = np.array(source[start : start + 8], dtype=np.int32)
        chunk = SimpleNamespace(
            room=1, index_slice=slice(start, start + len(pages)), prefill_kv_indices=pages, is_last_chunk=last
        )
        digest.before_chunk(sender, chunk)
    for layer in buffers:
        layer[target] = layer[source]
    if damage:
        for page in target:
            buffers[2][page, 17] ^= 1
    receiving = object.__new__(NixlKVManager)
    receiving.agent = transfer.Agent()
    receiving.request_status = {1: KVPoll.WaitingForInput}
    receiving.failure_records, receiving.failure_lock = {}, threading.Lock()
    receiving.transfer_statuses = defaultdict(TransferStatus)
    receiving.addr_to_rooms_tracker = defaultdict(set)
    notice.listen(receiving)
    receiver = object.__new__(NixlKVReceiver)
    receiver.kv_mgr, receiver.bootstrap_room, receiver.conclude_state, receiver.started_transfer = (
        receiving,
        1,
        None,
        True,
    )
    receiver.bootstrap_addr, receiver.init_time, receiver.bootstrap_infos = "a", None, None
    receiver.send_metadata(np.array(target, dtype=np.int32))
    receiving.request_status[1] = KVPoll.WaitingForInput
    status = receiving.transfer_statuses[1]
    status.num_pp_ranks_expected, status.received_aux = 1, True
    status.expected_kvs_per_pp[0] = 0
    first = receiver.poll()
    if not notice_lost:
        receiving.agent.incoming = {"p": [message for _, message in sender.agent.notices]}
    transfer.until(lambda: receiver.poll() in (KVPoll.Success, KVPoll.Failed), 5.0)
    return {
        "first": int(first) == int(KVPoll.WaitingForInput),
        "status": {int(KVPoll.Success): "success", int(KVPoll.Failed): "failed"}.get(int(receiver.poll()), "open"),
        "reason": receiving.failure_records.get(1, ""),
        "room_kept": bool(getattr(sender, digest.PAGES)),
    }
