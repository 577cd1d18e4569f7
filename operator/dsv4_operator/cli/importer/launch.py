"""What one role's launch consists of, whatever it was written in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from dsv4_operator.api.constants import Role
from dsv4_operator.policy import Action, Finding

_PLACEHOLDER: Final = re.compile(r"<\$?[A-Za-z0-9][^<>]*>")


@dataclass(frozen=True, slots=True)
class FlagUse:
    """One flag as it was given, with its values (none for a switch)."""

    flag: str
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The values as one text."""
        return " ".join(self.values)


@dataclass(frozen=True, slots=True)
class Launch:
    """Flags and environment of one role, in their order, and what reading them had to leave open."""

    role: Role
    flags: list[FlagUse]
    env: dict[str, str]
    notes: list[Finding] = field(default_factory=list)
    model: str | None = None
    """Where the source says so beside the flags."""


RULES: Final[dict[str, tuple[Action, str]]] = {
    "import-owned": (Action.SET, "The operator sets this itself, so it is left out"),
    "import-default": (Action.SET, "What DeepSeek-V4 or the role has anyway, so it is left out"),
    "import-renamed": (Action.SET, "Written by its name in the target release"),
    "import-repeated": (Action.SET, "Given more than once; the last one counts, as in SGLang"),
    "import-foreign": (Action.SET, "Belongs to another program or transfer engine, so it is left out"),
    "import-changed": (Action.WARN, "Behaves differently from now on"),
    "import-transport": (Action.WARN, "KV travels over NIXL from now on"),
    "import-roles": (Action.WARN, "The roles disagreed, and one value now serves both"),
    "import-script": (Action.WARN, "The script decides at run time; all branches were read"),
    "import-no-effect": (Action.WARN, "The target release does not read this variable"),
    "import-role-conflict": (Action.REFUSE, "The roles disagree where they must not; decide"),
    "import-gone": (Action.REFUSE, "The target release does not have this flag any more"),
    "import-unknown-flag": (Action.REFUSE, "No known release has this flag"),
    "import-unsupported": (Action.REFUSE, "DeepSeek-V4 or this operator cannot do this"),
    "import-test-variable": (Action.REFUSE, "A variable for tests or simulation that falsifies what is served"),
    "import-placeholder": (Action.REFUSE, "The value is not known; put in the real one"),
    "import-value": (Action.REFUSE, "The value cannot be read"),
    "import-field": (Action.REFUSE, "The field that it belongs to does not take this value"),
    "import-model": (Action.REFUSE, "Where the model comes from is not known, or it is no DeepSeek-V4"),
    "import-secret": (Action.REFUSE, "A secret; it is left out, so that it does not stand in a manifest"),
}
"""What import can find. `explain` knows them too."""


def finding(rule: str, path: str, message: str, source: str = "") -> Finding:
    """A finding of import; `path` says role and flag or variable."""
    return Finding(rule, RULES[rule][0], path, message, source, allowable=False)


def placeholder(text: str) -> str | None:
    """The part of a value that stands for something unknown, such as <path> or a variable that no one set."""
    match = _PLACEHOLDER.search(text)
    return match.group(0) if match else None
