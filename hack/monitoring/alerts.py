"""The alerts. What each means and what to do is a page of docs/runbooks, named after it.

Durations suit a canary interval of 30 s. A cold start of 45 minutes, a busy pair and a deployment scaled to zero must
alert nobody: rules ask for a healthy engine and for evidence of failure, never for the mere absence of success, or
wait longer than a cold start.
"""

from __future__ import annotations

from typing import Final

from monitoring import records
from monitoring.alerts_canary import CANARY, OBJECT, POD
from monitoring.alerts_objects import OBJECTS, OPERATOR
from monitoring.model import Alert, Group

ENGINE: Final = (
    Alert(
        name="DSV4EngineMetricsAbsent",
        severity="warning",
        lasting="10m",
        expr="""
        dsv4_pod:canary_engine_healthy:max == 1
        unless on (namespace, pod) dsv4_pod:engine_series:count
        """,
        summary=f"The engine's metrics are gone: {POD}",
        description="""
        The canary says that the engine is healthy, and no series of SGLang arrives from the pod under either spelling.
        Alerts on transfer, output length and speculation are silent.
        """,
    ),
    Alert(
        name="DSV4EngineWedged",
        severity="critical",
        lasting="5m",
        labels={"seen_by": "metrics", "kind": "generation"},
        # For pods without a canary, whose wedge nobody else would see.
        expr="""
        dsv4_pod:running_requests:sum > 0
        and dsv4_pod:decode_tokens:rate5m == 0
        and dsv4_pod:generation_tokens:rate5m == 0
        unless on (namespace, pod) dsv4_pod:engine_wedged:max
        """,
        summary=f"The engine has requests and makes no tokens: {POD}",
        description="""
        {{ $value }} requests run, and no token has come for five minutes and more. This pod has no canary to say more.
        """,
    ),
    Alert(
        name="DSV4TransferFailures",
        severity="warning",
        lasting="10m",
        # One burst, as when a pod goes with its requests, is over within the five minutes of the window.
        expr="""
        dsv4_pod:failed_requests:increase5m >= 3
        and on (namespace, deployment, fingerprint)
        (
          sum by (namespace, deployment, fingerprint) (dsv4_pod:failed_requests:increase5m)
          > 0.01 * (
            dsv4_generation:finished_requests:increase5m
            or 0 * sum by (namespace, deployment, fingerprint) (dsv4_pod:failed_requests:increase5m)
          )
        )
        """,
        summary=f"KV transfers keep failing: {POD}",
        description="""
        {{ $value | humanize }} requests failed in the last five minutes between prefill and decode, over one percent,
        and this has gone on for ten minutes. Users see HTTP 500 or broken streams.
        """,
    ),
)

TRANSFER: Final = (
    Alert(
        name="DSV4TransferSlow",
        severity="warning",
        lasting="15m",
        expr="""
        dsv4_pod:kv_transfer_speed_gigabytes_per_second:mean15m
        < on (namespace, deployment, fingerprint, role) group_left ()
        0.25 * quantile_over_time(0.5, dsv4_generation:kv_transfer_speed_gigabytes_per_second:avg[1d] offset 30m)
        and on (namespace, deployment, fingerprint, role)
        count_over_time(dsv4_generation:kv_transfer_speed_gigabytes_per_second:avg[1d] offset 30m) >= 240
        and on (namespace, deployment, fingerprint, role, pod)
        (
          dsv4_pod:kv_transfer_size_megabytes:mean15m
          >= on (namespace, deployment, fingerprint, role) group_left ()
          0.5 * quantile_over_time(0.5, dsv4_generation:kv_transfer_size_megabytes:avg[1d] offset 30m)
        )
        """,
        summary=f"KV moves at {{{{ $value | humanize }}}} GB/s, a fraction of its usual speed: {POD}",
        description="""
        Under a quarter of the median of the past day for this deployment, and transfers are not smaller than usual.
        Often UCX has fallen back from RDMA to TCP, or a port of the fabric is degraded.
        """,
    ),
)

OUTPUT: Final = (
    Alert(
        name="DSV4OutputLengthRatio",
        severity="warning",
        lasting="30m",
        expr="""
        dsv4_generation:output_tokens_per_request:mean30m
        / quantile_over_time(0.5, dsv4_generation:output_tokens_per_request:mean30m[1d] offset 1h)
        > 1.8
        and count_over_time(dsv4_generation:output_tokens_per_request:mean30m[1d] offset 1h) >= 480
        and dsv4_generation:load_back_tokens:increase1h > 0
        """,
        summary=f"Answers are {{{{ $value | humanize }}}} times as long as usual: {OBJECT}",
        description="""
        Mean output tokens of users' requests in the last 30 minutes against the median of the past day, while prefixes
        are reloaded from host memory. Loops of damaged KV do this; so does a new kind of work.
        """,
    ),
    Alert(
        name="DSV4SpecAcceptLengthDrop",
        severity="warning",
        lasting="15m",
        expr="""
        avg_over_time(dsv4_pod:spec_accept_length:max[15m])
        < on (namespace, deployment, fingerprint) group_left ()
        0.75 * quantile_over_time(0.5, dsv4_generation:spec_accept_length:avg[1d] offset 1h)
        and on (namespace, deployment, fingerprint)
        count_over_time(dsv4_generation:spec_accept_length:avg[1d] offset 1h) >= 240
        and on (namespace, deployment, fingerprint, role, pod) dsv4_pod:spec_accept_length:max
        """,
        summary=f"Speculation accepts only {{{{ $value | humanize }}}} tokens a step: {POD}",
        description="""
        Under three quarters of the median of the past day. The draft and the target disagree more than before: a cheap
        hint at damaged KV, or at a new kind of work. Decode is slower meanwhile.
        """,
    ),
)

LIVE: Final = (
    Alert(
        name="DSV4LiveToolCallCorruption",
        severity="critical",
        lasting="2m",
        labels={"against": "cold"},
        # z > 3: by chance once in 700 windows. Five damaged calls and two percent keep a single odd reply out.
        expr="""
        dsv4_generation:live_tool_calls_damaged:ratio15m{cache=~"host|device"} >= 0.02
        and dsv4_generation:live_tool_calls_damaged:zscore15m > 3
        and dsv4_generation:live_tool_calls_damaged:increase15m >= 5
        and dsv4_generation:live_tool_calls:increase15m >= 30
        and on (namespace, deployment, fingerprint)
        dsv4_generation:live_tool_calls:increase15m{cache="cold"} >= 20
        """,
        summary=(
            f"{{{{ $value | humanizePercentage }}}} of users' tool calls on {{{{ $labels.cache }}}} prefixes "
            f"are damaged: {OBJECT}"
        ),
        description="""
        Tool calls of live traffic that do not parse, break their schema, name an unknown tool, leak markup or loop are
        significantly more frequent on reused prefixes than on cold ones. That is what damaged KV looks like.
        """,
    ),
    Alert(
        name="DSV4LiveToolCallCorruption",
        severity="warning",
        lasting="10m",
        labels={"against": "absolute"},
        expr="""
        dsv4_generation:live_tool_calls_broken:increase15m
        / sum by (namespace, deployment, fingerprint) (dsv4_generation:live_tool_calls:increase15m)
        > 0.05
        and dsv4_generation:live_tool_calls_broken:increase15m >= 10
        and sum by (namespace, deployment, fingerprint) (dsv4_generation:live_tool_calls:increase15m) >= 50
        """,
        summary=f"{{{{ $value | humanizePercentage }}}} of users' tool calls are broken: {OBJECT}",
        description="""
        Calls whose arguments are no JSON, whose markup leaked into the text, or that loop, on any prefix. Cold ones
        may be hit as well: then a parser or template of the wrong dialect is more likely than KV.
        """,
    ),
)

GROUPS: Final = (
    Group("dsv4-canary", records.CANARY),
    Group("dsv4-engine", (*records.ENGINE, *ENGINE)),
    Group("dsv4-objects", (*records.OBJECTS, *OBJECTS)),
    # After the engine's and the operator's: what is absent is judged by what they saw.
    Group("dsv4-canary-alerts", CANARY),
    Group("dsv4-transfer", (*records.TRANSFER, *TRANSFER)),
    Group("dsv4-output", (*records.OUTPUT, *OUTPUT)),
    Group("dsv4-live", (*records.LIVE, *LIVE)),
    Group("dsv4-operator", (*records.OPERATOR, *OPERATOR)),
)

ALERT_NAMES: Final = tuple(
    dict.fromkeys(rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
)
