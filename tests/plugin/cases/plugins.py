"""Plugins as pip would install them, loaded by SGLang's own loader in processes named like SGLang's."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any


def distribution(name: str, entry: str) -> None:
    """Put a distribution with one entry point of the group sglang.srt.plugins on the path."""
    folder = Path(tempfile.mkdtemp())
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry}\n", encoding="utf-8")
    sys.path.insert(0, str(folder))


def load() -> None:
    """SGLang's loader, as if this process were new."""
    from sglang.srt import plugins

    plugins._plugins_loaded = False
    plugins.load_plugins()


def run_scheduler_process() -> None:
    """A scheduler-like process: what comes first in sglang.srt.managers.scheduler.run_scheduler_process."""
    load()


def run_detokenizer_process() -> None:
    load()


def installed() -> list[str]:
    """Targets that carry a wrapper of ours, verified."""
    from dsv4_guard import patching

    return list(patching.verify())


def guard() -> None:
    distribution("dsv4_guard", "dsv4_guard:register")


def scheduler(rename: str | None = None, release: str | None = None) -> list[str]:
    """Load in a scheduler-like process, with one upstream target renamed beforehand."""
    guard()
    if rename is not None:
        from dsv4_guard import patching

        owner, name, value = patching.resolve(rename)
        setattr(owner, f"{name}_renamed", value)
        delattr(owner if name in vars(owner) else definer(owner, name), name)
    if release is not None:
        import sglang.version

        sglang.version.__version__ = release
    run_scheduler_process()
    return installed()


def definer(owner: Any, name: str) -> Any:
    return next(base for base in owner.__mro__ if name in vars(base))


def api() -> list[str]:
    guard()
    load()
    return installed()


def detokenizer() -> list[str]:
    guard()
    run_detokenizer_process()
    return installed()


def lab(mode: str, early: bool = False) -> dict[str, Any]:
    """The proof's own fault plugin beside ours: which accessors it opened, and which wait in the end."""
    from dsv4_guard import gates, patching, releases

    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "images" / "sglang" / "proof" / "engine" / "lab"))
    guard()
    distribution("dsv4_lab", "dsv4_lab:register")
    run_scheduler_process()
    from sglang.srt.plugins.hook_registry import HookRegistry

    pool = patching.resolve(releases.POOL)[2]
    import sglang.version

    release = releases.choose(sglang.version.__version__, allow_untested=False)
    return {
        "unpatched": sorted(set(HookRegistry._hooks) - HookRegistry._patched),
        "wrapped": sorted(target.rsplit(".", 1)[1] for target in patching.verify() if target.startswith(releases.POOL)),
        "waits": all(gates.waits_first(pool, name) for name in release.gated),
    }
