"""The pool of index-K in bf16, its share of the memory budget, and its mirror on the host.

The buffers stay one uint8 tensor [pages, page bytes] per layer, as every other part of SGLang expects: HiCache copies
page rows, prefill/decode transfer sends page items, and both take the sizes from the buffers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn

from dsv4_guard.bf16 import FORMAT
from dsv4_guard.refusal import refuse

SLOT_BYTES_PER_VALUE = 2
PAGE_SLOTS = 64
HEAD_DIM = 128
HOST_POOL_NAME = "deepseek_v4_c4_indexer"
"""PoolName.DEEPSEEK_V4_C4_INDEXER."""


def bytes_per_slot(head_dim: int) -> int:
    """Bytes of one compressed key (four tokens): no scale."""
    return SLOT_BYTES_PER_VALUE * head_dim


def _not_in_bf16(method: str) -> NoReturn:
    raise RuntimeError(f"index-K is bf16: {method} reads or writes another format and must not be called")


def _compile(buffer: Any) -> None:
    """Compile the kernels now, not under the first request; end the process where they do not compile."""
    from dsv4_guard.bf16 import launch

    try:
        launch.warm(buffer)
    except Exception as error:
        refuse(f"the kernels of index-K in bf16 do not run on this GPU: {type(error).__name__}: {error}")


def pool_class(original: type) -> type:
    """DeepSeekV4IndexerPool with bf16 slots."""

    class Bf16IndexerPool(original):  # type: ignore[misc]
        """Index-K in bf16: [pages, 64 slots * 256 bytes] uint8 per layer."""

        index_k_format = FORMAT

        def _create_buffer(self) -> None:
            if self.use_fp4_indexer:
                refuse(
                    "index-K is to be bf16, but this pool is asked for fp4 (--enable-deepseek-v4-fp4-indexer, or a "
                    "DeepSeek-V4.1 model): drop the flag, or unset DSV4_INDEX_K_DTYPE"
                )
            if self.page_size != PAGE_SLOTS or self.index_head_dim != HEAD_DIM:
                refuse(
                    f"index-K in bf16 is built for pages of {PAGE_SLOTS} slots and heads of {HEAD_DIM}; this model has "
                    f"pages of {self.page_size} and heads of {self.index_head_dim}"
                )
            super()._create_buffer()
            if self.index_k_with_scale_buffer and self.index_k_with_scale_buffer[0].device.type == "cuda":
                _compile(self.index_k_with_scale_buffer[0])

        def get_bytes_per_token(self) -> int:
            return bytes_per_slot(self.index_head_dim)

        def set_index_fused(self, layer_id: int, loc: Any, cache_k: Any) -> None:
            from dsv4_guard.bf16 import launch

            launch.store_rotated(cache_k, loc, self.index_k_with_scale_buffer[layer_id - self.start_layer])

        def get_index_k_scale_buffer(self, *args: Any, **kwargs: Any) -> NoReturn:
            _not_in_bf16("get_index_k_scale_buffer")

        def set_index_k_scale_buffer(self, *args: Any, **kwargs: Any) -> NoReturn:
            _not_in_bf16("set_index_k_scale_buffer")

        def set_index_fp4(self, *args: Any, **kwargs: Any) -> NoReturn:
            _not_in_bf16("set_index_fp4")

        def get_index_k_fp4(self, *args: Any, **kwargs: Any) -> NoReturn:
            _not_in_bf16("get_index_k_fp4")

        def get_index_k_dequant(self, *args: Any, **kwargs: Any) -> NoReturn:
            _not_in_bf16("get_index_k_dequant")

    Bf16IndexerPool.__qualname__ = "Bf16IndexerPool"
    return Bf16IndexerPool


def bytes_function(original: Callable[..., int]) -> Callable[..., int]:
    """get_dsv4_indexer_bytes_per_token for bf16. Its fp4 answer stays: the budget asks for it for V4.1's pools."""

    @functools.wraps(original)
    def get_dsv4_indexer_bytes_per_token(index_head_dim: int, use_fp4_indexer: bool) -> int:
        if use_fp4_indexer:
            return original(index_head_dim, use_fp4_indexer)
        return bytes_per_slot(index_head_dim)

    return get_dsv4_indexer_bytes_per_token


def bytes_in_place(original: Callable[..., float]) -> Callable[..., float]:
    """DSV4PoolConfigurator._get_bytes_per_full_token where it counts fp8 slots in place: the difference is added."""

    @functools.wraps(original)
    def _get_bytes_per_full_token(self: Any) -> float:
        counted = self.indexer_head_dim + self.indexer_head_dim // 128 * 4
        more = (bytes_per_slot(self.indexer_head_dim) - counted) / 4 * self.num_layers_ca4
        return original(self) + float(more)

    return _get_bytes_per_full_token


def regions(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """_dsv4_indexer_regions: whole pages only, since the token-wise copy knows the packed fp8 row alone."""

    @functools.wraps(original)
    def _dsv4_indexer_regions(*args: Any, **kwargs: Any) -> list[Any]:
        return [dataclasses.replace(region, page_aligned_only=True) for region in original(*args, **kwargs)]

    return _dsv4_indexer_regions


def whole_pages(original: Callable[..., Any]) -> Callable[..., Any]:
    """A copy method of DeepSeekV4PagedHostPool where it has no page_aligned_only: the same refusal, for index-K."""

    @functools.wraps(original)
    def copy(self: Any, device_pool: Any, host_indices: Any, device_indices: Any, *args: Any, **kwargs: Any) -> Any:
        if self.pool_name == HOST_POOL_NAME:
            for indices in (host_indices, device_indices):
                if indices is not None and indices.numel() % self.slot_page_size != 0:
                    raise ValueError(
                        f"{self.pool_name} holds bf16 index-K and moves whole pages of {self.slot_page_size} tokens, "
                        f"not {indices.numel()} tokens"
                    )
        return original(self, device_pool, host_indices, device_indices, *args, **kwargs)

    return copy
