"""Recording rules: every series under one name and one set of labels, whatever the scrape calls it.

``dsv4_pod:`` one engine pod, ``dsv4_generation:`` all pods of one KV fingerprint, ``dsv4_object:`` one DSV4Deployment,
``dsv4_operator:`` the operator of one namespace.
"""

from __future__ import annotations

from typing import Final

from monitoring.model import Record
from monitoring.promql import (
    GENERATION,
    engine_count,
    engine_gauge,
    engine_increase,
    engine_rate,
    generation_increase,
    generation_rate,
    objects,
    pod_increase,
    pods,
)

CANARY: Final = (
    Record("dsv4_pod:canary_ready:max", pods("dsv4_canary_ready")),
    Record("dsv4_pod:canary_engine_healthy:max", pods("dsv4_canary_engine_healthy")),
    Record("dsv4_pod:canary_peer_result:max", pods("dsv4_canary_peer_result", "peer")),
    Record("dsv4_pod:canary_last_success_timestamp_seconds:max", pods("dsv4_canary_last_success_timestamp_seconds")),
    Record("dsv4_pod:canary_probes:increase10m", pod_increase("dsv4_canary_probes_total", "10m", "outcome")),
    Record("dsv4_pod:canary_corruption_verdict:max", pods("dsv4_canary_corruption_verdict")),
    Record("dsv4_pod:canary_window_failures:sum", pods("dsv4_canary_window_failures", fold="sum")),
    Record("dsv4_pod:canary_blind:max", pods("dsv4_canary_blind", "what")),
    Record("dsv4_pod:canary_guard_missing:max", f"{pods('dsv4_canary_guard_required')}\n> bool\n"
           f"{pods('dsv4_canary_guard_present')}"),
    Record("dsv4_pod:engine_wedged:max", pods("dsv4_engine_wedged")),
    Record("dsv4_pod:engine_wedge_info:max", pods("dsv4_engine_wedge_info", "kind")),
    Record("dsv4_pod:canary_target_up:max", pods("up", matchers='container="canary"')),
    # 2: a prefill and a decode of this generation pass their canaries.
    Record("dsv4_generation:proved_roles:count", f"count by ({', '.join(GENERATION)}) (\n"
           f"  max by ({', '.join([*GENERATION, 'role'])}) (dsv4_pod:canary_ready:max) == 1\n)"),
)  # fmt: skip

ENGINE: Final = (
    Record("dsv4_pod:engine_series:count", engine_count("num_running_reqs")),
    Record("dsv4_pod:running_requests:sum", engine_gauge("num_running_reqs")),
    Record(
        "dsv4_pod:decode_tokens:rate5m",
        engine_rate("realtime_tokens_total", "5m", matchers='engine_type="decode",mode="decode"'),
    ),
    Record(
        "dsv4_pod:generation_tokens:rate5m",
        engine_rate("generation_tokens_total", "5m", matchers='engine_type="decode"'),
    ),
    Record("dsv4_pod:transfer_failures:increase5m", engine_increase("num_transfer_failed_reqs_total", "5m")),
    Record("dsv4_pod:bootstrap_failures:increase5m", engine_increase("num_bootstrap_failed_reqs_total", "5m")),
    Record(
        # Either counter is born with its first failure.
        "dsv4_pod:failed_requests:increase5m",
        """
        (dsv4_pod:transfer_failures:increase5m or 0 * dsv4_pod:bootstrap_failures:increase5m)
        + (dsv4_pod:bootstrap_failures:increase5m or 0 * dsv4_pod:transfer_failures:increase5m)
        """,
    ),
    Record(
        "dsv4_generation:finished_requests:increase5m",
        engine_increase("num_requests_total", "5m", GENERATION, 'engine_type="decode"'),
    ),
    Record("dsv4_pod:load_back_tokens:rate5m", engine_rate("load_back_tokens_total", "5m")),
)

TRANSFER: Final = (
    Record("dsv4_pod:kv_transfers:increase15m", engine_increase("kv_transfer_speed_gb_s_count", "15m")),
    Record(
        "dsv4_pod:kv_transfer_speed_gigabytes_per_second:mean15m",
        f"({engine_increase('kv_transfer_speed_gb_s_sum', '15m')})\n/\n(dsv4_pod:kv_transfers:increase15m >= 20)",
    ),
    Record(
        "dsv4_pod:kv_transfer_size_megabytes:mean15m",
        f"({engine_increase('kv_transfer_total_mb_sum', '15m')})\n/\n"
        f"(({engine_increase('kv_transfer_total_mb_count', '15m')}) >= 20)",
    ),
    Record(
        "dsv4_generation:kv_transfer_speed_gigabytes_per_second:avg",
        f"avg by ({', '.join([*GENERATION, 'role'])}) (dsv4_pod:kv_transfer_speed_gigabytes_per_second:mean15m)",
    ),
    Record(
        "dsv4_generation:kv_transfer_size_megabytes:avg",
        f"avg by ({', '.join([*GENERATION, 'role'])}) (dsv4_pod:kv_transfer_size_megabytes:mean15m)",
    ),
)

_FINISHED = engine_rate("num_requests_total", "30m", GENERATION, 'engine_type="decode"')
_GENERATED = engine_rate("generation_tokens_total", "30m", GENERATION, 'engine_type="decode"')
_PROBES = generation_rate("dsv4_canary_probes_total", "30m", 'outcome=~"pass|fail"')
_PROBE_TOKENS = generation_rate("dsv4_canary_tokens_total", "30m", 'kind="completion"')

OUTPUT: Final = (
    Record("dsv4_generation:finished_requests:rate30m", _FINISHED),
    Record("dsv4_generation:generation_tokens:rate30m", _GENERATED),
    Record("dsv4_generation:canary_requests:rate30m", f"{_PROBES}\nor\n0 * dsv4_generation:finished_requests:rate30m"),
    Record(
        "dsv4_generation:canary_completion_tokens:rate30m",
        f"{_PROBE_TOKENS}\nor\n0 * dsv4_generation:generation_tokens:rate30m",
    ),
    Record(
        "dsv4_generation:user_requests:rate30m",
        "dsv4_generation:finished_requests:rate30m - dsv4_generation:canary_requests:rate30m",
    ),
    Record(
        # Only where users' requests are many and outnumber the canary's: its short replies would pull the mean down
        # at night and let the morning look like a loop.
        "dsv4_generation:output_tokens_per_request:mean30m",
        """
        (
          dsv4_generation:generation_tokens:rate30m - dsv4_generation:canary_completion_tokens:rate30m
        )
        / dsv4_generation:user_requests:rate30m
        and dsv4_generation:user_requests:rate30m * 1800 >= 100
        and dsv4_generation:user_requests:rate30m >= dsv4_generation:canary_requests:rate30m
        """,
    ),
    Record("dsv4_generation:load_back_tokens:increase1h", engine_increase("load_back_tokens_total", "1h", GENERATION)),
    Record(
        # The gauge keeps its last value when the engine is idle, so it counts only while tokens come.
        "dsv4_pod:spec_accept_length:max",
        f"({engine_gauge('spec_accept_length')}) > 0\nand dsv4_pod:decode_tokens:rate5m > 0",
    ),
    Record(
        "dsv4_generation:spec_accept_length:avg", f"avg by ({', '.join(GENERATION)}) (dsv4_pod:spec_accept_length:max)"
    ),
)

_CALLS = 'outcome=~"valid|leaked|loop|invalid_json|unknown_tool|schema"'
_DAMAGED = 'outcome=~"leaked|loop|invalid_json|unknown_tool|schema"'
_BROKEN = 'outcome=~"leaked|loop|invalid_json"'
_LIVE = "dsv4_guard_tool_calls_total"

LIVE: Final = (
    Record("dsv4_generation:live_tool_calls:increase15m", generation_increase(_LIVE, "15m", "cache", matchers=_CALLS)),
    Record(
        "dsv4_generation:live_tool_calls_damaged:increase15m",
        f"{generation_increase(_LIVE, '15m', 'cache', matchers=_DAMAGED)}\n"
        "or\n0 * dsv4_generation:live_tool_calls:increase15m",
    ),
    Record(
        "dsv4_generation:live_tool_calls_broken:increase15m",
        f"{generation_increase(_LIVE, '15m', matchers=_BROKEN)}\nor\n"
        f"0 * sum by ({', '.join(GENERATION)}) (dsv4_generation:live_tool_calls:increase15m)",
    ),
    Record(
        "dsv4_generation:live_tool_calls_damaged:ratio15m",
        "dsv4_generation:live_tool_calls_damaged:increase15m / (dsv4_generation:live_tool_calls:increase15m > 0)",
    ),
    Record(
        # Share of damaged calls of this tier and cold together, for the variance of a two-proportion z test. One
        # damaged and one good call are added, so that no damage at all is a score of 0, not 0 / 0.
        "dsv4_generation:live_tool_calls_damaged:pooled15m",
        """
        (
          dsv4_generation:live_tool_calls_damaged:increase15m{cache=~"host|device"}
          + on (namespace, deployment, fingerprint) group_left ()
          dsv4_generation:live_tool_calls_damaged:increase15m{cache="cold"}
          + 1
        )
        /
        (
          dsv4_generation:live_tool_calls:increase15m{cache=~"host|device"}
          + on (namespace, deployment, fingerprint) group_left ()
          dsv4_generation:live_tool_calls:increase15m{cache="cold"}
          + 2
        )
        """,
    ),
    Record(
        "dsv4_generation:live_tool_calls_damaged:zscore15m",
        """
        (
          dsv4_generation:live_tool_calls_damaged:ratio15m{cache=~"host|device"}
          - on (namespace, deployment, fingerprint) group_left ()
          dsv4_generation:live_tool_calls_damaged:ratio15m{cache="cold"}
        )
        /
        sqrt(
          dsv4_generation:live_tool_calls_damaged:pooled15m
          * (1 - dsv4_generation:live_tool_calls_damaged:pooled15m)
          * (
            1 / dsv4_generation:live_tool_calls:increase15m{cache=~"host|device"}
            + on (namespace, deployment, fingerprint) group_left ()
            1 / dsv4_generation:live_tool_calls:increase15m{cache="cold"}
          )
        )
        """,
    ),
)

OBJECTS: Final = (
    Record("dsv4_object:router_drift:max", objects("dsv4_operator_router_drift")),
    Record("dsv4_object:condition:max", objects("dsv4_operator_condition", "type", "status")),
)

OPERATOR: Final = (
    # Its own namespace, so that of two installs each is missed.
    Record("dsv4_operator:leader:max", "max by (namespace) (dsv4_operator_leader)"),
)
