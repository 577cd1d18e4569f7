"""`extraArgs` and `env` as SGLang's parser would read them: flag by flag, with values, spelling and owner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.flags import Flag, owned_flag
from dsv4_operator.engine.releases import Release
from dsv4_operator.engine.wheel import WheelFlag, find_flag

_LONGEST: Final = 80


def cut(word: str) -> str:
    """A word of the user's for a message or path, which status bounds."""
    return word if len(word) <= _LONGEST else f"{word[: _LONGEST - 3]}..."


SCOPES: Final = ("engine", "prefill", "decode")
"""Where arguments and variables stand: `spec.engine` reaches both roles."""
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+$|-\d*\.\d+$")
"""What argparse takes for a value although it begins with a dash."""
_FALSE: Final = frozenset({"", "0", "false", "no", "n", "off"})


@dataclass(frozen=True, slots=True)
class Argument:
    """One flag with the values after it, or values that belong to no flag (`written` is then empty)."""

    path: str
    """The list item of the flag, such as spec.engine.extraArgs[0]."""
    scope: str
    written: str
    """The flag as the user spelt it, without `=value`: a value may be a key, so it is never quoted."""
    values: tuple[str, ...]
    flag: WheelFlag | None = None
    """The flag of the release that is meant, also where it is abbreviated; None when unknown or ambiguous."""
    exact: bool = False
    candidates: tuple[str, ...] = ()
    """Flags of the release that an abbreviation could mean."""
    owned: Flag | None = None
    """The operator's own flag that it would set."""

    @property
    def name(self) -> str:
        """The flag's full name where it is known, else as written."""
        return self.flag.name if self.flag is not None else self.written

    @property
    def shown(self) -> str:
        """`written` for messages, cut where it is longer than any flag."""
        return cut(self.written)

    def is_any(self, names: Iterable[str]) -> bool:
        """Whether this sets one of `names`."""
        return self.written in names or self.name in names

    @property
    def value(self) -> str:
        """The only or first value; empty without."""
        return self.values[0] if self.values else ""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of the user's; `value` is None where it comes from a Secret."""

    path: str
    scope: str
    name: str
    value: str | None

    @property
    def on(self) -> bool:
        """Whether SGLang would read it as true; a Secret's content is unknown, so taken for true."""
        return self.value is None or self.value.strip().lower() not in _FALSE


def read_arguments(spec: DSV4DeploymentSpec, release: Release | None) -> Iterator[Argument]:
    """Every argument of the three lists, in order. Without a known release, spelling is all that is seen."""
    for scope in SCOPES:
        items: list[str] = getattr(spec, scope).extra_args
        path = f"spec.{scope}.extraArgs"
        index = 0
        while index < len(items):
            start = index
            written, inline, value = items[start].partition("=")
            if not _is_flag(items[start]):
                written, inline = "", ""
            index += 1 if written else 0
            values = [value] if inline else []
            while index < len(items) and not _is_flag(items[index]):
                values.append(items[index])
                index += 1
            yield _argument(f"{path}[{start}]", scope, written, tuple(values), release)


def _is_flag(item: str) -> bool:
    """As argparse decides it: a number is a value, and so is a text with a space before any equals sign."""
    name = item.partition("=")[0]
    return name.startswith("-") and len(name) > 1 and _NEGATIVE_NUMBER.fullmatch(item) is None and " " not in name


def _argument(path: str, scope: str, written: str, values: tuple[str, ...], release: Release | None) -> Argument:
    if not written.startswith("--") or written == "--":
        return Argument(path, scope, written, values)
    owned = owned_flag(written)
    if release is None:
        return Argument(path, scope, written, values, owned=owned)
    match = find_flag(release, written)
    if match.exact and owned is not None and written not in (owned.name, *owned.aliases):
        owned = None  # a flag of its own that merely begins like one of ours
    return Argument(path, scope, written, values, match.flag, match.exact, match.candidates, owned)


def read_variables(spec: DSV4DeploymentSpec) -> Iterator[Variable]:
    """Every variable of the three lists, in order."""
    for scope in SCOPES:
        for index, variable in enumerate(getattr(spec, scope).env):
            value = None if variable.secret_key_ref is not None else variable.value or ""
            yield Variable(f"spec.{scope}.env[{index}]", scope, variable.name, value)
