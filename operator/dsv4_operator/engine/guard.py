"""The guard: the plugin of the gated SGLang image (images/sglang), when a spec needs it and what it is told.

It makes index-K in BF16 possible, and the KV checksum usable on V4. An image cannot be looked into beforehand, so its
marker in the running engine proves it: the canary keeps a pod from becoming Ready without (`REQUIRE_ENV`).
"""

from __future__ import annotations

from typing import Final

from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.releases import KNOWN_RELEASES, Release
from dsv4_operator.engine.rendered import CHECKSUM, renders

PLUGIN: Final = "dsv4_guard"
"""Name in the entry-point group sglang.srt.plugins; SGLANG_PLUGINS is the list of plugins that may load."""
INDEX_K_ENV: Final = "DSV4_INDEX_K_DTYPE"
"""Engine variable of the guard: format of index-K."""
REQUIRE_ENV: Final = "DSV4_CANARY_REQUIRE_GUARD"
"""Sidecar variable: index-K format that the engine's marker must name before the pod may be Ready."""

GUARD_RELEASES: Final = frozenset({KNOWN_RELEASES["0.5.17"], KNOWN_RELEASES["0.5.23"]})
"""Releases whose functions the guard replaces by name and was tested with; on others it ends the engine at start."""
CHECKSUM_RELEASES: Final = frozenset(release for release in GUARD_RELEASES if renders(CHECKSUM, release))
"""Of those, the ones that have a KV checksum."""


def guarded_index_k(spec: DSV4DeploymentSpec, release: Release) -> str | None:
    """The index-K format that the guard must show, None where the spec does not need the guard."""
    if spec.index_k.dtype is IndexKDtype.BF16 or (spec.network.checksum and renders(CHECKSUM, release)):
        return spec.index_k.dtype.value.lower()
    return None


def named(releases: frozenset[Release]) -> str:
    """Releases for a message: "0.5.17 and 0.5.23"."""
    return " and ".join(str(release) for release in sorted(releases))
