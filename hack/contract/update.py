"""Add a SGLang release: read its wheel, say what changed against the newest known one before it, write the data.

    python hack/contract/update.py 0.5.24          report and write
    python hack/contract/update.py 0.5.24 --report report alone, exit code 3 when there is something to report
    python hack/contract/update.py --all           read every known release again

Afterwards: add the release to KNOWN_RELEASES with its verdict, run `make contract`, and look at every line of the
report that is marked with `!`: the operator renders or owns it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "operator")]

from history import load, order, read_wheel, save  # noqa: E402
from wheels import wheel  # noqa: E402

from dsv4_operator.engine.facts import WATCHED_ENV  # noqa: E402
from dsv4_operator.engine.flags import OWNED_ENV, OWNED_FLAGS  # noqa: E402
from dsv4_operator.engine.rendered import RENDERED_ENV, RENDERED_FLAGS  # noqa: E402

OURS = {
    *RENDERED_FLAGS,
    *RENDERED_ENV,
    *OWNED_ENV,
    *WATCHED_ENV,
    *(spelling for f in OWNED_FLAGS for spelling in (f.name, *f.aliases)),
}
Table = dict[str, dict[str, Any]]


def differences(old: Table, new: Table) -> list[str]:
    """One line per name that went, came or changed; those that concern the operator are marked with `!` and first.

    Flags are followed by spelling: where two spellings of one flag swap places, nothing is said.
    """
    before, after = _by_spelling(old), _by_spelling(new)
    lines = [f"{_mark({name})} gone     {name}" for name in sorted(before.keys() - after.keys())]
    lines += [
        f"{_mark({name})} new      {name} ({_short(after[name])})" for name in sorted(after.keys() - before.keys())
    ]
    for name in sorted(new):
        was = before.get(name)
        if was is not None:
            now = new[name]
            keys = sorted((was.keys() | now.keys()) - {"aliases", "dest"})
            mark = _mark({name, *now.get("aliases", ())})
            lines += [f"{mark} {_change(name, k, was.get(k), now.get(k))}" for k in keys if was.get(k) != now.get(k)]
    return sorted(lines, key=lambda line: line[0] != "!")


def _by_spelling(table: Table) -> Table:
    return {spelling: entry for name, entry in table.items() for spelling in (name, *entry.get("aliases", ()))}


def _mark(spellings: set[str]) -> str:
    return "!" if spellings & OURS else " "


def _short(entry: dict[str, Any]) -> str:
    kind = entry.get("kind", "read directly")
    return f"{kind}, default {entry['default']!r}" if "default" in entry else str(kind)


def _change(name: str, key: str, before: Any, after: Any) -> str:
    if key == "choices":
        gone = sorted(set(before or ()) - set(after or ()), key=str)
        come = sorted(set(after or ()) - set(before or ()), key=str)
        return f"{key:8} {name}: gone {gone or 'none'}, new {come or 'none'}"
    return f"{key:8} {name}: {before!r} -> {after!r}"


def report(release: str, flags: Table, env: Table) -> list[str]:
    """What `release` changes against the newest known release before it."""
    known_flags, known_env = load("flags"), load("env")
    before = max((known for known in known_flags if order(known) < order(release)), key=order, default=None)
    if before is None:
        return [f"nothing known before {release}"]
    lines = [f"flags, {before} -> {release}:", *differences(known_flags[before], flags)]
    return [*lines, f"variables, {before} -> {release}:", *differences(known_env[before], env)]


def main(arguments: list[str]) -> int:
    """Command line entry: 0 done, 2 bad input or no wheel, 3 differences with --report."""
    parser = argparse.ArgumentParser(description="add a SGLang release to the operator's data")
    parser.add_argument("release", nargs="*")
    parser.add_argument("--all", action="store_true", help="read every known release again")
    parser.add_argument("--report", action="store_true", help="write nothing; exit 3 when something changed")
    options = parser.parse_args(arguments)
    flags, env = load("flags"), load("env")
    releases = [*options.release, *(flags if options.all else ())]  # each is read once
    if not releases:
        parser.error("name a release, such as 0.5.24, or --all")
    changed = False
    for release in sorted(set(releases)):
        if not re.fullmatch(r"\d+\.\d+\.\d+", release):
            print(f"error: {release} is not a release such as 0.5.24", file=sys.stderr)
            return 2
        try:
            new_flags, new_env = read_wheel(wheel(release))
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        changed = changed or flags.get(release) != new_flags or env.get(release) != new_env
        print("\n".join(report(release, new_flags, new_env)) if not options.all else release)
        flags[release], env[release] = new_flags, new_env
    if options.report:
        return 3 if changed else 0
    save("flags", flags)
    save("env", env)
    print(f"written: {len(flags)} releases")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
