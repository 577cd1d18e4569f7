"""Which generation serves, which comes up, which goes.

A generation is all that shares a KV fingerprint. The stable Service's selector says which one serves; that is the only
state, and it is live. The newest generation takes over when it is whole; only then does the old one go, its router
first, so that running requests end before their engines do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dsv4_operator.api.v1alpha1.status import GenerationState


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Where traffic goes and what may be removed.

    `serving` is where the stable Service should point. `leaving` generations lose their router now, and the rest of
    their objects once no router pod of theirs is left.
    """

    serving: str
    switched: bool
    states: Mapping[str, GenerationState]

    @property
    def leaving(self) -> set[str]:
        """Fingerprints to remove."""
        return {fp for fp, state in self.states.items() if state is GenerationState.LEAVING}


@dataclass(frozen=True, slots=True)
class GenerationView:
    """A live generation: when its engines were made (RFC 3339), whether it is whole, and whether it answers at all."""

    fingerprint: str
    since: str
    whole: bool
    """Every engine's canary passes and its routers are Ready."""
    answers: bool
    """A pod of each engine role is Ready."""


def serving_without_pointer(generations: Iterable[GenerationView]) -> str | None:
    """Which generation serves where no Service says so: the router is off, or its Service was deleted.

    The oldest whole one; else the oldest that answers; else the oldest. So one that comes up never displaces one that
    serves because of a pod that is not Ready for a moment.
    """
    ranked = sorted(generations, key=lambda g: (not g.whole, not g.answers, g.since, g.fingerprint))
    return ranked[0].fingerprint if ranked else None


def hold(plan: GenerationPlan, pointed_at: str | None) -> GenerationPlan:
    """The plan while traffic still goes to `pointed_at`: the switch was not carried out, so that one stays."""
    if pointed_at is None or pointed_at == plan.serving or pointed_at not in plan.states:
        return plan
    states = {**plan.states, plan.serving: GenerationState.STARTING, pointed_at: GenerationState.SERVING}
    return replace(plan, serving=pointed_at, switched=False, states=states)


def plan_generations(
    desired: str, pointed_at: str | None, existing: Collection[str], ready: Mapping[str, bool]
) -> GenerationPlan:
    """Decide for one deployment.

    Args:
        desired: fingerprint of the spec.
        pointed_at: fingerprint in the stable Service's selector; without a Service, serving_without_pointer's.
        existing: fingerprints of live objects.
        ready: whether a generation is whole: every engine's canary passes and its routers are Ready.
    """
    serving = desired
    if pointed_at is not None and pointed_at != desired and pointed_at in existing and not ready.get(desired, False):
        serving = pointed_at
    states = dict.fromkeys(existing, GenerationState.LEAVING)
    states[desired] = GenerationState.STARTING
    states[serving] = GenerationState.SERVING if ready.get(serving, False) else states[serving]
    if serving != desired:
        states[serving] = GenerationState.SERVING
    return GenerationPlan(serving=serving, switched=pointed_at not in (None, serving), states=states)
