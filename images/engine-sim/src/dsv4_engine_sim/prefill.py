"""The prefill role: bootstrap queue -> queue -> forward, with an early send beside it -> transfer -> first token.

Early send (upstream ``maybe_send_cached_prefix_chunk``): pages of a cached prefix leave before the request's forward.
Which pages, and what is waited for, decides whether decode gets what it should:

=====================  ==========================================================================================
healthy                pages whose bytes are there; pages that a load is filling leave after the forward
``gate`` off           pages that a load is filling leave early too: their KV waits for its load, their index-K, in a
                       pool that knows of no load, does not
early_send_guard off   pages that another request's load is filling are taken for device-resident, nothing waits
early_send_fence off   chunks but the last leave while the forward still writes them (needs overlapped scheduling,
                       and no HiCache, which forces a barrier)
=====================  ==========================================================================================

``SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX=0``: everything leaves after the forward.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from dsv4_engine_sim.cache import Sequence
from dsv4_engine_sim.copier import Load
from dsv4_engine_sim.generation import First
from dsv4_engine_sim.logprobs import Step
from dsv4_engine_sim.request import FAKE_BOOTSTRAP_HOST, GenRequest, Output, RequestFailedError
from dsv4_engine_sim.sender import PrefillTransfer, Room
from dsv4_engine_sim.wire import TransferError

if TYPE_CHECKING:
    from dsv4_engine_sim.engine import Engine


async def run(engine: Engine, request: GenRequest, queue: asyncio.Queue[Output | Exception]) -> None:
    """One request on a prefill server, until decode has its pages."""
    room, sender, metrics = request.bootstrap_room, engine.sender, engine.metrics
    assert room is not None
    if request.bootstrap_host == FAKE_BOOTSTRAP_HOST:
        async with engine.running(request):
            sequence = await engine.cache.begin(request.prompt)
            try:
                first = engine.sample(request, await engine.cache.forward(sequence))
            finally:
                engine.cache.end(sequence)
        engine.first_token(first, queue)
        return
    assert sender is not None
    who = f"for request rank=0 req.rid={request.rid!r} req.bootstrap_room={room!r}"
    try:
        entry = sender.open(room)
    except TransferError as error:
        raise RequestFailedError(500, f"Prefill bootstrap failed {who} with exception {error}") from error
    failure: str | None = "Aborted on prefill"
    try:
        start = time.monotonic()
        try:
            with engine.queued(metrics.num_prefill_bootstrap_queue_reqs):
                await sender.bootstrap(entry)
        except TransferError as error:
            failure = str(error)
            metrics.num_bootstrap_failed_reqs.inc()
            raise RequestFailedError(500, f"Prefill bootstrap failed {who} with exception {error}") from error
        metrics.kv_transfer_bootstrap_ms.observe((time.monotonic() - start) * 1000)
        try:
            first = await _forward_and_send(engine, sender, request, entry)
        except TransferError as error:
            failure = str(error)
            metrics.num_transfer_failed_reqs.inc()
            raise RequestFailedError(500, f"Prefill transfer failed {who} with exception {error}") from error
        failure = None
    finally:
        engine.later(sender.close(entry, failure))
    engine.first_token(first, queue)


async def _forward_and_send(engine: Engine, sender: PrefillTransfer, request: GenRequest, entry: Room) -> First:
    """Returns the first token when decode has acknowledged everything. Raises `TransferError`."""
    cache, metrics = engine.cache, engine.metrics
    async with contextlib.AsyncExitStack() as stack:
        async with engine.running(request):
            sequence = await cache.begin(request.prompt)
            stack.callback(cache.end, sequence)
            engine.begun(request, sequence)
            early, loads = early_pages(engine, sequence)
            gated = engine.switches["gate"] == "on"
            posted = sender.send_cached(entry, sequence.pages[:early], loads, gated=gated) if early else None
            sending = asyncio.ensure_future(posted) if posted is not None else None
            if sending is not None:
                stack.push_async_callback(_give_up, sending)
            seen = await cache.forward(sequence)
        first = engine.sample(request, seen)
        aux = {"room": entry.room, "length": sequence.length, "cached": sequence.cached} | _metadata(first)
        with engine.queued(metrics.num_prefill_inflight_queue_reqs):
            before = await sending if sending is not None else 0
            sent = await sender.send(entry, sequence.pages, aux, start=early)
        metrics.kv_transfer_latency_ms.observe(sent.seconds * 1000)
        metrics.kv_transfer_total_mb.observe((before + sent.bytes) / 1e6)
        metrics.kv_transfer_speed_gb_s.observe((before + sent.bytes) / 1e9 / max(sent.seconds, 1e-9))
        return first


def _metadata(first: First) -> dict[str, Any]:
    """The first token and its logprobs, as they travel to decode."""
    step = first.step
    scores = None if step is None else {"logprob": step.logprob, "top": step.top}
    return {"first_token": first.token, "logprobs": scores}


def first_of(aux: dict[str, Any]) -> First:
    """The first token that the metadata carries."""
    token, scores = int(aux["first_token"]), aux.get("logprobs")
    if not scores:
        return First(token)
    top = tuple((float(logprob), int(number)) for logprob, number in scores["top"])
    return First(token, Step(token, float(scores["logprob"]), top))


async def _give_up(task: asyncio.Future[int]) -> None:
    """End an early send whose request has ended; its error, if any, was or will not be needed."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, TransferError):
        await task


def early_pages(engine: Engine, sequence: Sequence) -> tuple[int, list[Load | None]]:
    """How many pages leave before the forward, and per cached page the load that its transfer knows of."""
    settings, switches = engine.settings, engine.switches
    if not settings.early_send:
        return 0, []
    unguarded, ungated = switches["early_send_guard"] == "off", switches["gate"] == "off"
    known: list[Load | None] = []
    for load in sequence.loads:
        if load is not None and load is not sequence.own and unguarded:
            known.append(None)
        elif load is None or ungated:
            known.append(load)
        else:
            break
    if switches["early_send_fence"] == "off" and settings.overlap and not settings.hicache:
        chunks = (sequence.length - 1) // settings.chunk_tokens
        known += [None] * (chunks * settings.chunk_tokens // settings.page_size - len(known))
    return len(known), known
