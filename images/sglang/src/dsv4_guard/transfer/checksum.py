"""SGLang's KV checksum for DeepSeek-V4 (--disaggregation-enable-kv-checksum, 0.5.21 and later).

Upstream lists no state rows for the V4 pool, so its checksum asserts at the first request; and it applies one list of
rows to all state buffers, while V4 registers components with rows of their own: SWA pages (with the compress states
that travel along) and request-scoped rings. Here each component gets its rows. Index-K needs nothing: its buffers are
among the KV buffers, by page, and are covered as soon as the checksum runs.

And its decode counts the prompt alone, also after a retraction, when prefill has computed what was generated as well;
here both sides count the same tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4_guard import patching
from dsv4_guard.refusal import GuardError

MODULE = "sglang.srt.disaggregation.checksum"
COUNTS = "_dsv4_guard_component_sizes"


@dataclass
class StateRows:
    """Rows of one request, per registered state component, in the order of kv_args.state_types."""

    components: list[Any]


def _manager(scheduler: Any) -> Any:
    for name in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        queue = getattr(scheduler, name, None)
        if queue is not None:
            return queue.kv_manager
    raise GuardError("the scheduler has neither a prefill nor a decode queue")


def check(scheduler: Any) -> None:
    """GuardError when the checksum is on and cannot cover this engine's state: at the start, not at a request."""
    if getattr(scheduler, "kv_checksum_computer", None) is None:
        return
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    if not isinstance(pool, DeepSeekV4TokenToKVPool):
        return
    _covered(pool, _manager(scheduler).kv_args.state_types)


def _covered(pool: Any, types: Sequence[Any]) -> None:
    from sglang.srt.disaggregation.base.conn import StateType

    if getattr(pool, "request_window", None) is not None:
        raise GuardError("the KV checksum does not cover the request window of V4.1; drop the flag")
    known = (StateType.SWA, StateType.DSV4_REQUEST_STATE, StateType.REQUEST_ROW)
    unknown = [str(kind) for kind in types if kind not in known]
    if unknown:
        raise GuardError(f"the KV checksum does not cover the state component {', '.join(unknown)}; drop the flag")


def sent(scheduler: Any, req: Any, seq_len: int) -> int:
    """How many tokens of `req` prefill sent; `seq_len` is what upstream says of it.

    On prefill upstream is right. Decode verifies the prompt alone, but when it has retracted the request prefill also
    computes what was generated, up to the last token, and decode appends that one before it verifies. So does the
    first transfer, whose only generated token is prefill's own.
    """
    if getattr(scheduler, "disagg_decode_prealloc_queue", None) is None:
        return seq_len
    return len(req.origin_input_ids) + max(len(req.output_ids) - 1, 0)


def rows(scheduler: Any, req: Any, pool: Any, seq_len: int, start_idx: int) -> StateRows:
    """The rows that prefill sends (and decode receives) for `req`: as `_send_kv_chunk` computes them."""
    import torch
    from sglang.srt.disaggregation.base.conn import StateType

    table, slot = scheduler.req_to_token_pool.req_to_token, req.kv.req_pool_idx

    def swa() -> Any:
        page = scheduler.token_to_kv_pool_allocator.page_size
        begin = max(start_idx, seq_len - scheduler.sliding_window_size) // page * page
        window = scheduler.token_to_kv_pool_allocator.translate_loc_from_full_to_swa(table[slot, begin:seq_len])
        return (window.to(torch.int64)[::page] // page).contiguous()

    def request_state() -> Any:
        length = sent(scheduler, req, len(req.origin_input_ids))
        indices = pool.request_state_transfer_indices(int(slot), length)
        return torch.as_tensor(indices, dtype=torch.int64, device=table.device)

    def request_row() -> Any:
        return torch.tensor([int(slot)], dtype=torch.int64, device=table.device)

    known = {
        StateType.SWA: swa,
        StateType.DSV4_REQUEST_STATE: request_state,
        StateType.REQUEST_ROW: request_row,
    }
    types = _manager(scheduler).kv_args.state_types
    _covered(pool, types)
    return StateRows([known[kind]() for kind in types])


def _pages(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def page_indices_for_request(scheduler: Any, req: Any, end_idx: int, start_idx: int = 0) -> Any:
        return original(scheduler, req, sent(scheduler, req, end_idx), start_idx)

    return page_indices_for_request


def _indices(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def state_indices_for_request(scheduler: Any, req: Any, seq_len: int, start_idx: int = 0) -> Any:
        from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

        seq_len = sent(scheduler, req, seq_len)
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        if isinstance(pool, DeepSeekV4TokenToKVPool):
            return rows(scheduler, req, pool, seq_len, start_idx)
        return original(scheduler, req, seq_len, start_idx)

    return state_indices_for_request


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(  # noqa: N807
        self: Any,
        device: Any,
        kv_data_ptrs: Sequence[int],
        kv_item_lens: Sequence[int],
        state_data_ptrs: Any = (),
        state_item_lens: Any = (),
    ) -> None:
        original(self, device, kv_data_ptrs, kv_item_lens, state_data_ptrs, state_item_lens)
        sizes = [len(component) if isinstance(component, (list, tuple)) else 1 for component in state_data_ptrs]
        setattr(self, COUNTS, sizes)

    return __init__


def _compute(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compute(self: Any, kv_page_indices_gpu: Any, state_indices_gpu: Any = None) -> int:
        if not isinstance(state_indices_gpu, StateRows):
            return int(original(self, kv_page_indices_gpu, state_indices_gpu))
        _, _, adler32 = patching.resolve(f"{MODULE}:adler32_strided_checksum")
        sizes: list[int] = getattr(self, COUNTS)
        if len(sizes) != len(state_indices_gpu.components):
            raise GuardError(f"{len(sizes)} state components registered, {len(state_indices_gpu.components)} listed")
        indices = [kv_page_indices_gpu] * len(self._kv_data_ptrs)
        for size, component in zip(sizes, state_indices_gpu.components, strict=True):
            indices += [component] * size
        pointers = [*self._kv_data_ptrs, *self._state_data_ptrs]
        lengths = [*self._kv_item_lens, *self._state_item_lens]
        return int(adler32(pointers, lengths, indices))

    return compute


def install() -> None:
    """Give the checksum its V4 rows."""
    patching.resolve(f"{MODULE}:adler32_strided_checksum")
    patching.resolve(
        "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool.request_state_transfer_indices"
    )
    patching.wrap(f"{MODULE}:page_indices_for_request", _pages)
    patching.wrap(f"{MODULE}:state_indices_for_request", _indices)
    patching.wrap(f"{MODULE}:KvChecksumComputer.__init__", _init)
    patching.wrap(f"{MODULE}:KvChecksumComputer.compute", _compute)
