"""Correctness on the GPU at the real size (64 heads of 128), against double precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import cases
import torch

from dsv4_guard.bf16 import launch, reference, sizes

TOP = 512


def _row(name: str, ok: bool, **facts: Any) -> dict[str, Any]:
    return {"name": name, "ok": bool(ok), **facts}


def _scores(
    got: torch.Tensor,
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    rows: list[int],
) -> dict[str, Any]:
    """Worst error in units of the row's standard deviation, and the share of the best 512 that agree, over `rows`."""
    worst, overlap, finite, masked = 0.0, 1.0, True, True
    for r in rows:
        n = int(lengths[r])
        want = reference.logits(q[r : r + 1], w[r : r + 1], keys, table[r : r + 1], lengths[r : r + 1], n)[0]
        mine = got[r, :n].double()
        finite &= bool(torch.isfinite(mine).all())
        masked &= bool((got[r, n : (n + 63) // 64 * 64] == float("-inf")).all())
        if n == 0:
            continue
        worst = max(worst, float((mine - want).abs().max() / want.std().clamp(min=1e-9)) if n > 1 else 0.0)
        k = min(TOP, n)
        best = torch.zeros(n, dtype=torch.bool, device=got.device)
        best[want.topk(k).indices] = True
        overlap = min(overlap, float(best[mine.topk(k).indices].float().mean()))
    return {"error_sd": worst, "top512": overlap, "finite": finite, "masked": masked}


def logits(kernel: str, lengths: list[int], share: bool = False, size: int = 0) -> dict[str, Any]:
    """Ragged rows over permuted pages; pages outside the lengths and slots past a length are NaN.

    `size`: query rows of a prefill program, where another than the chosen one is to be checked.
    """
    run: Callable[..., torch.Tensor] = launch.decode_logits if kernel == "decode" else launch.prefill_logits
    if size:
        tiles = sizes.prefill_config(sizes.chip(torch.device("cuda", torch.cuda.current_device())))
        run = functools.partial(launch.prefill_logits, config=dataclasses.replace(tiles, rows=size))
    rows, widest = len(lengths), max(1, *lengths)
    per_row = -(-widest // 64)
    distinct = per_row if share else rows * per_row
    pool = cases.pool(distinct + 7, seed=rows, fp8=False)
    order = torch.randperm(distinct + 7, device=cases.DEVICE)[:distinct].to(torch.int32)
    table = (order.expand(rows, -1) if share else order.view(rows, per_row)).contiguous()
    n = torch.tensor(lengths, dtype=torch.int32, device=cases.DEVICE)
    clean = pool.keys.clone()
    keep = torch.zeros(pool.pages * 64, dtype=torch.bool, device=cases.DEVICE)
    for r, length in enumerate(lengths):
        slot = torch.arange(length, device=cases.DEVICE)
        keep[table[r, slot // 64].long() * 64 + slot % 64] = True
    pool.keys[~keep] = float("nan")
    q, w = cases.queries(rows)
    out = launch.allocate_logits(rows, per_row * 64, q.device).fill_(float("nan"))
    run(q, w, pool.bf16, table, n, per_row * 64, out=out)
    sample = sorted({0, rows - 1, rows // 2, *range(min(rows, 6))})
    facts = _scores(out, q, w, clean, table, n, sample)
    ok = facts["finite"] and facts["masked"] and facts["error_sd"] < 1e-3 and facts["top512"] > 0.99
    name = f"{kernel} {rows} rows, longest {widest}" + (", one request" if share else "")
    name += f", {size} a program" if size else ""
    return _row(name, ok, **facts)


def replay() -> dict[str, Any]:
    """A captured decode launch replayed with other lengths and pages gives what an eager launch gives, to the bit."""
    rows, per_row = 8, 256
    pool = cases.pool(rows * per_row, fp8=False)
    q, w = cases.queries(rows)
    table = torch.zeros((rows, per_row), dtype=torch.int32, device=cases.DEVICE)
    n = torch.ones(rows, dtype=torch.int32, device=cases.DEVICE)
    out = launch.allocate_logits(rows, per_row * 64, q.device)
    launch.decode_logits(q, w, pool.bf16, table, n, per_row * 64, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.decode_logits(q, w, pool.bf16, table, n, per_row * 64, out=out)
    equal = True
    for step in range(4):
        lengths = torch.randint(0, per_row * 64, (rows,), device=cases.DEVICE, dtype=torch.int32)
        table.copy_(torch.randperm(rows * per_row, device=cases.DEVICE).view(rows, per_row).to(torch.int32))
        n.copy_(lengths)
        q.copy_(cases.queries(rows, seed=step + 20)[0])
        out.fill_(7.0)
        graph.replay()
        mine = out.clone()
        out.fill_(7.0)
        launch.decode_logits(q, w, pool.bf16, table, n, per_row * 64, out=out)
        equal &= bool(torch.equal(mine, out))
    return _row("captured decode, replayed with other lengths and pages", equal)


def same_bits() -> dict[str, Any]:
    """Decode and prefill kernels give the same bits for the same rows, whatever the grouping."""
    rows, per_row = 96, 64
    pool = cases.pool(per_row, fp8=False)
    q, w = cases.queries(rows)
    table = torch.randperm(per_row, device=cases.DEVICE).to(torch.int32).expand(rows, -1).contiguous()
    n = torch.arange(rows, device=cases.DEVICE, dtype=torch.int32) * 40 + 1
    outs = [run(q, w, pool.bf16, table, n, per_row * 64) for run in (launch.decode_logits, launch.prefill_logits)]
    equal = all(bool(torch.equal(outs[0][r, : int(n[r])], outs[1][r, : int(n[r])])) for r in range(rows))
    return _row("decode and prefill kernels agree to the bit", equal)


def _freqs(positions: int) -> torch.Tensor:
    angle = torch.rand((positions, 32), device=cases.DEVICE) * 6.28
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1).contiguous()


def store(rows: int, decode: bool) -> dict[str, Any]:
    """Stored keys against double precision: every value within one bf16 rounding of its own magnitude plus 2^-15."""
    x = torch.randn((rows, 128), device=cases.DEVICE) * 3
    norm = torch.rand(128, device=cases.DEVICE) + 0.5
    freqs = _freqs(4 * rows + 8)
    lengths = torch.arange(rows, device=cases.DEVICE, dtype=torch.int32) * (1 if decode else 4) + 4
    words = torch.zeros((rows, 4), dtype=torch.int32, device=cases.DEVICE)
    words[:, 0] = lengths
    words[:, 1] = torch.arange(rows, device=cases.DEVICE, dtype=torch.int32)
    pages = rows // 64 + 2
    loc = torch.randperm(pages * 64, device=cases.DEVICE)[:rows]
    buffer = torch.full((pages * 64, 128), float("nan"), dtype=torch.bfloat16, device=cases.DEVICE)
    launch.store_keys(
        x,
        words.view(torch.uint8),
        decode=decode,
        ratio=4,
        norm_weight=norm,
        norm_eps=1e-6,
        freqs=freqs,
        loc=loc,
        buffer=buffer.view(torch.uint8).view(pages, -1),
    )
    done = lengths % 4 == 0
    want = reference.keys(x[done], norm, 1e-6, freqs, lengths[done] - 4)
    got = buffer[loc[done]].double()
    worst = float(((got - want).abs() / (want.abs() * 2.0**-8 + want.abs().amax(-1, keepdim=True) * 2.0**-15)).max())
    untouched = int(torch.isnan(buffer.float()).all(-1).sum()) == pages * 64 - int(done.sum())
    name = f"store {'decode' if decode else 'prefill'} {rows} rows"
    return _row(name, worst <= 1.0 and untouched, rounding=worst, untouched=untouched)


def query(rows: int, config: sizes.QueryConfig | None = None) -> dict[str, Any]:
    """Prepared query heads against double precision, same bound; head weights exact."""
    q = torch.randn((rows, 64, 128), device=cases.DEVICE).to(torch.bfloat16)
    gate = torch.randn((rows, 64), device=cases.DEVICE).to(torch.bfloat16)
    freqs = _freqs(5000)
    positions = torch.randint(0, 5000, (rows,), device=cases.DEVICE)
    got, weight = launch.prepare_query(q, gate, 0.01, freqs, positions, config=config)
    want = reference.query(q, freqs, positions)
    bound = want.abs() * 2.0**-8 + want.abs().amax(-1, keepdim=True) * 2.0**-15
    worst = float(((got.double() - want).abs() / bound).max())
    return _row(
        f"query {rows} rows",
        worst <= 1.0 and bool(torch.allclose(weight, gate.float() * 0.01, rtol=1e-6)),
        rounding=worst,
    )


def run(say: Callable[[str], None], quick: bool = False) -> list[dict[str, Any]]:
    """All checks; each row has name, ok and what was measured."""
    torch.manual_seed(0)
    ragged = [0, 1, 63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 8000]
    cells: list[Callable[[], dict[str, Any]]] = [
        lambda: logits("decode", ragged),
        lambda: logits("prefill", ragged),
        lambda: logits("decode", [5000]),
        lambda: logits("decode", [(97 * r) % 3000 for r in range(256)]),
        lambda: logits("decode", [(193 * r) % 300 for r in range(1300)]),
        lambda: logits("prefill", [(97 * r) % 3000 for r in range(256)]),
        lambda: logits("prefill", [1 + r // 4 for r in range(2048)], share=True),
        replay,
        same_bits,
        lambda: store(1, decode=True),
        lambda: store(256, decode=True),
        lambda: store(4096, decode=False),
        lambda: query(1),
        lambda: query(1024),
    ]
    if cases.DEVICE != "cpu":
        # Every size that the launchers choose among, and those that the sweep offers.
        cells += [lambda rows=rows: logits("decode", [(97 * r) % 900 for r in range(rows)]) for rows in (40, 700)]
        cells += [
            lambda size=size: logits("prefill", [(97 * r) % 3000 for r in range(90)], size=size)
            for size in sizes.PREFILL_ROWS
        ]
        cells += [lambda config=config: query(600, config) for config in sizes.QUERY_SIZES]
    if cases.DEVICE == "cpu":
        cells = [cell for cell in cells if cell is not replay]
    elif not quick:
        cells.append(lambda: logits("decode", [262144, 262000, 3]))
        cells.append(lambda: logits("prefill", [65536 - 300 + r for r in range(300)], share=True))
    rows = []
    for cell in cells:
        row = cell()
        rows.append(row)
        facts = {k: v for k, v in row.items() if k not in ("name", "ok")}
        say(f"{'ok  ' if row['ok'] else 'FAIL'} {row['name']} {facts}")
    return rows
