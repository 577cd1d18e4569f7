"""Switches from the environment, read once per process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv4_guard.refusal import GuardError

FORMATS = ("fp8", "bf16", "fp4")
FP4_FLAG = "--enable-deepseek-v4-fp4-indexer"
PARTS = ("gates", "early_send", "fence", "deadline", "handshake", "checksum", "counters")


@dataclass(frozen=True)
class Settings:
    """What the operator of the engine chose."""

    index_k: str = "fp8"
    """DSV4_INDEX_K_DTYPE: format of index-K in the pool. Unset: fp4 where SGLang's own flag asks for it, else fp8."""
    allow_untested_release: bool = False
    """DSV4_GUARD_ALLOW_UNTESTED_RELEASE=1: start on a release that is not in releases.py."""
    always_wait: bool = False
    """DSV4_GUARD_ALWAYS_WAIT=1: wait in every accessor, whether or not the release does."""
    deadline: float = 60.0
    """DSV4_GUARD_TRANSFER_DEADLINE_SECONDS: the longest that one chunk may stay in progress, seconds."""
    index_digest: bool = False
    """DSV4_GUARD_INDEX_DIGEST=1: compare sampled index-K pages of every transfer (releases without a KV checksum)."""
    skip: frozenset[str] = frozenset()
    """DSV4_GUARD_SKIP: parts left out, for experiments. An engine with any left out carries no marker."""


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value in ("", "0", "false", "no"):
        return False
    if value in ("1", "true", "yes"):
        return True
    raise GuardError(f"{name}={value!r} is neither 1 nor 0")


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise GuardError(f"{name}={text!r} is no number of seconds above 0; unset it for {default:g}")
    return value


def read(environ: Mapping[str, str] | None = None, argv: Sequence[str] | None = None) -> Settings:
    """The settings in `environ`; GuardError names the variable that cannot be understood.

    `argv`: the server's command line; processes that it spawns see the same one.
    """
    env = os.environ if environ is None else environ
    fallback = "fp4" if FP4_FLAG in (sys.argv if argv is None else argv) else "fp8"
    index_k = env.get("DSV4_INDEX_K_DTYPE", "").strip().lower() or fallback
    if index_k not in FORMATS:
        raise GuardError(f"DSV4_INDEX_K_DTYPE={index_k!r} is none of {', '.join(FORMATS)}")
    skip = frozenset(part.strip() for part in env.get("DSV4_GUARD_SKIP", "").split(",") if part.strip())
    if skip - set(PARTS):
        raise GuardError(f"DSV4_GUARD_SKIP names {sorted(skip - set(PARTS))}; parts are {', '.join(PARTS)}")
    return Settings(
        index_k=index_k,
        allow_untested_release=_flag(env, "DSV4_GUARD_ALLOW_UNTESTED_RELEASE"),
        always_wait=_flag(env, "DSV4_GUARD_ALWAYS_WAIT"),
        deadline=_seconds(env, "DSV4_GUARD_TRANSFER_DEADLINE_SECONDS", 60.0),
        index_digest=_flag(env, "DSV4_GUARD_INDEX_DIGEST"),
        skip=skip,
    )
