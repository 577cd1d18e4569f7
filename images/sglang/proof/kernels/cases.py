"""Inputs of the kernel proof: page pools and page tables in device memory, 64 heads of 128, pages of 64 slots."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

HEADS, DIM, PAGE = 64, 128, 64
DEVICE = os.environ.get("DSV4_PROOF_DEVICE", "cuda")
"""cpu, with TRITON_INTERPRET=1, runs the checks that need no graphs; slow, to try the script where no GPU is."""


@dataclass
class Pool:
    """Random keys, as bf16 pages and as fp8 pages of DeepGEMM's layout (payloads, then one fp32 scale a slot)."""

    bf16: torch.Tensor
    """[pages, 64 * 256] uint8"""
    fp8: torch.Tensor
    """[pages, 64 * 132] uint8"""

    @property
    def pages(self) -> int:
        """Pages of either."""
        return self.bf16.shape[0]

    @property
    def keys(self) -> torch.Tensor:
        """[slots, 128] bf16."""
        return self.bf16.view(-1).view(torch.bfloat16).view(-1, DIM)


def fp8_pages(keys: torch.Tensor) -> torch.Tensor:
    """Pages of the engine's fp8 format from [slots, 128] keys: scale = largest magnitude / 448."""
    x = keys.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    payload = (x / scale).to(torch.float8_e4m3fn).view(torch.uint8).view(-1, PAGE * DIM)
    return torch.cat([payload, scale.view(-1, PAGE).contiguous().view(torch.uint8)], 1)


def pool(pages: int, seed: int = 0, fp8: bool = True) -> Pool:
    """Random normal keys in `pages` pages of either format."""
    make = torch.Generator(device=DEVICE).manual_seed(seed)
    bf16 = torch.empty((pages, PAGE * DIM * 2), dtype=torch.uint8, device=DEVICE)
    packed = torch.empty((pages if fp8 else 0, PAGE * (DIM + 4)), dtype=torch.uint8, device=DEVICE)
    step = 8192
    for start in range(0, pages, step):
        n = min(step, pages - start)
        keys = torch.randn((n * PAGE, DIM), generator=make, device=DEVICE, dtype=torch.float32).to(torch.bfloat16)
        bf16[start : start + n] = keys.view(torch.uint8).view(n, -1)
        if fp8:
            packed[start : start + n] = fp8_pages(keys)
    return Pool(bf16, packed)


def queries(rows: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """(bf16 query [rows, 64, 128], fp32 weights [rows, 64])."""
    make = torch.Generator(device=DEVICE).manual_seed(seed)
    q = torch.randn((rows, HEADS, DIM), generator=make, device=DEVICE).to(torch.bfloat16)
    return q, torch.randn((rows, HEADS), generator=make, device=DEVICE) * (HEADS * DIM) ** -0.5


def fp8_queries(q: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The engine's fp8 query: e4m3 heads, whose scale is folded into the weights."""
    scale = q.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    return (q.float() / scale).to(torch.float8_e4m3fn), w * scale.squeeze(-1)


def tables(rows: int, slots: int, pages: int, sets: int, seed: int) -> list[torch.Tensor]:
    """`sets` page tables [rows, slots / 64] over distinct random pages, as far as the pool has so many."""
    per_row = slots // PAGE
    make = torch.Generator(device=DEVICE).manual_seed(seed)
    order = torch.randperm(pages, generator=make, device=DEVICE).to(torch.int32)
    step = torch.arange(rows * per_row, device=DEVICE)
    return [order[(step + i * rows * per_row) % pages].view(rows, per_row) for i in range(sets)]
