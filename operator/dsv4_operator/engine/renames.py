"""Flags and variables that changed their names between releases, and what to write instead on a given release.

Two sources: what a release itself says of a deprecated spelling (`WheelFlag.use`), and the table below for spellings
that are gone, or that are not there yet. Every name and release in the table is checked against the wheels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsv4_operator.engine.releases import KNOWN_RELEASES, Release
from dsv4_operator.engine.wheel import env_table, flag_table


@dataclass(frozen=True, slots=True)
class Rename:
    """`old` is called `new` from release `since` on; `gone` is the first release without `old`, None while it stays.

    `new` may carry a value (`--flag=value`). Where it takes more than a name to translate, `note` says what.
    """

    old: str
    new: str
    since: Release
    gone: Release | None = None
    note: str = ""
    source: str = "sglang/srt/server_args.py"

    @property
    def exact(self) -> bool:
        """Whether the value, if any, carries over as it is."""
        return not self.note


def _rename(old: str, new: str, since: int, gone: int | None = None, note: str = "", source: str = "") -> Rename:
    return Rename(
        old,
        new,
        Release((0, 5, since)),
        Release((0, 5, gone)) if gone is not None else None,
        note,
        source or ("sglang/srt/environ.py" if old.startswith("SGL") else "sglang/srt/server_args.py"),
    )


_GRAPH = "cuda graphs are set per phase from 0.5.14 on; "
_WHOLE = "with --enable-dp-attention; alone it means whole copies"
_ATTEMPTS = "attempts count the first one too"
_CP = "the strategies are named interleave (before: round-robin-split) and zigzag (before: in-seq-split)"

RENAMES: Final[tuple[Rename, ...]] = (
    # Attention data parallelism: a size of its own instead of a switch that gives --dp-size another meaning.
    _rename("--dp-size", "--attn-dp-size", 22, None, _WHOLE),
    _rename("--data-parallel-size", "--attn-dp-size", 22, None, _WHOLE),
    _rename("--enable-dp-attention", "--attn-dp-size", 22, None, "takes the value of --dp-size"),
    # CUDA graphs.
    _rename("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", 14, 20),
    _rename("--cuda-graph-bs", "--cuda-graph-bs-decode", 14, 20),
    _rename("--disable-piecewise-cuda-graph", "--cuda-graph-backend-prefill=disabled", 14, 20),
    _rename("--enable-breakable-cuda-graph", "--cuda-graph-backend-prefill=breakable", 14, 20),
    _rename(
        "--enforce-piecewise-cuda-graph",
        "--cuda-graph-backend-prefill=tc_piecewise",
        14,
        20,
        _GRAPH + "tc_piecewise is gone from 0.5.22 on",
    ),
    _rename("--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill", 14, 20),
    _rename("--piecewise-cuda-graph-tokens", "--cuda-graph-bs-prefill", 14, 20),
    _rename("--piecewise-cuda-graph-compiler", "--cuda-graph-tc-compiler", 14, 20, "gone from 0.5.22 on"),
    # Optimistic prefill.
    _rename("--optimistic-prefill-retries", "--optimistic-prefill-attempts", 16, 16, _ATTEMPTS),
    # Prefill context parallelism: nsa became dsa became one flag with a strategy.
    _rename("--enable-nsa-prefill-context-parallel", "--enable-dsa-prefill-context-parallel", 13, 20),
    _rename("--enable-nsa-prefill-context-parallel", "--enable-prefill-cp", 14, 20),
    _rename("--enable-dsa-prefill-context-parallel", "--enable-prefill-cp", 14, 20),
    _rename("--enable-prefill-context-parallel", "--enable-prefill-cp", 14, 20),
    _rename("--nsa-prefill-cp-mode", "--dsa-prefill-cp-mode", 13, 20),
    _rename("--nsa-prefill-cp-mode", "--cp-strategy", 14, 20, _CP),
    _rename("--dsa-prefill-cp-mode", "--cp-strategy", 14, 20, _CP),
    _rename("--prefill-cp-mode", "--cp-strategy", 14, 20, _CP),
    # Sparse attention backends.
    _rename("--nsa-decode-backend", "--dsa-decode-backend", 13),
    _rename("--nsa-prefill-backend", "--dsa-prefill-backend", 13),
)


def current_name(name: str, release: Release) -> Rename | None:
    """What to write on `release` instead of a flag that it does not take, or None when no name is known.

    Works in both directions: an old spelling on a new release gives the new one, a new spelling on an old release
    gives the old one. A spelling that `release` takes gives None, also when it is deprecated there.
    """
    table = flag_table(release) if name.startswith("-") else env_table(release)
    plain = name.split("=", 1)[0]
    if plain in table:
        return None
    forward = [r for r in RENAMES if r.old == plain and r.since <= release and _takes(r.new, release)]
    if forward:
        return forward[-1]
    backward = [r for r in RENAMES if r.new.split("=", 1)[0] == plain and release < r.since and r.old in table]
    if backward:
        found = backward[0]
        return Rename(found.new, found.old, found.since, None, found.note, found.source)
    return _as_announced(plain, release)


def _as_announced(name: str, release: Release) -> Rename | None:
    """What the newest release before that still took `name` said to use instead, where `release` has it."""
    for earlier in reversed([known for known in KNOWN_RELEASES.values() if known < release]):
        said = deprecation(name, earlier)
        known_there = name in (flag_table(earlier) if name.startswith("-") else env_table(earlier))
        if said is not None and (_takes(said, release) if name.startswith("-") else said in env_table(release)):
            return Rename(name, said, earlier)
        if known_there:
            return None
    return None


def _takes(new: str, release: Release) -> bool:
    """Whether `release` has the flag, and its value where one is written."""
    name, given, value = new.partition("=")
    flag = flag_table(release).get(name)
    return flag is not None and (not given or flag.accepts(value))


def deprecation(name: str, release: Release) -> str | None:
    """What `release` itself says to write instead of a spelling that it still takes; None when it says nothing."""
    if not name.startswith("-"):
        variable = env_table(release).get(name)
        return variable.use if variable is not None else None
    flag = flag_table(release).get(name)
    return flag.use if flag is not None else None
