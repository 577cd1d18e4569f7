"""What all known releases hold, as one history per flag and per variable: only what differs from the release before.

Files: operator/dsv4_operator/engine/data/{flags,env}.json, one name a line, so that a change reads well in a diff.
An entry is {"<release>": definition}, in force until the next release named in it; null: gone from that release on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wheel_env import read_env
from wheel_flags import read_flags
from wheels import ROOT_DATA

Tables = dict[str, dict[str, dict[str, Any]]]
"""Release -> name -> definition."""


def order(release: str) -> tuple[int, ...]:
    """Sorting key of a release."""
    return tuple(int(part) for part in release.split("."))


def compact_flag(name: str, flag: dict[str, Any]) -> dict[str, Any]:
    """The definition of a flag as it is stored: what is as usual is left out."""
    small: dict[str, Any] = {"kind": flag["kind"]}
    if len(flag["names"]) > 1:
        small["aliases"] = flag["names"][1:]
    if flag["dest"] != name.lstrip("-").replace("-", "_"):
        small["dest"] = flag["dest"]
    usual = False if flag["kind"] == "switch" else None
    if flag["default"] != usual:
        small["default"] = flag["default"]
    small |= {key: flag[key] for key in ("choices", "nargs", "required", "use") if key in flag}
    return small


def read_wheel(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Flags and variables of one wheel, as stored."""
    flags = {name: compact_flag(name, flag) for name, flag in read_flags(path).items()}
    return flags, read_env(path)


def fold(tables: Tables) -> dict[str, dict[str, Any]]:
    """Histories from full tables."""
    histories: dict[str, dict[str, Any]] = {}
    last: dict[str, dict[str, Any]] = {}
    for release in sorted(tables, key=order):
        table = tables[release]
        for name in sorted(table.keys() | last.keys()):
            if table.get(name) != last.get(name):
                histories.setdefault(name, {})[release] = table.get(name)
        last = table
    return dict(sorted(histories.items()))


def unfold(releases: list[str], histories: dict[str, dict[str, Any]]) -> Tables:
    """Full tables from histories."""
    tables: Tables = {release: {} for release in releases}
    for name, history in histories.items():
        current: dict[str, Any] | None = None
        for release in sorted(releases, key=order):
            current = history.get(release, current)
            if current is not None:
                tables[release][name] = current
    return tables


def path_of(kind: str) -> Path:
    """The file of `kind`, flags or env."""
    return ROOT_DATA / f"{kind}.json"


def load(kind: str) -> Tables:
    """Committed tables; empty when there is no file yet."""
    if not path_of(kind).exists():
        return {}
    data = json.loads(path_of(kind).read_text(encoding="utf-8"))
    return unfold(data["releases"], data["names"])


def text(tables: Tables) -> str:
    """The file's text."""
    histories = fold(tables)
    lines = [f"  {json.dumps(name)}: {json.dumps(history)}" for name, history in histories.items()]
    releases = json.dumps(sorted(tables, key=order))
    return '{"releases": ' + releases + ', "names": {\n' + ",\n".join(lines) + "\n}}\n"


def save(kind: str, tables: Tables) -> None:
    """Write the file."""
    path_of(kind).parent.mkdir(parents=True, exist_ok=True)
    path_of(kind).write_text(text(tables), encoding="utf-8")
