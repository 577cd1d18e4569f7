"""What is known of each supported SGLang release. Data only; read from the release's wheel.

An accessor is a method of DeepSeekV4TokenToKVPool through which the bytes of a layer leave the pool. Other readers of
the index-K buffers were looked for in each wheel: apart from the NPU back end (refused) only HiCache's host pools and
the PD registration take them, by address and outside any gate; what orders those is the subject of the other parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv4_guard.refusal import GuardError

POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool"
NIXL = "sglang.srt.disaggregation.nixl.conn"
SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
ENGINE = "sglang.srt.entrypoints.engine"


@dataclass(frozen=True)
class Release:
    """One release of SGLang."""

    version: str
    gated: tuple[str, ...]
    """Accessors that must wait for the layer's load before they return a byte."""
    writers: tuple[str, ...]
    """Methods that write new slots, which no load touches."""
    others: tuple[str, ...]
    """Methods that return sizes, layouts, addresses or index maps, or that build the pool."""
    early_send_checks_load: bool
    """The scheduler itself keeps prefixes that are still being loaded from early send (upstream 44070, 0.5.23)."""
    transfer_takes_event: bool
    """NixlKVManager.add_transfer_request has wait_event (0.5.23 accepts and drops it); else it stays on the sender."""
    status_messages: bool
    """Prefill tells decode of failures over ZMQ; else the plugin does it by a NIXL notification."""
    defers_release: bool
    """Decode keeps an aborted request's pages until prefill acknowledges, or for a time of its own."""
    compares_layout: bool
    """The handshake compares kv_layout; else only page size and the KV dtype string."""
    has_checksum: bool
    """--disaggregation-enable-kv-checksum exists."""


_ONLINE = (
    "get_online_c128_mtp_state_slot_offset",
    "get_online_c128_mtp_max_draft_tokens",
    "get_online_c128_state_num_req_slots",
    "get_online_c128_mtp_pending_seq_lens",
)
_STUBS = ("get_key_buffer", "get_value_buffer", "get_kv_buffer", "set_kv_buffer")
"""Raise NotImplementedError in every release."""

V0_5_17 = Release(
    version="0.5.17",
    gated=(
        "get_index_k_with_scale_buffer",
        "get_index_k_scale_buffer",
        "get_indexer_compress_states",
        "get_attention_compress_states",
        "get_extra_key_buffer",
        "get_swa_key_buffer",
        "get_swa_key_buffer_radix",
        "get_unified_kv",
    ),
    writers=(
        "set_swa_key_buffer",
        "set_extra_key_buffer",
        "set_index_k_scale_buffer",
        "set_swa_key_buffer_radix",
        "set_swa_key_buffer_radix_fused",
        "set_swa_key_buffer_radix_fused_norm_rope",
        "set_extra_key_buffer_fused",
        "set_index_k_fused",
        "set_index_k_fp4",
        "clear_c128_req_state",
        "clear_unaccepted_c128_draft_states",
        "get_swa_raw_buffer",  # returned as the target of fused stores alone
    ),
    others=(
        *_ONLINE,
        *_STUBS,
        "register_mapping",
        "get_ring_size",
        "translate_loc_from_full_to_swa",
        "get_contiguous_buf_infos",
        "get_unified_swa_ring_buf_infos",
        "unified_region_buffers",
        "get_state_buf_infos",
        "get_c128_state_buf_infos",
        "wait_layer_transfer",
        "get_extra_key_page_size",
        "get_index_k_page_size",
    ),
    early_send_checks_load=False,
    transfer_takes_event=False,
    status_messages=False,
    defers_release=False,
    compares_layout=False,
    has_checksum=False,
)

V0_5_23 = Release(
    version="0.5.23",
    gated=(
        "get_index_k_with_scale_buffer",
        "get_index_k_scale_buffer",
        "get_index_k_fp4_payload_buffer",
        "get_index_k_fp4_scale_buffer",
        "get_low_ratio_index_k_dequant",
        "get_low_ratio_index_k_fp4",
        "get_indexer_compress_states",
        "get_attention_compress_states",
        "get_extra_key_buffer",
        "get_swa_key_buffer_radix",
        "get_unified_kv",
        "get_unified_kv_rope",
    ),
    writers=(
        "set_swa_valid_from",
        "set_swa_key_buffer",
        "set_extra_key_buffer",
        "set_index_k_scale_buffer",
        "set_swa_key_buffer_radix",
        "set_swa_key_buffer_radix_fused",
        "set_swa_key_buffer_radix_fused_norm_rope",
        "set_unified_key_buffer_radix_fused_norm_rope",
        "set_extra_key_buffer_fused",
        "set_index_k_fused",
        "set_index_k_fp4",
        "clear_c4_req_states",
        "clear_request_scoped_state",
        "clear_unaccepted_c128_draft_states",
        "get_swa_raw_buffer",  # returned as the target of fused stores, and by the gated radix accessor
    ),
    others=(
        *_ONLINE,
        *_STUBS,
        "register_mapping",
        "get_ring_size",
        "translate_loc_from_full_to_swa",
        "get_swa_valid_from_buf_infos",
        "get_contiguous_buf_infos",
        "get_unified_swa_ring_buf_infos",
        "unified_region_buffers",
        "unified_rope_region_buffers",
        "get_state_buf_infos",
        "get_request_state_buf_infos",
        "compressed_kv_layout",
        "pd_kv_layout",
        "source_layer_of",
        "wait_layer_transfer",
        "request_state_transfer_indices",
        "get_extra_key_page_size",
        "get_extra_key_layout",
        "get_extra_key_bytes_per_token",
        "get_swa_key_layout",
        "get_swa_key_page_size",
        "get_swa_key_bytes_per_token",
        "get_index_k_page_size",
        "low_ratio_index_k_is_split",
        "low_ratio_index_k_page8",
        "low_ratio_index_k_page8_ratios",
    ),
    early_send_checks_load=True,
    transfer_takes_event=True,
    status_messages=True,
    defers_release=True,
    compares_layout=True,
    has_checksum=True,
)

SUPPORTED: Mapping[str, Release] = {release.version: release for release in (V0_5_17, V0_5_23)}


def _key(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("."):
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits) if digits and part[0].isdigit() else 0)
    return tuple(numbers)


def choose(version: str, allow_untested: bool) -> Release:
    """The data for `version`.

    Untested releases are refused (GuardError) unless allowed; then the newest supported release that is not newer
    serves, and every difference that matters still refuses at the check of its targets.
    """
    if version in SUPPORTED:
        return SUPPORTED[version]
    if not allow_untested:
        raise GuardError(
            f"SGLang {version} is not a release that this plugin was tested with ({', '.join(SUPPORTED)}); "
            "use such an image, or set DSV4_GUARD_ALLOW_UNTESTED_RELEASE=1 and test it yourself"
        )
    ordered = sorted(SUPPORTED.values(), key=lambda release: _key(release.version))
    older = [release for release in ordered if _key(release.version) <= _key(version)]
    return older[-1] if older else ordered[0]
