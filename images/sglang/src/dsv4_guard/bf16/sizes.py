"""Block sizes and grids of the kernels, chosen from shapes and the chip, without tuning runs.

The numbers were chosen by the sweeps of images/sglang/proof/kernels on an H200.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton

PAGE_SLOTS = 64
"""Slots of one page: 256 tokens, four to a slot."""
ROW_ALIGN = 256
"""Columns that the stride of a logits row is rounded up to, as DeepGEMM does; the engine's top-k wants 16-byte rows."""
PLANNED_ROWS = (16, 64, 256, 1024)
"""Row counts that the decode kernel is compiled for; a batch takes the next one. Beyond the last, rows are split."""
PREFILL_ROWS = (64, 32, 16)
"""Rows of one program that the prefill kernel is compiled for."""
DECODE_ROWS = 64
"""Up to this many query rows each row walks its own keys; with more, rows share key tiles."""


@dataclass(frozen=True)
class DecodeConfig:
    """Block sizes of the decode kernel."""

    pages: int
    """Pages of one key tile."""
    stages: int
    """Key tiles in flight."""
    warps: int
    waves: int
    """Programs per multiprocessor: those that fit at once, or, when split, what all splits of all rows come to."""
    split: bool = False
    """Every row in a fixed number of splits, instead of the tiles of all rows dealt out evenly."""


@dataclass(frozen=True)
class PrefillConfig:
    """Block sizes of the prefill kernel."""

    pages: int
    """Pages of the key tile that stays."""
    rows: int
    """Query rows of one program, at most."""
    step: int
    """Query rows of one product."""
    stages: int
    """Query tiles in flight."""
    warps: int
    registers: int | None
    """Cap of registers per thread, where two programs per multiprocessor depend on it."""
    held: bool = False
    """Keys stay in registers instead of shared memory."""


@dataclass(frozen=True)
class QueryConfig:
    """Block sizes of the query kernel."""

    heads: int
    """Heads of one program."""
    waves: int
    """Programs per multiprocessor, which go through the rows in steps; 0: one program a row."""
    stages: int
    warps: int


@dataclass(frozen=True)
class Chip:
    """What of a device decides the block sizes."""

    processors: int
    shared: int
    """Shared memory that one program may have, bytes."""


@functools.cache
def chip(device: torch.device) -> Chip:
    """The chip behind `device`; on a CPU, where the interpreter runs, small fixed numbers."""
    if device.type != "cuda":
        return Chip(processors=4, shared=232448)
    properties: Any = torch.cuda.get_device_properties(device)
    return Chip(processors=properties.multi_processor_count, shared=properties.shared_memory_per_block_optin)


def decode_config(of: Chip) -> DecodeConfig:
    """32 KB key tiles, three in flight, two programs per multiprocessor (H100, H200, B200); 16 KB tiles and one
    program where shared memory is 100 KB (SM120)."""
    if of.shared >= 200 * 1024:
        return DecodeConfig(pages=2, stages=3, warps=4, waves=2)
    return DecodeConfig(pages=1, stages=4, warps=4, waves=1)


def prefill_config(of: Chip) -> PrefillConfig:
    """64 KB of keys against a stream of 16 KB queries; half of it where shared memory is 100 KB."""
    if of.shared >= 200 * 1024:
        return PrefillConfig(pages=4, rows=64, step=1, stages=2, warps=8, registers=128)
    return PrefillConfig(pages=2, rows=64, step=1, stages=2, warps=4, registers=None)


QUERY_SIZES = tuple(
    QueryConfig(*numbers)
    for numbers in (
        (16, 0, 1, 4),
        (32, 0, 1, 4),
        (64, 0, 1, 8),
        (64, 8, 1, 8),
        (64, 8, 2, 8),
        (64, 4, 3, 8),
        (64, 4, 2, 4),
        (32, 8, 2, 4),
    )
)
"""Sizes of the query kernel that the proof checks and times; query_config takes its own from among them."""


def query_config(rows: int, processors: int) -> QueryConfig:
    """Few rows: small programs, soon done. Many: all heads of a row at once, several rows with one Hadamard matrix."""
    if rows <= processors:
        return QueryConfig(heads=16, waves=0, stages=1, warps=4)
    return QueryConfig(heads=64, waves=4, stages=2, warps=4)


def decode_splits(rows: int, columns: int, config: DecodeConfig, processors: int) -> int:
    """Programs per row when split: four rounds of `waves` per multiprocessor, at most one per tile of a full row."""
    tiles = max(1, triton.cdiv(columns, config.pages * PAGE_SLOTS))
    return int(max(1, min(tiles, triton.cdiv(4 * processors * config.waves, max(1, rows)))))


def prefill_rows(rows: int, columns: int, config: PrefillConfig, processors: int) -> int:
    """Query rows of one program: fewer where the programs would not fill the chip.

    Rows that begin near the start of their context (a prefill from zero) leave about half of the programs without work,
    and the rest uneven, so there the programs are smaller.
    """
    tiles = triton.cdiv(columns, config.pages * PAGE_SLOTS)
    wanted = 1.9 * processors * (8 if rows >= 2 * columns else 1)
    for size in PREFILL_ROWS:
        if size <= config.rows and tiles * triton.cdiv(rows, size) >= wanted:
            return size
    return PREFILL_ROWS[-1]
