"""Alerts on what the operator says about a deployment (its router, whether it serves), and on the operator itself.

A deployment that is paused is in somebody's hands and alerts nobody; Progressing is Unknown then, and only then.
"""

from __future__ import annotations

from typing import Final

from monitoring.alerts_canary import OBJECT
from monitoring.model import Alert

OBJECTS: Final = (
    Alert(
        name="DSV4RouterDrift",
        severity="warning",
        lasting="5m",
        expr="dsv4_object:router_drift:max > 0",
        summary=f"A router's worker list is not the wanted one: {OBJECT}",
        description="""
        {{ $value }} routers have another list than the operator published. Requests may
        go to a pod that fails its canary, or a good pod idles.
        """,
    ),
    Alert(
        name="DSV4RouterDown",
        severity="critical",
        lasting="5m",
        labels={"engines": "all"},
        # Ready stays True where spec.router.enabled is false, and while a router whose list drifts serves.
        expr="""
        max by (namespace, deployment) (dsv4_object:condition:max{type="RouterAvailable",status="False"} == 1)
        and on (namespace, deployment) dsv4_object:condition:max{type="Ready",status="False"} == 1
        and on (namespace, deployment) dsv4_object:condition:max{type="CanaryPassing",status="True"} == 1
        unless on (namespace, deployment) dsv4_object:condition:max{type="Progressing",status="Unknown"} == 1
        """,
        summary=f"No router is available, and every engine's canary passes: {OBJECT}",
        description="""
        Requests through the stable Service reach nobody. Canaries do not go through the router, so they see nothing
        of it. The message of RouterAvailable names the pod and what it waits for.
        """,
    ),
    Alert(
        name="DSV4RouterDown",
        severity="critical",
        # Pods that leave drain for 338 s by default and say meanwhile that they are well.
        lasting="15m",
        labels={"engines": "some"},
        # One pod of many that loads or fails takes CanaryPassing away from the whole deployment. What is False here is
        # True or Unknown with zero replicas, whose last pods may drain for long.
        expr="""
        max by (namespace, deployment) (dsv4_object:condition:max{type="RouterAvailable",status="False"} == 1)
        and on (namespace, deployment) dsv4_object:condition:max{type="Ready",status="False"} == 1
        and on (namespace, deployment)
        dsv4_object:condition:max{type=~"PrefillAvailable|DecodeAvailable|CanaryPassing",status="False"} == 1
        and on (namespace, deployment) dsv4_generation:proved_roles:count == 2
        unless on (namespace, deployment) dsv4_object:condition:max{type="Progressing",status="Unknown"} == 1
        """,
        summary=f"No router is available, and a prefill and a decode pass their canaries: {OBJECT}",
        description="""
        Requests through the stable Service reach nobody, though a pair is there that could serve them. Other engines
        of this deployment load or fail, which is a second matter.
        """,
    ),
    Alert(
        name="DSV4NotServing",
        severity="critical",
        # Twice the longest cold start, and the default of rollout.progressDeadlineSeconds.
        lasting="90m",
        # Two minutes bridge an operator that is replaced and a missed scrape: either would begin the 90 minutes anew.
        # Zero replicas: both roles are available, with no pod each, and no engine runs. The canary switched off, and
        # the router down: both roles are available as well, but engines run.
        expr="""
        max by (namespace, deployment) (
          last_over_time(dsv4_object:condition:max{type="Ready",status="False"}[2m])
        )
        unless on (namespace, deployment) dsv4_object:condition:max{type="Ready",status="True"} == 1
        and on (namespace, deployment)
        (
          last_over_time(dsv4_object:condition:max{type=~"PrefillAvailable|DecodeAvailable",status="False"}[2m])
          or dsv4_pod:engine_series:count
        )
        unless on (namespace, deployment) dsv4_object:condition:max{type="Progressing",status="Unknown"} == 1
        unless on (namespace, deployment)
        ALERTS{alertname=~"DSV4RouterDown|DSV4CanaryFailing",alertstate="firing",severity="critical"}
        """,
        summary=f"Nothing has served for 90 minutes: {OBJECT}",
        description="""
        Engines are wanted, and no pair behind the stable Service has been ready for longer than a cold start takes.
        The message of Ready names the first thing that holds the deployment back.
        """,
    ),
)

OPERATOR: Final = (
    Alert(
        name="DSV4OperatorDown",
        severity="warning",
        lasting="10m",
        # Only an operator that was scraped here within the week can be missed, and only where something serves: after
        # an uninstall the past alone would alert for that week.
        expr="""
        last_over_time(dsv4_operator:leader:max[7d])
        unless on (namespace) dsv4_operator:leader:max == 1
        and on ()
        count(dsv4_pod:canary_ready:max or dsv4_pod:engine_series:count{deployment!=""}) > 0
        """,
        summary="No operator leads in {{ $labels.namespace }}",
        description="""
        Serving goes on. The routers' lists, rolls and status stand still: an engine that fails its canary stays
        listed. Alerts on a router or on a deployment that does not serve are silent meanwhile.
        """,
    ),
)
