"""What a rule says about a spec, and the shape of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.images import Images


class Action(StrEnum):
    """What happens when a rule applies."""

    REFUSE = "Refuse"
    """Nothing is created or changed."""
    SET = "Set"
    """The operator renders a safe value instead of the engine's default."""
    WARN = "Warn"
    """Allowed, and said."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark on one field. The message says what is wrong, why, and what to do."""

    rule: str
    action: Action
    path: str
    message: str
    source: str = ""
    allowable: bool = True
    """False for what cannot start whatever the user accepts: `policy.allow` does not reach it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What rules look at: the spec, the images it resolves to, and the SGLang release found (None when unknown)."""

    spec: DSV4DeploymentSpec
    images: Images
    release: str | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of policy: `check` yields (path, message) for each place where it applies."""

    id: str
    action: Action
    title: str
    source: str
    check: Callable[[Subject], Iterator[tuple[str, str]]]
    allowable: bool = True

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """The rule's findings on `subject`."""
        for path, message in self.check(subject):
            yield Finding(self.id, self.action, path, message, self.source, self.allowable)
