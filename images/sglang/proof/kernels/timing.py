"""Timing on the device: launches captured in a CUDA graph, replayed, median of several replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl


def graph_us(launches: Sequence[Callable[[], object]], repeat: int = 7, least_us: float = 2000.0) -> float:
    """Median time of one launch, microseconds.

    The launches differ in their inputs, so that small ones are not served from the cache; a graph holds as many rounds
    of them as it takes to run for `least_us`.
    """
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for launch in launches:
        launch()
    end.record()
    torch.cuda.synchronize()
    once = max(1.0, start.elapsed_time(end) * 1000.0)
    rounds = max(1, min(50, int(least_us / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000.0)
    del graph
    torch.cuda.empty_cache()
    return statistics.median(times) / (rounds * len(launches))


@triton.jit
def _read_kernel(x_ptr, out_ptr, per, BLOCK: tl.constexpr):  # noqa: N803
    base = tl.program_id(0).to(tl.int64) * per
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for at in tl.range(0, per, BLOCK, num_stages=4):
        total += tl.load(x_ptr + base + at + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def _copy_kernel(x_ptr, y_ptr, per, BLOCK: tl.constexpr):  # noqa: N803
    base = tl.program_id(0).to(tl.int64) * per
    for at in tl.range(0, per, BLOCK, num_stages=4):
        here = base + at + tl.arange(0, BLOCK)
        tl.store(y_ptr + here, tl.load(x_ptr + here))


def _memory() -> dict[str, float]:
    n = 1 << 30
    source = torch.randn(n, device="cuda")
    target = torch.empty_like(source)
    programs = torch.cuda.get_device_properties(0).multi_processor_count * 16
    block = 8192
    per = n // programs // block * block
    moved = 4 * per * programs
    sums = torch.empty(programs, device="cuda")
    copies = {
        "copy_kernel_gbps": 2
        * moved
        / graph_us([lambda: _copy_kernel[(programs,)](source, target, per, BLOCK=block, num_warps=8)])
        / 1e3,
        "copy_torch_gbps": 2 * 4 * n / _eager_us(lambda: target.copy_(source)) / 1e3,
    }
    read = graph_us([lambda: _read_kernel[(programs,)](source, sums, per, BLOCK=block, num_warps=8)])
    return {**copies, "copy_gbps": max(copies.values()), "read_gbps": moved / read / 1e3}


def _eager_us(launch: Callable[[], object], repeat: int = 9) -> float:
    launch()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(repeat):
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000.0)
    return statistics.median(times)


def ceilings() -> dict[str, float]:
    """Achievable rates of this device, now: device-to-device copy (bytes read and written; the better of torch's and a
    kernel's) and pure read, GB/s, and a bf16 product of 8192 x 8192 x 8192, TFLOP/s."""
    memory = _memory()
    x = torch.randn((8192, 8192), device="cuda").to(torch.bfloat16)
    y = torch.randn((8192, 8192), device="cuda").to(torch.bfloat16)
    z = torch.empty_like(x)
    product = graph_us([lambda: torch.mm(x, y, out=z)])
    return {**memory, "bf16_tflops": 2 * 8192**3 / product / 1e6}
