"""Decode's half of the transfer: finds the prefill, tells it where to write, and waits for the pages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from dsv4_engine_sim.bootstrap import BootstrapClient, PrefillUnknownError
from dsv4_engine_sim.pages import INDEX_K, KV, PagePool
from dsv4_engine_sim.switches import Switches
from dsv4_engine_sim.wire import GUARD, PAGE, TransferError, WireError, control_frame, read_frame

log = logging.getLogger(__name__)

ENSURE_ATTEMPTS = 15
"""Fetches of a prefill's info, one second apart, before its requests fail (upstream ``decode.py``)."""


_READ_BUFFER = 1024 * 1024


@dataclass(eq=False)
class Link:
    """A connection to one prefill rank."""

    address: tuple[str, int]
    registry: str
    writer: asyncio.StreamWriter
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    reader_task: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        """Send a control message; OSError when the prefill is gone."""
        async with self.lock:
            self.writer.write(control_frame(message))
            await self.writer.drain()


@dataclass(eq=False)
class Incoming:
    """One request's transfer on the decode side."""

    room: int
    registry: str
    done: asyncio.Future[dict[str, Any]]
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    link: Link | None = None


class DecodeTransfer:
    """All rooms and links of a decode server."""

    def __init__(
        self, pool: PagePool, client: BootstrapClient, waiting_timeout: float, agent: str, switches: Switches
    ) -> None:
        self._pool = pool
        self._switches = switches
        self._client = client
        self._timeout = waiting_timeout
        self._agent = agent
        self._rooms: dict[int, Incoming] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._dialling: dict[tuple[str, int], asyncio.Lock] = {}

    # -- before the transfer ----------------------------------------------------------------------------------------

    async def ensure_prefill(self, room: int, registry: str) -> None:
        """Learn and check the prefill's formats. Raises `TransferError` after 15 tries, HandshakeError at once."""
        reason = ""
        for attempt in range(1, ENSURE_ATTEMPTS + 1):
            try:
                await self._client.fetch(registry)
            except PrefillUnknownError as error:
                reason = str(error)
                log.warning("Failed to get prefill server info from %s: %s", registry, reason)
            else:
                return
            if attempt < ENSURE_ATTEMPTS:
                await self._client.sleep_before_retry()
        log.error("Could not fetch prefill parallel info from %s after %d attempts", registry, ENSURE_ATTEMPTS)
        raise TransferError(room, f"Could not fetch prefill parallel info from bootstrap_addr: {registry}")

    async def _link(self, registry: str, address: tuple[str, int]) -> Link:
        async with self._dialling.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None:
                reader, writer = await asyncio.open_connection(*address, limit=_READ_BUFFER)
                link = Link(address, registry, writer)
                layout = self._pool.layout
                items = [layout.item_bytes(region) for region in (KV, INDEX_K)]
                await link.send(
                    {
                        "type": "register",
                        "guard": GUARD,
                        "agent": self._agent,
                        "item_bytes": items,
                        "layers": layout.layers,
                    }
                )
                link.reader_task = asyncio.create_task(self._read(link, reader))
                self._links[address] = link
            return link

    def busy(self, room: int) -> bool:
        """Another request of this server uses the room."""
        return room in self._rooms

    # -- the transfer -----------------------------------------------------------------------------------------------

    async def receive(self, room: int, registry: str, dp_rank: int | None, pages: list[int]) -> dict[str, Any]:
        """Have `pages` filled by the prefill; returns its metadata. Raises `TransferError`.

        After a failure the caller must `drain` the room before it uses the pages for anything else.
        """
        if room in self._rooms:
            raise TransferError(room, f"bootstrap room {room} is already in use")
        entry = Incoming(room, registry, asyncio.get_running_loop().create_future())
        self._rooms[room] = entry
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                await self._announce(entry, dp_rank, pages)
                return await asyncio.shield(entry.done)
        except TimeoutError:
            elapsed = time.monotonic() - start
            log.warning(
                "Some requests fail to receive KV Cache transfer done signal after bootstrapping, room %d", room
            )
            self._client.known.pop(registry, None)
            raise TransferError(
                room, f"Request {room} timed out after {elapsed:.1f}s in KVPoll.WaitingForInput"
            ) from None

    async def _announce(self, entry: Incoming, dp_rank: int | None, pages: list[int]) -> None:
        """Tell the prefill the room's destinations. A message to a dead address is lost, as with ZMQ."""
        try:
            address = await self._client.rank(entry.registry, entry.room, dp_rank)
            link = await self._link(entry.registry, address)
            entry.link = link
            await link.send({"type": "room", "room": entry.room, "pages": pages})
        except (PrefillUnknownError, OSError) as error:
            log.warning("room %d: prefill %s not reached: %s", entry.room, entry.registry, error)

    async def drain(self, room: int, limit: float) -> bool:
        """End a failed room: tell the prefill and wait until it will write no more. False after `limit` seconds."""
        entry = self._rooms.get(room)
        if entry is None:
            return True
        try:
            if entry.link is None or self._links.get(entry.link.address) is not entry.link:
                return True
            async with asyncio.timeout(limit):
                await entry.link.send({"type": "abort", "room": room})
                await entry.drained.wait()
        except TimeoutError:
            return False
        except OSError:
            return True
        else:
            return True
        finally:
            self._forget(entry)

    def _forget(self, entry: Incoming) -> None:
        self._rooms.pop(entry.room, None)
        if not entry.done.done():
            entry.done.cancel()
        elif not entry.done.cancelled():
            entry.done.exception()  # retrieved, so that asyncio does not report it

    # -- messages from prefill --------------------------------------------------------------------------------------

    async def _read(self, link: Link, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                if frame.kind == PAGE:
                    if frame.layer == self._pool.layout.layers - 1 and self._switches["bad_pod"] == "compute":
                        continue  # this pod's memory loses the stores of one layer
                    self._pool.write_item(frame.layer, frame.region, frame.page, frame.payload)
                else:
                    await self._message(link, frame.control())
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (WireError, KeyError, IndexError, TypeError, ValueError) as error:
            log.warning("transfer link to %s dropped: %s", link.address, error)
        finally:
            self.lose(link.registry, link)

    async def _message(self, link: Link, message: dict[str, Any]) -> None:
        room, kind = int(message["room"]), message["type"]
        entry = self._rooms.get(room)
        if entry is None:
            return
        if kind == "done":
            if not entry.done.done():
                entry.done.set_result(dict(message["aux"]))
                self._rooms.pop(room, None)
            await link.send({"type": "ack", "room": room})
        elif kind == "failed":
            self._fail(entry, str(message.get("reason", "failed on prefill")))
        elif kind == "drained":
            entry.drained.set()

    def _fail(self, entry: Incoming, reason: str) -> None:
        if not entry.done.done():
            entry.done.set_exception(TransferError(entry.room, reason))

    def lose(self, registry: str, link: Link | None = None) -> None:
        """A prefill is gone: fail its rooms, forget what was cached of it."""
        self._client.known.pop(registry, None)
        for address, other in list(self._links.items()):
            if other is link or (link is None and other.registry == registry):
                del self._links[address]
                other.writer.close()
        hit = [entry for entry in self._rooms.values() if entry.registry == registry]
        for entry in hit:
            entry.drained.set()
            self._fail(entry, f"Lost connection with prefill instance (bootstrap_addr: {registry})")
        if hit:
            log.error(
                "Lost connection with prefill instance (bootstrap_addr: %s), %d requests affected", registry, len(hit)
            )

    async def heartbeats(self, interval: float, max_failures: int) -> None:
        """Poll the health of every known registry for ever; `max_failures` misses in a row lose the prefill."""
        failures: dict[str, int] = {}
        while True:
            await asyncio.sleep(interval)
            for registry in list(self._client.known):
                failures[registry] = 0 if await self._client.alive(registry) else failures.get(registry, 0) + 1
                if failures[registry] >= max_failures:
                    failures.pop(registry)
                    self.lose(registry)

    async def stop(self) -> None:
        """Hang up."""
        for link in list(self._links.values()):
            link.writer.close()
            if link.reader_task is not None:
                link.reader_task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await link.reader_task
