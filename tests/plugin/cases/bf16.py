"""Index-K in bf16 on the real classes of a release."""

from __future__ import annotations

from dsv4_guard import patching
from dsv4_guard.bf16 import wiring


def run_scheduler_process(version: str) -> None:
    """Named as SGLang's entry, by which the plugin knows where it is."""
    wiring.install(version)
    wiring.verify(version)


def installed(version: str) -> list[str]:
    """Targets that carry our wrapper."""
    run_scheduler_process(version)
    return [target for target in patching.verify() if target.startswith("sglang.")]


def in_api(version: str) -> list[str]:
    """The API process: nothing is replaced."""
    wiring.install(version)
    wiring.verify(version)
    return list(patching.verify())
