"""The journal: JSON lines, one per reply, safe on disk a moment after the reply came; the source of every report.

First line: ``{"soak": 1, "settings": {...}, "startedAt": ...}``. A resumed run appends another such line. Lines are
written and synced in groups, at most a second or 64 lines after they came; killing the process loses at most that.
A last line without its end is the trace of such a kill and is dropped.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dsv4_canary.soak.record import Phase, Record, RecordError, from_json

VERSION = 1
_GROUP_LINES = 64
_GROUP_SECONDS = 1.0


class JournalError(ValueError):
    """A journal that cannot be used; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal holds."""

    header: Mapping[str, Any]
    """Settings of the first start."""
    starts: tuple[float, ...]
    """Unix times at which the run was started and resumed."""
    records: dict[tuple[Phase, int, int], Record]
    length: int
    """Bytes of whole lines; what follows is a torn line."""


def read_journal(path: Path) -> Contents:
    """Read a journal. Raises JournalError, OSError."""
    data = path.read_bytes()
    length = data.rfind(b"\n") + 1
    header: Mapping[str, Any] | None = None
    starts: list[float] = []
    records: dict[tuple[Phase, int, int], Record] = {}
    for number, line in enumerate(data[:length].split(b"\n")[:-1], 1):
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise JournalError(f"{where}: is no JSON; repair or remove the line") from None
        if isinstance(value, dict) and "soak" in value:
            if value["soak"] != VERSION:
                raise JournalError(f"{where}: soak = {value['soak']!r}: another format; use the version that wrote it")
            if not isinstance(value.get("settings"), dict):
                raise JournalError(f"{where}: settings: is missing or no object; this is no journal of a soak")
            header = header or value["settings"]
            started = value.get("startedAt")
            starts.append(float(started) if isinstance(started, (int, float)) else 0.0)
            continue
        if header is None:
            raise JournalError(f"{where}: has no header before it; this is no journal of a soak")
        try:
            record = from_json(value)
        except RecordError as error:
            raise JournalError(f"{where}: {error}; repair or remove the line") from None
        records.setdefault(record.key, record)
    if header is None:
        raise JournalError(f"{path}: holds no header; remove the file or choose another --tag")
    return Contents(header, tuple(starts), records, length)


class Journal:
    """Appends records. Not safe for several processes."""

    def __init__(self, path: Path, header: Mapping[str, Any], started_at: float, *, resume_at: int | None) -> None:
        """Open for a new run (``resume_at`` None: the file must not exist) or behind the whole lines of an old one.

        Raises OSError.
        """
        self._file: IO[bytes] = path.open("xb" if resume_at is None else "r+b")
        if resume_at is not None:
            self._file.truncate(resume_at)
            self._file.seek(resume_at)
        self._waiting: list[bytes] = []
        self._full = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._line({"soak": VERSION, "settings": dict(header), "startedAt": round(started_at, 3)})
        self._sync(self._take())

    def add(self, record: Record) -> None:
        """Queue a record; it is on disk within about a second."""
        self._line(record.to_json())
        if len(self._waiting) >= _GROUP_LINES:
            self._full.set()

    async def write_groups(self) -> None:
        """Write what is queued, group by group, until cancelled. A disk that fails raises OSError."""
        while True:
            try:
                async with asyncio.timeout(_GROUP_SECONDS):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            if group := self._take():
                self._writing = asyncio.create_task(asyncio.to_thread(self._sync, group))
                # Shielded: a group taken out of the queue must reach the file even when the run is stopped meanwhile.
                await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Write the rest and close. Raises OSError."""
        try:
            if self._writing is not None:
                await self._writing
            self._sync(self._take())
        finally:
            self._file.close()

    def _line(self, value: Mapping[str, Any]) -> None:
        self._waiting.append(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")

    def _take(self) -> bytes:
        group = b"".join(self._waiting)
        self._waiting.clear()
        return group

    def _sync(self, group: bytes) -> None:
        if group:
            self._file.write(group)
            self._file.flush()
            os.fsync(self._file.fileno())
