"""What a rule says about a spec, and the shape of a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dsv4_operator.engine.releases import ReleaseRange
from dsv4_operator.policy.subject import Subject

ALL_RELEASES: Final = ReleaseRange()


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
    """False for what `policy.allow` does not reach: what cannot start whatever the user accepts, or costs nothing to
    mend."""


Remark = tuple[str, str]
"""(path, message) of one place where a rule applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of policy: `check` yields (path, message) for each place where it applies."""

    id: str
    """Stable: users write it in `policy.allow`, alerts carry it as a label."""
    action: Action
    title: str
    source: str
    """Upstream file with its release, or issue number; "this operator" for what only we limit."""
    explanation: str
    """What is behind it, for `dsv4ctl explain` and docs/policy.md."""
    check: Callable[[Subject], Iterator[Remark]]
    releases: ReleaseRange = ALL_RELEASES
    """SGLang releases that it speaks of; all when unbounded."""
    allowable: bool = True

    def applies_to(self, subject: Subject) -> bool:
        """Whether the subject's release is one that the rule speaks of; an unknown one is so only when all are."""
        if self.releases == ALL_RELEASES:
            return True
        return subject.known is not None and subject.known in self.releases

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """The rule's findings on `subject`."""
        if self.applies_to(subject):
            for path, message in self.check(subject):
                yield Finding(self.id, self.action, path, message, self.source, self.allowable)
