"""What a rule file is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

RUNBOOKS: Final = "docs/runbooks"
"""Default base of runbook links: the folder of this repository."""
INTERVAL: Final = "30s"
"""How often groups are evaluated. Rules that ask how long their own history is count samples of this distance."""


@dataclass(frozen=True, slots=True)
class Record:
    """A recording rule, named level:metric:operations."""

    name: str
    expr: str

    def render(self, runbooks: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        del runbooks
        return {"record": self.name, "expr": tidy(self.expr)}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule. Several may share a name and differ in severity or labels."""

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    lasting: str = "0s"
    labels: dict[str, str] = field(default_factory=dict)

    def render(self, runbooks: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": tidy(self.expr),
            "for": self.lasting,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": " ".join(self.summary.split()),
                "description": " ".join(self.description.split()),
                "runbook_url": f"{runbooks}/{self.name}.md",
            },
        }


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, so that alerts see what was recorded just before."""

    name: str
    rules: tuple[Record | Alert, ...]

    def render(self, runbooks: str) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {"name": self.name, "interval": INTERVAL, "rules": [rule.render(runbooks) for rule in self.rules]}


def tidy(expression: str) -> str:
    """The expression without the indentation of its source."""
    lines = [line.rstrip() for line in expression.strip("\n").splitlines()]
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def names_in(expression: str) -> Iterator[str]:
    """Names of metrics that an expression of ours reads."""
    yield from re.findall(r"(?<![\w:])(?:dsv4_[\w:]+|sglang[:_]\w+|smg_\w+|up)(?=[{\[\s),]|$)", expression)
