"""What SGLang's argument resolution makes of a rendered command: the values that the operator counts on.

Not a copy of the resolution: only fields that the operator sets, that V4 forces, or on which a rule relies. The
contract tests let the real ServerArgs resolve the same command and compare.
"""

from __future__ import annotations

from typing import Any, Final

from dsv4_operator.api.constants import BOOTSTRAP_PORT, ENGINE_PORT, Role
from dsv4_operator.api.v1alpha1.engine import IndexKDtype, SpeculativeAlgorithm
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.command import disables_overlap, eagle_numbers, hicache_names
from dsv4_operator.engine.facts import PAGE_TOKENS, SWA_RATIO
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.engine.releases import Release
from dsv4_operator.engine.rendered import ATTN_DP, CHECKSUM, DSPARK_BLOCK, FP4_INDEXER, RETRACTION_BACKUP, renders

_DEFAULT_RUNNING: Final = 256
_DSV4_BACKEND: Final = Release((0, 5, 23))
"""The flag exists from 0.5.20 on; before 0.5.23 it stays auto in the resolved arguments."""


def predicted(spec: DSV4DeploymentSpec, release: Release, role: Role) -> dict[str, Any]:
    """Fields of ServerArgs after resolution, by their names in `release`."""
    role_spec = spec.prefill if role is Role.PREFILL else spec.decode
    values: dict[str, Any] = {
        "served_model_name": spec.model.id,
        "host": "0.0.0.0",
        "port": ENGINE_PORT[role],
        "tool_call_parser": "deepseekv4",
        "reasoning_parser": "deepseek-v4",
        "enable_metrics": True,
        "enable_cache_report": True,
        "watchdog_timeout": 300.0,
        "disaggregation_mode": role.value,
        "disaggregation_transfer_backend": "nixl",
        "disaggregation_bootstrap_port": BOOTSTRAP_PORT,
        "disaggregation_ib_device": ",".join(spec.network.devices) or None,
        "tp_size": tensor_size(role_spec),
        "pp_size": 1,
        "nnodes": role_spec.nodes,
        "attention_backend": "dsv4",
        "page_size": PAGE_TOKENS,
        "kv_cache_dtype": "fp8_e4m3",
        "swa_full_tokens_ratio": SWA_RATIO,
        "context_length": spec.engine.context_length,
        "disable_overlap_schedule": disables_overlap(spec, release),
        "disable_radix_cache": role is Role.DECODE,
        "max_running_requests": spec.engine.max_running_requests or _DEFAULT_RUNNING,
        "load_balance_method": "follow_bootstrap_room" if role is Role.PREFILL else "round_robin",
    }
    if release >= _DSV4_BACKEND:
        values["dsv4_attn_backend"] = "flashmla"
    if spec.engine.mem_fraction_static is not None:
        values["mem_fraction_static"] = float(spec.engine.mem_fraction_static)
    if role_spec.parallelism.expert is not None:
        values["ep_size"] = role_spec.parallelism.expert
    for entry, wanted in (
        (CHECKSUM, spec.network.checksum),
        (FP4_INDEXER, spec.index_k.dtype is IndexKDtype.FP4),
    ):
        if renders(entry, release):
            values[entry.name[2:].replace("-", "_")] = wanted
    if role is Role.DECODE and renders(RETRACTION_BACKUP, release):
        values["disaggregation_decode_retraction_backup"] = "none"
    return values | _attention_data(spec, release, role) | _hicache(spec, role) | _speculation(spec, release)


def _attention_data(spec: DSV4DeploymentSpec, release: Release, role: Role) -> dict[str, Any]:
    """0.5.22 gave attention data parallelism a size of its own; chunks are divided by it."""
    size = (spec.prefill if role is Role.PREFILL else spec.decode).parallelism.attention_data
    if renders(ATTN_DP, release):
        values: dict[str, Any] = {"attn_dp_size": size, "dp_size": 1}
    else:
        values = {"dp_size": size, "enable_dp_attention": size > 1}
    if role is Role.PREFILL and spec.engine.chunked_prefill_size is not None:
        values["chunked_prefill_size"] = spec.engine.chunked_prefill_size // size
    return values


def _hicache(spec: DSV4DeploymentSpec, role: Role) -> dict[str, Any]:
    on = spec.hi_cache.enabled and role is Role.PREFILL
    values: dict[str, Any] = {"enable_hierarchical_cache": on}
    if on:
        io_backend, layout, policy = hicache_names(spec.hi_cache)
        values |= {
            "hicache_ratio": float(spec.hi_cache.ratio),
            "hicache_size": 0,
            "hicache_io_backend": io_backend,
            "hicache_mem_layout": layout,
            "hicache_write_policy": policy,
            "hicache_storage_backend": None,
        }
    return values


def _speculation(spec: DSV4DeploymentSpec, release: Release) -> dict[str, Any]:
    speculative = spec.engine.speculative
    if speculative.algorithm is SpeculativeAlgorithm.NONE:
        return {"speculative_algorithm": None}
    values: dict[str, Any] = {"speculative_algorithm": speculative.algorithm.value}
    values |= {f"speculative_{name}": number for name, number in eagle_numbers(speculative).items()}
    if speculative.dspark_block_size is not None and renders(DSPARK_BLOCK, release):
        values["speculative_dspark_block_size"] = speculative.dspark_block_size
    return values
