"""The name that a flag has in the target release, from the releases' own flag tables."""

from __future__ import annotations

from typing import Final

from dsv4_operator.cli.importer.draft import RoleDraft
from dsv4_operator.cli.importer.launch import FlagUse
from dsv4_operator.engine.releases import KNOWN_RELEASES
from dsv4_operator.engine.renames import Rename, current_name
from dsv4_operator.engine.wheel import FlagKind, WheelFlag, find_flag, flag_table, releases_with_flag

_FOREIGN: Final = {"--dyn-": "Dynamo's own frontend, which the operator's router replaces"}
_STRATEGIES: Final = {"round-robin-split": "interleave", "in-seq-split": "zigzag"}
"""Values of --cp-strategy by those of its predecessors."""


def current_use(draft: RoleDraft, use: FlagUse) -> FlagUse | None:
    """The flag as the target release takes it; None, with a finding, when it cannot be carried over."""
    owner = next((owner for prefix, owner in _FOREIGN.items() if use.flag.startswith(prefix)), None)
    if owner is not None:
        draft.find("import-foreign", use.flag, f"left out: it belongs to {owner}")
        return None
    match = find_flag(draft.release, use.flag)
    if match.flag is not None and match.exact:
        return _unless_retired(draft, use, match.flag)
    rename = current_name(use.flag, draft.release)
    if rename is not None:
        return _renamed(draft, use, rename)
    if match.flag is not None:
        name = match.candidates[0]
        draft.find("import-renamed", use.flag, f"an abbreviation, written as {name}: a later release may add another")
        return FlagUse(name, use.values)
    if match.candidates:
        meant = " or ".join(match.candidates[:4])
        message = f"SGLang {draft.release} takes it as an abbreviation of several flags; write {meant}"
        draft.find("import-gone", use.flag, message)
        return None
    _gone(draft, use)
    return None


def _unless_retired(draft: RoleDraft, use: FlagUse, flag: WheelFlag) -> FlagUse | None:
    if flag.kind is not FlagKind.RETIRED:
        return use
    instead = f"; write {flag.use}" if flag.use else ""
    draft.find("import-default", use.flag, f"left out: SGLang {draft.release} takes it and does nothing{instead}")
    return None


def _renamed(draft: RoleDraft, use: FlagUse, rename: Rename) -> FlagUse | None:
    name, _, fixed = rename.new.partition("=")
    values = (fixed,) if fixed else use.values
    translated = tuple(_STRATEGIES.get(value, value) for value in values) if name == "--cp-strategy" else values
    if not rename.exact and translated == values:
        message = f"SGLang {draft.release} does not have it; use {rename.new}: {rename.note}"
        draft.find("import-gone", use.flag, message, rename.source)
        return None
    shown = " ".join((name, *translated))
    draft.find("import-renamed", use.flag, f"becomes {shown}, its name from SGLang {rename.since} on", rename.source)
    return FlagUse(name, translated)


def _gone(draft: RoleDraft, use: FlagUse) -> None:
    """A finding on a flag that the target release does not have under any name."""
    having = [release for release in KNOWN_RELEASES.values() if use.flag in flag_table(release)]
    if not having:
        message = "no SGLang release known here has this flag; left out: look whether another program reads it"
        draft.find("import-unknown-flag", use.flag, message)
    elif flag_table(having[-1])[use.flag].kind is FlagKind.RETIRED:
        message = f"left out: SGLang {releases_with_flag(use.flag)} took it and did nothing, {draft.release} refuses it"
        draft.find("import-default", use.flag, message)
    else:
        message = f"a flag of SGLang {releases_with_flag(use.flag)}, which {draft.release} does not have; left out"
        draft.find("import-gone", use.flag, message)
