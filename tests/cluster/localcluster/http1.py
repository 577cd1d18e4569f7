"""As much of HTTP/1.1 as a proxy needs: heads, and bodies by length, in chunks, or to the end."""

import asyncio
import json
from dataclasses import dataclass

_BLOCK = 65536


class ProtocolError(Exception):
    """The peer does not speak HTTP/1.1."""


@dataclass(frozen=True)
class Head:
    """Start line and headers of a message; `raw` is what was read."""

    start_line: str
    headers: dict[str, str]
    raw: bytes

    @property
    def upgrades(self) -> bool:
        """True when the request asks to leave HTTP (exec, port-forward)."""
        return "upgrade" in self.headers.get("connection", "").lower()

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def status(self) -> int | None:
        """Status of an answer, None for a request."""
        parts = self.start_line.split(" ")
        return int(parts[1]) if parts[0].startswith("HTTP/") else None


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Reads a start line and headers, None at the end of the connection."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError("connection ended inside a head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise ProtocolError("head is too long") from error
    lines = raw.decode("latin-1").split("\r\n")
    if lines[0].count(" ") < 2:
        raise ProtocolError(f"no HTTP start line: {lines[0][:80]!r}")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return Head(lines[0], {name.strip().lower(): value.strip() for name, _, value in pairs}, raw)


async def copy_body(
    head: Head,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter | None,
    method: str = "",
    limit: int | None = None,
) -> None:
    """Copies the body that belongs to `head`, or drops it when there is no writer; stops after `limit` bytes."""
    sink = _Sink(writer, limit)
    if _has_no_body(head, method):
        pass
    elif head.chunked:
        await _copy_chunks(reader, sink)
    elif "content-length" in head.headers:
        await _copy_exactly(reader, sink, int(head.headers["content-length"]))
    elif head.status is not None:
        while not sink.full and (block := await reader.read(_BLOCK)):
            await sink.write(block)
    if writer is not None:
        await writer.drain()


class _Sink:
    def __init__(self, writer: asyncio.StreamWriter | None, limit: int | None) -> None:
        self._writer = writer
        self._left = limit

    @property
    def full(self) -> bool:
        return self._left is not None and self._left <= 0

    async def write(self, block: bytes) -> None:
        if self._left is not None:
            block = block[: max(self._left, 0)]
            self._left -= len(block)
        if self._writer is not None and block:
            self._writer.write(block)
            await self._writer.drain()


def _has_no_body(head: Head, method: str) -> bool:
    return method == "HEAD" or head.status in {204, 304}


async def _copy_chunks(reader: asyncio.StreamReader, sink: _Sink) -> None:
    while not sink.full:
        line = await reader.readuntil(b"\r\n")
        await sink.write(line)
        size = int(line.split(b";")[0], 16)
        await _copy_exactly(reader, sink, size + 2)
        if size == 0:
            return


async def _copy_exactly(reader: asyncio.StreamReader, sink: _Sink, size: int) -> None:
    while size and not sink.full:
        block = await reader.read(min(size, _BLOCK))
        if not block:
            raise ProtocolError("connection ended inside a body")
        size -= len(block)
        await sink.write(block)


async def copy_until_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes until the reader's end."""
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()


def status_answer(status: int, reason: str, retry_after: int | None) -> bytes:
    """A whole answer with a Kubernetes Status object, as the API server writes it."""
    body = json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": "answered by the fault proxy",
            "reason": reason,
            "code": status,
        }
    ).encode()
    lines = [f"HTTP/1.1 {status} {reason}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    if retry_after is not None:
        lines.append(f"Retry-After: {retry_after}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
