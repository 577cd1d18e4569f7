"""Two sides with different index-K formats, through SGLang's own registry and check."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

from dsv4_guard import patching, releases
from dsv4_guard.transfer import handshake


def release() -> releases.Release:
    import sglang.version

    return releases.choose(str(sglang.version.__version__), allow_untested=False)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def layout() -> str | None:
    """What the real V4 pool says of its layout, where the release has that."""
    if not release().compares_layout:
        return None
    pool_class = patching.resolve(releases.POOL)[2]
    from sglang.srt.mem_cache import deepseek_v4_memory_pool as module

    pool = object.__new__(pool_class)
    pool.uniform_fp8 = False
    pool.kv_layout = module.KVLayout.V4
    pool.compression_ratios = [0, 4, 128]
    pool.kv_pools = {ratio: SimpleNamespace(kv_layout=module.KVLayout.V4) for ratio in (4, 128)}
    pool.compressed_kv_layout = lambda ratio: module.KVLayout.V4
    from sglang.srt.disaggregation.utils import get_pd_kv_layout

    return str(get_pd_kv_layout(pool))


def side(index_k: str | None, mode: Any, port: int) -> Any:
    """A real manager of one side, constructed with the plugin set for `index_k` (None: without the plugin)."""
    from sglang.srt.disaggregation.common import conn

    patching.undo()
    if index_k is not None:
        handshake.install(release(), index_k)
    parallel = SimpleNamespace(
        attn_tp_size=1, attn_tp_rank=0, attn_cp_size=1, attn_cp_rank=0, attn_dcp_size=1, attn_dcp_rank=0, dcp_rank=0,
        attn_dp_size=1, attn_dp_rank=0, dp_size=1, dp_rank=0, pp_size=1, enable_dp_attention=False, dist_init_addr=None,
        load_balance_method="follow_bootstrap_room", enable_dsa_cache_layer_split=False, enable_kv_cache_sharding=False,
        enable_cp_tp_group_sharing=False, pp_group=None, nnodes=1, world_group=None,
    )  # fmt: skip
    serving = SimpleNamespace(host="127.0.0.1", port=1)
    disagg = SimpleNamespace(
        disaggregation_bootstrap_port=port, disaggregation_decode_allocation_policy="early", disaggregation_mode="x"
    )
    for name, value in (
        ("get_parallel", parallel),
        ("get_serving", serving),
        ("get_disagg", disagg),
        ("get_attention_dp_size", 1),
        ("get_attention_dp_rank", 0),
        ("get_pp_group", None),
        ("linear_attn_tp_size", 1),
    ):
        if hasattr(conn, name):
            setattr(conn, name, lambda *_, value=value: value)
    arguments = SimpleNamespace(
        kv_cache_dtype_str="fp8_e4m3", kv_layout=layout(), kv_item_lens=[1], state_item_lens=[], state_types=[],
        page_size=256, system_dp_rank=0, pp_rank=0, engine_rank=0, rust_http_port=None, kv_layer_ids=[],
    )  # fmt: skip
    server = SimpleNamespace(
        host="127.0.0.1", disaggregation_bootstrap_port=port, dist_init_addr=None, dcp_size=1, pp_size=1, nnodes=1
    )
    made = type("Manager", (conn.CommonKVManager,), {})
    made.__abstractmethods__ = frozenset()
    return made(arguments, mode, server, True)


def pair(prefill: str | None, decode: str | None) -> dict[str, Any]:
    """Register prefill with a real registry and let decode look at it."""
    from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer
    from sglang.srt.disaggregation.utils import DisaggregationMode

    port = free_port()
    CommonKVBootstrapServer("127.0.0.1", port)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    side(prefill, DisaggregationMode.PREFILL, port)
    other = side(decode, DisaggregationMode.DECODE, port)
    other._resolve_rank_mapping = lambda info: None
    try:
        return {"accepted": other.try_ensure_parallel_info(f"127.0.0.1:{port}"), "error": None}
    except RuntimeError as error:
        return {"accepted": False, "error": str(error)}
