"""What the kernels of `kernels.py` compute, in double precision and without Triton. For tests and proofs.

Formulae: facts of the engine's own fused kernels (norm, interleaved RoPE on the tail, orthonormal Hadamard), see
docs/bf16.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def hadamard(dim: int, device: torch.device | str = "cpu") -> Tensor:
    """Orthonormal Sylvester Hadamard matrix, fp64."""
    matrix = torch.ones((1, 1), dtype=torch.float64, device=device)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / dim**0.5


def rope_tail(x: Tensor, freqs: Tensor, positions: Tensor) -> Tensor:
    """Pairs (2i, 2i+1) of the last freqs.shape[-1] values of `[..., dim]` turned by freqs[position]."""
    rope = freqs.shape[-1]
    turn = torch.view_as_complex(freqs.double()[positions.long()].reshape(*positions.shape, rope // 2, 2).contiguous())
    tail = torch.view_as_complex(x[..., -rope:].reshape(*x.shape[:-1], rope // 2, 2).contiguous())
    while turn.dim() < tail.dim():
        turn = turn.unsqueeze(-2)
    return torch.cat([x[..., :-rope], torch.view_as_real(tail * turn).flatten(-2)], -1)


def keys(compressed: Tensor, norm_weight: Tensor, eps: float, freqs: Tensor, positions: Tensor) -> Tensor:
    """fp64 index keys before rounding: norm, RoPE, Hadamard."""
    x = compressed.double()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm_weight.double()
    return rope_tail(x, freqs, positions) @ hadamard(x.shape[-1], x.device)


def query(q: Tensor, freqs: Tensor, positions: Tensor) -> Tensor:
    """fp64 query heads before rounding: RoPE, Hadamard."""
    return rope_tail(q.double(), freqs, positions) @ hadamard(q.shape[-1], q.device)


def logits(q: Tensor, weight: Tensor, pool: Tensor, table: Tensor, lengths: Tensor, columns: int) -> Tensor:
    """fp64 `[rows, columns]`, -inf from lengths[row] on. pool `[slots, dim]`, pages of 64 slots."""
    out = torch.full((q.shape[0], columns), float("-inf"), dtype=torch.float64, device=q.device)
    for row in range(q.shape[0]):
        n = min(int(lengths[row]), columns)
        if n <= 0:
            continue
        slot = torch.arange(n, device=q.device)
        source = table[row, slot // 64].long() * 64 + slot % 64
        score = torch.relu(pool[source].double() @ q[row].double().T)
        out[row, :n] = score @ weight[row].double()
    return out
