"""The prefill's bootstrap registry and what decode reads from it (upstream ``disaggregation/common/conn.py``).

The registry is an HTTP server of its own on ``--disaggregation-bootstrap-port``; prefill ranks register with
``PUT /route``. Decode asks it once per prefill for sizes and formats, compares them with its own, and then asks for the
address of the rank it needs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from dsv4_engine_sim.switches import Switches

ENTRY_TTL_SECONDS = 120.0
"""Room to DP-rank entries are forgotten after this time (SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL)."""


class HandshakeError(RuntimeError):
    """The peers' formats differ. Upstream raises this in the decode scheduler's loop: the decode server dies."""


class PrefillUnknownError(Exception):
    """The registry could not be asked or is not ready."""


class BootstrapRegistry:
    """The registry's state and its HTTP handlers."""

    def __init__(self, switches: Switches | None = None) -> None:
        self._switches = switches or Switches()
        self._info: dict[str, Any] = {}
        self._ranks: dict[tuple[int, int, int, int], dict[str, Any]] = {}
        self._registered = 0
        self._rooms: dict[int, tuple[int, float]] = {}
        self.app = web.Application(middlewares=[self._half_dead])
        self.app.router.add_route("*", "/route", self._route)
        self.app.router.add_post("/register_dp_rank", self._register_dp_rank)
        self.app.router.add_post("/query_dp_ranks", self._query_dp_ranks)
        self.app.router.add_get("/health", self._health)

    @web.middleware
    async def _half_dead(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """With ``bootstrap`` at hang: the connection was accepted, and that is all."""
        while self._switches["bootstrap"] == "hang":
            await self._switches.change()
        return await handler(request)

    @property
    def ready(self) -> bool:
        """All ranks of the prefill have registered."""
        sizes = ("dp_size", "attn_cp_size", "attn_tp_size", "pp_size")
        expected = 1
        for name in sizes:
            expected *= int(self._info.get(name, 0))
        return 0 < expected <= self._registered

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _route(self, request: web.Request) -> web.Response:
        if request.method == "PUT":
            return await self._register(await request.json())
        if request.method == "GET":
            return self._lookup(request)
        return web.Response(text="Method not allowed", status=405, content_type="application/json")

    async def _register(self, data: dict[str, Any]) -> web.Response:
        system_dp = int(data["system_dp_size"])
        if not self._info:
            self._info = {
                "attn_tp_size": data["attn_tp_size"],
                "attn_cp_size": data["attn_cp_size"],
                "dp_size": data["attn_dp_size"] if system_dp == 1 else system_dp,
                "pp_size": data["pp_size"],
                "page_size": int(data["page_size"]),
                "kv_cache_dtype": data["kv_cache_dtype"],
                "kv_layout": data.get("kv_layout"),
                "follow_bootstrap_room": data.get("load_balance_method", "follow_bootstrap_room")
                == "follow_bootstrap_room",
                "enable_dsa_cache_layer_split": False,
                "enable_kv_cache_sharding": False,
                "prefill_http_port": data.get("prefill_http_port"),
                "decode_allocation_policy": data.get("decode_allocation_policy", "early"),
            }
        elif self._info["decode_allocation_policy"] != data.get("decode_allocation_policy", "early"):
            return web.Response(text="Inconsistent prefill allocation policies", status=400)
        dp_rank = int(data["attn_dp_rank"] if system_dp == 1 else data["system_dp_rank"])
        key = (dp_rank, int(data["attn_cp_rank"]), int(data["attn_tp_rank"]), int(data["pp_rank"]))
        self._ranks[key] = {"rank_ip": data["rank_ip"], "rank_port": int(data["rank_port"])}
        self._registered += 1
        return web.Response(text="OK")

    def _lookup(self, request: web.Request) -> web.Response:
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        values = [request.query.get(name) for name in names]
        if not all(values):
            return web.Response(text="Missing inputs for bootstrap server.", status=400)
        if not self.ready:
            text = f"Prefill server not fully registered yet ({self._registered} workers registered)."
            return web.Response(text=text, status=503)
        dp, cp, tp, pp = (int(str(value)) for value in values)
        if (dp, cp, tp, pp) == (-1, -1, -1, -1):
            return web.json_response({key: value for key, value in self._info.items() if value is not None})
        rank = self._ranks.get((dp, cp, tp, pp))
        if rank is None:
            text = f"Bootstrap info not found for dp_rank={dp} cp_rank={cp} tp_rank={tp} pp_rank={pp}"
            return web.Response(text=text, status=404)
        return web.json_response(rank)

    async def _register_dp_rank(self, request: web.Request) -> web.Response:
        data = await request.json()
        now = time.monotonic()
        self._rooms = {room: entry for room, entry in self._rooms.items() if now - entry[1] < ENTRY_TTL_SECONDS}
        self._rooms[int(data["bootstrap_room"])] = (int(data["dp_rank"]), now)
        return web.Response(text="OK")

    async def _query_dp_ranks(self, request: web.Request) -> web.Response:
        rooms = [int(room) for room in (await request.json())["bootstrap_rooms"]]
        return web.json_response({str(room): self._rooms[room][0] for room in rooms if room in self._rooms})


@dataclass(frozen=True, slots=True)
class LocalFormat:
    """What the handshake compares."""

    page_size: int
    kv_cache_dtype: str
    kv_layout: str

    def check(self, prefill: dict[str, Any]) -> None:
        """Raise `HandshakeError` with upstream's text when the prefill's formats differ."""
        page_size, dtype, layout = (prefill.get(key) for key in ("page_size", "kv_cache_dtype", "kv_layout"))
        if page_size is not None and page_size != self.page_size:
            raise HandshakeError(
                f"Page size mismatch: prefill server has page_size={page_size}, "
                f"but decode server has page_size={self.page_size}. "
                "Both servers must use the same --page-size value."
            )
        if dtype is not None and dtype != self.kv_cache_dtype:
            raise HandshakeError(
                f"KV cache dtype mismatch: prefill server has kv_cache_dtype={dtype}, "
                f"but decode server has kv_cache_dtype={self.kv_cache_dtype}. "
                "Both servers must use the same --kv-cache-dtype value."
            )
        if layout is not None and layout != self.kv_layout:
            raise HandshakeError(
                f"KV layout mismatch: prefill server has kv_layout={layout}, "
                f"but decode server has kv_layout={self.kv_layout}. Both servers "
                "must use the same --dsv4-attn-backend and SGLANG_DSV4_KV_LAYOUT."
            )


class BootstrapClient:
    """Decode's view of one or more registries. `session` must have been made in the running loop."""

    def __init__(self, session: aiohttp.ClientSession, local: LocalFormat) -> None:
        self._session = session
        self._local = local
        self.known: dict[str, dict[str, Any]] = {}
        """Registry address (host:port) -> the prefill's info, kept until the prefill is lost."""

    async def _get(self, address: str, dp: int, cp: int, tp: int, pp: int) -> dict[str, Any]:
        query = {"prefill_dp_rank": dp, "prefill_cp_rank": cp, "target_tp_rank": tp, "target_pp_rank": pp}
        timeout = aiohttp.ClientTimeout(total=5)
        try:
            async with self._session.get(f"http://{address}/route", params=query, timeout=timeout) as response:
                if response.status != 200:
                    raise PrefillUnknownError(f"{response.status}, {await response.text()}")
                data: dict[str, Any] = await response.json()
                return data
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PrefillUnknownError(f"{type(error).__name__}: {error}") from error

    async def fetch(self, address: str) -> dict[str, Any]:
        """The prefill's info, asked once; raises `PrefillUnknownError` or `HandshakeError`."""
        if address not in self.known:
            info = await self._get(address, -1, -1, -1, -1)
            self._local.check(info)
            self.known[address] = info
        return self.known[address]

    async def rank(self, address: str, room: int, dp_rank: int | None) -> tuple[str, int]:
        """IP and port of the rank that serves `room`."""
        info = await self.fetch(address)
        dp = dp_rank if dp_rank is not None else room % int(info.get("dp_size", 1))
        found = await self._get(address, dp, 0, 0, 0)
        return str(found["rank_ip"]), int(found["rank_port"])

    async def alive(self, address: str) -> bool:
        """Heartbeat: does the registry answer."""
        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with self._session.get(f"http://{address}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def sleep_before_retry(self) -> None:
        """Between two fetches, one second as upstream."""
        await asyncio.sleep(1.0)
