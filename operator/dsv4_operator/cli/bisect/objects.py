"""What an arm is in a cluster: a DSV4Deployment like the given one, or one engine without disaggregation. Pure.

Arms are made from the given object's spec and never carry its name. They change what would get in the way of a
measurement: a canary takes corrupted pods out of service, which is right in production and would hide the fault here.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from dsv4_operator.api.constants import (
    API_VERSION,
    CONTAINER_ENGINE,
    ENGINE_PORT,
    GROUP,
    KIND,
    MAX_NAME_LENGTH,
    SERVICE_PORT,
    Role,
)
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.cli.bisect.factors import Setting
from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.desired.engine_workload import build_engine_workload
from dsv4_operator.desired.soak_job import LABEL_RUN
from dsv4_operator.engine.command import disables_overlap
from dsv4_operator.engine.releases import Release
from dsv4_operator.policy import RULES_BY_ID

LABEL_BISECT: Final = f"{GROUP}/bisect"
"""On every object of an arm: the name of the given object."""
LABEL_TESTING: Final = f"{GROUP}/testing"
"""What a person puts on an object ("true") that bisect may edit."""
DRAIN_SECONDS: Final = 5
GUARD_RULE: Final = "guard-unchecked"
_GUARD_REASON: Final = "an arm of dsv4ctl bisect, which reads the guard's marker itself and runs no canary"
_MARKER: Final = re.compile(r"dsv4_guard_info\{([^}]*)\} 1(\.0+)?\s*$")
_PROCESS: Final = re.compile(r'process="(\w+)"')
_PAIR_FLAGS: Final = (
    "--disaggregation-mode",
    "--disaggregation-transfer-backend",
    "--disaggregation-bootstrap-port",
    "--disaggregation-ib-device",
)
_PAIR_SWITCHES: Final = ("--disaggregation-enable-kv-checksum",)


def setting_of(spec: DSV4DeploymentSpec, release: Release, image: str | None) -> Setting:
    """The factors of a spec. Early send is off: the operator turns it off wherever it exists (policy `early-send`)."""
    return Setting(
        index_k=spec.index_k.dtype.value,
        hicache=spec.hi_cache.enabled,
        overlap=not disables_overlap(spec, release),
        early_send=False,
        pair=True,
        image=image or "",
    )


def arm_name(given: str, arm: str) -> str:
    """Name of an arm's object: of a length that a DSV4Deployment may have, and never the given one's."""
    name = f"{given}-bs-{arm}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: MAX_NAME_LENGTH - 7].rstrip('-.')}-{digest}"


def arm_spec(raw: Mapping[str, Any], given: Setting, setting: Setting) -> dict[str, Any]:
    """The spec of a pair arm: the given one with the changed factors, one unit, no canary, no outside access."""
    spec = copy.deepcopy(dict(raw["spec"]))

    def part(name: str) -> dict[str, Any]:
        spec[name] = dict(spec.get(name) or {})
        found: dict[str, Any] = spec[name]
        return found

    if setting.index_k != given.index_k:
        part("indexK")["dtype"] = setting.index_k
    if setting.hicache != given.hicache:
        part("hiCache")["enabled"] = setting.hicache
    if setting.overlap != given.overlap or setting.image != given.image:
        # Said outright with another image too: Auto could mean something else on its release.
        spec["overlapSchedule"] = "Enabled" if setting.overlap else "Disabled"
    if setting.image != given.image:
        part("engine")["image"] = setting.image
        # The release is then that of the new image's tag.
        part("engine").pop("release", None)
    spec["replicas"] = 1
    spec["paused"] = False
    part("canary")["enabled"] = False
    part("rollout")["drainSeconds"] = DRAIN_SECONDS
    part("rollout").pop("soak", None)
    part("router").pop("service", None)
    part("router")["enabled"] = True
    if part("hiCache").get("enabled"):
        part("hiCache")["onCorruption"] = "Alert"
    if GUARD_RULE in RULES_BY_ID and needs_guard(spec):
        allowed = [item for item in part("policy").get("allow") or [] if item["rule"] != GUARD_RULE]
        spec["policy"]["allow"] = [*allowed, {"rule": GUARD_RULE, "reason": _GUARD_REASON}]
    return spec


def needs_guard(spec: Mapping[str, Any]) -> bool:
    """Whether the spec works as written with the gated image's plugin alone."""
    bf16 = (spec.get("indexK") or {}).get("dtype") == "BF16"
    return bf16 or bool((spec.get("network") or {}).get("checksum"))


def shows_guard(metrics: str, index_k: str) -> bool:
    """Whether an engine's metrics carry the plugin's marker with that format of index-K, in both processes."""
    shown = set()
    for line in metrics.splitlines():
        found = _MARKER.match(line)
        if found and f'index_k="{index_k.lower()}"' in found[1]:
            shown |= set(_PROCESS.findall(found[1]))
    return {"api", "scheduler"} <= shown


def pair_object(name: str, given: str, run: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The DSV4Deployment of an arm."""
    metadata = {"name": name, "labels": {LABEL_BISECT: given, LABEL_RUN: run, LABEL_TESTING: "true"}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": dict(spec)}


def alone_objects(ctx: DesiredContext, name: str, given: str, run: str) -> list[dict[str, Any]]:
    """Deployment and Service of one engine that does both: the prefill engine without what makes it half of a pair.

    No label that the operator selects by, so that it leaves them alone. Raises ValueError for an engine on several
    nodes.
    """
    workload = build_engine_workload(ctx, Role.PREFILL)
    if workload["kind"] != "Deployment":
        raise ValueError("the prefill engine takes several nodes; one server is made for one node only")
    labels = {"app.kubernetes.io/name": "dsv4-bisect", LABEL_BISECT: given, LABEL_RUN: run}
    metadata = {"name": name, "labels": labels}
    template = copy.deepcopy(workload["spec"]["template"])
    template["metadata"] = {"labels": labels}
    pod = template["spec"]
    pod.pop("initContainers", None)
    pod["serviceAccountName"] = "default"
    pod["volumes"] = [volume for volume in pod["volumes"] if volume.get("name") != "canary-settings"]
    for container in pod["containers"]:
        if container["name"] == CONTAINER_ENGINE:
            container["args"] = without_pair(container["args"])
            container.pop("livenessProbe", None)
            container["readinessProbe"] = {
                "httpGet": {"path": ctx.release.ready_endpoint, "port": ENGINE_PORT[Role.PREFILL]},
                "periodSeconds": 10,
                "timeoutSeconds": 25,
            }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "selector": {LABEL_RUN: run, LABEL_BISECT: given},
                "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": ENGINE_PORT[Role.PREFILL]}],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "progressDeadlineSeconds": ctx.spec.rollout.progress_deadline_seconds,
                "selector": {"matchLabels": {LABEL_RUN: run, LABEL_BISECT: given}},
                "template": template,
            },
        },
    ]


def without_pair(words: list[str]) -> list[str]:
    """Engine arguments without those of the disaggregation."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _PAIR_FLAGS:
            skip = True
        elif word not in _PAIR_SWITCHES:
            kept.append(word)
    return kept
