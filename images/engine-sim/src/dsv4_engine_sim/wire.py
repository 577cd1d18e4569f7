"""Frames between a prefill and a decode process. TCP stands in for ZMQ (control) and RDMA writes (pages).

A page frame carries a destination address - region, layer, page number at the receiver - and bytes. The receiver stores
them there whatever it uses that page for by then: like a remote write, it checks nothing.
"""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

_HEADER = struct.Struct("!BBHIQI")
HEADER_BYTES = _HEADER.size
PAGE, CONTROL = 1, 2
MAX_PAYLOAD = 16 * 1024 * 1024
GUARD = "NixlMsgGuard"


class KVPoll(IntEnum):
    """States of a transfer (upstream ``disaggregation/base/conn.py``); ranks would take the minimum."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class TransferError(Exception):
    """A room's transfer failed; the text is upstream's failure reason."""

    def __init__(self, room: int, reason: str) -> None:
        super().__init__(f"KVTransferError(bootstrap_room={room}): {reason}")


class WireError(Exception):
    """The peer sent something that is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; control frames use only `payload`."""

    kind: int
    region: int
    layer: int
    page: int
    room: int
    payload: bytes

    def control(self) -> dict[str, Any]:
        """The message of a control frame. Raises `WireError`."""
        try:
            message = json.loads(self.payload)
        except ValueError as error:
            raise WireError(str(error)) from error
        if not isinstance(message, dict):
            raise WireError("control message is no object")
        return message


def page_frame(room: int, region: int, layer: int, page: int, data: bytes | memoryview) -> bytes:
    """Bytes of a page frame."""
    return _HEADER.pack(PAGE, region, layer, page, room, len(data)) + data


def control_frame(message: dict[str, Any]) -> bytes:
    """Bytes of a control frame."""
    payload = json.dumps(message).encode()
    return _HEADER.pack(CONTROL, 0, 0, 0, 0, len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Next frame. Raises `WireError`, or IncompleteReadError and OSError at the end of the connection."""
    kind, region, layer, page, room, length = _HEADER.unpack(await reader.readexactly(HEADER_BYTES))
    if kind not in (PAGE, CONTROL) or length > MAX_PAYLOAD:
        raise WireError(f"frame kind {kind}, {length} bytes")
    return Frame(kind, region, layer, page, room, await reader.readexactly(length))
