"""Host memory that HiCache takes: one host pool per rank, as large as the rank's device pool times the ratio.

SGLang sizes the pools when the model is loaded (srt/mem_cache/hybrid_cache/hybrid_pool_assembler.py,
_deepseek_v4_num_host_pages, the same in 0.5.12 to 0.5.23: host pages = device pages x ratio, for FULL and SWA each).
The device pool itself is what the GPU has left after weights, which no spec shows; so an estimate exists only where
somebody measured, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.api.v1alpha1.roles import Architecture
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.facts import (
    C4_PAGE_BYTES,
    C128_PAGE_BYTES,
    INDEX_K_PAGE_BYTES,
    PAGE_TOKENS,
    SWA_PAGE_BYTES,
    SWA_RATIO,
)
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.engine.releases import Release


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of host pools in one pod: `bytes` = `per_rank` x `ranks`; `basis` says where the figure is from."""

    bytes: int
    per_rank: int
    ranks: int
    ratio: float
    basis: str


@dataclass(frozen=True, slots=True)
class _Observation:
    """A measured total of host pools over all ranks, from which the device pool of one rank follows."""

    architecture: Architecture
    total_bytes: int
    ranks: int
    ratio: float
    words: str

    @property
    def device_bytes_per_rank(self) -> float:
        return self.total_bytes / self.ranks / self.ratio


_OBSERVATIONS: Final = (
    _Observation(Architecture.SM103, 950 * 10**9, 8, 2.0, "ratio 2 at TP8 took about 950 GB on B300"),
)


def host_pool_estimate(spec: DSV4DeploymentSpec, release: Release, role: Role) -> MemoryEstimate | None:
    """Host pools of one pod of `role`, or None: no HiCache there, or nothing measured on such GPUs at such a size.

    Weights are split over the ranks, so a rank of a smaller tensor size has a smaller device pool than the observed
    one; such sizes give None instead of a figure that is too high.

    The index-K format does not change the sum: the device pool is what the GPU has left, and with BF16 fewer tokens
    fit into the same bytes, on the device as in host pools (`kv_bytes_per_token` says how many).
    """
    del release  # the sum is the same in all known releases
    if not spec.hi_cache.enabled or role is not Role.PREFILL:
        return None
    tensor = tensor_size(spec.prefill)
    ratio = float(spec.hi_cache.ratio)
    for seen in _OBSERVATIONS:
        if seen.architecture is spec.accelerator.architecture and tensor >= seen.ranks:
            ranks = tensor // spec.prefill.nodes
            per_rank = int(seen.device_bytes_per_rank * ratio)
            return MemoryEstimate(per_rank * ranks, per_rank, ranks, ratio, f"estimated: {seen.words}")
    return None


def kv_bytes_per_token(dtype: IndexKDtype, c4_layers: int, c128_layers: int, layers: int) -> float:
    """Device bytes that one token of context takes on every rank, for a V4 with these numbers of layers.

    V4 shares one compressed KV head, so tensor parallelism does not divide it. Every layer has a sliding-window page
    pool of `SWA_RATIO` times the tokens; compress states (a fixed size per request) are left out.
    """
    compressed = c4_layers * (C4_PAGE_BYTES + INDEX_K_PAGE_BYTES[dtype]) + c128_layers * C128_PAGE_BYTES
    return (compressed + layers * SWA_PAGE_BYTES * SWA_RATIO) / PAGE_TOKENS
