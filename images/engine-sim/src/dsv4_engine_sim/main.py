"""Start-up, run, shutdown of one simulated engine process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

import aiohttp
from aiohttp import web

from dsv4_engine_sim import flags
from dsv4_engine_sim.bootstrap import BootstrapClient, BootstrapRegistry, LocalFormat
from dsv4_engine_sim.engine import Engine
from dsv4_engine_sim.metrics import EngineMetrics
from dsv4_engine_sim.receiver import DecodeTransfer
from dsv4_engine_sim.sender import PrefillTransfer
from dsv4_engine_sim.server import SimServer
from dsv4_engine_sim.settings import RefusedError, SimSettings, imitated_release, resolve
from dsv4_engine_sim.switches import Switches

log = logging.getLogger("dsv4_engine_sim")

ACCEPT_AFTER_SIGTERM_SECONDS = 2.0
"""Requests are still accepted this long after SIGTERM, for routers that have not heard yet."""

BANNER = """
************************************************************************
*  THIS IS A SIMULATOR of SGLang %-8s - there is no model in here.  *
*  Answers are computed from bytes by a small program. For tests only. *
************************************************************************
  role %s, model name %r, index-K %s, pages of %d tokens (%d bytes)"""


def _loopback(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _own_ip(settings: SimSettings) -> str:
    """Address that peers are told: SGLANG_HOST_IP, HOST_IP, the bound host, else what the host name resolves to."""
    if settings.host_ip:
        return settings.host_ip
    if settings.host not in ("0.0.0.0", "::", ""):
        return settings.host
    with contextlib.suppress(OSError):
        return socket.gethostbyname(socket.gethostname())
    return "127.0.0.1"


async def _register(session: aiohttp.ClientSession, settings: SimSettings, port: int) -> None:
    """Register every rank, as each prefill rank does once its weights are loaded."""
    ip, rank_port = _own_ip(settings), port
    if settings.transfer_advertise:
        ip, _, text = settings.transfer_advertise.rpartition(":")
        rank_port = int(text)
    attention_tp = max(1, settings.tp_size // settings.dp_size)
    url = f"http://{_bracket(_loopback(settings.host))}:{settings.bootstrap_port}/route"
    for dp_rank in range(settings.dp_size):
        for tp_rank in range(attention_tp):
            payload = {
                "attn_tp_size": attention_tp,
                "attn_tp_rank": tp_rank,
                "attn_cp_size": 1,
                "attn_cp_rank": 0,
                "attn_dp_size": settings.dp_size,
                "attn_dp_rank": dp_rank,
                "pp_size": 1,
                "pp_rank": 0,
                "system_dp_size": 1,
                "system_dp_rank": 0,
                "rank_ip": ip,
                "rank_port": rank_port,
                "page_size": settings.page_size,
                "kv_cache_dtype": settings.kv_cache_dtype,
                "kv_layout": settings.kv_layout,
                "load_balance_method": settings.load_balance_method,
                "prefill_http_port": settings.port,
                "decode_allocation_policy": "early",
            }
            async with session.put(url, json=payload) as response:
                response.raise_for_status()


async def serve(settings: SimSettings) -> int:
    """Run until SIGTERM or a fatal error; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not stop.done():
            stop.set_result(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)
    engine = Engine(settings, Switches(), EngineMetrics(settings))
    engine.on_fatal = lambda _error: end(1)
    server = SimServer(engine)
    runners = [web.AppRunner(server.app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)]
    background: list[asyncio.Task[None]] = []
    session = aiohttp.ClientSession()
    try:
        await runners[0].setup()
        await web.TCPSite(runners[0], settings.host, settings.port).start()
        transfer_port = 0
        if settings.mode == "prefill":
            registry = web.AppRunner(BootstrapRegistry(engine.switches).app, access_log=None, shutdown_timeout=0.5)
            runners.append(registry)
            await registry.setup()
            await web.TCPSite(registry, settings.host, settings.bootstrap_port).start()
            engine.sender = PrefillTransfer(engine.pool, engine.switches, settings)
            transfer_port = await engine.sender.start(settings.host, settings.transfer_port)
        elif settings.mode == "decode":
            local = LocalFormat(settings.page_size, settings.kv_cache_dtype, settings.kv_layout)
            agent = f"{_own_ip(settings)}:{settings.port}:{os.getpid()}"
            engine.receiver = DecodeTransfer(
                engine.pool, BootstrapClient(session, local), settings.waiting_timeout, agent, engine.switches
            )
            beat = engine.receiver.heartbeats(settings.heartbeat_interval, settings.heartbeat_max_failures)
            background.append(asyncio.create_task(beat))
        background.append(asyncio.create_task(engine.report_throughput()))
        background.append(asyncio.create_task(_load(server, session, transfer_port)))
        status = await stop
        if status == 0:
            await _drain(server)
        return status
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        if engine.receiver is not None:
            await engine.receiver.stop()
        if engine.sender is not None:
            await engine.sender.stop()
        for runner in runners:
            await runner.cleanup()
        engine.cache.stop()
        await session.close()


async def _load(server: SimServer, session: aiohttp.ClientSession, transfer_port: int) -> None:
    """The pretended weight loading, after which the ranks register and the server is healthy."""
    settings = server.settings
    log.info("Load weight begin. (SIMULATOR: sleeping %.1f s)", settings.startup_seconds)
    await asyncio.sleep(settings.startup_seconds)
    if settings.mode == "prefill":
        await _register(session, settings, transfer_port)
    server.loading_done = True
    log.info("The server is fired up and ready to roll! (SIMULATOR)")


async def _drain(server: SimServer) -> None:
    """After SIGTERM: accept a little longer, then let running requests end within the drain time."""
    server.stopping = True
    log.info("SIGTERM received. %d requests running. Draining.", len(server.engine.active))
    await asyncio.sleep(ACCEPT_AFTER_SIGTERM_SECONDS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(server.settings.drain_seconds):
            await server.engine.idle()


def main(argv: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Entry point; exit status 2 for what argparse refuses, 1 for what SGLang's resolution refuses."""
    release = imitated_release(env)
    try:
        args = flags.parse(sys.argv[1:] if argv is None else argv, release)
        logging.basicConfig(
            level=str(args.log_level).upper(),
            format="[%(asctime)s] %(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
        )
        settings = resolve(args, env)
    except (RefusedError, flags.ReleaseError, ValueError) as error:
        print(f"ValueError: {error}", file=sys.stderr)
        return 1
    print(
        BANNER
        % (
            release,
            settings.mode,
            settings.served_model_name,
            settings.index_k_dtype,
            settings.page_size,
            Engine.page_bytes(settings),
        ),
        flush=True,
    )
    return asyncio.run(serve(settings))
