"""Driving a pair as a router does: one body to both engines, the answer taken from decode.

Both requests carry ``bootstrap_host`` (the prefill's address as decode reaches it), ``bootstrap_port`` and a
fresh ``bootstrap_room``. Prefill answers one token once the KV transfer has ended; its status tells which
side failed. A target without a prefill is one plain endpoint: an engine that does both, or a router.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

from dsv4_canary.model import Role
from dsv4_canary.probes import fresh_room
from dsv4_canary.reply import Reply, parse_completion, parse_stream
from dsv4_canary.tiers import Cached, read_cached

CHAT = "/v1/chat/completions"
GENERATE = "/generate"

_MAX_BODY = 4 * 1024 * 1024
_GRACE = 2.0
"""Seconds that one side gets after the other has ended: prefill normally answers before decode does."""
_ABORT_TIMEOUT = 2.0
CONNECT_TIMEOUT = 3.0
_HEALTH_TIMEOUT = 25.0
_INFO_TIMEOUT = 10.0
_MOST_RANKS = 1024


class LegKind(StrEnum):
    """How the request to one engine ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    OPEN = "open"
    """Still running when it was given up."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One engine's side. ``status`` and ``body`` are set when it answered."""

    kind: LegKind
    status: int | None = None
    body: bytes = b""

    @property
    def good(self) -> bool:
        """Answered with HTTP 200."""
        return self.kind is LegKind.ANSWERED and self.status == 200


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask. URLs without a path, such as ``http://10.1.0.5:30000``."""

    decode: str
    """The engine that answers: decode of a pair, or the only endpoint."""
    prefill: str | None = None
    """None: a plain endpoint."""
    bootstrap_host: str = ""
    """Address of the prefill as decode reaches it."""
    bootstrap_port: int = 8998


@dataclass(frozen=True, slots=True)
class PairResult:
    """Both sides of one request, and decode's reply where there is one. ``seconds`` is the time until it ended.

    With a plain endpoint ``prefill`` counts as answered. ``reply`` is for chat completions alone.
    """

    prefill: Leg
    decode: Leg
    reply: Reply | None
    timed_out: bool
    seconds: float
    cached: Cached = field(default_factory=Cached)
    """Prompt tokens that came from a cache, as the two sides report them."""

    def leg(self, role: Role) -> Leg:
        """The side of that role."""
        return self.prefill if role is Role.PREFILL else self.decode


async def drive(
    session: aiohttp.ClientSession,
    target: Target,
    body: Mapping[str, Any],
    *,
    seconds: float,
    path: str = CHAT,
    room: int | None = None,
) -> PairResult:
    """Send one request through a target. Never raises for anything the engines do; takes at most ``seconds`` plus a
    short time to give up. ``room``: bootstrap room, a fresh one when None."""
    urls = {Role.DECODE: target.decode}
    addressed = dict(body)
    if target.prefill is not None:
        urls = {Role.PREFILL: target.prefill, Role.DECODE: target.decode}
        addressed["bootstrap_host"] = target.bootstrap_host
        addressed["bootstrap_port"] = target.bootstrap_port
        addressed["bootstrap_room"] = fresh_room() if room is None else room
    started = time.monotonic()
    legs = {role: asyncio.create_task(_post(session, url + path, addressed)) for role, url in urls.items()}
    try:
        timed_out = await _settle(legs, started + seconds)
        took = time.monotonic() - started
        ended = {role: task.result() if task.done() else Leg(LegKind.OPEN) for role, task in legs.items()}
    finally:
        for task in legs.values():
            task.cancel()
        await asyncio.gather(*legs.values(), return_exceptions=True)
    left = [urls[role] for role, leg in ended.items() if not leg.good]
    if left and "rid" in body:
        # Closing the connection aborts a request too; asking also covers an engine that does not notice.
        await asyncio.gather(*(_abort(session, url, str(body["rid"])) for url in left))
    decode = ended[Role.DECODE]
    prefill = ended.get(Role.PREFILL, Leg(LegKind.ANSWERED, 200))
    reply = None
    if decode.good and path == CHAT:
        reply = (parse_stream if body.get("stream") else parse_completion)(decode.body)
    cached = Cached()
    for leg in ended.values():
        if leg.good:
            cached = cached.merge(read_cached(leg.body))
    return PairResult(prefill, decode, reply, timed_out, took, cached)


async def _settle(legs: Mapping[Role, asyncio.Task[Leg]], deadline: float) -> bool:
    """Wait until both sides ended, or one ended and the grace for the other is over. True: the deadline passed."""
    pending: set[asyncio.Task[Leg]] = set(legs.values())
    until = deadline
    while pending:
        done, pending = await asyncio.wait(
            pending, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            return not legs[Role.DECODE].done() and time.monotonic() >= deadline
        # Prefill's good answer leaves decode all its time; anything else leaves the other side the grace
        # only.
        ended_early = any(not task.result().good for task in done)
        if ended_early or legs[Role.DECODE].done():
            until = min(deadline, time.monotonic() + _GRACE)
    return False


async def _post(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Leg:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    try:
        async with session.post(url, json=body, timeout=timeout) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MAX_BODY:
                    break
            return Leg(LegKind.ANSWERED, response.status, bytes(data))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Leg(connection_failure(error))


def connection_failure(error: BaseException) -> LegKind:
    """Tell a host where nobody listens (engine loading or restarting) from one that is not there, and from a connection
    that broke in use."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return LegKind.REFUSED if error.os_error.errno == errno.ECONNREFUSED else LegKind.UNREACHABLE
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return LegKind.UNREACHABLE
    return LegKind.LOST


async def _abort(session: aiohttp.ClientSession, url: str, request_id: str) -> None:
    timeout = aiohttp.ClientTimeout(total=_ABORT_TIMEOUT)
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with session.post(f"{url}/abort_request", json={"rid": request_id}, timeout=timeout):
            pass


async def health(session: aiohttp.ClientSession, url: str) -> int | LegKind:
    """HTTP status of an engine's ``/health``, or how the connection failed.

    SGLang answers after one generated token, at least a second and up to 20 s later; 503 while it starts.
    """
    limits = aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
    try:
        async with session.get(f"{url}/health", timeout=limits) as response:
            return response.status
    except aiohttp.ConnectionTimeoutError:
        return LegKind.UNREACHABLE
    except TimeoutError:
        return LegKind.OPEN
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return connection_failure(error)


async def dp_size(session: aiohttp.ClientSession, url: str) -> int | None:
    """Data-parallel size of an engine by its ``/server_info``; None when it cannot be read."""
    limits = aiohttp.ClientTimeout(total=_INFO_TIMEOUT, sock_connect=CONNECT_TIMEOUT)
    try:
        async with session.get(f"{url}/server_info", timeout=limits) as response:
            if response.status != 200:
                return None
            found = (await response.json(content_type=None)).get("dp_size", 1)
    except (aiohttp.ClientError, OSError, ValueError, AttributeError, TimeoutError):
        return None
    return found if isinstance(found, int) and 1 <= found <= _MOST_RANKS else 1
