"""Prefill's half of the transfer: waits for decode's destinations, writes pages to them, waits until they are there.

States per room as upstream: Bootstrapping (decode's addresses unknown), WaitingForInput (known, forward not done),
Transferring, Success or Failed. There is no timeout in Transferring on this side, as upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from dsv4_engine_sim.copier import Load
    from dsv4_engine_sim.settings import SimSettings

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

    def fault(self, switch: str) -> str:
        """What the ``bad_link`` switch does to this peer: nothing, ``lose`` or ``stall``."""
        wanted = switch.removeprefix("stall:")
        remote = str((self.writer.get_extra_info("peername") or ("",))[0])
        own, _, _process = self.name.rpartition(":")  # host:port:pid
        if not wanted or wanted not in (remote, own, own.rpartition(":")[0]):
            return ""
        return "stall" if wanted != switch else "lose"

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
    dropped: bool = False
    """Chosen by ``drop_every``: accepted, and nothing is ever sent."""
    posted: int = 0
    """Transfers under way. They cannot be called back: a remote write that was posted is made."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """No transfer is under way any more."""
    born: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a finished transfer took: bytes and seconds."""

    bytes: int
    seconds: float


class PrefillTransfer:
    """All rooms and peers of a prefill server."""

    def __init__(self, pool: PagePool, switches: Switches, settings: SimSettings) -> None:
        self._pool = pool
        self._switches = switches
        self._timeout = settings.bootstrap_timeout
        self._post_seconds = settings.post_seconds
        self._rate = settings.transfer_bytes_per_second
        self._opened = 0
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._opened += 1
        every = int(self._switches.number("drop_every"))
        entry.dropped = bool(every) and self._opened % every == 0
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

    async def _silent(self, entry: Room) -> None:
        """Where the bytes of this room go nowhere, wait for the other side to give up."""
        assert entry.peer is not None
        stalled = entry.peer.fault(self._switches["bad_link"]) == "stall"
        if entry.dropped or stalled or self._switches["transfer"] == "drop":
            await entry.ended.wait()
            self._check(entry)

    @contextlib.contextmanager
    def _post(self, entry: Room) -> Iterator[None]:
        self._check(entry)
        entry.state = KVPoll.Transferring
        entry.posted += 1
        entry.quiet.clear()
        try:
            yield
        finally:
            entry.posted -= 1
            if not entry.posted:
                entry.quiet.set()

    async def _items(self, entry: Room, items: Iterable[tuple[int, int, int, int]]) -> int:
        """Write (region, layer, source page, number of the destination) each; returns the bytes.

        The bytes are those in the buffer at this moment.
        """
        peer, layout = entry.peer, self._pool.layout
        assert peer is not None
        for region in (KV, INDEX_K):
            own, theirs = layout.item_bytes(region), peer.item_bytes[region]
            # As NIXL: only a source item larger than the target's is refused; a smaller one lands in wrong strides.
            if own > theirs or layout.layers != peer.layers:
                raise TransferError(entry.room, f"item length mismatch: source {own} bytes, target {theirs}")
        lossy = peer.fault(self._switches["bad_link"]) == "lose"
        frames = [
            page_frame(entry.room, region, layer, entry.pages[number], self._pool.view(layer, region, source))
            for region, layer, source, number in items
            if number < len(entry.pages) and not (lossy and region == INDEX_K and layer == layout.layers - 1)
        ]
        data = b"".join(frames)
        try:
            await peer.send(data)
        except OSError as error:
            raise TransferError(entry.room, f"Lost connection with decode: {error}") from error
        if self._rate:
            await asyncio.sleep(len(data) / self._rate)
        return len(data)

    async def send_cached(self, entry: Room, pages: Sequence[int], loads: Sequence[Load | None], *, gated: bool) -> int:
        """Send the first pages of a prompt before its forward is done; returns the bytes.

        As registered: all layers of KV, then all layers of index-K. KV is taken when the layer's load says that it is
        there, where the transfer knows of a load. Index-K is taken at once, or, `gated`, after the layer's load.
        """
        await self._silent(entry)
        layers = range(self._pool.layout.layers)
        known = {load for load in loads if load is not None}
        total = 0
        with self._post(entry):
            for layer in layers:
                for load in known:
                    await load.kv[layer].wait()
                total += await self._items(entry, [(KV, layer, page, i) for i, page in enumerate(pages)])
            if known:
                await asyncio.sleep(self._post_seconds)
            for layer in layers:
                for load in known if gated else ():
                    await load.index[layer].wait()
                total += await self._items(entry, [(INDEX_K, layer, page, i) for i, page in enumerate(pages)])
        return total

    async def send(self, entry: Room, pages: list[int], aux: dict[str, Any], *, start: int = 0) -> Sent:
        """Send all pages from `start` on and then the metadata; returns when decode has everything.

        Raises `TransferError`.
        """
        began = time.monotonic()
        total = 0
        await self._silent(entry)
        layers = range(self._pool.layout.layers)
        with self._post(entry):
            for number in range(start, len(pages)):
                items = [(region, layer, pages[number], number) for region in (KV, INDEX_K) for layer in layers]
                total += await self._items(entry, items)
        self._check(entry)
        assert entry.peer is not None
        try:
            await entry.peer.send(control_frame({"type": "done", "room": entry.room, "aux": aux}))
        except OSError as error:
            raise TransferError(entry.room, f"Lost connection with decode: {error}") from error
        await entry.ended.wait()
        self._check(entry)
        entry.state = KVPoll.Success
        return Sent(total, time.monotonic() - began)

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
            if entry is None or not entry.posted:
                await self._drained(peer, room)
            else:
                task = asyncio.create_task(self._drain(peer, entry))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _drain(self, peer: Peer, entry: Room) -> None:
        await entry.quiet.wait()
        with contextlib.suppress(OSError):
            await self._drained(peer, entry.room)

    async def _drained(self, peer: Peer, room: int) -> None:
        """Frames on one connection keep their order: behind this answer no page of the room follows."""
        await peer.send(control_frame({"type": "drained", "room": room}))
