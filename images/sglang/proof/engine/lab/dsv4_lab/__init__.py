"""Faults and delays for the proof, as an SGLang plugin (0.5.17) of its own; and what a tiny random V4 needs to run.

DSV4_LAB_UNGATE=none|index|indexer|all   which waits for HiCache's layer loads are taken away
DSV4_LAB_LOAD_DELAY=cycles               slept on the load stream before every layer's copy from host
DSV4_LAB_FORWARD_DELAY=cycles            slept on the forward stream before layer 4, the last with index-K: after the
                                         forward's only wait of the host (in layer 0's sparse prefill), and with fewer
                                         kernels behind it than the 1,024 launches after which the host waits
DSV4_LAB_EARLY_BARRIER=1                 the scheduler waits for the forward's shared reads alone, as 0.5.23 does by
                                         default, not for the whole forward
"""

from __future__ import annotations

import logging
import os
import zlib
from typing import Any

log = logging.getLogger("dsv4_lab")
POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool"
INDEX = ("get_index_k_with_scale_buffer", "get_index_k_scale_buffer")
UNGATED = {"none": (), "index": INDEX, "indexer": (*INDEX, "get_indexer_compress_states"), "all": ()}


def hc_split_sinkhorn(
    mixes: Any, hc_scale: Any, hc_base: Any, hc_mult: int = 4, sinkhorn_iters: int = 20, eps: float = 1e-6
) -> Any:
    """The kernel of the same name, in torch: TileLang is not in the payload."""
    import torch

    h = hc_mult
    pre = torch.sigmoid(mixes[..., :h] * hc_scale[0] + hc_base[:h]) + eps
    post = 2 * torch.sigmoid(mixes[..., h : 2 * h] * hc_scale[1] + hc_base[h : 2 * h])
    comb = (mixes[..., 2 * h :] * hc_scale[2] + hc_base[2 * h :]).unflatten(-1, (h, h))
    comb = torch.softmax(comb, dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(sinkhorn_iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


def _fill(name: str, parameter: Any) -> None:
    import torch

    leaf = name.rsplit(".", 1)[-1]
    generator = torch.Generator(device=parameter.device)
    generator.manual_seed(zlib.crc32(name.encode()))
    if "weight_scale" in leaf or leaf.endswith("scale_inv"):
        parameter.data.fill_(1.0 / 64)  # an fp8 payload of about N(0, 1) then has a standard deviation of 1/64
    elif ("norm" in name and leaf == "weight") or leaf.endswith("_scale"):
        parameter.data.fill_(1.0)
    elif "sink" in leaf or "bias" in leaf or leaf.endswith("_base"):
        parameter.data.zero_()
    elif torch.finfo(parameter.dtype).bits < 16:
        flat, step = parameter.data.view(-1), 1 << 26
        for start in range(0, flat.numel(), step):
            size = min(step, flat.numel() - start)
            values = torch.randn(size, device=parameter.device, generator=generator).clamp_(-8, 8)
            flat[start : start + size] = values.to(parameter.dtype)
    else:
        deviation = 0.5 if "embed" in name else 0.02
        values = torch.randn(parameter.shape, device=parameter.device, generator=generator, dtype=torch.float32)
        parameter.data.copy_((values * deviation).to(parameter.dtype))


def initialize_dummy_weights(model: Any, *_: Any, **__: Any) -> None:
    """Random weights that are equal in every process and let signals survive the layers."""
    import torch

    for name, parameter in model.state_dict().items():
        if torch.is_floating_point(parameter):
            _fill(name, parameter)


def _ungate(registry: Any, around: Any, mode: str) -> None:
    skipping = {"on": mode == "all"}

    def wait(original: Any, self: Any, layer_id: int) -> Any:
        return None if skipping["on"] else original(self, layer_id)

    def ungated(original: Any, *args: Any, **kwargs: Any) -> Any:
        before, skipping["on"] = skipping["on"], True
        try:
            return original(*args, **kwargs)
        finally:
            skipping["on"] = before

    registry.register(f"{POOL}.wait_layer_transfer", wait, around)
    for name in UNGATED[mode]:
        registry.register(f"{POOL}.{name}", ungated, around)


def _early_barrier(registry: Any, around: Any, after: Any) -> None:
    """What 0.5.23 publishes: an event once the forward has read the shared buffers."""
    import torch

    reads: dict[str, Any] = {"event": None}

    def metadata(_result: Any, *_args: Any, **_kwargs: Any) -> None:
        reads["event"] = torch.cuda.Event()
        reads["event"].record(torch.cuda.current_stream())

    def barrier(original: Any, self: Any) -> Any:
        event, reads["event"] = reads["event"], None
        if event is None:
            return original(self)
        self.schedule_stream.wait_event(event)
        return None

    backend = "sglang.srt.layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend"
    registry.register(f"{backend}.init_forward_metadata", metadata, after)
    registry.register("sglang.srt.managers.scheduler.Scheduler._apply_war_barrier", barrier, around)


def _delay_layer(registry: Any, around: Any, cycles: int) -> None:
    """Sleep in the forward, and say at every early send whether the forward before it was done."""
    import torch

    def layer(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.layer_id == 4:
            torch.cuda._sleep(cycles)
        return original(self, *args, **kwargs)

    def early(original: Any, self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        before, done = req.start_send_idx, torch.cuda.Event()
        done.record(self.forward_stream)
        result = original(self, req, *args, **kwargs)
        if req.start_send_idx != before:
            log.warning("dsv4_lab: early send to %d, forward before it done: %s", req.start_send_idx, done.query())
        return result

    registry.register("sglang.srt.models.deepseek_v4.DeepseekV4DecoderLayer.forward", layer, around)
    registry.register("sglang.srt.managers.scheduler.Scheduler.maybe_send_cached_prefix_chunk", early, around)


def register() -> None:
    """Entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    put, around = HookRegistry.register, HookType.AROUND
    put("sglang.kernels.ops.layernorm.mhc.hc_split_sinkhorn", hc_split_sinkhorn, HookType.REPLACE)
    put("sglang.srt.model_loader.loader.initialize_dummy_weights", initialize_dummy_weights, HookType.REPLACE)

    def delayed(cycles: int) -> Any:
        def sleep(original: Any, *args: Any, **kwargs: Any) -> Any:
            import torch

            torch.cuda._sleep(cycles)
            return original(*args, **kwargs)

        return sleep

    mode = os.environ.get("DSV4_LAB_UNGATE", "none")
    load, forward = int(os.environ.get("DSV4_LAB_LOAD_DELAY", "0")), int(os.environ.get("DSV4_LAB_FORWARD_DELAY", "0"))
    if mode != "none":
        _ungate(HookRegistry, around, mode)
    if load:
        put("sglang.srt.mem_cache.memory_pool_host.HostPoolGroup.load_to_device_per_layer", delayed(load), around)
    if forward:
        _delay_layer(HookRegistry, around, forward)
    early = os.environ.get("DSV4_LAB_EARLY_BARRIER") == "1"
    if early:
        _early_barrier(HookRegistry, around, HookType.AFTER)
    log.warning("dsv4_lab: ungate=%s load=%d forward=%d early_barrier=%s", mode, load, forward, early)
