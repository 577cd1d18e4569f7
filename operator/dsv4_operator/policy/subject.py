"""What rules look at: one spec, read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.api.v1alpha1.roles import RoleSpec
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.images import Images
from dsv4_operator.engine.releases import KNOWN_RELEASES, Release, release_of
from dsv4_operator.policy.arguments import Argument, Variable, read_arguments, read_variables


@dataclass(frozen=True, slots=True)
class Subject:
    """The spec, the images it resolves to, the SGLang release, and the user's arguments and variables, parsed."""

    spec: DSV4DeploymentSpec
    images: Images
    release: str | None
    """As declared or as the image's tag says; None when neither speaks."""
    known: Release | None
    """The release when it is one that the operator knows."""
    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]

    @classmethod
    def of(cls, spec: DSV4DeploymentSpec, images: Images) -> Subject:
        """Read everything that rules need."""
        release = release_of(images.engine or "", spec.engine.release)
        known = KNOWN_RELEASES.get(release or "")
        arguments = tuple(read_arguments(spec, known))
        return cls(spec, images, release, known, arguments, tuple(read_variables(spec)))

    def roles(self) -> Iterator[tuple[str, RoleSpec]]:
        """Both engine roles by name."""
        for role in ENGINE_ROLES:
            yield role, getattr(self.spec, role)

    def argument(self, role: str, *names: str) -> Argument | None:
        """What counts for one role among the arguments that set one of `names`: the last, as in SGLang."""
        found = [a for a in self.arguments if a.scope in ("engine", role) and a.is_any(names)]
        return found[-1] if found else None

    def variable(self, role: str, name: str) -> Variable | None:
        """What counts for one role: its own variable, else the engine's."""
        found = [v for v in self.variables if v.scope in ("engine", role) and v.name == name]
        return found[-1] if found else None

    def uses(self, *names: str) -> Iterator[Argument]:
        """Every argument that sets one of `names`."""
        return (argument for argument in self.arguments if argument.is_any(names))

    def sets(self, *names: str) -> Iterator[Variable]:
        """Every variable with one of these names."""
        return (variable for variable in self.variables if variable.name in names)
