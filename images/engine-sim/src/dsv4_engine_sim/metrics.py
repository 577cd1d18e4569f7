"""Prometheus metrics under SGLang 0.5.23's names and labels (upstream ``observability/metrics_collector.py``).

Two label sets, as upstream: scheduler series carry ``model_name, engine_type, tp_rank, pp_rank, moe_ep_rank``, request
series ``model_name, engine_type``. One process plays all ranks and reports as rank 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

if TYPE_CHECKING:
    from dsv4_engine_sim.settings import SimSettings

disable_created_metrics()  # type: ignore[no-untyped-call]

_MS_BUCKETS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000)
_SECONDS_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)


class EngineMetrics:
    """All series of one engine. Attributes are named after the series without the ``sglang:`` prefix."""

    def __init__(self, settings: SimSettings) -> None:
        self.registry = CollectorRegistry()
        engine_type = {"null": "unified"}.get(settings.mode, settings.mode)
        self._request = {"model_name": settings.served_model_name, "engine_type": engine_type}
        self._scheduler = self._request | {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
        self._cache = {"cache_type": "UnifiedRadixCache", "tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}
        self.num_running_reqs = self._gauge("num_running_reqs", "The number of running requests.")
        self.num_queue_reqs = self._gauge("num_queue_reqs", "The number of requests in the waiting queue.")
        self.gen_throughput = self._gauge("gen_throughput", "The generation throughput (token/s).")
        self.cache_hit_rate = self._gauge("cache_hit_rate", "The prefix cache hit rate.")
        self.token_usage = self._gauge("token_usage", "The token usage.")
        self.num_used_tokens = self._gauge("num_used_tokens", "The number of used tokens.")
        self.kv_available_tokens = self._gauge("kv_available_tokens", "Free token slots in the KV cache pool.")
        self.kv_evictable_tokens = self._gauge("kv_evictable_tokens", "Evictable token slots in the KV cache pool.")
        self.max_total_num_tokens = self._gauge("max_total_num_tokens", "Maximum total number of tokens.")
        self.page_size = self._gauge("page_size", "KV cache page size in tokens.")
        self.num_pages = self._gauge("num_pages", "Number of KV cache pages.")
        self.num_prefill_bootstrap_queue_reqs = self._gauge(
            "num_prefill_bootstrap_queue_reqs", "The number of requests in the prefill bootstrap queue."
        )
        self.num_prefill_inflight_queue_reqs = self._gauge(
            "num_prefill_inflight_queue_reqs", "The number of requests in the prefill inflight queue."
        )
        self.num_decode_prealloc_queue_reqs = self._gauge(
            "num_decode_prealloc_queue_reqs", "The number of requests in the decode prealloc queue."
        )
        self.num_decode_transfer_queue_reqs = self._gauge(
            "num_decode_transfer_queue_reqs", "The number of requests in the decode transfer queue."
        )
        self.num_decode_deferred_kv_release_reqs = self._gauge(
            "num_decode_deferred_kv_release_reqs", "Failed decode requests whose KV is held until the drain is acked."
        )
        self.num_bootstrap_failed_reqs = self._counter(
            "num_bootstrap_failed_reqs_total", "The number of bootstrap failed requests."
        )
        self.num_transfer_failed_reqs = self._counter(
            "num_transfer_failed_reqs_total", "The number of transfer failed requests."
        )
        self.decode_deferred_kv_release = self._counter(
            "decode_deferred_kv_release_total", "Deferred KV releases by outcome.", ("outcome",)
        )
        self.num_retracted_requests = self._counter(
            "num_retracted_requests_total", "Total number of retracted requests."
        )
        self.kv_transfer_latency_ms = self._histogram("kv_transfer_latency_ms", "KV cache transfer latency in ms.")
        self.kv_transfer_speed_gb_s = self._histogram(
            "kv_transfer_speed_gb_s", "KV cache transfer speed in GB/s.", (0.01, 0.1, 0.5, 1, 5, 10, 25, 50, 100)
        )
        self.kv_transfer_bootstrap_ms = self._histogram("kv_transfer_bootstrap_ms", "Bootstrap time in ms.")
        self.kv_transfer_alloc_ms = self._histogram("kv_transfer_alloc_ms", "Allocation waiting time in ms.")
        self.kv_transfer_total_mb = self._histogram(
            "kv_transfer_total_mb", "KV cache transfer size in MB.", (0.1, 1, 5, 10, 50, 100, 500, 1000)
        )
        self.prompt_tokens = self._request_counter("prompt_tokens_total", "Number of prefill tokens processed.")
        self.generation_tokens = self._request_counter(
            "generation_tokens_total", "Number of generation tokens processed."
        )
        self.num_requests = self._request_counter("num_requests_total", "Number of requests processed.")
        self._cached_tokens = Counter(
            "sglang:cached_tokens_total",
            "Number of cached prompt tokens by source (device/host/storage).",
            [*self._request, "cache_source"],
            registry=self.registry,
        )
        self.num_aborted_requests = Counter(
            "sglang:num_aborted_requests_total",
            "Number of requests aborted.",
            list(self._request),
            registry=self.registry,
        ).labels(**self._request)
        self._e2e = Histogram(
            "sglang:e2e_request_latency_seconds",
            "Histogram of end-to-end request latency in seconds.",
            [*self._request, "is_streaming"],
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._ttft = Histogram(
            "sglang:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            [*self._request, "is_streaming"],
            buckets=_SECONDS_BUCKETS,
            registry=self.registry,
        )
        realtime = Counter(
            "sglang:realtime_tokens_total",
            "Total number of tokens processed. mode: prefill_compute, prefill_cache, decode.",
            [*self._scheduler, "mode"],
            registry=self.registry,
        )
        self.prefill_compute, self.prefill_cache, self.decoded = (
            realtime.labels(**self._scheduler, mode=mode) for mode in ("prefill_compute", "prefill_cache", "decode")
        )
        if settings.prefix_cache:
            self._evicted = self._cache_counter("evicted_tokens_total", "Device KV token slots freed by eviction.")
        if settings.hicache:
            self._load_back_tokens = self._cache_counter(
                "load_back_tokens_total", "Tokens loaded back from host to device, by host pool.", pool=True
            )
            self._load_back_bytes = self._cache_counter(
                "load_back_bytes_total", "Bytes loaded back from host to device, all pools."
            )
            self._load_back_seconds = self._cache_histogram(
                "load_back_duration_seconds", "Span of a load-back copy loop, without its wait in the queue."
            )
            self._backup_tokens = self._cache_counter(
                "hicache_backup_tokens_total", "Tokens backed up from device to host, by host pool.", pool=True
            )
            self._backup_bytes = self._cache_counter(
                "hicache_backup_bytes_total", "Bytes backed up from device to host, all pools."
            )
            self._backup_seconds = self._cache_histogram(
                "hicache_backup_duration_seconds", "Time of a backup from device to host."
            )
            self.hicache_host_used_tokens = self._gauge("hicache_host_used_tokens", "Tokens held in the host pool.")
            self._gauge("hicache_host_total_tokens", "Capacity of the host pool in tokens.").set(
                settings.host_pages * settings.page_size
            )
        pages = settings.pool_pages
        self.max_total_num_tokens.set(pages * settings.page_size)
        self.page_size.set(settings.page_size)
        self.num_pages.set(pages)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge("sglang:" + name, text, list(self._scheduler), registry=self.registry)
        return gauge.labels(**self._scheduler)

    def _counter(self, name: str, text: str, extra: tuple[str, ...] = ()) -> Counter:
        counter = Counter("sglang:" + name, text, [*self._scheduler, *extra], registry=self.registry)
        return counter if extra else counter.labels(**self._scheduler)

    def _cache_counter(self, name: str, text: str, *, pool: bool = False) -> Counter:
        labels = self._cache | ({"pool": "kv"} if pool else {})
        return Counter("sglang:" + name, text, list(labels), registry=self.registry).labels(**labels)

    def _cache_histogram(self, name: str, text: str) -> Histogram:
        buckets = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
        histogram = Histogram("sglang:" + name, text, list(self._cache), buckets=buckets, registry=self.registry)
        return histogram.labels(**self._cache)

    def _request_counter(self, name: str, text: str) -> Counter:
        return Counter("sglang:" + name, text, [*self._request, "is_streaming"], registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _MS_BUCKETS) -> Histogram:
        histogram = Histogram("sglang:" + name, text, list(self._scheduler), buckets=buckets, registry=self.registry)
        return histogram.labels(**self._scheduler)

    def request_started(self, seconds: float, streaming: bool) -> None:
        """Time to the first token, in seconds."""
        self._ttft.labels(**self._request, is_streaming=str(streaming).lower()).observe(seconds)

    def request_done(
        self, *, prompt: int, cached: dict[str, int], generated: int, seconds: float, streaming: bool
    ) -> None:
        """Account a finished request; `cached` maps device and host to tokens."""
        labels = {**self._request, "is_streaming": str(streaming).lower()}
        self.prompt_tokens.labels(**labels).inc(prompt)
        self.generation_tokens.labels(**labels).inc(generated)
        self.num_requests.labels(**labels).inc()
        self._e2e.labels(**labels).observe(seconds)
        for source, count in cached.items():
            if count:
                self._cached_tokens.labels(**self._request, cache_source=source).inc(count)

    def computed(self, new: int, cached: int) -> None:
        """Account the prompt tokens of one forward."""
        self.prefill_compute.inc(new)
        self.prefill_cache.inc(cached)

    def evicted(self, tokens: int) -> None:
        """Account cached tokens that lost their place in the pool."""
        self._evicted.inc(tokens)

    def loaded(self, tokens: int, size: int, seconds: float) -> None:
        """Account a load-back."""
        self._load_back_tokens.inc(tokens)
        self._load_back_bytes.inc(size)
        self._load_back_seconds.observe(seconds)

    def backed_up(self, tokens: int, size: int, seconds: float) -> None:
        """Account a backup."""
        self._backup_tokens.inc(tokens)
        self._backup_bytes.inc(size)
        self._backup_seconds.observe(seconds)

    def deferred_release(self, outcome: str) -> None:
        """Count a deferred KV release: ``acked`` or ``timeout``."""
        self.decode_deferred_kv_release.labels(**self._scheduler, outcome=outcome).inc()

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
