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
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"),
)


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
        """As CompressStatePool: one c128 page per ring here, and none where no block is pending."""
        from sglang.srt.mem_cache.deepseek_v4_compress_state import request_scoped_state_transfer_indices

        return request_scoped_state_transfer_indices(slot, seq_len, ratio=128, online=False, ring_size=128)

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


def digest(side: Side, tokens: list[int]) -> int:
    """What the real prefill puts into the metadata of a request for `tokens`."""
    from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin

    found: list[int] = []
    scheduler = side.scheduler
    scheduler.kv_checksum_computer = side.computer
    scheduler.disagg_prefill_bootstrap_queue.kv_checksum_signature = 7
    scheduler.disagg_metadata_buffers = SimpleNamespace(set_kv_checksum=lambda _, digest, __: found.append(digest))
    scheduler._send_kv_chunk = lambda *_, **__: None
    req = SimpleNamespace(
        rid="r", kv=side.req.kv, origin_input_ids=tokens, output_ids=[5], extend_end=len(tokens),
        disagg_decode_prefix_len=0,
    )  # fmt: skip
    SchedulerDisaggregationPrefillMixin.send_kv_chunk(scheduler, req, last_chunk=True)
    return found[0]


def verify(side: Side, req: Any, expected: int) -> list[str]:
    """What the real decode says of a committed request."""
    from sglang.srt.disaggregation import decode

    failures: list[str] = []
    scheduler = side.scheduler
    queue = vars(scheduler).pop("disagg_prefill_bootstrap_queue", None)
    if queue is not None:
        queue.kv_manager.should_verify_kv_checksum = lambda _: True
        queue.kv_checksum_mismatch_injector = None
        scheduler.disagg_decode_prealloc_queue = queue
    scheduler.kv_checksum_computer = side.computer
    scheduler.attn_tp_cpu_group = None
    scheduler._handle_kv_checksum_mismatch = lambda _, message: failures.append(message)
    decode.all_reduce_flags = lambda flags, *_: flags
    req.expected_kv_checksum = expected
    batch = SimpleNamespace(reqs=[req], filter_batch=lambda keep_indices: None)
    decode.SchedulerDisaggregationDecodeMixin._verify_kv_checksums(scheduler, batch)
    return failures


def retracted(prompt: int, emitted: int) -> dict[str, bool]:
    """A request of `prompt` tokens that decode retracted after `emitted`: computed by prefill again, and verified."""
    from sglang.srt.disaggregation import decode
    from sglang.srt.managers.schedule_batch import Req

    patching.resolve(f"{checksum.MODULE}:adler32_strided_checksum")[0].adler32_strided_checksum = adler32
    checksum.install()
    sender, receiver = Side(1, 2, 1), Side(2, 9, 4)
    req = SimpleNamespace(
        rid="r", kv=receiver.req.kv, origin_input_ids=list(range(prompt)), output_ids=[5], bootstrap_host="h",
        bootstrap_port=1, bootstrap_room=1, priority=None, extra_key=None, cache_salt=None, routing_key=None,
        disagg_prefill_dp_rank=None, sampling_params=SimpleNamespace(**dict.fromkeys(SAMPLING)),
        time_stats=SimpleNamespace(set_retract_time=lambda: None),
    )  # fmt: skip
    req.kv.cache_protected_len = 0
    receiver.receive(sender)
    outcome = {"first": verify(receiver, req, digest(sender, req.origin_input_ids)) == []}

    req.output_ids = list(range(emitted))
    queue = SimpleNamespace(
        token_to_kv_pool_allocator=receiver.scheduler.token_to_kv_pool_allocator, pending_reqs=[],
        _check_if_req_exceed_kv_capacity=lambda _: False, _resolve_prefill_dp_rank=lambda _: None,
        _create_receiver_and_enqueue=lambda *_, **__: None,
    )  # fmt: skip
    decode.DecodePreallocQueue.add(queue, req, is_retracted=True)
    asked = Req.build_rebootstrap_payload(req)["input_ids"]
    req.output_ids.append(req.pd_rebootstrap_forced_output_id)  # as _commit_transfer_to_req
    expected = digest(sender, asked)
    outcome["again"] = verify(receiver, req, expected) == []
    last_page = (len(asked) - 1) // PAGE

    def refused(tensor: torch.Tensor, row: int) -> bool:
        tensor[row, 0] ^= 1
        failures = verify(receiver, req, expected)
        tensor[row, 0] ^= 1
        return len(failures) == 1 and "KV checksum mismatch" in failures[0]

    outcome["index_k"] = refused(receiver.index_k[2], receiver.pages[last_page])
    outcome["swa"] = refused(receiver.swa[3], receiver.swa_pages[last_page])
    outcome["ring"] = refused(receiver.rings[1].view(6, -1), receiver.slot) == bool(len(asked) % 128)
    return outcome
