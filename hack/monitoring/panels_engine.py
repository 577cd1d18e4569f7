"""What the dashboard shows about engines, KV transfer and HiCache."""

from __future__ import annotations

from typing import Final

from monitoring.board import GREEN, RATE, RED, YES_BAD, Panel, Query, Row, engine, ours


def engine_quantile(share: float, metric: str, by: str = "pod") -> str:
    """A quantile of a histogram of SGLang."""
    return engine(
        lambda prefix: (
            f"histogram_quantile({share}, sum by (le, {by}) (rate({ours(prefix + metric + '_bucket')}[{RATE}])))"
        )
    )


def engine_rate(metric: str, by: str = "pod", more: str = "") -> str:
    """Growth a second of a counter of SGLang."""
    return engine(lambda prefix: f"sum by ({by}) (rate({ours(prefix + metric, more)}[{RATE}]))")


def engine_gauge(metric: str, by: str = "pod") -> str:
    """A gauge of SGLang, tensor-parallel ranks folded."""
    return engine(lambda prefix: f"sum by ({by}) (max by ({by}, dp_rank) ({ours(prefix + metric)}))")


ENGINES: Final = Row(
    "Engines",
    (
        Panel(
            "Wedge by kind",
            "Work that the engine took and does not move, by where it stands.",
            (Query(f"max by (kind, pod) ({ours('dsv4_engine_wedge_info')})", "{{kind}} {{pod}}"),),
            kind="states", states=YES_BAD, steps=((0, GREEN), (1, RED)), alert="DSV4EngineWedged",
        ),
        Panel(
            "No progress for",
            "Seconds that work has stood still.",
            (Query(f"max by (pod) ({ours('dsv4_engine_stalled_seconds')})", "{{pod}}"),),
            unit="s", alert="DSV4EngineWedged",
        ),
        Panel(
            "Running and waiting requests",
            "Of the schedulers; requests in transfer queues are not among them.",
            (
                Query(engine_gauge("num_running_reqs"), "{{pod}}: running"),
                Query(engine_gauge("num_queue_reqs"), "{{pod}}: waiting"),
            ),
        ),
        Panel(
            "Tokens a second",
            "Decoded tokens as the scheduler counts them, step by step.",
            (Query(engine_rate("realtime_tokens_total", "pod, mode"), "{{pod}} {{mode}}"),),
        ),
        Panel(
            "Time to first token",
            "As users see it, at the decode.",
            (
                Query(engine_quantile(0.5, "time_to_first_token_seconds"), "{{pod}} p50"),
                Query(engine_quantile(0.99, "time_to_first_token_seconds"), "{{pod}} p99"),
            ),
            unit="s",
        ),
        Panel(
            "KV pool in use",
            "Share of token slots that are taken and not evictable.",
            (Query(engine_gauge("token_usage"), "{{pod}}"),),
            unit="percentunit", steps=((0, GREEN), (0.95, RED)), alert="DSV4EngineWedged",
        ),
        Panel(
            "Output tokens a request",
            "Mean of users' requests over 30 minutes, the canary's taken out. Loops of damaged KV make it grow.",
            (Query(f"{ours('dsv4_generation:output_tokens_per_request:mean30m')}", "{{deployment}} {{fingerprint}}"),),
            alert="DSV4OutputLengthRatio",
            idle="recorded only with 100 requests of users in 30 minutes",
        ),
        Panel(
            "Speculation: accepted tokens a step",
            "Drops when draft and target disagree, as on damaged KV.",
            (Query(f"{ours('dsv4_pod:spec_accept_length:max')}", "{{pod}}"),),
            alert="DSV4SpecAcceptLengthDrop", idle="only with speculation",
        ),
    ),
)  # fmt: skip

TRANSFER: Final = Row(
    "KV transfer",
    (
        Panel(
            "Speed",
            "Mean over transfers. Compare with the fabric: an InfiniBand port moves tens of GB/s, TCP one or two.",
            (
                Query(
                    engine(
                        lambda p: f"sum by (pod) (rate({ours(p + 'kv_transfer_speed_gb_s_sum')}[{RATE}]))\n"
                        f"/ (sum by (pod) (rate({ours(p + 'kv_transfer_speed_gb_s_count')}[{RATE}])) > 0)"
                    ),
                    "{{pod}}",
                ),
            ),
            unit="GBs", alert="DSV4TransferSlow",
        ),
        Panel(
            "Latency",
            "From the start of the transfer to its end.",
            (
                Query(engine_quantile(0.5, "kv_transfer_latency_ms"), "{{pod}} p50"),
                Query(engine_quantile(0.99, "kv_transfer_latency_ms"), "{{pod}} p99"),
            ),
            unit="ms", alert="DSV4TransferSlow",
        ),
        Panel(
            "Size",
            "Mean megabytes of a transfer. Small ones are slow by nature.",
            (
                Query(
                    engine(
                        lambda p: f"sum by (pod) (rate({ours(p + 'kv_transfer_total_mb_sum')}[{RATE}]))\n"
                        f"/ (sum by (pod) (rate({ours(p + 'kv_transfer_total_mb_count')}[{RATE}])) > 0)"
                    ),
                    "{{pod}}",
                ),
            ),
            unit="decmbytes",
        ),
        Panel(
            "Queues of prefill",
            "Requests that wait for a decode's addresses, and those whose KV is on its way.",
            (
                Query(engine_gauge("num_prefill_bootstrap_queue_reqs"), "{{pod}}: bootstrap"),
                Query(engine_gauge("num_prefill_inflight_queue_reqs"), "{{pod}}: in flight"),
            ),
            alert="DSV4EngineWedged",
        ),
        Panel(
            "Queues of decode",
            "Requests that wait for room, for their KV, and failed ones whose KV is held until the sender is done.",
            (
                Query(engine_gauge("num_decode_prealloc_queue_reqs"), "{{pod}}: room"),
                Query(engine_gauge("num_decode_transfer_queue_reqs"), "{{pod}}: KV"),
                Query(engine_gauge("num_decode_deferred_kv_release_reqs"), "{{pod}}: held"),
            ),
            alert="DSV4EngineWedged",
        ),
        Panel(
            "Failures, five minutes",
            "Transfers and bootstraps that ended in failure.",
            (Query(f"{ours('dsv4_pod:failed_requests:increase5m')}", "{{pod}}"),),
            steps=((0, GREEN), (3, RED)), alert="DSV4TransferFailures",
            idle="SGLang makes these series with the first failure",
        ),
    ),
)  # fmt: skip

HICACHE: Final = Row(
    "HiCache",
    (
        Panel(
            "Reloaded from host memory",
            "Tokens a second that were loaded back instead of computed.",
            (Query(ours("dsv4_pod:load_back_tokens:rate5m"), "{{pod}}"),),
            alert="DSV4Corruption",
        ),
        Panel(
            "Time of a load-back",
            "The longer a load, the wider the window in which a read can overtake it.",
            (
                Query(engine_quantile(0.5, "load_back_duration_seconds"), "{{pod}} p50"),
                Query(engine_quantile(0.99, "load_back_duration_seconds"), "{{pod}} p99"),
            ),
            unit="s", alert="DSV4Corruption",
        ),
        Panel(
            "Host pool in use",
            "Share of the tokens that the host pool can hold.",
            (
                Query(
                    engine(
                        lambda p: f"sum by (pod) ({ours(p + 'hicache_host_used_tokens')})\n"
                        f"/ sum by (pod) ({ours(p + 'hicache_host_total_tokens')})"
                    ),
                    "{{pod}}",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Cached prompt tokens by source",
            "Tokens a second that did not have to be computed.",
            (Query(engine_rate("cached_tokens_total", "cache_source"), "{{cache_source}}"),),
        ),
        Panel(
            "Evicted from device",
            "Tokens a second that lost their place in GPU memory.",
            (Query(engine_rate("evicted_tokens_total"), "{{pod}}"),),
        ),
        Panel(
            "Backed up to host",
            "Tokens a second. Series of SGLang 0.5.18 and later.",
            (Query(engine_rate("hicache_backup_tokens_total"), "{{pod}}"),),
        ),
    ),
)  # fmt: skip

ROWS: Final = (ENGINES, TRANSFER, HICACHE)
