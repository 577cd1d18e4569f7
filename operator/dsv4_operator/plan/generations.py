"""Which generation serves, which comes up, which goes.

A generation is all that shares a KV fingerprint. The stable Service's selector says which one serves; that is the only
state, and it is live. The newest generation takes over when it is whole; only then does the old one go, its router
first, so that running requests end before their engines do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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


def plan_generations(
    desired: str, pointed_at: str | None, existing: Collection[str], ready: Mapping[str, bool]
) -> GenerationPlan:
    """Decide for one deployment.

    Args:
        desired: fingerprint of the spec.
        pointed_at: fingerprint in the stable Service's selector, None when there is no Service.
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
