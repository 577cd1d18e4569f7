"""Generates docs/engine-matrix.md from the data: releases, what is rendered, renames, facts, and what was proven."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "operator")]

from matrix import ARCHITECTURES, specs  # noqa: E402
from refusals import RESOLVED, REWRITTEN, SOURCE  # noqa: E402

from dsv4_operator.api.constants import ENGINE_ROLES  # noqa: E402
from dsv4_operator.api.crd import write_or_check  # noqa: E402
from dsv4_operator.engine import facts, rendered  # noqa: E402
from dsv4_operator.engine.releases import (  # noqa: E402
    DEFAULT_RELEASE,
    KNOWN_RELEASES,
    OLDEST_RECOMMENDED,
    verdict,
)
from dsv4_operator.engine.renames import RENAMES  # noqa: E402
from dsv4_operator.engine.wheel import env_names, env_table, flags  # noqa: E402

DEFAULT_PATH = ROOT / "docs" / "engine-matrix.md"
COMMAND = "python hack/contract/engine_matrix.py"
RELEASES = list(KNOWN_RELEASES.values())


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A Markdown table."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(_cell(str(cell)) for cell in row)} |"
    yield ""


def _cell(text: str) -> str:
    """As Markdown shows it: a bar does not end the cell, and <role> is no HTML."""
    text = text.replace("|", "\\|")
    return text if text.startswith("`") else text.replace("<", "&lt;")


def _releases() -> Iterator[str]:
    yield "## Releases\n"
    rows = []
    for release in reversed(RELEASES):
        found = verdict(release)
        standing = "recommended" if found.recommended else "usable" if found.usable else "refused"
        default = " (default)" if release == DEFAULT_RELEASE else ""
        rows.append(
            (
                f"{release}{default}",
                standing,
                found.note,
                len(flags(release)),
                len(env_names(release)),
                f"`{release.ready_endpoint}`",
                found.source,
            )
        )
    yield from table(("release", "standing", "why", "flags", "variables", "ready", "source"), rows)


def _rendered() -> Iterator[str]:
    yield "## What is rendered\n\nFlags in every release, then what differs.\n"
    everywhere = [e for e in rendered.RENDERED_FLAGS.values() if len(e.releases.known()) == len(RELEASES)]
    yield from table(("flag", "from"), ((f"`{entry.name}`", entry.why) for entry in everywhere))
    others = [e for e in rendered.RENDERED_FLAGS.values() if e not in everywhere]
    yield from table(
        ("name", "rendered on", "why", "source"),
        ((f"`{e.name}`", e.releases, e.why, e.source) for e in (*others, *rendered.RENDERED_ENV.values())),
    )
    yield (
        f"With `overlapSchedule: Auto` the overlapped scheduler is off on releases {rendered.OVERLAP_UNSAFE}, and for "
        "EAGLE with attention data parallelism.\n"
    )


def _defaults() -> Iterator[str]:
    yield "## Defaults that decide\n\nWhat each release does when nothing is set; empty: the variable is not there.\n"
    rows = []
    for name in facts.WATCHED_ENV:
        cells = []
        for release in RELEASES:
            found = env_table(release).get(name)
            cells.append("" if found is None else "retired" if found.retired else str(found.default).lower())
        rows.append((f"`{name.removeprefix('SGLANG_')}`", *cells))
    yield from table(("SGLANG_", *map(str, RELEASES)), rows)


def _renames() -> Iterator[str]:
    yield "## Renames\n"
    rows = ((f"`{r.old}`", f"`{r.new}`", r.since, r.gone or "still there", r.note) for r in RENAMES)
    yield from table(("old", "new", "new since", "old gone in", "note"), rows)
    yield (
        f"Attention data parallelism is `--dp-size N --enable-dp-attention` on releases "
        f"{rendered.OLD_DP_SIZE.releases} "
        f"and `--attn-dp-size N` on {rendered.ATTN_DP.releases}.\n"
    )


def _facts() -> Iterator[str]:
    yield "## What DeepSeek-V4 forces\n"
    yield from table(
        ("field", "value", "releases", "overrides the user", "note", "source"),
        (
            (f"`{f.field}`", f.value, f.releases, "yes" if f.overrides_user else "no", f.note, f.source)
            for f in facts.FORCED
        ),
    )
    yield "## Bytes\n"
    yield from table(
        ("index-K format", "per slot of 4 tokens", "per token and C4 layer", "per 256-token page and C4 layer"),
        (
            (d.value, facts.INDEX_K_SLOT_BYTES[d], f"{facts.INDEX_K_BYTES[d]:g}", facts.INDEX_K_PAGE_BYTES[d])
            for d in facts.INDEX_K_BYTES
        ),
    )
    yield (
        f"A 256-token page of KV takes {facts.C4_PAGE_BYTES} bytes in a C4 layer, {facts.C128_PAGE_BYTES} in a C128 "
        f"layer and {facts.SWA_PAGE_BYTES} of sliding window in every layer (for {facts.SWA_RATIO:g} of "
        f"the tokens). HiCache's "
        "host pool of one rank is its device pool times `hiCache.ratio`; a pod holds one per rank.\n"
    )
    yield "## What the handshake compares\n"
    yield from table(
        ("what must agree", "compared in", "note"),
        ((c.what, c.checked if c.checked is not None else "**no release**", c.note) for c in facts.HANDSHAKE),
    )
    yield "What no release compares is in the operator's KV fingerprint, so that such pods never meet.\n"


def _proof() -> Iterator[str]:
    count = len(specs())
    total = count * len(ENGINE_ROLES) * len(ARCHITECTURES) * 2
    yield "## What is proven, and how\n"
    yield (
        f"`make contract` reads all {len(RELEASES)} wheels again and compares them with the data, looks for every "
        f"rendered flag and variable in the wheel of its release, and lets the real `ServerArgs` of "
        f"{DEFAULT_RELEASE} and "
        f"{OLDEST_RECOMMENDED} resolve {count} specs for both roles on a CPU posing as {', '.join(ARCHITECTURES)} "
        f"({total} resolutions), compared field by field with what the operator predicts.\n"
    )
    yield "### What SGLang refuses\n\nShown by the real resolution; policy refuses the same at admission.\n"
    yield from table(
        ("refused", "added to the command", "role", "posing as", "releases", "rule"),
        (
            (
                case.name,
                f"`{' '.join(case.add)}`" if case.add else "by the spec",
                case.role.value,
                case.architecture,
                case.releases,
                f"`{case.rule}`",
            )
            for case in RESOLVED
        ),
    )
    yield "Raised only after weights were loaded; the check was found in the source of every release named.\n"
    yield from table(
        ("refused", "releases", "source", "rule"),
        ((case.name, case.releases, f"`{case.path}`", f"`{case.rule}`") for case in SOURCE),
    )
    yield "### What SGLang takes and changes, or takes although it fails later\n"
    yield "Why a policy stands before the engine.\n"
    yield from table(
        ("what", "added to the command", "resolves to"),
        (
            (
                case.name,
                f"`{' '.join(case.add)}`" if case.add else "by the spec",
                ", ".join(f"`{name}={value}`" for name, value in case.values),
            )
            for case in REWRITTEN
        ),
    )


def markdown() -> str:
    """The whole file."""
    head = (
        "# SGLang releases\n\n"
        f"<!-- Generated by {COMMAND}; do not edit. -->\n\n"
        "What the operator knows of each SGLang release for DeepSeek-V4 in prefill/decode over NIXL. Flags and "
        "variables were read in the wheels on PyPI; `python hack/contract/update.py X.Y.Z` reads a new "
        "one and says what "
        "changed.\n"
    )
    parts = (_releases, _rendered, _defaults, _renames, _facts, _proof)
    return "\n".join([head, *(line for part in parts for line in part())])


def main() -> int:
    """Write or check the file."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    parser.add_argument("--out", type=Path, default=DEFAULT_PATH, help="file to write (default: %(default)s)")
    options = parser.parse_args()
    return write_or_check(options.out, markdown(), check=options.check, remedy=f"`{COMMAND}`")


if __name__ == "__main__":
    raise SystemExit(main())
