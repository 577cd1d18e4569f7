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


def lab() -> dict[str, Any]:
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


def short_init_info() -> None:
    """What get_init_info itself says needs a whole server; the report does not."""
    from sglang.srt.managers.scheduler import Scheduler

    Scheduler.get_init_info = lambda self: {"status": "ready"}


def broken_import() -> None:
    sys.modules["dsv4_guard.start"] = None  # type: ignore[assignment]
    guard()
    run_scheduler_process()


def replaced_later() -> None:
    """Something patches over us between the start and the report."""
    short_init_info()
    guard()
    run_scheduler_process()
    from sglang.srt.disaggregation.nixl.conn import NixlKVManager
    from sglang.srt.managers.scheduler import Scheduler

    NixlKVManager.transfer_worker = lambda self: None
    fake_scheduler(Scheduler, 132).get_init_info()


def fake_scheduler(scheduler_class: Any, slot: int) -> Any:
    """A scheduler with a pool, as far as get_init_info looks."""
    from types import SimpleNamespace

    import torch

    scheduler = object.__new__(scheduler_class)
    indexer = SimpleNamespace(page_size=64, index_k_with_scale_buffer=[torch.zeros(2, 64 * slot, dtype=torch.uint8)])
    pool = SimpleNamespace(c4_indexer_kv_pool=indexer)
    scheduler.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=lambda: pool)
    return scheduler


def pool_format(slot: int) -> Any:
    short_init_info()
    guard()
    run_scheduler_process()
    from sglang.srt.managers.scheduler import Scheduler

    return dict(fake_scheduler(Scheduler, slot).get_init_info()["dsv4_guard"])


def refusal_beside_threads() -> Any:
    """A scheduler that must not serve, with a thread like prefill's bootstrap thread: how its process ends."""
    import multiprocessing
    import threading

    short_init_info()
    guard()
    run_scheduler_process()
    from sglang.srt.managers.scheduler import Scheduler

    def build() -> None:
        threading.Thread(target=threading.Event().wait).start()
        fake_scheduler(Scheduler, 68).get_init_info()

    process = multiprocessing.get_context("fork").Process(target=build)
    process.start()
    process.join(30)
    exitcode = process.exitcode
    process.kill()
    return exitcode


class Pipe:
    """The end of a scheduler's pipe in the API process."""

    def poll(self, timeout: float) -> bool:
        return True

    def recv(self) -> dict[str, Any]:
        return {"status": "ready"}


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def is_alive(self) -> bool:
        return True

    def kill(self) -> None:
        pass


def silent_scheduler() -> None:
    """The API process waits for a scheduler that never loaded the plugin."""
    import os

    guard()
    load()
    from sglang.srt.entrypoints import engine

    engine._wait_for_scheduler_ready([Pipe()], [Process(os.getpid())])


def marker() -> list[str]:
    """Scheduler and API process, each a process of its own, and what /metrics then shows."""
    import os

    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()
    from dsv4_guard import marker as part

    part.run_dir()
    ready, finish = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(finish[1])
        short_init_info()
        guard()
        run_scheduler_process()
        from sglang.srt.managers.scheduler import Scheduler

        fake_scheduler(Scheduler, 132).get_init_info()
        os.write(ready[1], b"x")
        os.read(finish[0], 1)
        os._exit(0)
    os.close(ready[1])
    assert os.read(ready[0], 1) == b"x", "the scheduler did not get to its report"
    guard()
    load()
    from sglang.srt.entrypoints import engine

    engine._wait_for_scheduler_ready([Pipe()], [Process(child)])
    os.write(finish[1], b"x")
    os.waitpid(child, 0)
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith("dsv4_guard_info{")]
