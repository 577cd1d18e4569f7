"""The shape of a rule about a flag or variable that V4 in prefill/decode never takes: one row, one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dsv4_operator.engine.releases import Release, ReleaseRange
from dsv4_operator.policy.arguments import Argument
from dsv4_operator.policy.finding import ALL_RELEASES, Action, Remark, Rule
from dsv4_operator.policy.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """One row: the flags and variables, why they are refused (after the flag's name), and what to do instead."""

    id: str
    title: str
    why: str
    remedy: str
    source: str
    explanation: str
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    when: Callable[[Argument], bool] = lambda _: True
    """Whether the flag is refused with these values."""
    releases: ReleaseRange = ALL_RELEASES
    allowable: bool = False

    def speaks_of(self, argument: Argument, release: Release | None) -> bool:
        """Whether the row refuses `argument` on this release."""
        covered = self.releases == ALL_RELEASES or (release is not None and release in self.releases)
        return covered and argument.is_any(self.flags) and self.when(argument)

    def rule(self) -> Rule:
        """The row as a rule of policy."""
        return Rule(
            id=self.id,
            action=Action.REFUSE,
            title=self.title,
            source=self.source,
            explanation=self.explanation,
            check=self._check,
            releases=self.releases,
            allowable=self.allowable,
        )

    def _check(self, subject: Subject) -> Iterator[Remark]:
        for argument in subject.uses(*self.flags):
            if self.when(argument):
                yield argument.path, f"{_shown(argument)} {self.why}; {self.remedy}"
        for variable in subject.sets(*self.variables):
            if variable.on:
                yield variable.path, f"{variable.name} {self.why}; {self.remedy}"


def _shown(argument: Argument) -> str:
    """The flag, with what it is short for."""
    if argument.name == argument.written:
        return argument.written
    return f"{argument.written} ({argument.name})"


def value_in(*values: str) -> Callable[[Argument], bool]:
    """A condition: the flag has one of `values`."""
    return lambda argument: any(value in values for value in argument.values)
