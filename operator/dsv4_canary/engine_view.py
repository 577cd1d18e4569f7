"""What an engine's ``/metrics`` say about its work: one sample, whatever the SGLang release or number of ranks.

Names and meaning are SGLang's (``observability/metrics_collector.py``; the same from 0.5.12 to 0.5.23). What matters
for reading them, from ``metrics_reporter.py`` of 0.5.23:

- ``generation_tokens_total`` and ``cached_tokens_total`` are counted when a request *finishes* (on prefill: when its
  transfer ended, one token). A long answer leaves them flat. ``realtime_tokens_total`` counts per forward.
- Gauges are published with a prefill batch, with every 40th decode step, and every 30 s when the engine is fully idle.
  With requests parked in a transfer queue and no batch they stand still: a decode may show a request as running that
  ended long ago, and a stall may never show. ``/v1/loads`` has queue lengths that are current (asked of the scheduler
  up to 0.5.14, published 20 times a second in such a stall from 0.5.19 on), so they replace the gauges where it
  answers; but not the running requests of a prefill, which it always gives as 0.
- ``/health`` runs one token through an engine that has no batch: on prefill it adds a token of computed prefill.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from dsv4_canary import guard
from dsv4_canary.guard import GuardInfo

_TIMEOUT = 5.0
_MAX_BODY = 16 * 1024 * 1024
_HEALTH_TOKENS = 8.0
"""Prefill tokens per second that health checks alone may add; a real prefill computes thousands."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One look at an engine. Requests and tokens are summed over ranks; None: the engine does not export the series."""

    time: float
    """Monotonic seconds."""
    running: float | None = None
    queued: float | None = None
    generation_tokens: float | None = None
    """Tokens of finished requests. On prefill: one per request whose transfer ended well."""
    decode_tokens: float | None = None
    """Tokens as they are generated."""
    prefill_tokens: float | None = None
    """Prompt tokens computed, cached ones not included."""
    prefill_bootstrap: float | None = None
    prefill_inflight: float | None = None
    decode_prealloc: float | None = None
    decode_transfer: float | None = None
    load_back_tokens: float | None = None
    """Tokens loaded from the host tier. Host pools that load the same tokens are not added up."""
    cached_tokens: Mapping[str, float] = field(default_factory=dict)
    """Cached prompt tokens of finished requests by source: device, host, storage (total where that is not known)."""
    kv_available: float | None = None
    kv_evictable: float | None = None
    kv_total: float | None = None
    transfer_failed: float | None = None
    bootstrap_failed: float | None = None
    spec_accept_length: float | None = None
    """Mean over ranks; None without speculation (SGLang then exports 0)."""
    hicache: bool = False
    """The engine has a host tier."""
    live: bool = False
    """Queue lengths are those of this moment, not of the last report."""
    guard: GuardInfo | None = None


_SUMS = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "generation_tokens_total": "generation_tokens",
    "num_prefill_bootstrap_queue_reqs": "prefill_bootstrap",
    "num_prefill_inflight_queue_reqs": "prefill_inflight",
    "num_decode_prealloc_queue_reqs": "decode_prealloc",
    "num_decode_transfer_queue_reqs": "decode_transfer",
    "kv_available_tokens": "kv_available",
    "kv_evictable_tokens": "kv_evictable",
    "max_total_num_tokens": "kv_total",
    "num_transfer_failed_reqs_total": "transfer_failed",
    "num_bootstrap_failed_reqs_total": "bootstrap_failed",
}
_LOADS = {
    "prefill_bootstrap_queue_reqs": "prefill_bootstrap",
    "prefill_inflight_queue_reqs": "prefill_inflight",
    "decode_prealloc_queue_reqs": "decode_prealloc",
    "decode_transfer_queue_reqs": "decode_transfer",
}
"""Fields of ``/v1/loads``, section ``disaggregation``."""
_MODES = {"decode": "decode_tokens", "prefill_compute": "prefill_tokens"}
_WANTED = frozenset(
    (
        *_SUMS,
        "realtime_tokens_total",
        "load_back_tokens_total",
        "cached_tokens_total",
        "spec_accept_length",
        "hicache_host_total_tokens",
    )
)
_PREFIXES = ("sglang:", "sglang_")


def parse_metrics(text: str, now: float | None = None) -> EngineSample:
    """Read a Prometheus text. Lines that are not valid are left out; a text without any known series is a sample of
    None. ``now``: monotonic seconds of the reading."""
    return _sample(_parsed(_wanted(text.splitlines())), time.monotonic() if now is None else now)


async def read_engine(session: aiohttp.ClientSession, url: str) -> EngineSample | None:
    """Ask an engine for its metrics, and for current queue lengths where it tells them.

    None when there are no metrics to be had: no answer in 5 s, not 200, over 16 MiB. ``url``: base URL of the engine.
    """
    sample, loads = await asyncio.gather(_read_metrics(session, url), _read_loads(session, url))
    return None if sample is None else with_loads(sample, loads)


async def _read_metrics(session: aiohttp.ClientSession, url: str) -> EngineSample | None:
    limits = aiohttp.ClientTimeout(total=_TIMEOUT)
    lines: list[str] = []
    size, rest = 0, b""
    try:
        async with session.get(f"{url}/metrics", timeout=limits) as response:
            if response.status != 200:
                return None
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > _MAX_BODY:
                    return None
                # Only wanted lines are kept: a busy engine exports tens of thousands of histogram buckets.
                *whole, rest = (rest + chunk).split(b"\n")
                lines.extend(_wanted(line.decode("utf-8", "replace") for line in whole))
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    lines.extend(_wanted([rest.decode("utf-8", "replace")]))
    return _sample(_parsed(lines), time.monotonic())


async def _read_loads(session: aiohttp.ClientSession, url: str) -> object:
    """Decoded answer of ``/v1/loads``; None when there is none."""
    limits = aiohttp.ClientTimeout(total=_TIMEOUT)
    try:
        async with session.get(f"{url}/v1/loads", params={"include": "core,disagg"}, timeout=limits) as response:
            return await response.json(content_type=None) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError, RecursionError):
        return None


def with_loads(sample: EngineSample, loads: object) -> EngineSample:
    """The sample with the queue lengths of an answer of ``/v1/loads``; the sample as it is when that is none."""
    ranks = loads.get("loads") if isinstance(loads, Mapping) else None
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, Mapping) for rank in ranks):
        return sample
    sums: dict[str, Any] = {}
    prefill = False
    for rank in ranks:
        section = rank.get("disaggregation")
        section = section if isinstance(section, Mapping) else {}
        prefill |= section.get("mode") == "prefill"
        for name, value in (
            ("running", rank.get("num_running_reqs")),
            *((_LOADS.get(k), v) for k, v in section.items()),
        ):
            if name is not None and isinstance(value, int | float) and math.isfinite(value):
                sums[name] = sums.get(name, 0.0) + value
    if prefill:
        sums.pop("running", None)
    # A queue that the engine's role does not have stays unknown.
    known = {name: value for name, value in sums.items() if name == "running" or getattr(sample, name) is not None}
    return replace(sample, live=True, **known)


async def registry_answers(session: aiohttp.ClientSession, host: str, port: int) -> bool:
    """Does a prefill's bootstrap registry answer its ``/health`` within 5 s? It does as long as its thread lives."""
    shown = f"[{host}]" if ":" in host else host
    try:
        async with session.get(
            f"http://{shown}:{port}/health", timeout=aiohttp.ClientTimeout(total=_TIMEOUT)
        ) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, OSError, ValueError):
        return False


def restarted(before: EngineSample, after: EngineSample) -> bool:
    """A token counter fell: the engine is another process than before."""
    return any(
        (old := getattr(before, name)) is not None and (getattr(after, name) or 0) < old
        for name in ("generation_tokens", "decode_tokens", "prefill_tokens")
    )


def progressed(before: EngineSample, after: EngineSample) -> bool:
    """Tokens were computed or generated in between, more than health checks account for.

    True for a busy prefill whose ``/health`` answers 503. A restart is no progress.
    """
    if restarted(before, after):
        return False
    if answered(before, after):
        return True
    idle = _HEALTH_TOKENS * max(1.0, after.time - before.time)
    return _rise(before.prefill_tokens, after.prefill_tokens) > idle


def ticked(before: EngineSample, after: EngineSample) -> bool:
    """Any token at all was counted in between, one of a health check included: the scheduler's loop turns."""
    return answered(before, after) or _rise(before.prefill_tokens, after.prefill_tokens) > 0


def answered(before: EngineSample, after: EngineSample) -> bool:
    """Tokens went out in between: decode generated, or a prefill's transfer ended well. Computing is not enough."""
    return (
        _rise(before.decode_tokens, after.decode_tokens) > 0
        or _rise(before.generation_tokens, after.generation_tokens) > 0
    )


def _rise(before: float | None, after: float | None) -> float:
    # A labelled counter does not exist until it is counted for the first time.
    return 0.0 if after is None else after - (before or 0.0)


def _wanted(lines: Iterable[str]) -> Iterator[str]:
    """Samples worth parsing."""
    for line in lines:
        name = line[: min((at for at in (line.find("{"), line.find(" ")) if at >= 0), default=len(line))]
        if name == guard.SERIES or (name.startswith(_PREFIXES) and name[7:] in _WANTED):
            yield line


def _parsed(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name without prefix, labels and value of each line."""
    for line in lines:
        try:
            # One line at a time, so that one that is damaged costs only itself.
            for family in text_string_to_metric_families(line + "\n"):
                for sample in family.samples:
                    value = float(sample.value)
                    if not math.isnan(value):
                        name = sample.name[7:] if sample.name.startswith(_PREFIXES) else sample.name
                        yield name, sample.labels, value
        except (ValueError, IndexError, KeyError, TypeError):
            continue


def _sample(series: Iterable[tuple[str, dict[str, str], float]], now: float) -> EngineSample:
    sums: dict[str, Any] = {}
    pools: dict[str, float] = {}
    sources: dict[str, float] = {}
    accepted: list[float] = []
    guards: list[tuple[Mapping[str, str], float]] = []
    host = 0.0
    for name, labels, value in series:
        field_name = _MODES.get(labels.get("mode", "")) if name == "realtime_tokens_total" else _SUMS.get(name)
        if name == guard.SERIES:
            guards.append((labels, value))
        elif labels.get("priority"):
            continue  # with priority scheduling: parts of the total that stands under an empty priority
        elif field_name is not None:
            sums[field_name] = sums.get(field_name, 0.0) + value
        elif name == "load_back_tokens_total":
            pool = labels.get("pool", "")
            pools[pool] = pools.get(pool, 0.0) + value
        elif name == "cached_tokens_total":
            source = labels.get("cache_source", "total")
            sources[source] = sources.get(source, 0.0) + value
        elif name == "spec_accept_length" and value > 0:
            accepted.append(value)
        elif name == "hicache_host_total_tokens":
            host += value
    return EngineSample(
        time=now,
        load_back_tokens=max(pools.values(), default=None),
        cached_tokens=sources,
        spec_accept_length=sum(accepted) / len(accepted) if accepted else None,
        hicache=host > 0 or any(pools.values()),
        guard=guard.read_guard(guards),
        **sums,
    )
