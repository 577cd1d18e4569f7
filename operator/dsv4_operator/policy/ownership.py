"""Rules about what the operator owns: it cannot be set beside it, neither as argument nor in the overlay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dsv4_operator.api.constants import CONTAINER_CANARY, CONTAINER_ENGINE
from dsv4_operator.engine.flags import OWNED_ENV
from dsv4_operator.policy.arguments import cut
from dsv4_operator.policy.claims import is_claimed
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

GUARDED_CONTAINER_FIELDS: Final = (
    "command",
    "args",
    "image",
    "ports",
    "startupProbe",
    "livenessProbe",
    "readinessProbe",
)
"""What the overlay cannot change in the engine's container; desired/overlay.py puts it back."""
GUARDED_POD_FIELDS: Final = (
    "serviceAccountName",
    "serviceAccount",
    "restartPolicy",
    "hostNetwork",
    "hostIPC",
    "terminationGracePeriodSeconds",
)
GUARDED_VOLUMES: Final = ("model", "canary-settings")
_OWN_LABELS: Final = ("app.kubernetes.io/", "serving.dsv4.dev/")
_POD_REMEDY: Final = {
    "hostNetwork": "set spec.network.hostNetwork",
    "hostIPC": "set spec.network.hostIPC",
    "terminationGracePeriodSeconds": "set spec.rollout.drainSeconds",
}


def _remedy(field: str) -> str:
    """What to do instead: `field` names ours, or says after "nothing: " why there is none."""
    why = field.removeprefix("nothing: ")
    return f"remove it and use {field}" if why == field else f"remove it, nothing replaces it: {why}"


def _owned_flags(subject: Subject) -> Iterator[Remark]:
    for argument in subject.arguments:
        if argument.owned is not None and not is_claimed(argument, subject.known):
            # The name alone: a value may be a key, and findings go into status and events.
            yield (
                argument.path,
                f"{argument.written} sets {argument.owned.name}, which the operator owns, so that both roles "
                f"stay compatible and policy sees it; {_remedy(argument.owned.field)}",
            )


def _owned_env(subject: Subject) -> Iterator[Remark]:
    for variable in subject.variables:
        if variable.name in OWNED_ENV:
            yield (
                variable.path,
                f"{variable.name} is set by the operator itself, and another value could break the pair; "
                f"{_remedy(OWNED_ENV[variable.name])}",
            )


def _overlay(subject: Subject) -> Iterator[Remark]:
    for role, spec in subject.roles():
        base = f"spec.{role}.podTemplate"
        for path, remedy in _guarded_in(spec.pod_template or {}):
            yield (
                f"{base}.{path}",
                f"the overlay sets {path}, which the operator puts back, because it is part of what makes the pair "
                f"safe: it has no effect; {remedy}",
            )


def _guarded_in(overlay: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Paths in the overlay that are put back, with the remedy. Total: the overlay may be any object."""
    labels = _mapping(_mapping(overlay.get("metadata")).get("labels"))
    for label in labels:
        if label.startswith(_OWN_LABELS):
            yield f"metadata.labels[{cut(label)}]", "remove it, or use a label of your own"
    pod = _mapping(overlay.get("spec"))
    for field in GUARDED_POD_FIELDS:
        if pod.get(field) is not None:
            yield f"spec.{field}", _POD_REMEDY.get(field, "remove it")
    for volume in _items(pod.get("volumes")):
        if volume.get("name") in GUARDED_VOLUMES:
            yield f"spec.volumes[{volume['name']}]", "remove it, weights come from spec.model.source"
    for group in ("containers", "initContainers"):
        for container in _items(pod.get(group)):
            yield from _guarded_in_container(f"spec.{group}", container)


def _guarded_in_container(group: str, container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = container.get("name")
    path = f"{group}[{name}]"
    if name == CONTAINER_CANARY:
        yield path, "remove it, the canary is set by spec.canary alone"
    if name != CONTAINER_ENGINE:
        return
    for field in GUARDED_CONTAINER_FIELDS:
        if container.get(field) is not None:
            yield f"{path}.{field}", "remove it, and use spec.engine or the role's extraArgs"
    for variable in _items(container.get("env")):
        variable_name = variable.get("name")
        if isinstance(variable_name, str) and variable_name in OWNED_ENV:
            yield f"{path}.env[{variable_name}]", _remedy(OWNED_ENV[variable_name])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())


RULES = (
    Rule(
        id="owned-flag",
        action=Action.REFUSE,
        title="Flags that the operator owns",
        source="this operator",
        explanation=(
            "Some flags decide whether prefill and decode understand each other, which port answers, or what policy "
            "must know. They have fields of their own in the spec, or one safe value. The same flag in extraArgs, also "
            "abbreviated, would win over ours, since SGLang takes the last one."
        ),
        check=_owned_flags,
        allowable=False,
    ),
    Rule(
        id="owned-env",
        action=Action.REFUSE,
        title="Variables that the operator owns",
        source="this operator",
        explanation=(
            "As with flags: the pod's address, the transport of KV, early send and the release of pages after aborts "
            "are decided by the operator, per role and release."
        ),
        check=_owned_env,
        allowable=False,
    ),
    Rule(
        id="overlay-guarded-field",
        action=Action.WARN,
        title="Overlay on what the operator guards",
        source="this operator",
        explanation=(
            "podTemplate may add to the pod, but what makes the pair safe is put back after the merge: labels and "
            "selectors, the engine's command, image, ports and probes, the canary, the weights and owned variables. A "
            "field that is put back has no effect, which this warning says."
        ),
        check=_overlay,
    ),
)
