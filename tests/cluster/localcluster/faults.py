"""A proxy in front of the API server that misbehaves on demand: delays, cuts, and answers 409, 429 or 500.

It ends TLS on both sides, so it sees methods and paths. HTTP/1.1 only, which every Kubernetes client falls back to.
"""

import asyncio
import re
import ssl
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import yaml

from localcluster import http1
from localcluster.cluster import LocalCluster
from localcluster.pki import Pki

T = TypeVar("T")
Action = Literal["respond", "delay", "cut-before", "cut-after", "cut-stream", "hang"]

_REASONS = {
    400: "BadRequest",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


@dataclass
class Fault:
    """One rule. It applies to the next `times` requests whose method and path (with query) match; None: to all."""

    action: Action
    method: str = ".*"
    path: str = ".*"
    times: int | None = 1
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0
    stream_bytes: int = 0
    hits: int = field(default=0, init=False)
    """Requests that this rule was applied to so far."""

    def matches(self, method: str, target: str) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        return bool(re.fullmatch(self.method, method) and re.search(self.path, target))


class FaultProxy:
    """A proxy for one cluster, with a kubeconfig of its own. Use as a context manager; faults may change at any time.

    Actions: `respond` answers `status` with a Status object and never asks the API server; `delay` waits `seconds`
    first; `cut-before` closes the connection before the request reaches the API server; `cut-after` lets it take
    effect and closes instead of answering; `cut-stream` closes an answer (a watch, say) after `stream_bytes` of its
    body; `hang` takes the request and says nothing until the client gives up.
    """

    def __init__(self, cluster: LocalCluster, host: str | None = None) -> None:
        self._cluster = cluster
        self._host = host or cluster.host_address
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._refusing = False
        self.port = 0

    # Life

    def start(self) -> Self:
        """Listens on a free port of the address at which the cluster's pods see this machine."""
        self._thread.start()
        self._call(self._listen())
        return self

    def stop(self) -> None:
        """Closes all connections and the port."""
        if self._thread.is_alive():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Faults

    def add(self, fault: Fault) -> Fault:
        """Adds a rule; the first that matches a request applies. Returns it, for its `hits`."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def respond(self, status: int, method: str = ".*", path: str = ".*", times: int | None = 1) -> Fault:
        """Answers `status`; 429 and 503 with Retry-After of one second."""
        retry_after = 1 if status in {429, 503} else None
        return self.add(Fault("respond", method, path, times, status=status, retry_after=retry_after))

    def delay(self, seconds: float, method: str = ".*", path: str = ".*", times: int | None = 1) -> Fault:
        """Holds a request for `seconds`, then lets it through."""
        return self.add(Fault("delay", method, path, times, seconds=seconds))

    def cut(self, method: str = ".*", path: str = ".*", times: int | None = 1, after: bool = False) -> Fault:
        """Closes the connection: before the request reaches the API server, or `after` it took effect there."""
        return self.add(Fault("cut-after" if after else "cut-before", method, path, times))

    def clear(self) -> None:
        """Removes all rules."""
        with self._lock:
            self._faults.clear()

    def cut_connections(self, watches_only: bool = False) -> int:
        """Closes open connections now, or only those with a watch in progress. Returns how many."""

        async def cut() -> int:
            chosen = [task for task, one in self._connections.items() if one.watching or not watches_only]
            for task in chosen:
                task.cancel()
            await asyncio.gather(*chosen, return_exceptions=True)
            return len(chosen)

        return self._call(cut())

    def refuse(self, refusing: bool = True) -> None:
        """While true, every connection is closed at once: the API server looks dead."""
        self._refusing = refusing
        if refusing:
            self.cut_connections()

    @property
    def watches(self) -> int:
        """Watches open through the proxy at this moment."""
        return sum(one.watching for one in self._connections.values())

    # Use

    @property
    def url(self) -> str:
        """URL that stands for the API server."""
        return f"https://{self._host}:{self.port}"

    def kubeconfig(self, source: Path | None = None) -> Path:
        """A copy of a kubeconfig (the administrator's when none is given) that leads through the proxy."""
        original = source or self._cluster.kubeconfig
        config = yaml.safe_load(original.read_text())
        config["clusters"][0]["cluster"]["server"] = self.url
        target = self._cluster.dir / f"proxy-{self.port}-{original.name}"
        target.write_text(yaml.safe_dump(config, sort_keys=False))
        target.chmod(0o600)
        return target

    # Inside

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _listen(self) -> None:
        pki = Pki(self._cluster.dir / "pki")
        certificate, key = pki.issue(f"proxy-{self._host}", "/CN=fault-proxy", [f"IP:{self._host}"])
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=server_side)
        self.port = self._server.sockets[0].getsockname()[1]
        self._upstream_context = ssl.create_default_context(cafile=str(self._cluster.ca))
        parts = urlsplit(self._cluster.server)
        self._upstream = (parts.hostname or "", parts.port or 443)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(self, reader, writer)
        self._connections[task] = connection
        try:
            if not self._refusing:
                await connection.serve()
        except (OSError, EOFError, http1.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            connection.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens a connection to the API server."""
        return await asyncio.open_connection(*self._upstream, ssl=self._upstream_context)

    def fault_for(self, method: str, target: str) -> Fault | None:
        """The rule for a request, counted as applied."""
        with self._lock:
            found = next((fault for fault in self._faults if fault.matches(method, target)), None)
            if found is not None:
                found.hits += 1
            return found


class _CutError(EOFError):
    """Ends a connection because a rule says so."""


class _Connection:
    """One client connection and its own connection to the API server."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._closed: asyncio.Future[None] | None = None
        self.watching = False

    async def serve(self) -> None:
        """Serves requests until one side closes."""
        while (request := await http1.read_head(self._reader)) is not None:
            method, target, _ = request.start_line.split(" ", 2)
            fault = self._proxy.fault_for(method, target)
            if fault is not None and not await self._before(fault, request):
                continue
            if self._upstream is None:
                self._upstream = await self._proxy.connect()
            upstream_reader, upstream_writer = self._upstream
            upstream_writer.write(request.raw)
            if request.upgrades:
                await self._tunnel(upstream_reader, upstream_writer)
                return
            await http1.copy_body(request, self._reader, upstream_writer)
            answer = await http1.read_head(upstream_reader)
            if answer is None:
                return
            if fault is not None and fault.action == "cut-after":
                raise _CutError
            limit = fault.stream_bytes if fault is not None and fault.action == "cut-stream" else None
            self.watching = "watch=1" in target or "watch=true" in target
            try:
                self._writer.write(answer.raw)
                await self._unless_closed(
                    http1.copy_body(answer, upstream_reader, self._writer, method=method, limit=limit)
                )
            finally:
                self.watching = False
            if limit is not None:
                raise _CutError

    async def _before(self, fault: Fault, request: http1.Head) -> bool:
        """Applies a rule ahead of the API server. True when the request goes on to it."""
        match fault.action:
            case "cut-before":
                raise _CutError
            case "delay":
                await self._unless_closed(asyncio.sleep(fault.seconds))
            case "hang":
                # Ends with the client's patience: end of file, a reset, or the proxy's own end.
                await self._reader.read(-1)
                raise _CutError
            case "respond":
                await http1.copy_body(request, self._reader, None)
                reason = _REASONS.get(fault.status, "Unknown")
                self._writer.write(http1.status_answer(fault.status, reason, fault.retry_after))
                await self._writer.drain()
                return False
        return True

    async def _unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`; gives up when the client closes, which a silent watch would not notice."""
        running = asyncio.ensure_future(work)
        if self._closed is None:
            # One for the connection's life: cancelling a wait_closed cancels the stream's own future, and the next
            # request on the connection would be taken for one whose client has left.
            self._closed = asyncio.ensure_future(self._writer.wait_closed())
        try:
            await asyncio.wait({running, self._closed}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise _CutError
            running.result()
        finally:
            running.cancel()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        copies = [
            asyncio.ensure_future(http1.copy_until_end(self._reader, writer)),
            asyncio.ensure_future(http1.copy_until_end(reader, self._writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()

    def abort(self) -> None:
        """Closes both sides at once."""
        if self._closed is not None:
            self._closed.cancel()
        if self._upstream is not None:
            self._upstream[1].transport.abort()
        self._writer.transport.abort()
