"""Launching the kernels of `prepare.py` and `kernels.py`: shapes checked, block sizes and grids from `sizes.py`.

All launchers work on the current stream, allocate only their outputs, read nothing back from the device, and derive
their grids from shapes alone, so they can be captured in a CUDA graph and replayed with other lengths and pages.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import triton

from dsv4_guard.bf16 import kernels, prepare
from dsv4_guard.bf16.sizes import (
    DECODE_ROWS,
    PAGE_SLOTS,
    PLANNED_ROWS,
    PREFILL_ROWS,
    ROW_ALIGN,
    DecodeConfig,
    PrefillConfig,
    QueryConfig,
    chip,
    decode_config,
    decode_splits,
    prefill_config,
    prefill_rows,
    query_config,
)

if TYPE_CHECKING:
    from torch import Tensor


def _compiled(tensor: Tensor) -> bool:
    return bool(tensor.device.type == "cuda")


def _need(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(f"bf16 index-K kernel: {what}")


def allocate_logits(rows: int, columns: int, device: torch.device) -> Tensor:
    """Uninitialised fp32 `[rows, columns]` whose rows start at multiples of ROW_ALIGN columns."""
    width = triton.cdiv(columns, ROW_ALIGN) * ROW_ALIGN
    return torch.empty((rows, width), dtype=torch.float32, device=device)[:, :columns]


def store_keys(
    compressed: Tensor,
    plan: Tensor,
    *,
    decode: bool,
    ratio: int,
    norm_weight: Tensor,
    norm_eps: float,
    freqs: Tensor,
    loc: Tensor,
    buffer: Tensor,
) -> None:
    """Norm, RoPE, Hadamard and bf16 store of compressed keys.

    compressed `[rows, dim]`; plan `[rows, 16]` uint8 as the engine's compressor makes it; freqs `[positions, rope]`
    fp32, cosine and sine in turn; loc int64, pool slots; buffer `[pages, page bytes]` uint8 or any view of it.
    """
    rows, dim = compressed.shape
    if rows == 0:
        return
    _need(compressed.is_contiguous(), "compressed keys are not contiguous")
    _need(
        plan.shape == (rows, 16) and plan.dtype == torch.uint8 and plan.is_contiguous(), "plan is not [rows, 16] uint8"
    )
    _need(freqs.dtype == torch.float32 and freqs.is_contiguous(), "RoPE table is not contiguous fp32")
    _need(norm_weight.shape == (dim,) and norm_weight.is_contiguous(), "norm weight does not fit the keys")
    _need(loc.is_contiguous() and loc.shape[0] >= (rows if decode else 0), "fewer slots than keys")
    keys = key_rows(buffer, dim)
    block = 16
    prepare.store_keys_kernel[(triton.cdiv(rows, block),)](
        compressed,
        plan.view(torch.int32),
        norm_weight,
        freqs,
        loc,
        keys,
        rows,
        norm_eps,
        DECODE=decode,
        RATIO=ratio,
        DIM=dim,
        ROPE=freqs.shape[-1],
        BLOCK=block,
        COMPILED=_compiled(compressed),
        num_warps=4,
    )


def store_rotated(rotated: Tensor, loc: Tensor, buffer: Tensor) -> None:
    """bf16 store of finished keys `[rows, dim]` into the slots `loc`."""
    rows, dim = rotated.shape
    if rows == 0:
        return
    _need(rotated.is_contiguous() and loc.is_contiguous() and loc.shape == (rows,), "keys and slots do not match")
    block = 16
    prepare.store_rotated_kernel[(triton.cdiv(rows, block),)](
        rotated, loc, key_rows(buffer, dim), rows, DIM=dim, BLOCK=block, COMPILED=_compiled(rotated), num_warps=4
    )


def key_rows(buffer: Tensor, dim: int) -> Tensor:
    """`[slots, dim]` bf16 view of an index-K buffer. ValueError when it is not dense pages of such rows."""
    _need(buffer.is_contiguous(), "index-K buffer is not contiguous")
    flat = buffer.view(-1)
    size = flat.numel() * flat.element_size()
    _need(
        size % (PAGE_SLOTS * dim * 2) == 0, f"index-K buffer of {size} bytes is not pages of {PAGE_SLOTS} x {dim} bf16"
    )
    return flat.view(torch.bfloat16).view(-1, dim)


def prepare_query(
    q: Tensor,
    gate: Tensor,
    gate_scale: float,
    freqs: Tensor,
    positions: Tensor,
    *,
    config: QueryConfig | None = None,
) -> tuple[Tensor, Tensor]:
    """(bf16 query `[rows, heads, dim]` with RoPE and Hadamard, fp32 head weights `[rows, heads]`).

    q `[rows, heads, dim]`, heads contiguous; gate `[rows, heads]`; freqs as in store_keys; positions `[rows]`.
    """
    rows, heads, dim = q.shape
    query = torch.empty((rows, heads, dim), dtype=torch.bfloat16, device=q.device)
    weight = torch.empty((rows, heads), dtype=torch.float32, device=q.device)
    if rows == 0:
        return query, weight
    _need(q.stride(2) == 1 and q.stride(1) == dim, "query heads are not contiguous")
    _need(gate.shape == (rows, heads) and gate.stride(1) == 1, "head weights do not fit the query")
    _need(positions.shape[0] >= rows and positions.is_contiguous(), "fewer positions than query rows")
    _need(freqs.dtype == torch.float32 and freqs.is_contiguous(), "RoPE table is not contiguous fp32")
    processors = chip(q.device).processors
    config = config or query_config(rows, processors)
    block = min(heads, config.heads)
    grid = (min(rows, config.waves * processors) if config.waves else rows, heads // block)
    prepare.query_kernel[grid](
        q,
        gate,
        freqs,
        positions,
        query,
        weight,
        rows,
        q.stride(0),
        gate.stride(0),
        gate_scale,
        HEADS=heads,
        DIM=dim,
        ROPE=freqs.shape[-1],
        BLOCK=block,
        STAGES=config.stages,
        COMPILED=_compiled(q),
        num_warps=config.warps,
    )
    return query, weight


def _checked(
    query: Tensor, weight: Tensor, buffer: Tensor, table: Tensor, lengths: Tensor, columns: int, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows, heads, dim = query.shape
    _need(query.dtype == torch.bfloat16 and query.is_contiguous(), "query is not contiguous bf16")
    _need(weight.shape == (rows, heads) and weight.dtype == torch.float32 and weight.is_contiguous(), "head weights")
    _need(table.dim() == 2 and table.shape[0] >= rows and table.stride(1) == 1, "page table does not fit the query")
    _need(table.dtype == torch.int32, "page table is not int32")
    _need(lengths.dim() == 1 and lengths.shape[0] >= rows and lengths.is_contiguous(), "lengths do not fit the query")
    _need(columns <= table.shape[1] * PAGE_SLOTS, f"{columns} columns need more pages than the table has")
    if out is None:
        out = allocate_logits(rows, columns, query.device)
    _need(out.shape == (rows, columns) and out.dtype == torch.float32 and out.stride(1) == 1, "output does not fit")
    return key_rows(buffer, dim), out


def decode_logits(
    query: Tensor,
    weight: Tensor,
    buffer: Tensor,
    table: Tensor,
    lengths: Tensor,
    columns: int,
    *,
    out: Tensor | None = None,
    config: DecodeConfig | None = None,
) -> Tensor:
    """fp32 `[rows, columns]`: score of every slot below lengths[row]; rows walk their keys alone (decode, verify).

    Columns from lengths[row] to the end of its last key tile are -inf; what lies beyond is left as it was (top-k stops
    at the length). Pages beyond the length are not read.
    """
    keys, out = _checked(query, weight, buffer, table, lengths, columns, out)
    rows, heads, dim = query.shape
    if rows == 0 or columns == 0:
        return out
    of = chip(query.device)
    config = config or decode_config(of)
    shapes: dict[str, Any] = {
        "HEADS": heads,
        "DIM": dim,
        "PAGE": PAGE_SLOTS,
        "PAGES": config.pages,
        "STAGES": config.stages,
        "COMPILED": _compiled(query),
        "num_warps": config.warps,
    }
    tensors = (query, weight, keys, table, lengths, out)
    strides = (table.stride(0), out.stride(0), columns)
    if config.split or rows > PLANNED_ROWS[-1]:
        splits = decode_splits(rows, columns, config, of.processors)
        kernels.split_logits_kernel[(rows, splits)](*tensors, *strides, **shapes)
        return out
    planned = next(size for size in PLANNED_ROWS if size >= rows)
    programs = min(of.processors * config.waves, rows * triton.cdiv(columns, config.pages * PAGE_SLOTS))
    kernels.decode_logits_kernel[(programs,)](*tensors, rows, *strides, ROWS=planned, **shapes)
    return out


def prefill_logits(
    query: Tensor,
    weight: Tensor,
    buffer: Tensor,
    table: Tensor,
    lengths: Tensor,
    columns: int,
    *,
    out: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """As decode_logits, for many rows: neighbours that see the same pages share the loaded keys (prefill, extend)."""
    keys, out = _checked(query, weight, buffer, table, lengths, columns, out)
    rows, heads, dim = query.shape
    if rows == 0 or columns == 0:
        return out
    of = chip(query.device)
    if config is None:
        config = prefill_config(of)
        config = dataclasses.replace(config, rows=prefill_rows(rows, columns, config, of.processors))
    options: dict[str, Any] = {"num_warps": config.warps}
    if config.registers is not None and _compiled(query):
        options["maxnreg"] = config.registers
    grid = (triton.cdiv(columns, config.pages * PAGE_SLOTS), triton.cdiv(rows, config.rows))
    kernels.prefill_logits_kernel[grid](
        query,
        weight,
        keys,
        table,
        lengths,
        out,
        rows,
        table.stride(0),
        out.stride(0),
        columns,
        HEADS=heads,
        DIM=dim,
        PAGE=PAGE_SLOTS,
        PAGES=config.pages,
        ROWS=config.rows,
        STEP=config.step,
        HELD=config.held,
        STAGES=config.stages,
        COMPILED=_compiled(query),
        **options,
    )
    return out


def logits(
    query: Tensor,
    weight: Tensor,
    buffer: Tensor,
    table: Tensor,
    lengths: Tensor,
    columns: int,
    *,
    walk: bool,
    shared: bool = False,
) -> Tensor:
    """The kernel that fits: rows alone when `walk` (decode, verify) or when there are few of them.

    `shared`: several rows in a row see the same keys (verify). Rows in splits then meet in the cache, where tiles dealt
    out evenly do not.
    """
    if shared:
        config = dataclasses.replace(decode_config(chip(query.device)), split=True)
        return decode_logits(query, weight, buffer, table, lengths, columns, config=config)
    if walk or query.shape[0] <= DECODE_ROWS:
        return decode_logits(query, weight, buffer, table, lengths, columns)
    return prefill_logits(query, weight, buffer, table, lengths, columns)


def warm(buffer: Tensor, heads: int = 64, dim: int = 128, rope: int = 64) -> None:
    """Compile every kernel for the device of `buffer` and run it with nothing to do, so that no request waits for it.

    The types are those of the engine: fp32 compressed keys and norm weight, bf16 query and head weights.
    """
    device = buffer.device
    freqs = torch.zeros((1, rope), dtype=torch.float32, device=device)
    idle = torch.full((1, 16), 255, dtype=torch.uint8, device=device)
    nowhere = torch.zeros(1, dtype=torch.int64, device=device)
    for decode in (True, False):
        store_keys(
            torch.zeros((1, dim), dtype=torch.float32, device=device),
            idle,
            decode=decode,
            ratio=4,
            norm_weight=torch.ones(dim, dtype=torch.float32, device=device),
            norm_eps=1e-6,
            freqs=freqs,
            loc=nowhere,
            buffer=buffer,
        )
    many = torch.zeros((chip(device).processors + 1, heads, dim), dtype=torch.bfloat16, device=device)
    for q in (many, many[:1]):
        positions = torch.zeros(q.shape[0], dtype=torch.int64, device=device)
        query, weight = prepare_query(q, q[:, :, 0].contiguous(), 1.0, freqs, positions)
    columns = 4 * PAGE_SLOTS
    for rows in PLANNED_ROWS:
        table = torch.zeros((rows, 4), dtype=torch.int32, device=device)
        length = torch.zeros(rows, dtype=torch.int32, device=device)
        queries, weights = query.expand(rows, -1, -1).contiguous(), weight.expand(rows, -1).contiguous()
        for split in (False, True):
            config = dataclasses.replace(decode_config(chip(device)), split=split)
            decode_logits(queries, weights, buffer, table, length, columns, config=config)
    for size in PREFILL_ROWS:
        tiles = dataclasses.replace(prefill_config(chip(device)), rows=size)
        prefill_logits(query, weight, buffer, table, length, columns, config=tiles)
