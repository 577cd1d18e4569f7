"""The KV checksum of 0.5.23 on its real classes and a real V4 pool's registration, computed over CPU memory."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import torch

from dsv4_guard import patching
from dsv4_guard.transfer import checksum

PAGE = 256
LAYERS = {"c4": 3, "c128": 2, "swa": 4}


def adler32(pointers: list[int], strides: list[int], indices: list[torch.Tensor]) -> int:
    """What the CUDA kernel computes: Adler-32 over the items, in order."""
    a, b = 1, 0
    for pointer, stride, index in zip(pointers, strides, indices, strict=True):
        for item in index.tolist():
            for byte in ctypes.string_at(pointer + item * stride, stride):
                a = (a + byte) % 65521
                b = (b + a) % 65521
    return b << 16 | a


class Side:
    """One side: buffers as DeepSeekV4TokenToKVPool registers them, a table, and a scheduler that holds both."""

    def __init__(self, seed: int, first_page: int, slot: int) -> None:
        from sglang.srt.disaggregation.base.conn import StateType
        from sglang.srt.disaggregation.checksum import KvChecksumComputer
        from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

        generator = torch.Generator().manual_seed(seed)

        def buffer(rows: int, width: int) -> torch.Tensor:
            return torch.randint(0, 256, (rows, width), dtype=torch.uint8, generator=generator)

        self.c4 = [buffer(16, 96) for _ in range(LAYERS["c4"])]
        self.index_k = [buffer(16, 132) for _ in range(LAYERS["c4"])]
        self.c128 = [buffer(16, 32) for _ in range(LAYERS["c128"])]
        self.swa = [buffer(16, 64) for _ in range(LAYERS["swa"])]
        self.states = [buffer(16 * 8, 8) for _ in range(LAYERS["c4"])]
        self.rings = [buffer(6 * 128, 4) for _ in range(LAYERS["c128"])]
        self.pages = list(range(first_page, first_page + 5))
        self.swa_pages = [page + 1 for page in self.pages]
        self.slot = slot
        pool = object.__new__(DeepSeekV4TokenToKVPool)
        pool.request_window = None
        pool._unified_kv = False
        pool.swa_page_size = PAGE
        pool.swa_kv_pool = SimpleNamespace(kv_buffer=self.swa, page_size=PAGE)
        rings = [
            SimpleNamespace(
                request_scoped=True, ratio=128, online=False, ring_size=128,
                kv_score_buffer=SimpleNamespace(kv_score=ring), transfer_indices=self.ring_rows,
            )
            for ring in self.rings
        ]  # fmt: skip
        states = [
            SimpleNamespace(request_scoped=False, ratio=4, ring_size=8, kv_score_buffer=SimpleNamespace(kv_score=state))
            for state in self.states
        ]
        pool.compress_state_pools = rings
        pool.indexer_compress_state_pools = states
        self.pool = pool
        kv = [*self.c4, *self.index_k, *self.c128]
        state_ptrs, _, state_lens = pool.get_state_buf_infos()
        ring_ptrs, _, ring_lens = pool.get_request_state_buf_infos()
        self.kv_args = SimpleNamespace(state_types=[StateType.SWA, StateType.DSV4_REQUEST_STATE])
        self.computer = KvChecksumComputer(
            torch.device("cpu"),
            [tensor.data_ptr() for tensor in kv],
            [tensor[0].nbytes for tensor in kv],
            [state_ptrs, ring_ptrs],
            [state_lens, ring_lens],
        )
        table = torch.zeros(8, 2048, dtype=torch.int64)
        table[slot, : 5 * PAGE] = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in self.pages])
        self.scheduler = SimpleNamespace(
            token_to_kv_pool_allocator=SimpleNamespace(
                page_size=PAGE,
                get_kvcache=lambda: pool,
                translate_loc_from_full_to_swa=lambda loc: loc + PAGE,
            ),
            req_to_token_pool=SimpleNamespace(req_to_token=table),
            sliding_window_size=128,
            disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=SimpleNamespace(kv_args=self.kv_args)),
        )
        self.req = SimpleNamespace(kv=SimpleNamespace(req_pool_idx=slot), origin_input_ids=list(range(1200)))

    def ring_rows(self, slot: int, seq_len: int) -> Any:
        """As CompressStatePool: one c128 page per ring here."""
        return [slot]

    def value(self) -> int:
        """As `_send_kv_chunk` and `_verify_kv_checksums` do it, with their helpers."""
        from sglang.srt.disaggregation import prefill

        pages = prefill.page_indices_for_request(self.scheduler, self.req, 1200)
        states = prefill.state_indices_for_request(self.scheduler, self.req, 1200)
        return int(self.computer.compute(pages, states))

    def receive(self, other: Side) -> None:
        """The transfer: pages and rows of `other` into ours."""
        for ours, theirs in (
            *zip(self.c4, other.c4, strict=True),
            *zip(self.index_k, other.index_k, strict=True),
            *zip(self.c128, other.c128, strict=True),
        ):
            ours[self.pages] = theirs[other.pages]
        for ours, theirs in zip(self.swa, other.swa, strict=True):
            ours[self.swa_pages] = theirs[other.swa_pages]
        for ours, theirs in zip(self.states, other.states, strict=True):
            ours.view(16, 64)[self.swa_pages] = theirs.view(16, 64)[other.swa_pages]
        for ours, theirs in zip(self.rings, other.rings, strict=True):
            ours.view(6, -1)[self.slot] = theirs.view(6, -1)[other.slot]


def upstream() -> str:
    """Without the plugin: the assertion that ends the scheduler at the first request."""
    sender = Side(1, 2, 1)
    try:
        sender.value()
    except AssertionError:
        return "asserts"
    return "runs"


def refused(window: bool) -> str:
    """What the start says of an engine with state that the checksum does not cover; nothing for one that it does."""
    from sglang.srt.disaggregation.base.conn import StateType

    from dsv4_guard.refusal import GuardError

    side = Side(1, 2, 1)
    side.scheduler.kv_checksum_computer = side.computer
    checksum.check(side.scheduler)
    if window:
        side.pool.request_window = object()
    else:
        side.kv_args.state_types.append(StateType.MAMBA)
    try:
        checksum.check(side.scheduler)
    except GuardError as error:
        return str(error)
    return ""


def compared() -> dict[str, bool]:
    """Equal after the transfer; different for one changed byte anywhere, and indifferent to bytes not sent."""
    patching.resolve(f"{checksum.MODULE}:adler32_strided_checksum")[0].adler32_strided_checksum = adler32
    checksum.install()
    sender, receiver = Side(1, 2, 1), Side(2, 9, 4)
    before = receiver.value() == sender.value()
    receiver.receive(sender)
    expected = sender.value()
    outcome = {"before": before, "after": receiver.value() == expected}

    def changed(tensor: torch.Tensor, row: int) -> bool:
        tensor[row, 0] ^= 1
        differs = receiver.value() != expected
        tensor[row, 0] ^= 1
        return differs

    outcome["c4"] = changed(receiver.c4[1], receiver.pages[2])
    outcome["index_k"] = changed(receiver.index_k[2], receiver.pages[4])
    outcome["index_k_first_page"] = changed(receiver.index_k[0], receiver.pages[0])
    outcome["c128"] = changed(receiver.c128[0], receiver.pages[3])
    outcome["swa"] = changed(receiver.swa[3], receiver.swa_pages[4])
    outcome["indexer_state"] = changed(receiver.states[0].view(16, 64), receiver.swa_pages[4])
    outcome["ring"] = changed(receiver.rings[1].view(6, -1), receiver.slot)
    outcome["other_request"] = not changed(receiver.index_k[0], 1)
    outcome["restored"] = receiver.value() == expected
    return outcome
