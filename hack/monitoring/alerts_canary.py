"""Alerts on what the canary sees: wrong answers, failing and missing proofs, wedges, silence."""

from __future__ import annotations

from typing import Final

from monitoring.model import Alert

POD = "{{ $labels.role }} pod {{ $labels.pod }} of {{ $labels.namespace }}/{{ $labels.deployment }}"
OBJECT = "{{ $labels.namespace }}/{{ $labels.deployment }}"

CANARY: Final = (
    Alert(
        name="DSV4Corruption",
        severity="critical",
        expr="dsv4_pod:canary_corruption_verdict:max == 2",
        summary=f"Wrong answers are proved: {POD}",
        description="""
        The canary asks for answers that it knows. Those on reloaded or cached prefixes come back wrong significantly
        more often than those on fresh prompts, so KV or index-K bytes are damaged. Users get wrong or garbled tool
        calls with HTTP status 200. The pod that is the cause (reason Corruption) is out of the router;
        a decode that sees its prefill's damage goes on serving. The object's status.blame names the cause.
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
        summary=f"Wrong answers, not proved yet: {POD}",
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
        # Corruption and wedges have alerts of their own, which say more.
        expr="""
        dsv4_pod:canary_ready:max == 0
        and dsv4_pod:canary_engine_healthy:max == 1
        and on (namespace, deployment, fingerprint, role, pod)
        dsv4_pod:canary_probes:increase10m{outcome="fail"} >= 3
        unless dsv4_pod:canary_corruption_verdict:max == 2
        unless dsv4_pod:engine_wedged:max == 1
        """,
        summary=f"Requests through this pod fail: {POD}",
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
        summary=f"No {{{{ $labels.role }}}} pod passes its canary: {OBJECT}",
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
        summary=f"One link fails: {POD} with {{{{ $labels.peer }}}}",
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
        summary=f"The engine lacks the guard that its spec needs: {POD}",
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
        summary=f"No probe has passed for 15 minutes, and none failed: {POD}",
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
        summary=f"No probe has passed for more than a cold start takes: {POD}",
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
        summary=f"No probe has ever passed, 75 minutes after the start: {POD}",
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
        summary=f"The canary cannot see ({{{{ $labels.what }}}}): {POD}",
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
        summary=f"The engine stands still{{{{ with $labels.kind }}}} ({{{{ . }}}}){{{{ end }}}}: {POD}",
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
        summary=f"The canary's metrics are gone: {POD}",
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
        summary=f"No canary of this deployment is scraped: {OBJECT}",
        description="""
        The operator hears the canaries, Prometheus does not. Every alert about the answers of this deployment is
        silent.
        """,
    ),
)
