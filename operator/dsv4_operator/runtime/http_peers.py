"""Reads what canary sidecars and routers report over HTTP. Answers are bounded in size and time, and not
trusted.

Redirects are not followed and proxies not used: an address we built must answer itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import aiohttp

MAX_BYTES: Final = 256 * 1024
TIMEOUT_SECONDS: Final = 2.0


class PeerError(Exception):
    """A peer gave no usable answer. `reason` is one of the constants below; `status` the HTTP status if there
    was one.
    """

    UNREACHABLE: Final = "Unreachable"
    TIMED_OUT: Final = "TimedOut"
    BAD_STATUS: Final = "BadStatus"
    TOO_LARGE: Final = "TooLarge"
    NOT_UNDERSTOOD: Final = "NotUnderstood"

    def __init__(self, reason: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status


class PeerClient:
    """One connection pool; at most `concurrency` requests at once. Close it with `close` or `async with`."""

    def __init__(self, concurrency: int = 32) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> PeerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read_canary_status(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        """The /status of a canary sidecar. `timeout_seconds` covers the whole exchange. Raises PeerError.

        Checked: a JSON object with a boolean `ready`, a string `reason`, and `peers` (made empty when
        missing) a list of objects. Everything else is as the sidecar sent it.
        """
        answer = await self._read(url, {}, timeout_seconds)
        peers = answer.setdefault("peers", [])
        if (
            not isinstance(answer.get("ready"), bool)
            or not isinstance(answer.get("reason"), str)
            or not isinstance(peers, list)
            or not all(isinstance(peer, dict) for peer in peers)
        ):
            raise PeerError(PeerError.NOT_UNDERSTOOD, f"GET {url}: no canary status")
        return answer

    async def read_router_workers(
        self, url: str, bearer: str | None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> list[dict[str, Any]]:
        """The workers of one router replica (smg 1.13: GET /workers gives {workers: [...], total, stats}).

        Every worker is an object with a string `url`. Raises PeerError.
        """
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        workers = (await self._read(url, headers, timeout_seconds)).get("workers")
        if not isinstance(workers, list) or not all(
            isinstance(worker, dict) and isinstance(worker.get("url"), str) for worker in workers
        ):
            raise PeerError(PeerError.NOT_UNDERSTOOD, f"GET {url}: no list of workers")
        return workers

    async def _read(self, url: str, headers: dict[str, str], timeout_seconds: float) -> dict[str, Any]:
        async with self._slots:
            try:
                async with asyncio.timeout(timeout_seconds):
                    data = await self._fetch(url, headers)
            except TimeoutError as error:
                raise PeerError(PeerError.TIMED_OUT, f"GET {url}: no answer within {timeout_seconds:g} s") from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise PeerError(PeerError.UNREACHABLE, f"GET {url}: {error or type(error).__name__}") from error
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise PeerError(PeerError.NOT_UNDERSTOOD, f"GET {url}: the answer is no JSON") from error
        if not isinstance(answer, dict):
            raise PeerError(PeerError.NOT_UNDERSTOOD, f"GET {url}: the answer is no JSON object")
        return answer

    async def _fetch(self, url: str, headers: dict[str, str]) -> bytes:
        if self._session is None:
            # Pods come and go: a kept connection would mostly be to somebody who left.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0), trust_env=False
            )
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise PeerError(PeerError.BAD_STATUS, f"GET {url}: {response.status}", response.status)
            data = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                data += chunk
                if len(data) > MAX_BYTES:
                    raise PeerError(PeerError.TOO_LARGE, f"GET {url}: more than {MAX_BYTES // 1024} KiB")
            return bytes(data)
