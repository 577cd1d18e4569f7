"""DeepGEMM's fp8 logits, the kernels that the unpatched engine runs, as the engine calls them."""

from __future__ import annotations

from collections.abc import Callable

import torch

try:
    import deep_gemm
except Exception as error:  # no wheel, no CUDA home: said in the report, not hidden
    deep_gemm = None
    MISSING = f"{type(error).__name__}: {error}"
else:
    MISSING = ""


def paged(
    q: torch.Tensor, w: torch.Tensor, pages: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, columns: int
) -> Callable[[], torch.Tensor]:
    """fp8_paged_mqa_logits on [rows, 64, 128] e4m3 queries; its schedule is made here, outside what is timed."""
    cache = pages.view(pages.shape[0], 64, 1, 132)
    wide = lengths.unsqueeze(-1).contiguous()
    plan = deep_gemm.get_paged_mqa_logits_metadata(wide, 64, deep_gemm.get_num_sms())
    query = q.unsqueeze(1).contiguous()
    return lambda: deep_gemm.fp8_paged_mqa_logits(query, cache, w, wide, table, plan, columns, False)


def contiguous(
    q: torch.Tensor, w: torch.Tensor, keys: torch.Tensor, lengths: torch.Tensor, columns: int
) -> Callable[[], torch.Tensor]:
    """fp8_mqa_logits of one request over gathered keys [slots, 128] (long extends); the gather is not timed."""
    x = keys.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    payload = (x / scale).to(torch.float8_e4m3fn)
    flat = scale.squeeze(-1).contiguous()
    start = torch.zeros_like(lengths)
    return lambda: deep_gemm.fp8_mqa_logits(
        q, (payload, flat), w, start, lengths, clean_logits=False, max_seqlen_k=columns
    )
