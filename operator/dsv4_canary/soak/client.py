"""One request to the endpoint, and the record of it. Whatever the endpoint does becomes a record, never an exception.

Every request has a connection of its own: a kept-alive one that the server closed in the meantime would look like a
request that the engine lost.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from dsv4_canary.classify import classify
from dsv4_canary.expect import Expectation
from dsv4_canary.reply import Call, Reply, parse_completion, parse_stream
from dsv4_canary.soak.record import Failure, Phase, Record
from dsv4_canary.soak.script import Request

_MAX_BODY = 16 * 1024 * 1024
"""Bytes of an answer that are read; a loop shows long before that."""
_CONNECT_TIMEOUT = 10.0
_DETAIL = 200

_SURE_IN_PART = frozenset(f"S{n}" for n in (1, 3, 4, 5, 6, 7, 21, 23, 25, 26, 27, 28))
"""Signatures that the beginning of a reply proves; the others need its end."""


@dataclass(slots=True)
class _Answer:
    """What came over the wire so far."""

    status: int | None = None
    json: bool = False
    data: bytearray | None = None
    first_byte: float | None = None
    failure: Failure | None = None


class Client:
    """Sends requests of a soak to one endpoint."""

    def __init__(self, endpoint: str, *, timeout: float, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._key = api_key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> list[str] | str:
        """Names that ``/v1/models`` lists, or why there are none, in words that follow the endpoint's name."""
        answer = _Answer()
        await self._guard(answer, self._get_models(answer), min(self._timeout, 30.0))
        if answer.failure is not None:
            return _WHY[answer.failure]
        if answer.status != 200:
            return f"answers HTTP {answer.status} to /v1/models"
        return _model_names(bytes(answer.data or b""))

    async def ask(self, request: Request, phase: Phase) -> Record:
        """Send one request and judge the reply. Takes at most the timeout."""
        answer = _Answer()
        at, started = time.time(), time.monotonic()
        await self._guard(answer, self._post(answer, request.body, started), self._timeout)
        seconds = time.monotonic() - started
        record = Record(
            phase=phase,
            session=request.session,
            round=request.round,
            group=request.group,
            stream=request.stream,
            tool=request.task.tool,
            at=at,
            seconds=seconds,
            status=answer.status,
            first_byte=answer.first_byte if request.stream else None,
        )
        return self._judge(record, answer, request)

    async def _guard(self, answer: _Answer, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Await the work; note in the answer how it failed."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except aiohttp.ConnectionTimeoutError:
            answer.failure = Failure.UNREACHABLE
        except TimeoutError:
            answer.failure = Failure.TIMEOUT
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.failure = _connection_failure(error, begun=answer.status is not None)

    async def _get_models(self, answer: _Answer) -> None:
        assert self._session is not None
        async with self._session.get(f"{self._endpoint}/v1/models", allow_redirects=False) as response:
            answer.status = response.status
            answer.data = bytearray(await response.content.read(_MAX_BODY))

    async def _post(self, answer: _Answer, body: Mapping[str, object], started: float) -> None:
        assert self._session is not None
        url = f"{self._endpoint}/v1/chat/completions"
        # A redirect is an answer to report, not one to carry the key and the load to another host.
        async with self._session.post(url, json=body, allow_redirects=False) as response:
            answer.status = response.status
            answer.json = response.content_type == "application/json"
            answer.data = data = bytearray()
            async for chunk in response.content.iter_any():
                if not data:
                    answer.first_byte = time.monotonic() - started
                data += chunk
                if len(data) > _MAX_BODY:
                    break

    def _judge(self, record: Record, answer: _Answer, request: Request) -> Record:
        data = bytes(answer.data or b"")
        if answer.status is not None and answer.status != 200:
            rejected = 400 <= answer.status < 500
            return replace(
                record,
                failure=answer.failure or (Failure.REJECTED if rejected else Failure.SERVER_ERROR),
                detail=self._detail(data),
            )
        if answer.status is None:
            return replace(record, failure=answer.failure or Failure.LOST)
        streamed = request.stream and not answer.json
        reply = parse_stream(data) if streamed else parse_completion(data)
        failure = answer.failure or _failure_of(reply, streamed=streamed)
        record = replace(
            record,
            failure=failure,
            finish=reply.finish_reason,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
        )
        if failure is Failure.NO_COMPLETION or (failure is not None and reply.error is not None):
            return replace(record, detail=self._detail(data))
        found = classify(_without_habits(reply, request.expectation), request.expectation)
        signatures = dict(found.severities)
        if failure is not None:
            signatures = {name: severity for name, severity in signatures.items() if name in _SURE_IN_PART}
        return replace(record, signatures=signatures, excerpt=found.excerpt if signatures else "")

    def _detail(self, data: bytes) -> str:
        text = data[: 4 * _DETAIL].decode("utf-8", "replace")
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:_DETAIL]


_WHY = {
    Failure.REFUSED: "refuses connections",
    Failure.UNREACHABLE: "cannot be reached",
    Failure.LOST: "closes the connection without an answer",
    Failure.CUT: "breaks its answer off",
    Failure.TIMEOUT: "does not answer in time",
}


def _failure_of(reply: Reply, *, streamed: bool) -> Failure | None:
    """What keeps a body that came with HTTP 200 from being a whole reply."""
    if reply.error is not None:
        return Failure.REJECTED if reply.error.startswith("4") else Failure.ERROR_EVENT
    if reply.finish_reason == "abort":
        return Failure.ABORTED
    if not reply.complete:
        return Failure.CUT if streamed else Failure.NO_COMPLETION
    return None


def _connection_failure(error: BaseException, *, begun: bool) -> Failure:
    if isinstance(error, aiohttp.ClientConnectorError):
        refused = getattr(error.os_error, "errno", None) == errno.ECONNREFUSED
        return Failure.REFUSED if refused else Failure.UNREACHABLE
    return Failure.CUT if begun else Failure.LOST


def _without_habits(reply: Reply, expectation: Expectation) -> Reply:
    """Some servers write the arguments of a call without any as an empty text; clients read that as ``{}``."""
    if expectation.arguments or all(call.arguments.strip() for call in reply.calls):
        return reply
    calls = tuple(call if call.arguments.strip() else Call(call.name, "{}") for call in reply.calls)
    return replace(reply, calls=calls)


def _model_names(data: bytes) -> list[str] | str:
    try:
        items = json.loads(data)["data"]
        names = [item["id"] for item in items]
    except (ValueError, RecursionError, TypeError, KeyError):
        return "answers something that is no list of models to /v1/models"
    return [name for name in names if isinstance(name, str)] or "lists no model"
