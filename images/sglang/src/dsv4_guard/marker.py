"""The marker: proof for others that this engine is guarded, and for the API process that its schedulers are.

Every scheduler process writes a file named after its pid once its hooks are verified and its pool has the expected
format, and a gauge that /metrics shows. The API process compares the files with its scheduler processes before it
serves, ends when one is missing, and writes its own gauge. A canary therefore sees both, or the engine is not guarded.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dsv4_guard import MARK, __version__, patching
from dsv4_guard.live import tally
from dsv4_guard.refusal import GuardError, end, refuse
from dsv4_guard.releases import ENGINE, SCHEDULER
from dsv4_guard.transfer import checksum

log = logging.getLogger(MARK)
RUN_DIR = "DSV4_GUARD_RUN_DIR"
METRIC = "dsv4_guard_info"
INDEXER_POOL = "c4_indexer_kv_pool"
SLOT_BYTES = {132: "fp8", 68: "fp4", 256: "bf16"}
"""Bytes of one index-K slot: payload and scale."""


def run_dir() -> Path:
    """Folder of the reports, made by the API process and inherited by its children."""
    path = os.environ.get(RUN_DIR)
    if not path:
        path = tempfile.mkdtemp(prefix="dsv4-guard-")
        os.environ[RUN_DIR] = path
    return Path(path)


def format_of(pool: Any) -> str | None:
    """Format of index-K in a DeepSeek-V4 pool, by the bytes of its slots; None for another pool or no indexer layer."""
    indexer: Any = getattr(pool, INDEXER_POOL, None)
    buffers = getattr(indexer, "index_k_with_scale_buffer", None)
    if not buffers:
        return None
    page_bytes = int(buffers[0][0].numel()) * int(buffers[0].element_size())
    slot = page_bytes // int(indexer.page_size)
    return SLOT_BYTES.get(slot, f"{slot} bytes")


def publish(process: str, release: str, index_k: str) -> None:
    """Log line, and the gauge where --enable-metrics made the folder for it."""
    targets = patching.verify()
    log.warning(
        "%s active: version=%s release=%s index_k=%s process=%s pid=%d targets=%d",
        MARK,
        __version__,
        release,
        index_k,
        process,
        os.getpid(),
        len(targets),
    )
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return
    _gauge().labels(__version__, release, index_k, process).set(1)


@functools.cache
def _gauge() -> Any:
    """Made once: a process may build several engines, one after the other."""
    from prometheus_client import Gauge

    return Gauge(
        METRIC,
        "1 where the dsv4_guard plugin is active and verified",
        labelnames=("version", "release", "index_k", "process"),
        multiprocess_mode="max",
    )


def report(scheduler: Any, release: str, index_k: str, complete: bool) -> dict[str, str]:
    """Scheduler process, pool built: verify once more, then report. GuardError when the pool has another format."""
    allocator = getattr(scheduler, "token_to_kv_pool_allocator", None)
    pool = allocator.get_kvcache() if allocator is not None else None
    found = format_of(pool)
    if found is not None and found != index_k:
        raise GuardError(
            f"the pool holds index-K as {found}, DSV4_INDEX_K_DTYPE says {index_k}; set both alike "
            "(fp4 needs --enable-deepseek-v4-fp4-indexer)"
        )
    if found is None and index_k == "bf16":
        if not hasattr(pool, INDEXER_POOL):
            raise GuardError(
                f"DSV4_INDEX_K_DTYPE=bf16, but the model keeps no index-K: {type(pool).__name__} is not the pool of "
                "DeepSeek-V4; unset the variable"
            )
        log.warning("%s: no index-K buffer in this process, a pipeline stage without C4 layers", MARK)
    if f"{checksum.MODULE}:state_indices_for_request" in patching.verify():
        checksum.check(scheduler)
    entry = {"version": __version__, "release": release, "index_k": index_k, "pid": str(os.getpid())}
    if complete:
        publish("scheduler", release, index_k)
    else:
        log.warning("%s: parts are left out by DSV4_GUARD_SKIP; no marker is published", MARK)
    (run_dir() / f"{os.getpid()}.json").write_text(json.dumps(entry), encoding="utf-8")
    return entry


def _init_info(release: str, index_k: str, complete: bool) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_init_info(self: Any) -> Any:
            info = original(self)
            try:
                info[MARK] = report(self, release, index_k, complete)
            except GuardError as error:
                end(str(error))
            return info

        return get_init_info

    return make


def scheduler_pids(roots: Iterable[int]) -> list[int]:
    """Scheduler processes at or below `roots`, by the title that SGLang gives them; `roots` where none has one."""
    import psutil

    roots = list(roots)
    titled = []
    for root in roots:
        try:
            family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
        except psutil.Error:
            continue
        for process in family:
            try:
                title = " ".join(process.cmdline()[:1])
            except psutil.Error:
                continue
            if title.startswith("sglang::scheduler"):
                titled.append(process.pid)
    return titled or roots


def unreported(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that have not reported."""
    return [pid for pid in pids if not (run_dir() / f"{pid}.json").exists()]


def _ready(release: str, index_k: str, complete: bool) -> Callable[[Callable[..., Any]], Any]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _wait_for_scheduler_ready(scheduler_pipe_readers: Any, scheduler_procs: Any) -> Any:
            infos = original(scheduler_pipe_readers, scheduler_procs)
            missing = unreported(scheduler_pids(process.pid for process in scheduler_procs))
            if missing:
                for process in scheduler_procs:
                    process.kill()
                refuse(
                    f"scheduler processes {', '.join(map(str, missing))} did not load the plugin (no report from "
                    f"{SCHEDULER}.get_init_info); is {MARK} in SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS', '')!r}?"
                )
            tally.series.start()
            if complete:
                publish("api", release, index_k)
            return infos

        return _wait_for_scheduler_ready

    return make


def install_scheduler(release: str, index_k: str, complete: bool) -> None:
    """Report at the end of the scheduler's construction."""
    patching.wrap(f"{SCHEDULER}.get_init_info", _init_info(release, index_k, complete))


def install_api(release: str, index_k: str, complete: bool) -> None:
    """Check the reports before serving."""
    run_dir()
    patching.wrap(f"{ENGINE}:_wait_for_scheduler_ready", _ready(release, index_k, complete))
