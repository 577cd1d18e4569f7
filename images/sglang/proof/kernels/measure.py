"""Times of the kernels over shapes, with the bytes and operations they must do, and DeepGEMM's fp8 in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cases
import deepgemm
import timing
import torch

from dsv4_guard.bf16 import launch, sizes

Say = Callable[[str], None]
L2_BYTES = 512 << 20
"""Distinct keys that a timed round goes through at least: several times any L2."""


@dataclass
class Clock:
    """What is left of the time for this call."""

    begun: float
    budget: float
    left_out: list[str] = field(default_factory=list)

    def time_for(self, name: str) -> bool:
        """Whether to start another cell; names what is left out."""
        if time.monotonic() - self.begun < self.budget:
            return True
        self.left_out.append(name)
        return False


def _fp8_us(launches: list[Callable[[], object]]) -> float | str:
    try:
        return timing.graph_us(launches, repeat=5)
    except Exception as error:  # the comparison may be impossible; the run goes on and says so
        torch.cuda.synchronize()
        return f"{type(error).__name__}: {error}"[:200]


def _decode_cell(
    pool: cases.Pool,
    rows: int,
    slots: int,
    config: sizes.DecodeConfig | sizes.PrefillConfig | None = None,
    share: int = 1,
    lengths: list[int] | None = None,
) -> tuple[float, list[torch.Tensor], int]:
    """(microseconds, page tables, bytes that must move). `share` rows in a row see the same pages (verify)."""
    sets = max(1, min(1024, -(-L2_BYTES // (rows // share * slots * 256))))
    sets = max(1, min(sets, pool.pages // max(1, rows // share * slots // 64)))
    distinct = cases.tables(rows // share, slots, pool.pages, sets, seed=5)
    tables = [table.repeat_interleave(share, 0).contiguous() for table in distinct]
    q, w = cases.queries(rows)
    n = torch.tensor(lengths or [slots] * rows, dtype=torch.int32, device=cases.DEVICE)
    out = launch.allocate_logits(rows, slots, q.device)

    def one(table: torch.Tensor) -> Callable[[], object]:
        if isinstance(config, sizes.PrefillConfig):
            return lambda: launch.prefill_logits(q, w, pool.bf16, table, n, slots, out=out, config=config)
        return lambda: launch.decode_logits(q, w, pool.bf16, table, n, slots, out=out, config=config)

    us = timing.graph_us([one(table) for table in tables])
    seen = int(n.sum())
    moved = seen // share * 256 + seen * 4 + rows * (64 * 128 * 2 + 256)
    return us, tables, moved


def _ragged(rows: int, slots: int) -> list[int]:
    """Lengths of a batch as it occurs: geometric from 1/64 of the longest up to it, in no order."""
    steps = [int(slots * 64 ** (-i / max(1, rows - 1))) for i in range(rows)]
    return [max(1, steps[(i * 7) % rows]) for i in range(rows)]


def decode(say: Say, pool: cases.Pool, limits: dict[str, float], clock: Clock, quick: bool) -> list[dict[str, Any]]:
    """Rows x context, distinct sequences; verify, four rows to a sequence; batches of ragged lengths."""
    contexts = [4096, 65536] if quick else [4096, 16384, 65536, 131072, 262144, 524288, 1048576]
    found = []
    say("decode: rows context | us  GB/s  share of copy  share of read | fp8 us  bf16/fp8")
    for share, rows_list in ((1, [1, 8, 32, 128, 256]), (4, [32, 128])):
        for rows in rows_list:
            for context in contexts if share == 1 else contexts[1::2]:
                slots = context // 4
                name = f"decode {rows}x{context}{'/4' if share > 1 else ''}"
                if rows // share * slots // 64 > pool.pages or not clock.time_for(name):
                    continue
                us, tables, moved = _decode_cell(pool, rows, slots, share=share)
                row: dict[str, Any] = {
                    "rows": rows,
                    "context": context,
                    "rows_per_sequence": share,
                    "us": us,
                    "bytes": moved,
                    "gbps": moved / us / 1e3,
                    "of_copy": moved / us / 1e3 / limits["copy_gbps"],
                    "of_read": moved / us / 1e3 / limits["read_gbps"],
                }
                if deepgemm.deep_gemm:
                    q, w = cases.fp8_queries(*cases.queries(rows))
                    n = torch.full((rows,), slots, dtype=torch.int32, device=cases.DEVICE)
                    row["fp8_us"] = _fp8_us([deepgemm.paged(q, w, pool.fp8, t, n, slots) for t in tables])
                fp8 = row.get("fp8_us")
                ratio = f"{fp8:9.1f} {us / fp8:5.2f}" if isinstance(fp8, float) else str(fp8)
                if share > 1:
                    split = sizes.DecodeConfig(pages=2, stages=3, warps=4, waves=2, split=True)
                    row["split_us"] = _decode_cell(pool, rows, slots, split, share=share)[0]
                    ratio += f" | split {row['split_us']:.1f} us"
                    shared = sizes.PrefillConfig(pages=4, rows=16, step=1, stages=2, warps=8, registers=128)
                    row["shared_us"] = _decode_cell(pool, rows, slots, shared, share=share)[0]
                    ratio += f" | prefill kernel {row['shared_us']:.1f} us"
                say(
                    f"{rows:4d}{'/4' if share > 1 else '  '} {context:8d} | {us:9.1f} {row['gbps']:7.0f} "
                    f"{row['of_copy']:6.2f} {row['of_read']:6.2f} | {ratio}"
                )
                found.append(row)
    for rows, longest in ((8, 1048576), (32, 262144), (128, 262144)):
        if quick or not clock.time_for(f"ragged {rows}x{longest}"):
            continue
        lengths = _ragged(rows, longest // 4)
        us, tables, moved = _decode_cell(pool, rows, longest // 4, lengths=lengths)
        row = {"rows": rows, "longest": longest, "us": us, "bytes": moved, "gbps": moved / us / 1e3}
        row["of_copy"], row["of_read"] = row["gbps"] / limits["copy_gbps"], row["gbps"] / limits["read_gbps"]
        split = sizes.DecodeConfig(pages=2, stages=3, warps=4, waves=2, split=True)
        row["split_us"] = _decode_cell(pool, rows, longest // 4, split, lengths=lengths)[0]
        if deepgemm.deep_gemm:
            q, w = cases.fp8_queries(*cases.queries(rows))
            n = torch.tensor(lengths, dtype=torch.int32, device=cases.DEVICE)
            row["fp8_us"] = _fp8_us([deepgemm.paged(q, w, pool.fp8, t, n, longest // 4) for t in tables])
        say(
            f"ragged {rows} rows up to {longest} | {us:9.1f} us {row['gbps']:7.0f} GB/s {row['of_read']:5.2f} of read "
            f"| split {row['split_us']:.1f} us | fp8 {row.get('fp8_us')}"
        )
        found.append(row)
    return found


def _prefill_cell(
    pool: cases.Pool, rows: int, slots: int, causal: bool, config: sizes.PrefillConfig | None = None
) -> tuple[float, float, torch.Tensor, torch.Tensor]:
    """(microseconds, TFLOP of the needed scores, table, lengths): the last `rows` tokens of one request."""
    table = cases.tables(1, slots, pool.pages, 1, seed=6)[0].expand(rows, -1).contiguous()
    last = slots * 4
    first = last - rows
    tokens = torch.arange(first, last, device=cases.DEVICE) + 1
    n = ((tokens // 4) if causal else torch.full_like(tokens, slots)).clamp(min=1).to(torch.int32)
    q, w = cases.queries(rows)
    out = launch.allocate_logits(rows, slots, q.device)
    us = timing.graph_us(
        [lambda: launch.prefill_logits(q, w, pool.bf16, table, n, slots, out=out, config=config)], repeat=5
    )
    return us, float(n.double().sum()) * 64 * 128 * 2 / 1e12, table, n


def prefill(say: Say, pool: cases.Pool, limits: dict[str, float], clock: Clock, quick: bool) -> list[dict[str, Any]]:
    """Chunks of query rows at the end of a context, causal; fp8: the paged kernel, and the gathered one."""
    cells = [(2048, 16384)] if quick else [(r, c) for r in (512, 2048, 8192) for c in (8192, 65536, 262144, 1048576)]
    found = []
    say("prefill: rows context | us  TFLOP/s  share of product | fp8 paged us  fp8 gathered us  bf16/best fp8")
    for rows, context in cells:
        if rows > context or not clock.time_for(f"prefill {rows}x{context}"):
            continue
        slots = context // 4
        us, work, table, n = _prefill_cell(pool, rows, slots, causal=True)
        row: dict[str, Any] = {
            "rows": rows,
            "context": context,
            "us": us,
            "tflops": work / us * 1e6,
            "of_product": work / us * 1e6 / limits["bf16_tflops"],
        }
        if deepgemm.deep_gemm:
            q, w = cases.fp8_queries(*cases.queries(rows))
            row["fp8_paged_us"] = _fp8_us([deepgemm.paged(q, w, pool.fp8, table, n, slots)])
            slot = torch.arange(slots, device=cases.DEVICE)
            keys = pool.keys[table[0, slot // 64].long() * 64 + slot % 64]
            row["fp8_gathered_us"] = _fp8_us([deepgemm.contiguous(q, w, keys, n, slots)])
        best = [v for v in (row.get("fp8_paged_us"), row.get("fp8_gathered_us")) if isinstance(v, float)]
        ratio = f"{us / min(best):5.2f}" if best else ""
        say(
            f"{rows:5d} {context:8d} | {us:10.1f} {row['tflops']:6.1f} {row['of_product']:5.2f} | "
            f"{row.get('fp8_paged_us')} {row.get('fp8_gathered_us')} {ratio}"
        )
        found.append(row)
    return found


def small(say: Say, pool: cases.Pool, limits: dict[str, float], clock: Clock, quick: bool) -> list[dict[str, Any]]:
    """Store and query kernels: microseconds and the bytes they must move."""
    found = []
    freqs = torch.rand((70000, 64), device=cases.DEVICE)
    positions = torch.arange(70000, device=cases.DEVICE)
    norm = torch.ones(128, device=cases.DEVICE)
    for rows in (1, 32, 256, 2048, 8192):
        if not clock.time_for(f"small {rows}"):
            continue
        x = torch.randn((rows, 128), device=cases.DEVICE)
        words = torch.zeros((rows, 4), dtype=torch.int32, device=cases.DEVICE)
        words[:, 0] = torch.arange(rows, device=cases.DEVICE, dtype=torch.int32) * 4 + 4
        words[:, 1] = torch.arange(rows, device=cases.DEVICE, dtype=torch.int32)
        plan = words.view(torch.uint8)
        loc = torch.randperm(max(rows, 64) * 2, device=cases.DEVICE)[:rows]

        def put(x: torch.Tensor = x, plan: torch.Tensor = plan, loc: torch.Tensor = loc) -> None:
            launch.store_keys(
                x,
                plan,
                decode=False,
                ratio=4,
                norm_weight=norm,
                norm_eps=1e-6,
                freqs=freqs,
                loc=loc,
                buffer=pool.bf16,
            )

        q = torch.randn((rows, 64, 128), device=cases.DEVICE).to(torch.bfloat16)
        gate = torch.randn((rows, 64), device=cases.DEVICE).to(torch.bfloat16)

        def ask(config: sizes.QueryConfig | None, q: torch.Tensor = q, gate: torch.Tensor = gate) -> None:
            launch.prepare_query(q, gate, 0.1, freqs, positions[: q.shape[0]], config=config)

        us = timing.graph_us([put])
        found.append({"kernel": "store", "rows": rows, "us": us, "gbps": rows * (128 * 4 + 256 + 24) / us / 1e3})
        say(f"store {rows:5d} rows {us:8.1f} us")
        for config in (None, *sizes.QUERY_SIZES):
            us = timing.graph_us([lambda: ask(config)])  # noqa: B023 - called before the loop goes on
            row = {"kernel": "query", "config": repr(config), "rows": rows, "us": us}
            row["gbps"] = rows * (64 * 128 * 4 + 64 * 6) / us / 1e3
            row["of_copy"] = row["gbps"] / limits["copy_gbps"]
            found.append(row)
            say(f"query {rows:5d} rows {us:8.1f} us {row['gbps']:7.0f} GB/s {config}")
    return found


def sweep(say: Say, pool: cases.Pool, limits: dict[str, float], clock: Clock, quick: bool) -> list[dict[str, Any]]:
    """Other block sizes on a few shapes, to see whether the defaults are well chosen."""
    found: list[dict[str, Any]] = []
    shapes = (
        [(1, 65536), (32, 65536)]
        if quick
        else [(1, 131072), (1, 1048576), (8, 65536), (32, 65536), (256, 4096), (256, 131072)]
    )
    for pages, stages, warps, waves, split in (
        (2, 3, 4, 2, False),
        (2, 3, 4, 4, False),
        (2, 3, 4, 1, False),
        (2, 2, 4, 2, False),
        (2, 3, 8, 2, False),
        (2, 6, 8, 1, False),
        (1, 4, 4, 2, False),
        (1, 3, 4, 3, False),
        (1, 5, 4, 2, False),
        (4, 2, 8, 1, False),
        (2, 3, 4, 2, True),
        (2, 3, 4, 1, True),
        (1, 4, 4, 2, True),
    ):
        config = sizes.DecodeConfig(pages, stages, warps, waves, split)
        line = []
        for rows, context in shapes:
            if rows * context // 256 > pool.pages or not clock.time_for(f"sweep decode {config}"):
                continue
            try:
                us, _, moved = _decode_cell(pool, rows, context // 4, config)
            except Exception as error:  # does not fit this chip
                line.append(type(error).__name__)
                continue
            share = moved / us / 1e3 / limits["copy_gbps"]
            line.append(f"{rows}x{context}: {us:.1f} us {share:.2f}")
            found.append({"kernel": "decode", "config": repr(config), "rows": rows, "context": context, "us": us})
        say(f"sweep decode {pages},{stages},{warps},{waves},{'split' if split else 'dealt'} | " + " | ".join(line))
    shapes = [(2048, 16384)] if quick else [(512, 8192), (2048, 8192), (8192, 8192), (2048, 65536)]
    for pages, rows_per, step, stages, warps, registers, held in (
        (4, 64, 1, 2, 8, 128, False),
        (4, 64, 1, 3, 8, None, False),
        (4, 32, 1, 2, 8, 128, False),
        (4, 16, 1, 2, 8, 128, False),
        (2, 64, 1, 2, 4, None, False),
        (2, 64, 1, 3, 8, None, False),
        (2, 64, 2, 2, 8, 128, False),
        (4, 64, 2, 2, 8, None, False),
        (2, 64, 1, 2, 4, None, True),
        (2, 64, 1, 3, 4, None, True),
        (2, 32, 1, 3, 4, None, True),
        (2, 16, 1, 3, 4, None, True),
        (4, 64, 1, 2, 8, None, True),
        (4, 64, 1, 3, 8, None, True),
        (2, 64, 1, 3, 8, 128, True),
        (2, 64, 2, 2, 8, None, True),
    ):
        tiles = sizes.PrefillConfig(pages, rows_per, step, stages, warps, registers, held)
        line = []
        for rows, context in shapes:
            if context // 256 > pool.pages or not clock.time_for(f"sweep prefill {tiles}"):
                continue
            try:
                us, work, _, _ = _prefill_cell(pool, rows, context // 4, True, tiles)
            except Exception as error:
                line.append(type(error).__name__)
                continue
            line.append(f"{rows}x{context}: {us:.0f} us {work / us * 1e6:.0f} TFLOP/s")
            found.append({"kernel": "prefill", "config": repr(tiles), "rows": rows, "context": context, "us": us})
        say(f"sweep prefill {pages},{rows_per},{step},{stages},{warps},{registers},{held} | " + " | ".join(line))
    return found
