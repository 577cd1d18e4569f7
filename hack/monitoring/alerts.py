"""The alerts. What each means and what to do is a page of docs/runbooks, named after it.

Durations suit a canary interval of 30 s. A cold start of 45 minutes, a busy pair and a deployment scaled to zero must
alert nobody: rules ask for a healthy engine and for evidence of failure, never for the mere absence of success, or
wait longer than a cold start.
"""

from __future__ import annotations

from typing import Final

from monitoring import records
from monitoring.model import Alert, Group

_POD = "{{ $labels.role }} pod {{ $labels.pod }} of {{ $labels.namespace }}/{{ $labels.deployment }}"
_OBJECT = "{{ $labels.namespace }}/{{ $labels.deployment }}"

CANARY: Final = (
    Alert(
        name="DSV4Corruption",
        severity="critical",
        expr="dsv4_pod:canary_corruption_verdict:max == 2",
        summary=f"Wrong answers are proved: {_POD}",
        description="""
        The canary asks for answers that it knows. Those on reloaded or cached prefixes come back wrong significantly
        more often than those on fresh prompts, so KV or index-K bytes are damaged. Users get wrong or garbled tool
        calls with HTTP status 200. The pod is out of the router.
        """,
    ),
    Alert(
        name="DSV4CorruptionSuspected",
        severity="warning",
        lasting="5m",
        expr="""
        dsv4_pod:canary_corruption_verdict:max == 1
        and dsv4_pod:canary_window_failures:sum >= 2
        """,
        summary=f"Wrong answers, not proved yet: {_POD}",
        description="""
        At least two of the canary's probes in its window came back damaged, too few to tell damage by cached prefixes
        from a habit of the model. The pod goes on serving.
        """,
    ),
    Alert(
        name="DSV4CanaryFailing",
        severity="warning",
        lasting="2m",
        labels={"check": "pod"},
        expr="""
        dsv4_pod:canary_ready:max == 0
        and dsv4_pod:canary_engine_healthy:max == 1
        and on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:canary_probes:increase10m{outcome="fail"} >= 3
        """,
        summary=f"Requests through this pod fail: {_POD}",
        description="""
        The engine's own health check is green, but tool calls through it and a peer keep failing, so the canary took
        it out of the router.
        """,
    ),
    Alert(
        name="DSV4CanaryFailing",
        severity="critical",
        lasting="2m",
        labels={"check": "role"},
        expr="""
        max by (namespace, deployment, role) (dsv4_pod:canary_ready:max) == 0
        and on (namespace, deployment, role)
        max by (namespace, deployment, role) (
          dsv4_pod:canary_probes:increase10m{outcome="fail"} >= 3
          and on (namespace, deployment, fingerprint, role, pod)
          dsv4_pod:canary_engine_healthy:max == 1
        )
        """,
        summary=f"No {{{{ $labels.role }}}} pod passes its canary: {_OBJECT}",
        description="""
        Every pod of this role is out of the router, and at least one of them fails its probes with a healthy engine.
        The deployment serves nobody.
        """,
    ),
    Alert(
        name="DSV4CanaryFailing",
        severity="warning",
        lasting="10m",
        labels={"check": "link"},
        expr="""
        dsv4_pod:canary_peer_result:max == 0
        and on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:canary_ready:max == 1
        """,
        summary=f"One link fails: {_POD} with {{{{ $labels.peer }}}}",
        description="""
        Probes through this pod and this one peer keep failing, while they pass with other peers. Both pods stay in
        the router, and requests that happen to meet on this link fail.
        """,
    ),
    Alert(
        name="DSV4CanaryFailing",
        severity="critical",
        lasting="5m",
        labels={"check": "guard"},
        expr="""
        dsv4_pod:canary_guard_missing:max == 1
        and dsv4_pod:canary_engine_healthy:max == 1
        """,
        summary=f"The engine lacks the guard that its spec needs: {_POD}",
        description="""
        Index-K in bf16 needs the plugin dsv4_guard in API and scheduler processes, and the engine does not show it.
        The pod never becomes Ready. Most often the engine image is not the gated one.
        """,
    ),
    Alert(
        name="DSV4NoCanarySuccess",
        severity="warning",
        lasting="5m",
        labels={"since": "15m"},
        # Loading and absent peers are below zero, busy ones too; failing pods have an alert of their own.
        expr="""
        time() - (dsv4_pod:canary_last_success_timestamp_seconds:max > 0) > 900
        and dsv4_pod:canary_engine_healthy:max == 1
        and on (namespace, deployment, fingerprint, role, pod)
        (count by (namespace, deployment, fingerprint, role, pod) (dsv4_pod:canary_peer_result:max >= 0) > 0)
        unless on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:canary_probes:increase10m{outcome=~"fail|busy"} > 0
        """,
        summary=f"No probe has passed for 15 minutes, and none failed: {_POD}",
        description="""
        The engine is healthy and has peers, yet nothing has been proved for {{ $value | humanizeDuration }}. The
        canary itself may hang, or every probe is inconclusive.
        """,
    ),
    Alert(
        name="DSV4NoCanarySuccess",
        severity="warning",
        lasting="5m",
        labels={"since": "75m"},
        expr="""
        time() - (dsv4_pod:canary_last_success_timestamp_seconds:max > 0) > 4500
        and on (namespace, deployment, fingerprint, role, pod)
        (count by (namespace, deployment, fingerprint, role, pod) (dsv4_pod:canary_peer_result:max) > 0)
        """,
        summary=f"No probe has passed for more than a cold start takes: {_POD}",
        description="""
        The last proof is {{ $value | humanizeDuration }} old. A cold start takes at most 45 minutes, so the pod is not
        just loading.
        """,
    ),
    Alert(
        name="DSV4NoCanarySuccess",
        severity="warning",
        lasting="75m",
        labels={"since": "start"},
        expr="""
        dsv4_pod:canary_last_success_timestamp_seconds:max == 0
        and on (namespace, deployment, fingerprint, role, pod)
        (count by (namespace, deployment, fingerprint, role, pod) (dsv4_pod:canary_peer_result:max) > 0)
        """,
        summary=f"No probe has ever passed, 75 minutes after the start: {_POD}",
        description="""
        The pod has peers and has never been proved. A cold start takes at most 45 minutes.
        """,
    ),
    Alert(
        name="DSV4CanaryBlind",
        severity="warning",
        lasting="30m",
        expr="""
        dsv4_pod:canary_blind:max == 1
        and on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:canary_engine_healthy:max == 1
        """,
        summary=f"The canary cannot see ({{{{ $labels.what }}}}): {_POD}",
        description="""
        The pod serves, but corruption of one kind would go unnoticed. `probe`: no usable probe for corruption is left.
        `host`: HiCache is on, and no probe has met a prefix reloaded from host memory for long. `metrics`: the engine's
        metrics cannot be read. `length`: the prompt is too short for sparse attention to choose.
        """,
    ),
    Alert(
        name="DSV4EngineWedged",
        severity="critical",
        lasting="1m",
        labels={"seen_by": "canary"},
        expr="""
        (
          dsv4_pod:engine_wedge_info:max == 1
          and on (namespace, deployment, fingerprint, role, pod)
          dsv4_pod:engine_wedged:max == 1
        )
        or on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:engine_wedged:max == 1
        """,
        summary=f"The engine stands still{{{{ with $labels.kind }}}} ({{{{ . }}}}){{{{ end }}}}: {_POD}",
        description="""
        The process lives and its health check may be green, but work that it took does not move. The canary has taken
        the pod out of the router; requests in it hang until they time out.
        """,
    ),
    Alert(
        name="DSV4CanaryAbsent",
        severity="warning",
        lasting="15m",
        labels={"level": "pod"},
        expr="""
        dsv4_pod:canary_target_up:max == 0
        or
        dsv4_pod:engine_series:count
        unless on (namespace, pod) dsv4_pod:canary_ready:max
        and on (namespace, pod) last_over_time(dsv4_pod:canary_ready:max[6h])
        """,
        summary=f"The canary's metrics are gone: {_POD}",
        description="""
        The pod exists, and its canary cannot be scraped. While that lasts, no other alert about this pod's answers can
        fire.
        """,
    ),
    Alert(
        name="DSV4CanaryAbsent",
        severity="warning",
        lasting="15m",
        labels={"level": "deployment"},
        # CanaryPassing is Unknown while pods start, with zero replicas and with the canary switched off.
        expr="""
        max by (namespace, deployment) (
          dsv4_object:condition:max{type="CanaryPassing",status=~"True|False"} == 1
        )
        unless on (namespace, deployment)
        count by (namespace, deployment) (dsv4_pod:canary_ready:max)
        """,
        summary=f"No canary of this deployment is scraped: {_OBJECT}",
        description="""
        The operator hears the canaries, Prometheus does not. Every alert about the answers of this deployment is
        silent.
        """,
    ),
)

ENGINE: Final = (
    Alert(
        name="DSV4EngineMetricsAbsent",
        severity="warning",
        lasting="10m",
        expr="""
        dsv4_pod:canary_engine_healthy:max == 1
        unless on (namespace, pod) dsv4_pod:engine_series:count
        """,
        summary=f"The engine's metrics are gone: {_POD}",
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
        summary=f"The engine has requests and makes no tokens: {_POD}",
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
        summary=f"KV transfers keep failing: {_POD}",
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
        summary=f"KV moves at {{{{ $value | humanize }}}} GB/s, under a quarter of its usual speed: {_POD}",
        description="""
        Compared with the median of the past day for this deployment, and transfers are not smaller than usual. Often
        UCX has fallen back from RDMA to TCP, or a port of the fabric is degraded.
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
        summary=f"Answers are {{{{ $value | humanize }}}} times as long as usual: {_OBJECT}",
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
        summary=f"Speculation accepts only {{{{ $value | humanize }}}} tokens a step: {_POD}",
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
            f"{{{{ $value | humanizePercentage }}}} of users' tool calls on {{{{ $labels.cache }}}} prefixes are damaged: "
            f"{_OBJECT}"
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
        summary=f"{{{{ $value | humanizePercentage }}}} of users' tool calls are broken: {_OBJECT}",
        description="""
        Calls whose arguments are no JSON, whose markup leaked into the text, or that loop, on any prefix. Cold ones
        may be hit as well: then a parser or template of the wrong dialect is more likely than KV.
        """,
    ),
)

OBJECTS: Final = (
    Alert(
        name="DSV4RouterDrift",
        severity="warning",
        lasting="5m",
        expr="dsv4_object:router_drift:max > 0",
        summary=f"A router's worker list is not the wanted one: {_OBJECT}",
        description="""
        {{ $value }} workers differ between the list that the operator published and what the routers say. Requests may
        go to a pod that fails its canary, or a good pod idles.
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
)

ALERT_NAMES: Final = tuple(
    dict.fromkeys(rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
)
