"""What the wheel of a release holds: every command-line flag and every SGLANG_ variable, read from package data.

The data (engine/data/*.json) is made by hack/contract/update.py from the wheels themselves and compared with them by
tests/contract. Nothing is read before it is asked for; one file takes a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dsv4_operator.engine.releases import KNOWN_RELEASES, Release, ReleaseRange, range_of


class FlagKind(StrEnum):
    """How a flag takes its value."""

    SWITCH = "switch"
    OPTIONAL_SWITCH = "optional-switch"
    RETIRED = "retired"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    JSON = "json"


_FOLDER: Final = Path(__file__).with_name("data")
_WITHOUT_VALUE: Final = frozenset({FlagKind.SWITCH, FlagKind.OPTIONAL_SWITCH, FlagKind.RETIRED})


@dataclass(frozen=True, slots=True)
class WheelFlag:
    """One flag of one release, as its argparse knows it.

    `use` is what upstream says to write instead of a deprecated spelling; `default` is the declared one, which the
    resolution may still replace.
    """

    name: str
    kind: FlagKind
    aliases: tuple[str, ...] = ()
    dest: str = ""
    choices: tuple[Any, ...] | None = None
    default: Any = None
    nargs: str | int | None = None
    required: bool = False
    use: str | None = None

    @property
    def takes_value(self) -> bool:
        """Whether words follow the flag."""
        return self.kind not in _WITHOUT_VALUE

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names, the first one first."""
        return (self.name, *self.aliases)

    def accepts(self, value: str) -> bool:
        """Whether one word is a value of this flag by type and choices."""
        try:
            typed: Any = {FlagKind.INT: int, FlagKind.FLOAT: float}.get(self.kind, str)(value)
        except ValueError:
            return False
        return self.takes_value and (self.choices is None or typed in self.choices)


@dataclass(frozen=True, slots=True)
class WheelVariable:
    """One environment variable of one release. `kind` is None where code reads it without declaring it."""

    name: str
    kind: str | None = None
    default: Any = None
    retired: bool = False
    use: str | None = None


@dataclass(frozen=True, slots=True)
class FlagMatch:
    """What argparse makes of a word: the flag, whether spelt in full, and all flags that an abbreviation could mean."""

    flag: WheelFlag | None
    exact: bool
    candidates: tuple[str, ...] = ()


@cache
def _data(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
    return found


def _histories(kind: str) -> dict[str, dict[str, Any]]:
    """Name -> {release from which on: definition, or None where it is gone}."""
    found: dict[str, dict[str, Any]] = _data(kind)["names"]
    return found


def data_releases() -> list[str]:
    """Releases that the data holds."""
    found: list[str] = _data("flags")["releases"]
    return found


def _in_force(history: dict[str, Any], release: Release) -> dict[str, Any] | None:
    """The definition that holds at `release`: the newest at or before it."""
    current: dict[str, Any] | None = None
    for name, definition in history.items():
        if KNOWN_RELEASES[name].version > release.version:
            break
        current = definition
    return current


def _known(release: Release) -> None:
    if str(release) not in KNOWN_RELEASES:
        raise KeyError(f"no data for SGLang {release}")


@cache
def flags(release: Release) -> tuple[WheelFlag, ...]:
    """All flags of `release`; KeyError for an unknown release."""
    _known(release)
    found = []
    for name, history in _histories("flags").items():
        entry = _in_force(history, release)
        if entry is not None:
            kind = FlagKind(entry["kind"])
            choices = entry.get("choices")
            found.append(
                WheelFlag(
                    name=name,
                    kind=kind,
                    aliases=tuple(entry.get("aliases", ())),
                    dest=entry.get("dest", name.lstrip("-").replace("-", "_")),
                    choices=tuple(choices) if choices is not None else None,
                    default=entry.get("default", False if kind is FlagKind.SWITCH else None),
                    nargs=entry.get("nargs"),
                    required=entry.get("required", False),
                    use=entry.get("use"),
                )
            )
    return tuple(found)


@cache
def flag_table(release: Release) -> Mapping[str, WheelFlag]:
    """Every flag of `release` by every spelling, `--no-...` of optional switches included."""
    table: dict[str, WheelFlag] = {}
    for flag in flags(release):
        for spelling in flag.spellings:
            table[spelling] = flag
            if flag.kind is FlagKind.OPTIONAL_SWITCH and spelling.startswith("--"):
                table[f"--no-{spelling[2:]}"] = flag
    return MappingProxyType(table)


def find_flag(release: Release, argument: str) -> FlagMatch:
    """What the argparse of `release` makes of `argument`, which may be `--flag=value` or an abbreviation."""
    name = argument.split("=", 1)[0]
    table = flag_table(release)
    if name in table:
        return FlagMatch(table[name], exact=True, candidates=(name,))
    if not name.startswith("--") or len(name) < 3:
        return FlagMatch(None, exact=False)
    candidates = tuple(sorted(spelling for spelling in table if spelling.startswith(name)))
    return FlagMatch(table[candidates[0]] if len(candidates) == 1 else None, exact=False, candidates=candidates)


@cache
def env_table(release: Release) -> Mapping[str, WheelVariable]:
    """Every SGLANG_ and SGL_ variable that `release` reads or warns about, by name."""
    _known(release)
    found = {}
    for name, history in _histories("env").items():
        entry = _in_force(history, release)
        if entry is not None:
            found[name] = WheelVariable(
                name, entry.get("kind"), entry.get("default"), entry.get("retired", False), entry.get("use")
            )
    return MappingProxyType(found)


def env_names(release: Release) -> frozenset[str]:
    """Names of `env_table`."""
    return frozenset(env_table(release))


def env_defaults(release: Release) -> Mapping[str, Any]:
    """Declared defaults of the variables that `release` declares."""
    return {name: variable.default for name, variable in env_table(release).items() if variable.kind is not None}


@cache
def _releases_by_spelling() -> dict[str, set[Release]]:
    """In which known releases each spelling of a flag is taken."""
    found: dict[str, set[Release]] = {}
    for name, history in _histories("flags").items():
        for release in KNOWN_RELEASES.values():
            entry = _in_force(history, release)
            if entry is None:
                continue
            for spelling in (name, *entry.get("aliases", ())):
                found.setdefault(spelling, set()).add(release)
                if entry["kind"] == FlagKind.OPTIONAL_SWITCH:
                    found.setdefault(f"--no-{spelling[2:]}", set()).add(release)
    return found


def releases_with_flag(spelling: str) -> ReleaseRange | None:
    """Known releases that take this spelling; None when none does. Gaps are not shown."""
    return range_of(_releases_by_spelling().get(spelling, ()))


def releases_with_env(name: str) -> ReleaseRange | None:
    """Known releases that read this variable and do not merely warn that it is retired; None when none does."""
    history = _histories("env").get(name, {})
    entries = {release: _in_force(history, release) for release in KNOWN_RELEASES.values()}
    return range_of(
        release for release, entry in entries.items() if entry is not None and not entry.get("retired", False)
    )
