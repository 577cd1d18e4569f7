"""Everything that one pass saw of one deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.conditions import Reason
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.api.v1alpha1.status import BlameKind
from dsv4_operator.observe.blame import Charge
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.reports import CanaryReport
from dsv4_operator.observe.workloads import WorkloadView
from dsv4_operator.plan.generations import GenerationPlan
from dsv4_operator.policy import Finding


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong in the pass itself: a name that is taken, an API that is missing, a rejected child."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that one pass saw of one deployment."""

    name: str
    namespace: str
    generation: int
    spec: DSV4DeploymentSpec | None
    pods: Sequence[PodView] = ()
    workloads: Mapping[tuple[str, Role], WorkloadView] = field(default_factory=dict)
    reports: Mapping[str, CanaryReport] = field(default_factory=dict)
    """By pod uid."""
    blame: Mapping[str, Sequence[Charge]] = field(default_factory=dict)
    """By fingerprint."""
    plan: GenerationPlan | None = None
    desired: str = ""
    """Fingerprint of the spec; empty when it is invalid."""
    findings: Sequence[Finding] = ()
    spec_problems: Sequence[tuple[str, str]] = ()
    faults: Sequence[Fault] = ()
    router_drift: Sequence[str] = ()
    cluster_domain: str = "cluster.local"

    @property
    def serving(self) -> str:
        """Fingerprint of the generation that the stable Service points at."""
        return self.plan.serving if self.plan is not None else ""

    @property
    def shown(self) -> str:
        """Fingerprint of the generation that conditions speak of: the one that serves, else the one that comes up."""
        return self.serving or self.desired

    def charges(self, *kinds: BlameKind) -> list[Charge]:
        """What is put down to these kinds in the generation that conditions speak of."""
        return [charge for charge in self.blame.get(self.shown, ()) if charge.kind in kinds]

    def accusation(self, pod: PodView) -> Charge | None:
        """What names `pod` as the cause, if anything does."""
        charges = self.blame.get(pod.fingerprint, ())
        return next((c for c in charges if c.kind is BlameKind.POD and pod.name in c.pods), None)

    def pods_of(self, fingerprint: str, role: Role) -> list[PodView]:
        """Pods of a role in a generation that are not leaving."""
        return [p for p in self.pods if p.fingerprint == fingerprint and p.role is role and not p.is_leaving]
