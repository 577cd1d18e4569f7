"""Prefill's half of the transfer: waits for decode's destinations, writes pages to them, waits until they are there.

States per room as upstream: Bootstrapping (decode's addresses unknown), WaitingForInput (known, forward not done),
Transferring, Success or Failed. There is no timeout in Transferring on this side, as upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from dsv4_engine_sim.pages import INDEX_K, KV, PagePool
from dsv4_engine_sim.switches import Switches
from dsv4_engine_sim.wire import (
    CONTROL,
    GUARD,
    KVPoll,
    TransferError,
    WireError,
    control_frame,
    page_frame,
    read_frame,
)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Peer:
    """A decode process that has registered its buffers."""

    name: str
    item_bytes: list[int]
    """Bytes of one page of one layer, per region, in the peer's pool."""
    layers: int
    writer: asyncio.StreamWriter
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, data: bytes) -> None:
        """Write one frame; OSError when the peer is gone."""
        async with self.lock:
            self.writer.write(data)
            await self.writer.drain()


@dataclass(eq=False)
class Room:
    """One request's transfer on the prefill side."""

    room: int
    owned: bool = False
    """An HTTP request of this server uses the room."""
    state: KVPoll = KVPoll.Bootstrapping
    peer: Peer | None = None
    pages: list[int] = field(default_factory=list)
    known: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by decode's acknowledgement, an abort, or the loss of the peer."""
    failure: str | None = None
    born: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a finished transfer took: bytes and seconds."""

    bytes: int
    seconds: float


class PrefillTransfer:
    """All rooms and peers of a prefill server."""

    def __init__(self, pool: PagePool, switches: Switches, bootstrap_timeout: float) -> None:
        self._pool = pool
        self._switches = switches
        self._timeout = bootstrap_timeout
        self._rooms: dict[int, Room] = {}
        self._closed: dict[int, float] = {}
        self._server: asyncio.Server | None = None
        self._peers: set[Peer] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen for decode processes; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.writer.close()

    def open(self, room: int) -> Room:
        """Claim a room for an HTTP request. Raises `TransferError` when another one holds it."""
        entry = self._rooms.setdefault(room, Room(room))
        if entry.owned:
            raise TransferError(room, f"bootstrap room {room} is already in use")
        entry.owned = True
        self._closed.pop(room, None)
        return entry

    async def close(self, entry: Room, failure: str | None = None) -> None:
        """Forget a room; a failure is told to decode when it is known."""
        self._rooms.pop(entry.room, None)
        self._expire()
        if failure is None:
            return
        entry.state = KVPoll.Failed
        self._closed[entry.room] = time.monotonic() + self._timeout
        if entry.peer is not None:
            with contextlib.suppress(OSError):
                await entry.peer.send(control_frame({"type": "failed", "room": entry.room, "reason": failure}))

    def _expire(self) -> None:
        now = time.monotonic()
        self._closed = {room: end for room, end in self._closed.items() if end > now}
        for room, entry in list(self._rooms.items()):
            if not entry.owned and now - entry.born > self._timeout:
                del self._rooms[room]

    async def bootstrap(self, entry: Room) -> None:
        """Wait for decode's destinations. Raises `TransferError` after the bootstrap timeout or an abort."""
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                await entry.known.wait()
        except TimeoutError:
            elapsed = time.monotonic() - start
            log.warning("Some requests timed out when bootstrapping, room %d", entry.room)
            raise TransferError(
                entry.room, f"Request {entry.room} timed out after {elapsed:.1f}s in KVPoll.Bootstrapping"
            ) from None
        self._check(entry)
        entry.state = KVPoll.WaitingForInput

    def _check(self, entry: Room) -> None:
        if entry.failure is not None:
            raise TransferError(entry.room, entry.failure)

    async def send_page(self, entry: Room, source: int, number: int) -> int:
        """Send one page (over all layers, both regions) to the `number`-th destination; returns the bytes.

        The bytes are those in the buffer at this moment.
        """
        self._check(entry)
        peer = entry.peer
        assert peer is not None
        entry.state = KVPoll.Transferring
        layout = self._pool.layout
        if number >= len(entry.pages):
            return 0
        for region, own in ((KV, layout.item_bytes(KV)), (INDEX_K, layout.item_bytes(INDEX_K))):
            # As NIXL: only a source item larger than the target's is refused; a smaller one lands in wrong strides.
            if own > peer.item_bytes[region] or layout.layers != peer.layers:
                raise TransferError(
                    entry.room, f"item length mismatch: source {own} bytes, target {peer.item_bytes[region]}"
                )
        items = [(region, layer) for region in (KV, INDEX_K) for layer in range(layout.layers)]
        frames = [
            page_frame(entry.room, region, layer, entry.pages[number], self._pool.view(layer, region, source))
            for region, layer in items
        ]
        try:
            await peer.send(b"".join(frames))
        except OSError as error:
            raise TransferError(entry.room, f"Lost connection with decode: {error}") from error
        return layout.page_bytes

    async def send(self, entry: Room, pages: list[int], aux: dict[str, Any]) -> Sent:
        """Send all pages and then the metadata; returns when decode has everything. Raises `TransferError`."""
        start = time.monotonic()
        total = 0
        if self._switches["transfer"] == "drop":
            await entry.ended.wait()
            self._check(entry)
        for number, page in enumerate(pages):
            total += await self.send_page(entry, page, number)
        self._check(entry)
        assert entry.peer is not None
        try:
            await entry.peer.send(control_frame({"type": "done", "room": entry.room, "aux": aux}))
        except OSError as error:
            raise TransferError(entry.room, f"Lost connection with decode: {error}") from error
        await entry.ended.wait()
        self._check(entry)
        entry.state = KVPoll.Success
        return Sent(total, time.monotonic() - start)

    def abort(self, entry: Room, reason: str) -> None:
        """End a room from this side; its waits raise `TransferError`."""
        entry.failure = entry.failure or reason
        entry.known.set()
        entry.ended.set()

    # -- messages from decode ---------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Peer | None = None
        try:
            while True:
                frame = await read_frame(reader)
                if frame.kind != CONTROL:
                    raise WireError("decode sent page bytes")  # noqa: TRY301
                message = frame.control()
                if peer is None:
                    peer = self._register(message, writer)
                else:
                    await self._message(peer, message)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (WireError, KeyError, TypeError, ValueError) as error:
            log.warning("transfer peer dropped: %s", error)
        finally:
            if peer is not None:
                self._peers.discard(peer)
                for entry in list(self._rooms.values()):
                    if entry.peer is peer:
                        self.abort(entry, f"Lost connection with decode {peer.name}")
            writer.close()

    def _register(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> Peer:
        if message.get("guard") != GUARD or message.get("type") != "register":
            raise WireError("first message is no registration")
        items = [int(size) for size in message["item_bytes"]]
        peer = Peer(str(message["agent"]), items, int(message["layers"]), writer)
        self._peers.add(peer)
        return peer

    async def _message(self, peer: Peer, message: dict[str, Any]) -> None:
        room, kind = int(message["room"]), message["type"]
        entry = self._rooms.get(room)
        if kind == "room":
            pages = [int(page) for page in message["pages"]]
            if room in self._closed or (entry is not None and entry.peer is not None and entry.peer is not peer):
                await peer.send(control_frame({"type": "failed", "room": room, "reason": "bootstrap room is closed"}))
                return
            if entry is None:
                entry = self._rooms[room] = Room(room)
            entry.peer, entry.pages = peer, pages
            entry.known.set()
        elif kind == "ack" and entry is not None:
            entry.ended.set()
        elif kind == "abort":
            if entry is not None:
                self.abort(entry, "Aborted by decode")
                if not entry.owned:
                    self._rooms.pop(room, None)
            self._closed[room] = time.monotonic() + self._timeout
            # Frames on one connection keep their order: behind this answer no page of the room follows.
            await peer.send(control_frame({"type": "drained", "room": room}))
