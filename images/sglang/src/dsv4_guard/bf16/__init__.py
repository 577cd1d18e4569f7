"""Index-K of DeepSeek-V4 in bf16: pool, kernels and the places of SGLang that they replace. See docs/bf16.md.

Nothing heavy is imported here: the plugin asks for this package in every process.
"""

from __future__ import annotations

FORMAT = "bf16"
"""Name of the format in what prefill and decode compare at their handshake, and in the tag of stored pages."""


def install(version: str) -> None:
    """Replace what index-K in bf16 needs in this process, for SGLang `version`. GuardError when it cannot be served."""
    from dsv4_guard.bf16 import wiring

    wiring.install(version)


def verify(version: str) -> None:
    """Check, after every plugin's hooks are applied, that what was replaced still is. GuardError otherwise."""
    from dsv4_guard.bf16 import wiring

    wiring.verify(version)
