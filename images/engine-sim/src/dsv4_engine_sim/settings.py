"""What the simulator is told: SGLang's resolved arguments, SGLang's environment, and its own ``DSV4_SIM_*`` variables.

`resolve` repeats those decisions and refusals of SGLang's argument resolution that matter for a DeepSeek-V4
prefill/decode pair (sources: upstream ``arg_groups/*_hook.py`` and ``mem_cache/hybrid_cache/hybrid_pool_assembler.py``
of 0.5.23; behaviour of the real resolution was observed on a CPU posing as a Blackwell platform).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_engine_sim import guard

DEFAULT_RELEASE = "0.5.23"
PAGE_SIZE = 256
"""Tokens per page; forced for DeepSeek-V4 whatever ``--page-size`` says."""


class RefusedError(ValueError):
    """SGLang would refuse to start with these arguments; the text is upstream's."""


def imitated_release(env: Mapping[str, str] = os.environ) -> str:
    """The SGLang release to imitate: ``SGLANG_SIM_RELEASE``."""
    return env.get("SGLANG_SIM_RELEASE") or DEFAULT_RELEASE


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Everything the engine needs after resolution. Times in seconds, rates in tokens per second."""

    release: str
    mode: str
    host: str
    port: int
    bootstrap_port: int
    served_model_name: str
    model_path: str
    tool_call_parser: str | None
    reasoning_parser: str | None
    enable_metrics: bool
    enable_cache_report: bool
    api_key: str | None
    context_length: int
    max_running_requests: int
    tp_size: int
    dp_size: int
    load_balance_method: str
    page_size: int
    kv_cache_dtype: str
    kv_layout: str
    index_k_dtype: str
    guard: bool
    skip_tokenizer_init: bool
    logprob_noise: float
    transfer_backend: str
    hicache: bool
    prefix_cache: bool
    host_pages: int
    host_bytes_per_second: float
    layer_seconds: float
    early_send: bool
    overlap: bool
    chunk_tokens: int
    post_seconds: float
    transfer_bytes_per_second: float
    output_era: str
    layers: int
    pool_pages: int
    host_ip: str | None
    transfer_port: int
    transfer_advertise: str | None
    startup_seconds: float
    health_seconds: float
    drain_seconds: float
    tokens_per_second: float
    prefill_tokens_per_second: float
    bootstrap_timeout: float
    waiting_timeout: float
    heartbeat_interval: float
    heartbeat_max_failures: int
    deferred_release_timeout: float
    deferred_release_asked: bool
    server_info: Mapping[str, Any]


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    value = env.get(name)
    return default if value in (None, "") else str(value).lower() in ("1", "true", "yes", "y", "t")


def _number(env: Mapping[str, str], name: str, default: float, minimum: float = 0.0) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise RefusedError(f"{name}={text!r} is not a number") from None
    if value < minimum:
        raise RefusedError(f"{name}={text!r} is below {minimum}")
    return value


def check_arguments(args: argparse.Namespace) -> None:
    """Raise `RefusedError` for argument sets that the real engine refuses at or shortly after start."""
    prefill, decode = args.disaggregation_mode == "prefill", args.disaggregation_mode == "decode"
    if prefill and args.disaggregation_transfer_backend == "fake":
        raise RefusedError("Prefill server does not support 'fake' as the transfer backend")
    # Decode resolves disable_radix_cache=True unless its own radix cache is asked for, so HiCache is refused there.
    radix_off = args.disable_radix_cache or (decode and not args.disaggregation_decode_enable_radix_cache)
    if args.enable_hierarchical_cache and radix_off:
        raise RefusedError(
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive "
            "and cannot be used at the same time. Please use only one of them."
        )
    if decode and args.enable_hierarchical_cache:
        raise RefusedError("HiCache is not supported on a DeepSeek-V4 decode server")
    if decode and args.disaggregation_decode_enable_radix_cache:
        raise RefusedError("The decode radix cache needs the unified KV layout, which DeepSeek-V4 has only on ROCm")
    if args.enable_hierarchical_cache and args.hicache_size > 0:
        raise RefusedError(
            "DeepSeek V4 HiCache currently does not support --hicache-size; use --hicache-ratio instead."
        )
    if args.enable_hierarchical_cache and args.hicache_mem_layout in ("page_head", "page_first_kv_split"):
        raise RefusedError(f"DeepSeek V4 HiCache does not support the {args.hicache_mem_layout} memory layout")
    if args.disaggregation_decode_enable_offload_kvcache and not (decode and args.hicache_storage_backend):
        raise RefusedError(
            "The argument disaggregation-decode-enable-offload-kvcache is only supported for decode side "
            "with a hicache-storage-backend."
        )
    if args.kv_cache_dtype not in ("auto", "fp8_e4m3", "bf16", "bfloat16"):
        raise RefusedError(f"DeepSeek-V4 does not support kv_cache_dtype={args.kv_cache_dtype}")
    if (prefill or decode) and getattr(args, "dsv4_attn_backend", "auto") == "trtllm":
        raise RefusedError("--dsv4-attn-backend trtllm does not support PD disaggregation yet")
    algorithm = args.speculative_algorithm
    if algorithm not in (None, "EAGLE", "DSPARK"):
        raise RefusedError("Only EAGLE and DSPARK speculative algorithms are supported for DeepseekV4ForCausalLM")
    if algorithm == "EAGLE" and args.speculative_eagle_topk != 1:
        raise RefusedError("Only EAGLE speculative algorithm with topk == 1 is supported for DeepseekV4ForCausalLM")
    deepseek = {"deepseekv4", "deepseekv41", "deepseek-v4", "deepseek-v41"}
    parsers = [name for name in (args.tool_call_parser, args.reasoning_parser) if name not in (None, "auto")]
    if any(name in deepseek for name in parsers) and not all(name in deepseek for name in parsers):
        raise RefusedError("DeepSeek-V4 tool-call and reasoning parsers cannot be mixed with other parsers")


def guard_active(env: Mapping[str, str]) -> bool:
    """Whether the gated image's plugin is played: it is in the image and SGLang is told to load it."""
    named = {name.strip() for name in env.get("SGLANG_PLUGINS", "").split(",")}
    active = _flag(env, "DSV4_SIM_GUARD", False) and guard.PLUGIN in named
    release = imitated_release(env)
    if active and release not in guard.TESTED_RELEASES and not _flag(env, "DSV4_GUARD_ALLOW_UNTESTED_RELEASE", False):
        raise RefusedError(
            f"dsv4_guard: SGLang {release} is not among the tested releases {', '.join(guard.TESTED_RELEASES)}; "
            "DSV4_GUARD_ALLOW_UNTESTED_RELEASE=1 loads the plugin all the same"
        )
    return active


def _index_k_dtype(args: argparse.Namespace, env: Mapping[str, str], *, guarded: bool) -> str:
    """Index-K format: the simulator's own variable, the plugin's, else the FP4 indexer flag, else FP8.

    Stock SGLang does not know ``DSV4_INDEX_K_DTYPE``, so without the plugin it means nothing.
    """
    name = "DSV4_INDEX_K_DTYPE" if guarded else ""
    name = "DSV4_SIM_INDEX_K_DTYPE" if env.get("DSV4_SIM_INDEX_K_DTYPE") else name
    wanted = env.get(name, "").lower()
    fp4 = bool(getattr(args, "enable_deepseek_v4_fp4_indexer", False))
    if wanted not in ("", "fp8", "bf16", "fp4"):
        raise RefusedError(f"{name}={wanted!r}: expected fp8, bf16 or fp4")
    if fp4 and wanted not in ("", "fp4"):
        raise RefusedError(f"--enable-deepseek-v4-fp4-indexer contradicts {name}={wanted}")
    if guarded and fp4 != (wanted == "fp4"):  # the plugin looks at the pool that upstream built
        pool = "fp4" if fp4 else "fp8"
        raise RefusedError(
            f"dsv4_guard: the pool holds index-K as {pool}, DSV4_INDEX_K_DTYPE says {wanted or 'fp8'}; set both alike "
            "(fp4 needs --enable-deepseek-v4-fp4-indexer)"
        )
    return wanted or ("fp4" if fp4 else "fp8")


ERAS = ("leak", "silent", "token")
"""How damaged markup comes out: up to 0.5.20, 0.5.21 to 0.5.22, and 0.5.23."""
HICACHE_POOL_PAGES = 128
"""Device pages when a prefix cache keeps them all in use: 32,768 tokens."""
HOST_PAGES_LIMIT = 512
"""Host pages at most, whatever ``--hicache-ratio`` says, to keep the process small."""


def output_era(env: Mapping[str, str]) -> str:
    """``DSV4_SIM_OUTPUT_ERA``, else what the imitated release does."""
    wanted = env.get("DSV4_SIM_OUTPUT_ERA", "")
    if wanted:
        if wanted not in ERAS:
            raise RefusedError(f"DSV4_SIM_OUTPUT_ERA={wanted!r}: expected {', '.join(ERAS)}")
        return wanted
    release = tuple(int(part) for part in re.findall(r"\d+", imitated_release(env))[:3])
    return "leak" if release <= (0, 5, 20) else "silent" if release <= (0, 5, 22) else "token"


def resolve(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> SimSettings:
    """Check the arguments and fill in what SGLang would decide. Raises `RefusedError`."""
    check_arguments(args)
    # Upstream ``handle_deprecated_dp_attention``: the old pair of flags becomes the new one; dp_size counts replicas.
    attention_dp, replicas = int(getattr(args, "attn_dp_size", None) or 1), int(args.dp_size)
    if getattr(args, "enable_dp_attention", False) and attention_dp == 1:
        attention_dp, replicas = replicas, 1
    guarded = guard_active(env)
    index_k = _index_k_dtype(args, env, guarded=guarded)
    mode = args.disaggregation_mode
    # Upstream names an unnamed model after its path; the simulator says what it is instead.
    name = args.served_model_name or f"SIMULATOR/{args.model_path}"
    kv_dtype = {"auto": "fp8_e4m3", "bf16": "bfloat16"}.get(args.kv_cache_dtype, args.kv_cache_dtype)
    balance = args.load_balance_method
    if balance == "auto":
        balance = "follow_bootstrap_room" if mode == "prefill" else "round_robin"
    hicache = bool(args.enable_hierarchical_cache)
    prefix_cache = hicache or (
        _flag(env, "DSV4_SIM_PREFIX_CACHE", False) and mode != "decode" and not args.disable_radix_cache
    )
    pool_pages = int(_number(env, "DSV4_SIM_POOL_PAGES", HICACHE_POOL_PAGES if prefix_cache else 2048, 1))
    host_pages = min(int(pool_pages * float(args.hicache_ratio or 2.0)), HOST_PAGES_LIMIT)
    deferred = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    layout = "v4,c4:v4,c128:v4"
    # What the gated image adds to the handshake; fp8 adds nothing, so it pairs with a stock engine.
    if _flag(env, "DSV4_SIM_INDEX_K_IN_LAYOUT", guarded and index_k != "fp8"):
        layout += f",index_k:{index_k}"
    info = {key: value for key, value in vars(args).items() if isinstance(value, (str, int, float, bool, type(None)))}
    info |= {
        "served_model_name": name,
        "page_size": PAGE_SIZE,
        "kv_cache_dtype": kv_dtype,
        "load_balance_method": balance,
        "attention_backend": "dsv4",
        "disable_radix_cache": bool(args.disable_radix_cache or mode == "decode"),
        "hicache_ratio": args.hicache_ratio or (2.0 if mode != "decode" else None),
        "api_key": None,
        "dp_size": replicas,
        "attn_dp_size": attention_dp,
        "enable_dp_attention": attention_dp > 1,
    }
    return SimSettings(
        release=imitated_release(env),
        mode=mode,
        host=args.host,
        port=int(args.port),
        bootstrap_port=int(args.disaggregation_bootstrap_port),
        served_model_name=name,
        model_path=args.model_path,
        tool_call_parser=args.tool_call_parser,
        reasoning_parser=args.reasoning_parser,
        enable_metrics=bool(args.enable_metrics),
        enable_cache_report=bool(args.enable_cache_report),
        api_key=args.api_key,
        context_length=int(args.context_length or 131072),
        max_running_requests=int(args.max_running_requests or 256),
        tp_size=int(args.tp_size),
        dp_size=attention_dp,
        load_balance_method=balance,
        page_size=int(_number(env, "DSV4_SIM_PAGE_SIZE", PAGE_SIZE, 4)),
        kv_cache_dtype=kv_dtype,
        kv_layout=layout,
        index_k_dtype=index_k,
        guard=guarded,
        skip_tokenizer_init=bool(args.skip_tokenizer_init),
        logprob_noise=_number(env, "DSV4_SIM_LOGPROB_NOISE", 0.0),
        transfer_backend=args.disaggregation_transfer_backend,
        hicache=hicache,
        prefix_cache=prefix_cache,
        host_pages=int(_number(env, "DSV4_SIM_HOST_POOL_PAGES", host_pages, 1)),
        host_bytes_per_second=1e6 * _number(env, "DSV4_SIM_HOST_BANDWIDTH_MBPS", 16.0, 0.001),
        layer_seconds=_number(env, "DSV4_SIM_LAYER_MS", 12.0) / 1000,
        early_send=_flag(env, "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", True),
        overlap=not args.disable_overlap_schedule,
        chunk_tokens=int(args.chunked_prefill_size or 8192),
        post_seconds=_number(env, "DSV4_SIM_TRANSFER_POST_MS", 10.0) / 1000,
        transfer_bytes_per_second=1e6 * _number(env, "DSV4_SIM_TRANSFER_BANDWIDTH_MBPS", 0.0),
        output_era=output_era(env),
        layers=int(_number(env, "DSV4_SIM_LAYERS", 4, 1)),
        pool_pages=pool_pages,
        host_ip=env.get("SGLANG_HOST_IP") or env.get("HOST_IP") or None,
        transfer_port=int(_number(env, "DSV4_SIM_TRANSFER_PORT", 0)),
        transfer_advertise=env.get("DSV4_SIM_TRANSFER_ADVERTISE") or None,
        startup_seconds=_number(env, "DSV4_SIM_STARTUP_SECONDS", 1.0),
        health_seconds=_number(env, "DSV4_SIM_HEALTH_SECONDS", 1.0),
        drain_seconds=_number(env, "DSV4_SIM_DRAIN_SECONDS", 5.0),
        tokens_per_second=_number(env, "DSV4_SIM_TOKENS_PER_SECOND", 5000.0, 0.001),
        prefill_tokens_per_second=_number(env, "DSV4_SIM_PREFILL_TOKENS_PER_SECOND", 200000.0, 0.001),
        bootstrap_timeout=_number(env, "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", 300.0),
        waiting_timeout=_number(env, "SGLANG_DISAGGREGATION_WAITING_TIMEOUT", 300.0),
        heartbeat_interval=max(2.0, _number(env, "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", 5.0)),
        heartbeat_max_failures=int(_number(env, "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE", 2, 1)),
        deferred_release_timeout=(
            _number(env, "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT", 30.0)
            if _flag(env, deferred, True)
            else 0.0
        ),
        deferred_release_asked=_flag(env, deferred, False),
        server_info=info,
    )
