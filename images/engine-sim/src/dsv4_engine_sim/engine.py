"""A request's way through the engine, per role; queues, running slots, pacing, aborts.

unified:  queue -> prefill into pages -> read pages -> answer
prefill:  bootstrap queue -> queue -> prefill into pages -> inflight queue (transfer) -> first token
decode:   prealloc queue (handshake, pages) -> transfer queue -> read the RECEIVED pages -> answer

Decode uses its own copy of the prompt for one thing, as the real engine does: to know how many pages to allocate. What
it answers is read from the pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any

from prometheus_client import Gauge

from dsv4_engine_sim import model, tokens
from dsv4_engine_sim.bootstrap import HandshakeError
from dsv4_engine_sim.cache import KVCache
from dsv4_engine_sim.chat import RequestError
from dsv4_engine_sim.metrics import EngineMetrics
from dsv4_engine_sim.pages import PageLayout, PagePool
from dsv4_engine_sim.receiver import DecodeTransfer
from dsv4_engine_sim.request import FAKE_BOOTSTRAP_HOST, GenRequest, Output, RequestFailedError
from dsv4_engine_sim.sender import PrefillTransfer
from dsv4_engine_sim.settings import SimSettings
from dsv4_engine_sim.switches import Switches
from dsv4_engine_sim.wire import TransferError

log = logging.getLogger(__name__)


class Engine:
    """One simulated server process, whatever its role."""

    def __init__(self, settings: SimSettings, switches: Switches, metrics: EngineMetrics) -> None:
        self.settings = settings
        self.switches = switches
        self.metrics = metrics
        self.layout = PageLayout(settings.page_size, settings.index_k_dtype, settings.layers)
        self.pool = PagePool(self.layout, settings.pool_pages)
        self.cache = KVCache(self.pool, settings.prefill_tokens_per_second)
        self.sender: PrefillTransfer | None = None
        self.receiver: DecodeTransfer | None = None
        self.on_fatal: Callable[[BaseException], None] = lambda error: None
        self.active: dict[str, tuple[GenRequest, asyncio.Task[None]]] = {}
        self._aborted: set[str] = set()
        self._slots = asyncio.Semaphore(settings.max_running_requests)
        self._background: set[asyncio.Task[None]] = set()
        self._generated = 0

    @staticmethod
    def page_bytes(settings: SimSettings) -> int:
        """Bytes of one page over all layers."""
        return PageLayout(settings.page_size, settings.index_k_dtype, settings.layers).page_bytes

    # -- entry ------------------------------------------------------------------------------------------------------

    async def generate(self, request: GenRequest) -> AsyncIterator[Output]:
        """Run a request. Raises `RequestError` (400) and `RequestFailedError`; closing the iterator aborts it."""
        self._check(request)
        queue: asyncio.Queue[Output | Exception] = asyncio.Queue()
        task = asyncio.create_task(self._run(request, queue))
        self.active[request.rid] = (request, task)
        start, first = time.monotonic(), True
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if first and not request.internal:
                    self.metrics.request_started(time.monotonic() - start, request.stream)
                    first = False
                request.completion_tokens += len(item.ids)
                if item.finish is not None and not request.internal:
                    self._account(request, time.monotonic() - start)
                yield item
                if item.finish is not None:
                    return
        finally:
            self.active.pop(request.rid, None)
            if not task.done():
                task.cancel()
                self.metrics.num_aborted_requests.inc()

    def _account(self, request: GenRequest, seconds: float) -> None:
        self.metrics.request_done(
            prompt=len(request.prompt),
            cached=request.cached,
            generated=request.completion_tokens,
            seconds=seconds,
            streaming=request.stream,
        )

    def _check(self, request: GenRequest) -> None:
        limit, length = self.settings.context_length, len(request.prompt)
        if request.rid in self.active:
            raise RequestError(f"Duplicate request ID detected: {request.rid}")
        if length >= limit:
            raise RequestError(
                f"The input ({length} tokens) is longer than the model's context length ({limit} tokens)."
            )
        if request.max_new_tokens is not None and length + request.max_new_tokens > limit:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a "
                f"total of {length + request.max_new_tokens} tokens: {length} tokens from the input messages and "
                f"{request.max_new_tokens} tokens for the completion."
            )
        if self.cache.pages_for(length) > self.pool.pages:
            raise RequestError(f"Input of {length} tokens does not fit the KV cache")
        if self.settings.mode != "null" and request.bootstrap_room is None:
            if self.settings.transfer_backend != "fake":
                raise RequestError(
                    "Invalid request: Disaggregated request received without bootstrap room id. "
                    f"req.rid={request.rid!r}"
                )
            request.bootstrap_host, request.bootstrap_room = FAKE_BOOTSTRAP_HOST, 0

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """Abort requests whose id begins with `rid`, or all; they end with finish reason ``abort``."""
        for name, (_, task) in list(self.active.items()):
            if everything or (rid and name.startswith(rid)):
                self._aborted.add(name)
                task.cancel()

    # -- roles ------------------------------------------------------------------------------------------------------

    async def _run(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        role = {"prefill": self._prefill, "decode": self._decode}.get(self.settings.mode, self._unified)
        try:
            await role(request, queue)
        except asyncio.CancelledError:
            if request.rid not in self._aborted:
                raise
            queue.put_nowait(Output([], {"type": "abort", "message": "Aborted"}))
        except HandshakeError as error:
            log.critical("Scheduler hit an exception: RuntimeError: %s", error)
            queue.put_nowait(RequestFailedError(500, str(error)))
            self.on_fatal(error)
        except RequestFailedError as error:
            queue.put_nowait(error)
        except Exception as error:  # a defect of the simulator itself must not hang the client
            log.exception("request %s", request.rid)
            queue.put_nowait(RequestFailedError(500, f"simulator defect: {error!r}"))
        finally:
            self._aborted.discard(request.rid)

    async def _unified(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        async with self._running():
            sequence = await self.cache.prefill(request.prompt)
            try:
                request.cached = sequence.cached
                ids = self._answer(request, self.cache.read(sequence.pages, sequence.length))
                await self._emit(request, ids, queue)
            finally:
                self.cache.release(sequence.pages)

    async def _prefill(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        room = request.bootstrap_room
        assert room is not None
        if request.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            async with self._running():
                sequence = await self.cache.prefill(request.prompt)
                ids = self._answer(request, self.cache.read(sequence.pages, sequence.length))
                self.cache.release(sequence.pages)
            self._finish_prefill(ids[0], queue)
            return
        assert self.sender is not None
        who = f"for request rank=0 req.rid={request.rid!r} req.bootstrap_room={room!r}"
        try:
            entry = self.sender.open(room)
        except TransferError as error:
            raise RequestFailedError(500, f"Prefill bootstrap failed {who} with exception {error}") from error
        failure: str | None = "Aborted on prefill"
        try:
            start = time.monotonic()
            try:
                with self._queued(self.metrics.num_prefill_bootstrap_queue_reqs):
                    await self.sender.bootstrap(entry)
            except TransferError as error:
                failure = str(error)
                self.metrics.num_bootstrap_failed_reqs.inc()
                raise RequestFailedError(500, f"Prefill bootstrap failed {who} with exception {error}") from error
            self.metrics.kv_transfer_bootstrap_ms.observe((time.monotonic() - start) * 1000)
            async with self._running():
                sequence = await self.cache.prefill(request.prompt)
            try:
                request.cached = sequence.cached
                first = self._answer(request, self.cache.read(sequence.pages, sequence.length))[0]
                aux = {"room": room, "first_token": first, "length": sequence.length, "cached": sequence.cached}
                with self._queued(self.metrics.num_prefill_inflight_queue_reqs):
                    sent = await self.sender.send(entry, sequence.pages, aux)
            except TransferError as error:
                failure = str(error)
                self.metrics.num_transfer_failed_reqs.inc()
                raise RequestFailedError(500, f"Prefill transfer failed {who} with exception {error}") from error
            finally:
                self.cache.release(sequence.pages)
            failure = None
            self.metrics.kv_transfer_latency_ms.observe(sent.seconds * 1000)
            self.metrics.kv_transfer_total_mb.observe(sent.bytes / 1e6)
            self.metrics.kv_transfer_speed_gb_s.observe(sent.bytes / 1e9 / max(sent.seconds, 1e-9))
        finally:
            self._later(self.sender.close(entry, failure))
        self._finish_prefill(first, queue)

    def _finish_prefill(self, token: int, queue: asyncio.Queue[Output | Exception]) -> None:
        self._generated += 1
        queue.put_nowait(Output([token], {"type": "length", "length": 1}))

    async def _decode(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        room = request.bootstrap_room
        assert room is not None
        count = self.cache.pages_for(len(request.prompt))
        if request.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            pages = await self.cache.reserve(count)
            first: int | None = None
        else:
            pages, first = await self._receive(request, room, count)
        try:
            async with self._running():
                ids = self._answer(request, self.cache.read(pages, len(request.prompt)))
                # The first token was sampled on prefill and arrives with the metadata.
                await self._emit(request, ids if first is None else [first, *ids[1:]], queue)
        finally:
            self.cache.release(pages)

    async def _receive(self, request: GenRequest, room: int, count: int) -> tuple[list[int], int]:
        """Handshake, pages, transfer. Returns filled pages and the first token."""
        assert self.receiver is not None
        host = request.bootstrap_host or "127.0.0.1"
        port = request.bootstrap_port or self.settings.bootstrap_port
        registry = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        who = f"for request rank=0 decode_req.req.rid={request.rid!r} decode_req.req.bootstrap_room={room!r}"
        if self.receiver.busy(room):
            raise RequestFailedError(500, f"Decode handshake failed {who}: bootstrap room {room} is already in use")
        start = time.monotonic()
        with self._queued(self.metrics.num_decode_prealloc_queue_reqs):
            try:
                await self.receiver.ensure_prefill(room, registry)
            except TransferError as error:
                self.metrics.num_bootstrap_failed_reqs.inc()
                raise RequestFailedError(500, f"Decode handshake failed {who} with exception {error}") from error
            pages = await self.cache.reserve(count)
        self.metrics.kv_transfer_alloc_ms.observe((time.monotonic() - start) * 1000)
        try:
            with self._queued(self.metrics.num_decode_transfer_queue_reqs):
                aux = await self.receiver.receive(room, registry, request.prefill_dp_rank, pages)
            _check_metadata(room, aux)
        except TransferError as error:
            self._later(self._release_when_drained(room, pages))
            self.metrics.num_transfer_failed_reqs.inc()
            log.error("Decode transfer failed %s with exception %s", who, error)
            raise RequestFailedError(500, f"Decode transfer failed {who} with exception {error}") from error
        except BaseException:
            self._later(self._release_when_drained(room, pages))
            raise
        request.cached = dict(aux.get("cached") or request.cached)
        return pages, int(aux["first_token"])

    async def _release_when_drained(self, room: int, pages: list[int]) -> None:
        """Deferred KV release: pages of a failed room are reused only when prefill writes to them no more."""
        assert self.receiver is not None
        with self._queued(self.metrics.num_decode_deferred_kv_release_reqs):
            acked = await self.receiver.drain(room, self.settings.deferred_release_timeout)
        self.metrics.deferred_release("acked" if acked else "timeout")
        self.cache.release(pages)

    # -- generation -------------------------------------------------------------------------------------------------

    def _answer(self, request: GenRequest, prompt_ids: list[int]) -> list[int]:
        """Output ids for the prompt that was read, the end token included."""
        text = model.answer(
            tokens.decode(prompt_ids), forced_tools=request.forced_tools, parse_tools=request.parse_tools
        )
        return [*tokens.encode(text), tokens.EOS_ID]

    def _limit(self, request: GenRequest, ids: list[int]) -> tuple[list[int], dict[str, Any]]:
        """Cut at stop strings and at the token limit; returns the ids and the finish reason."""
        maximum = request.max_new_tokens
        if maximum is None:
            maximum = self.settings.context_length - len(request.prompt)
        if request.ignore_eos:
            words = model.endless(tokens.spell(tokens.decode(ids[:-1])))
            more: Iterator[int] = (token for word in words for token in tokens.encode(word))
            ids = [*ids[:-1], *islice(more, max(0, maximum - len(ids) + 1))]
            return ids[:maximum], {"type": "length", "length": maximum}
        finish: dict[str, Any] = {"type": "stop", "matched": tokens.EOS_ID}
        if request.stop:
            text = tokens.decode(ids[:-1])
            places = [(place, word) for word in request.stop if (place := text.find(word)) >= 0]
            if places:
                place, word = min(places)
                ids = tokens.encode(text[:place])
                finish = {"type": "stop", "matched": word}
        if len(ids) > maximum:
            return ids[:maximum], {"type": "length", "length": maximum}
        return ids, finish

    async def _emit(self, request: GenRequest, ids: list[int], queue: asyncio.Queue[Output | Exception]) -> None:
        """Hand out tokens at the configured pace."""
        ids, finish = self._limit(request, ids)
        loop = asyncio.get_running_loop()
        start, interval = loop.time(), 1 / self.settings.tokens_per_second
        for number, token in enumerate(ids):
            delay = start + (number + 1) * interval - loop.time()
            if delay > 0.001 or number % 16 == 0:
                await asyncio.sleep(max(0.0, delay))
            self._generated += 1
            queue.put_nowait(Output([token], finish if number == len(ids) - 1 else None))
        if not ids:
            queue.put_nowait(Output([], finish))

    # -- bookkeeping ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        with self._queued(self.metrics.num_queue_reqs):
            await self._slots.acquire()
        try:
            with self._queued(self.metrics.num_running_reqs):
                yield
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def _queued(self, gauge: Gauge) -> Iterator[None]:
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def report_throughput(self, interval: float = 1.0) -> None:
        """Keep ``gen_throughput`` and the memory gauges current, for ever."""
        while True:
            before = self._generated
            await asyncio.sleep(interval)
            self.metrics.gen_throughput.set((self._generated - before) / interval)
            used = self.cache.used_tokens
            total = self.pool.pages * self.layout.page_size
            self.metrics.num_used_tokens.set(used)
            self.metrics.kv_available_tokens.set(total - used)
            self.metrics.token_usage.set(used / total)

    @property
    def busy(self) -> bool:
        """Requests are in flight."""
        return bool(self.active)

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        while self.active:
            await asyncio.wait({task for _, task in self.active.values()})
            await asyncio.sleep(0.01)  # their answers are being sent

    async def probe(self, limit: float = 20.0) -> bool:
        """What ``/health`` does: one token through the fake peer. No KV moves."""
        request = GenRequest(rid=f"HEALTH_CHECK_{time.monotonic_ns()}", prompt=[0], max_new_tokens=1, internal=True)
        if self.settings.mode != "null":
            request.bootstrap_host, request.bootstrap_room = FAKE_BOOTSTRAP_HOST, 0
        try:
            async with asyncio.timeout(limit):
                async for _ in self.generate(request):
                    return True
        except (TimeoutError, RequestFailedError):
            return False
        return False


def _check_metadata(room: int, aux: dict[str, Any]) -> None:
    """Upstream compares the room in the metadata buffer with its own."""
    if aux.get("room") != room:
        raise TransferError(room, f"Context corruption detected: metadata of room {aux.get('room')}")
