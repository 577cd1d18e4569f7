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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from collections.abc import Sequence as Seq
from typing import Any

from prometheus_client import Gauge

from dsv4_engine_sim import generation, prefill
from dsv4_engine_sim.bootstrap import HandshakeError
from dsv4_engine_sim.cache import KVCache, Sequence
from dsv4_engine_sim.chat import RequestError
from dsv4_engine_sim.hicache import PrefixCache
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
        self.cache = (
            PrefixCache(self.pool, settings, switches, metrics)
            if settings.prefix_cache
            else KVCache(self.pool, settings.prefill_tokens_per_second, switches)
        )
        self.busy_until = 0.0
        switches.listeners.append(self._switched)
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
        async with self.running(request):
            sequence = await self.cache.begin(request.prompt)
            try:
                self.begun(request, sequence)
                seen = await self.cache.forward(sequence)
                if self.settings.prefix_cache:  # the first decode step reads a step later than the forward
                    await asyncio.sleep(self.settings.layer_seconds)
                read = self.cache.read(sequence.pages, sequence.length)
                first = self.sample(request, seen) if seen != read else None  # the first token is the forward's
                await self._emit(request, self._reply(request, read, first), queue)
            finally:
                self.cache.end(sequence)

    async def _prefill(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        await prefill.run(self, request, queue)

    def begun(self, request: GenRequest, sequence: Sequence) -> None:
        """Note what a request found in the cache."""
        request.cached = sequence.cached
        cached = sum(sequence.cached.values())
        if not request.internal:
            self.metrics.computed(sequence.length - cached, cached)
            self.metrics.cache_hit_rate.set(cached / sequence.length)

    def sample(self, request: GenRequest, seen: Seq[int]) -> generation.First:
        """The first token of a reply, from the prompt as the forward saw it."""
        return generation.first_token(request, seen, self.settings.logprob_noise)

    def _reply(self, request: GenRequest, read: Seq[int], first: generation.First | None) -> generation.Reply:
        noise = self.settings.logprob_noise
        return generation.reply(request, read, self.settings.context_length, first=first, noise=noise)

    def first_token(self, first: generation.First, queue: asyncio.Queue[Output | Exception]) -> None:
        """End a request on prefill."""
        self._generated += 1
        steps = None if first.step is None else [first.step]
        queue.put_nowait(Output([first.token], {"type": "length", "length": 1}, steps))

    async def _decode(self, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
        room = request.bootstrap_room
        assert room is not None
        count = self.cache.pages_for(len(request.prompt))
        if request.bootstrap_host == FAKE_BOOTSTRAP_HOST:
            pages = await self.cache.reserve(count)
            first: generation.First | None = None
        else:
            pages, first = await self._receive(request, room, count)
        try:
            async with self.running(request):
                # The first token was sampled on prefill and arrives with the metadata.
                reply = self._reply(request, self.cache.read(pages, len(request.prompt)), first)
                await self._emit(request, reply, queue)
        finally:
            self.cache.release(pages)

    async def _receive(self, request: GenRequest, room: int, count: int) -> tuple[list[int], generation.First]:
        """Handshake, pages, transfer. Returns filled pages and the first token."""
        assert self.receiver is not None
        host = request.bootstrap_host or "127.0.0.1"
        port = request.bootstrap_port or self.settings.bootstrap_port
        registry = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
        who = f"for request rank=0 decode_req.req.rid={request.rid!r} decode_req.req.bootstrap_room={room!r}"
        if self.receiver.busy(room):
            raise RequestFailedError(500, f"Decode handshake failed {who}: bootstrap room {room} is already in use")
        start = time.monotonic()
        with self.queued(self.metrics.num_decode_prealloc_queue_reqs):
            try:
                await self.receiver.ensure_prefill(room, registry)
            except TransferError as error:
                self.metrics.num_bootstrap_failed_reqs.inc()
                raise RequestFailedError(500, f"Decode handshake failed {who} with exception {error}") from error
            pages = await self.cache.reserve(count)
        self.metrics.kv_transfer_alloc_ms.observe((time.monotonic() - start) * 1000)
        try:
            with self.queued(self.metrics.num_decode_transfer_queue_reqs):
                aux = await self.receiver.receive(room, registry, request.prefill_dp_rank, pages)
            _check_metadata(room, aux)
        except TransferError as error:
            self.later(self._release_when_drained(room, pages))
            self.metrics.num_transfer_failed_reqs.inc()
            log.error("Decode transfer failed %s with exception %s", who, error)
            raise RequestFailedError(500, f"Decode transfer failed {who} with exception {error}") from error
        except BaseException:
            self.later(self._release_when_drained(room, pages))
            raise
        request.cached = dict(aux.get("cached") or request.cached)
        return pages, prefill.first_of(aux)

    async def _release_when_drained(self, room: int, pages: list[int]) -> None:
        """Deferred KV release: pages of a failed room are reused only when prefill writes to them no more.

        Without it (older releases, and the switch, unless the variable asks for it) they are reused at once.
        """
        assert self.receiver is not None
        limit = self.settings.deferred_release_timeout
        reuse = self.switches["abort_page_reuse"] == "on" and not self.settings.deferred_release_asked
        if reuse or not limit:
            self.cache.release(pages)
            await self.receiver.drain(room, limit or 30.0)
            return
        with self.queued(self.metrics.num_decode_deferred_kv_release_reqs):
            acked = await self.receiver.drain(room, limit)
        self.metrics.deferred_release("acked" if acked else "timeout")
        self.cache.release(pages)

    # -- generation -------------------------------------------------------------------------------------------------

    async def _emit(
        self, request: GenRequest, reply: generation.Reply, queue: asyncio.Queue[Output | Exception]
    ) -> None:
        """Hand out tokens at the configured pace."""
        ids, finish, steps = reply.ids, reply.finish, reply.steps
        loop = asyncio.get_running_loop()
        start, interval = loop.time(), 1 / self.settings.tokens_per_second
        for number, token in enumerate(ids):
            delay = start + (number + 1) * interval - loop.time()
            if delay > 0.001 or number % 16 == 0:
                await asyncio.sleep(max(0.0, delay))
            if not request.internal and self.wedged:
                await self._unwedged()
            self._generated += 1
            if not request.internal:
                self.metrics.decoded.inc()
            step = None if steps is None else [steps[number]]
            queue.put_nowait(Output([token], finish if number == len(ids) - 1 else None, step))
        if not ids:
            queue.put_nowait(Output([], finish))

    # -- bookkeeping ------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self, request: GenRequest) -> AsyncIterator[None]:
        """A running slot, once there is one, the device is free and the scheduler turns."""
        with self.queued(self.metrics.num_queue_reqs):
            await self._slots.acquire()
        try:
            with self.queued(self.metrics.num_running_reqs):
                while (wait := self.busy_until - time.monotonic()) > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.switches.change(), wait)
                if not request.internal and self.wedged and self.settings.mode != "decode":
                    await self._unwedged()
                yield
        finally:
            self._slots.release()

    @property
    def wedged(self) -> bool:
        """The scheduler loop is out of step: nothing that runs gets a token."""
        wedge = self.switches["wedge"]
        return wedge == "on" or (wedge == "overlap" and self.settings.overlap)

    async def _unwedged(self) -> None:
        while self.wedged:
            await self.switches.change()

    def _switched(self, names: set[str]) -> None:
        if "busy_seconds" in names:
            seconds = self.switches.number("busy_seconds")
            self.busy_until = time.monotonic() + seconds
            if seconds:
                self.later(self._long_prefill())

    async def _long_prefill(self) -> None:
        """One prefill that takes until `busy_until`: it runs, and its chunks count as computed."""
        until = self.busy_until
        with self.queued(self.metrics.num_running_reqs):
            while self.busy_until == until and (wait := until - time.monotonic()) > 0:
                await asyncio.sleep(min(wait, 1.0))
                self.metrics.prefill_compute.inc(self.settings.chunk_tokens)

    @contextlib.contextmanager
    def queued(self, gauge: Gauge) -> Iterator[None]:
        """Count a request in a queue."""
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something behind the request's back."""
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
            evictable = self.cache.evictable_tokens
            self.metrics.num_used_tokens.set(used)
            self.metrics.kv_evictable_tokens.set(evictable)
            self.metrics.kv_available_tokens.set(total - used - evictable)
            if isinstance(self.cache, PrefixCache) and self.settings.hicache:
                self.metrics.hicache_host_used_tokens.set(self.cache.host_tokens)
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
        if time.monotonic() < self.busy_until:
            return False
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
