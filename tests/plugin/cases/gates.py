"""The gate guarantee on the real pool class."""

from __future__ import annotations

from typing import Any

from dsv4_guard import gates, patching, releases


def pool() -> Any:
    return patching.resolve(releases.POOL)[2]


def shipped(version: str) -> dict[str, Any]:
    """As shipped: every accessor waits, nothing is wrapped."""
    release = releases.choose(version, allow_untested=False)
    wrapped = gates.install(release, always_wait=False)
    return {"wrapped": list(wrapped), "waits": {name: gates.waits_first(pool(), name) for name in release.gated}}
