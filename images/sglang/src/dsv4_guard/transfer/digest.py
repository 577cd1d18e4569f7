"""A sampled digest of the index-K pages of every transfer, where the release has no KV checksum (0.5.17).

Prefill hashes a few index-K pages of the request, in all layers, when the last chunk is handed to its worker: the
forward is done then, so this is what decode has to end up with, also for pages that were sent earlier. The digests go
to decode as a notice; decode hashes the same pages after the transfer and fails the request when they differ.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from dsv4_guard import MARK, patching
from dsv4_guard.releases import NIXL, POOL
from dsv4_guard.transfer import notice, work

log = logging.getLogger(MARK)
SAMPLES = 8
"""Pages looked at per request; 8448 bytes each per fp8 layer."""
PATIENCE = 2.0
"""How long decode waits for a notice after the transfer, seconds. A prefill without digests costs this per request."""
ROOMS = 4096
PAGES, DIGESTS, SINCE = "_dsv4_guard_pages", "_dsv4_guard_digests", "_dsv4_guard_since"

_pools: list[Any] = []
_lock = threading.RLock()
"""Workers share the dictionaries of rooms."""


class Results:
    """dsv4_guard_index_digest_total{result}, where metrics are on."""

    def __init__(self) -> None:
        self._counter: Any = None

    def count(self, result: str) -> None:
        """One request: verified, mismatch or missing."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return
        if self._counter is None:
            from prometheus_client import Counter

            self._counter = Counter(
                "dsv4_guard_index_digest_total", "Requests by what their index-K digests said", labelnames=("result",)
            )
        self._counter.labels(result).inc()


results = Results()


def _remember(original: Callable[..., Any]) -> Callable[..., Any]:
    """The pool whose buffers are registered for transfer; the target's comes before a draft's."""

    @functools.wraps(original)
    def get_contiguous_buf_infos(self: Any) -> Any:
        if not _pools and buffers(self):
            _pools.append(self)
        return original(self)

    return get_contiguous_buf_infos


def buffers(pool: Any) -> list[Any]:
    """The index-K buffer of every layer."""
    return list(getattr(pool.c4_indexer_kv_pool, "index_k_with_scale_buffer", None) or ())


def hashes(pool: Any, pages: list[int]) -> list[str]:
    """A hash per page over all layers. One copy to host, on a stream of its own, so that no forward is waited for."""
    import torch

    layers = buffers(pool)
    device = layers[0].device
    if device.type != "cuda":
        return [_hash([layer[page] for layer in layers]) for page in pages]
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        rows = torch.tensor(pages, dtype=torch.int64, device=device)
        copied = torch.stack([layer.index_select(0, rows) for layer in layers], dim=1).cpu()
    return [_hash(list(page)) for page in copied]


def _hash(rows: list[Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for row in rows:
        digest.update(row.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def bounded(rooms: dict[int, Any]) -> dict[int, Any]:
    """Drop the oldest of too many: rooms that were aborted before their end."""
    with _lock:
        while len(rooms) >= ROOMS:
            rooms.pop(next(iter(rooms)), None)
    return rooms


def before_chunk(manager: Any, chunk: Any) -> None:
    """Prefill's worker: gather the room's pages; with the last chunk, hash some and tell decode."""
    rooms: dict[int, dict[int, int]] = vars(manager).setdefault(PAGES, {})
    with _lock:
        pages = rooms.get(chunk.room)
        if pages is None:
            pages = bounded(rooms)[chunk.room] = {}
    start = chunk.index_slice.start or 0
    pages.update({start + offset: int(page) for offset, page in enumerate(chunk.prefill_kv_indices)})
    if not chunk.is_last_chunk:
        return
    with _lock:
        rooms.pop(chunk.room, None)
    if not pages or not _pools:
        return
    # The room decides, so that nothing has to be remembered.
    chosen = sorted(random.Random(chunk.room).sample(sorted(pages), min(SAMPLES, len(pages))))  # noqa: S311
    found = hashes(_pools[0], [pages[position] for position in chosen])
    text = ".".join(f"{position}:{value}" for position, value in zip(chosen, found, strict=True))
    notice.send(manager, notice.peers_of(manager, chunk.room), chunk.room, "digest", text)


def _received(manager: Any, room: int, text: str) -> None:
    bounded(vars(manager).setdefault(DIGESTS, {}))[room] = text


def mismatches(pool: Any, pages: Any, text: str) -> list[int]:
    """Positions in the request whose page on decode differs from what prefill had."""
    expected = {int(position): value for position, _, value in (item.partition(":") for item in text.split("."))}
    positions = [position for position in expected if position < len(pages)]
    found = hashes(pool, [int(pages[position]) for position in positions])
    return [position for position, value in zip(positions, found, strict=True) if value != expected[position]]


def _send_metadata(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send_metadata(self: Any, kv_indices: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, PAGES, kv_indices)
        return original(self, kv_indices, *args, **kwargs)

    return send_metadata


def _poll(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def poll(self: Any) -> Any:
        from sglang.srt.disaggregation.base.conn import KVPoll

        status = original(self)
        pages = getattr(self, PAGES, None)
        if status != KVPoll.Success or pages is None or not len(pages) or not _pools:
            return status
        manager, room = self.kv_mgr, self.bootstrap_room
        known: dict[int, str] = vars(manager).setdefault(DIGESTS, {})
        if room not in known:
            since = vars(self).setdefault(SINCE, time.monotonic())
            if time.monotonic() - since < PATIENCE:
                manager.update_transfer_status()
                if room not in known:
                    return KVPoll.WaitingForInput
            else:
                results.count("missing")
                setattr(self, PAGES, None)
                return status
        wrong = mismatches(_pools[0], pages, known.pop(room))
        setattr(self, PAGES, None)
        results.count("mismatch" if wrong else "verified")
        if not wrong:
            return status
        reason = f"{MARK}: index-K digest mismatch room={room} pages={wrong} of {len(pages)}"
        log.error("%s", reason)
        manager.record_failure(room, reason)
        manager.update_status(room, KVPoll.Failed)
        self.conclude_state = KVPoll.Failed
        return KVPoll.Failed

    return poll


def install() -> None:
    """Hash on prefill, compare on decode."""
    work.install()
    work.before_each(before_chunk)
    notice.on("digest", _received)
    patching.wrap(f"{POOL}.get_contiguous_buf_infos", _remember)
    patching.wrap(f"{NIXL}:NixlKVReceiver.send_metadata", _send_metadata)
    patching.wrap(f"{NIXL}:NixlKVReceiver.poll", _poll)
