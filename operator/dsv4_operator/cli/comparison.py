"""Pure: what changing one spec into another does to each role, and which fields cause it.

Which field causes what is not listed anywhere: every changed field is applied alone to the old spec, and the builders
say whether a role's pods differ by it. So the answer is the operator's own, for fields that come later too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsv4_operator.api.constants import ANNOTATION_INPUTS, ENGINE_ROLES, LABEL_ROLE, Role
from dsv4_operator.api.v1alpha1 import DSV4Deployment, parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.cli.render import children_of
from dsv4_operator.desired import DesiredContext

ContextOf = Callable[[DSV4Deployment], "DesiredContext | None"]
"""Makes the builders' context of an object; None where its release is unknown."""


class RoleAction(StrEnum):
    """What happens to the pods of a role."""

    NONE = "None"
    IN_PLACE = "InPlace"
    NEW_GENERATION = "NewGeneration"


@dataclass(frozen=True, slots=True)
class RolePlan:
    """What happens to a role, and the spec fields that cause it."""

    action: RoleAction
    because: list[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer: per engine role, and the steps in their order."""

    roles: dict[Role, RolePlan]
    steps: list[str]


def first_plan(new: DesiredContext) -> Plan:
    """The plan when nothing runs yet."""
    roles = {role: RolePlan(RoleAction.NEW_GENERATION, ["spec"]) for role in ENGINE_ROLES}
    return Plan(roles, [f"create generation {new.fingerprint}: {_sizes(new)}", *_arrival(new)])


def compare(old: DSV4Deployment, new: DSV4Deployment, context_of: ContextOf) -> Plan:
    """The plan from `old` to `new`, which both have a context.

    Raises:
        ValueError: when one has none.
    """
    before, after = context_of(old), context_of(new)
    if before is None or after is None:
        raise ValueError("both objects need a known release")
    if before.fingerprint != after.fingerprint:
        because = _causes(old, new, context_of, lambda ctx: ctx.fingerprint)
        roles = {role: RolePlan(RoleAction.NEW_GENERATION, because) for role in ENGINE_ROLES}
        return Plan(roles, _generation_steps(before, after))
    roles = {}
    for role in ENGINE_ROLES:
        if _template(before, role) == _template(after, role):
            roles[role] = RolePlan(RoleAction.NONE, [])
        else:
            found = _causes(old, new, context_of, lambda ctx, role=role: _template(ctx, role))  # type: ignore[misc]
            roles[role] = RolePlan(RoleAction.IN_PLACE, found)
    return Plan(roles, _steps(before, after, roles))


# -- which field causes it


def changed_fields(old: Any, new: Any, path: str = "spec") -> Iterator[str]:
    """Paths at which two stored specs differ; lists count as one field."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from changed_fields(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path


def _causes(
    old: DSV4Deployment, new: DSV4Deployment, context_of: ContextOf, aspect: Callable[[DesiredContext], Any]
) -> list[str]:
    """The changed fields by which `aspect` differs; all of them where they do it only together."""
    before, after = old.spec.as_stored(), new.spec.as_stored()
    paths = list(changed_fields(before, after))
    reference = context_of(old)
    goal = context_of(new)
    assert reference is not None and goal is not None  # compare() has looked
    causes, unclear = [], []
    for path in paths:
        alone = _variant(old, before, after, [path], context_of)
        if alone is None:
            # Not valid by itself, as one of two model sources: without it, is the rest still the whole change?
            rest = _variant(new, after, before, [path], context_of)
            if rest is None:
                unclear.append(path)
            elif aspect(rest) != aspect(goal):
                causes.append(path)
        elif aspect(alone) != aspect(reference):
            causes.append(path)
    if unclear and not _explained(old, before, after, causes, context_of, aspect, goal):
        causes += unclear
    return [path for path in paths if path in causes] or paths


def _explained(
    old: DSV4Deployment,
    before: dict[str, Any],
    after: dict[str, Any],
    causes: list[str],
    context_of: ContextOf,
    aspect: Callable[[DesiredContext], Any],
    goal: DesiredContext,
) -> bool:
    """Whether the causes found so far make the whole difference."""
    variant = _variant(old, before, after, causes, context_of)
    return variant is not None and aspect(variant) == aspect(goal)


def _variant(
    base: DSV4Deployment, stored: dict[str, Any], other: dict[str, Any], paths: list[str], context_of: ContextOf
) -> DesiredContext | None:
    """The context of `stored` with the fields at `paths` as in `other`; None when that is no valid spec."""
    spec: dict[str, Any] = stored
    for path in paths:
        spec = _with_field(spec, other, path.split(".")[1:])
    try:
        deployment = parse_deployment(
            {"metadata": base.metadata.model_dump(by_alias=True, exclude_none=True), "spec": spec}
        )
    except InvalidSpecError:
        return None
    return context_of(deployment)


def _with_field(spec: dict[str, Any], other: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    key, *rest = keys
    result = dict(spec)
    if rest and isinstance(spec.get(key), dict) and isinstance(other.get(key), dict):
        result[key] = _with_field(spec[key], other[key], rest)
    elif key in other:
        result[key] = other[key]
    else:
        result.pop(key, None)
    return result


# -- what is done


def _workload(ctx: DesiredContext, role: Role) -> dict[str, Any]:
    return next(
        child
        for child in children_of(ctx)
        if child["kind"] in ("Deployment", "LeaderWorkerSet") and child["metadata"]["labels"].get(LABEL_ROLE) == role
    )


def _template(ctx: DesiredContext, role: Role) -> Any:
    """All of a role's workload that replaces its pods when it changes."""
    spec = _workload(ctx, role)["spec"]
    return spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]


def _sizes(ctx: DesiredContext) -> str:
    counts = [f"{ctx.spec.replicas * ctx.role_spec(role).replicas} {role.value}" for role in ENGINE_ROLES]
    return " and ".join(counts) + (f", {ctx.spec.router.replicas} router" if ctx.spec.router.enabled else "")


def _arrival(ctx: DesiredContext) -> list[str]:
    if ctx.spec.canary.enabled:
        steps = [f"wait until the canary of every engine of {ctx.fingerprint} passes"]
    else:
        steps = [f"wait until every engine of {ctx.fingerprint} answers (the canary is off, so nothing is proven)"]
    return [*steps, f"point Service {ctx.name} at {ctx.fingerprint}"] if ctx.spec.router.enabled else steps


def _generation_steps(old: DesiredContext, new: DesiredContext) -> list[str]:
    return [
        f"create generation {new.fingerprint} beside {old.fingerprint}: {_sizes(new)}",
        *_arrival(new),
        f"drain generation {old.fingerprint}: remove its router, then its engines",
        *_other_changes(old, new, generation=False),
    ]


def _steps(old: DesiredContext, new: DesiredContext, roles: dict[Role, RolePlan]) -> list[str]:
    steps = []
    for role in ENGINE_ROLES:
        before, after = _workload(old, role), _workload(new, role)
        counts = before["spec"]["replicas"], after["spec"]["replicas"]
        if counts[0] != counts[1]:
            steps.append(f"scale {role.value} from {counts[0]} to {counts[1]} engines; no running pod is replaced")
        if roles[role].action is RoleAction.IN_PLACE:
            rollout = new.spec.rollout
            steps.append(
                f"roll {role.value} in generation {new.fingerprint}: at most {rollout.max_surge} units more and "
                f"{rollout.max_unavailable} units fewer at a time, each new pod gated by its readiness"
            )
    return [*steps, *_other_changes(old, new, generation=True)]


def _other_changes(old: DesiredContext, new: DesiredContext, *, generation: bool) -> list[str]:
    """Changes of children that are no engine workloads; of those named after the generation only when it stays."""
    before, after = ({_key(child): child for child in children_of(ctx)} for ctx in (old, new))
    steps = []
    for key in [*after, *(key for key in before if key not in after)]:
        kind, name = key
        mine, wanted = before.get(key), after.get(key)
        of_generation = old.fingerprint in name or new.fingerprint in name
        if mine == wanted or (of_generation and not generation):
            continue
        engine = (wanted or mine or {})["metadata"]["labels"].get(LABEL_ROLE) in ENGINE_ROLES
        if kind == "Service" and name == new.name and not generation and mine and wanted:
            mine, wanted = ({**child["spec"], "selector": None} for child in (mine, wanted))
            if mine == wanted:
                continue
        if mine is None:
            steps.append(f"create {kind} {name}")
        elif wanted is None:
            steps.append(f"delete {kind} {name}")
        elif engine and kind in ("Deployment", "LeaderWorkerSet"):
            steps += _workload_settings(kind, name, mine, wanted)
        else:
            steps.append(f"update {kind} {name}{_effect(kind, mine, wanted)}")
    return steps


def _key(child: dict[str, Any]) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]


def _workload_settings(kind: str, name: str, mine: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A step when a workload differs by more than its size and its pods, such as in how it rolls."""

    def rest(workload: dict[str, Any]) -> dict[str, Any]:
        spec = workload["spec"]
        return {key: spec[key] for key in spec if key not in ("replicas", "template", "leaderWorkerTemplate")}

    annotations = [
        {k: v for k, v in workload["metadata"].get("annotations", {}).items() if k != ANNOTATION_INPUTS}
        for workload in (mine, wanted)
    ]
    if rest(mine) == rest(wanted) and annotations[0] == annotations[1]:
        return []
    return [f"update {kind} {name}: how it rolls, no pod is replaced by that"]


def _effect(kind: str, mine: dict[str, Any], wanted: dict[str, Any]) -> str:
    if kind == "Deployment":
        same = mine["spec"]["template"] == wanted["spec"]["template"]
        return ", no pod is replaced" if same else ", which rolls the router pods"
    if kind == "ConfigMap":
        return ", which running canaries read again"
    return ""
