"""A scripted endpoint on real sockets: whatever it does is counted by kind, and no request is lost from the books."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dsv4_canary.soak.job import Job, run_job
from dsv4_canary.soak.settings import Stream


def report(tmp_path: Path, tag: str = "t") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / f"{tag}.json").read_text())
    return found


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]


def drop(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def right_call(body: dict[str, Any]) -> dict[str, Any]:
    """Any whole answer without calls."""
    message = {"role": "assistant", "content": "x"}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


async def test_a_sound_endpoint_is_clean(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    assert await run_job(job(endpoint.url, api_key="sk-secret")) == 0
    found = report(tmp_path)
    assert found["verdict"] == "clean"
    load, baseline = found["phases"]["load"], found["phases"]["baseline"]
    assert (load["recorded"], load["notDone"], load["verdicts"]["clean"]) == (12, 0, 12)
    assert (baseline["recorded"], baseline["verdicts"]["clean"]) == (6, 6)
    assert found["settings"]["model"] == "some-model"
    assert load["byStream"]["streamed"]["trials"] == load["byStream"]["whole"]["trials"] == 6
    assert endpoint.headers[0]["Authorization"] == "Bearer sk-secret"
    for path in tmp_path.iterdir():
        assert "sk-secret" not in path.read_text()
    # The header, then one line per reply; the files are whole.
    assert len(lines(tmp_path)) == 1 + 18
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.html", "t.json", "t.jsonl", "t.md"]


async def test_sessions_run_at_once_and_the_baseline_alone(endpoint: Any, job: Callable[..., Job]) -> None:
    seen: list[int] = []
    together = asyncio.Event()

    async def behaviour(_request: web.Request, _body: Any, number: int) -> None:
        seen.append(endpoint.now)
        if number >= 6:  # the load: no answer before all four sessions have asked
            if endpoint.now == 4:
                together.set()
            await together.wait()

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url)) == 0
    assert set(seen[:6]) == {1}
    assert endpoint.most == 4


async def test_concurrency_is_a_limit(endpoint: Any, job: Callable[..., Job]) -> None:
    assert await run_job(job(endpoint.url, sessions=6, concurrency=2, baseline=0)) == 0
    assert endpoint.most <= 2


async def _status_500(_request: web.Request, _body: Any) -> web.StreamResponse:
    return web.Response(status=500, text="scheduler died\nin sk-secret")


async def _redirect(_request: web.Request, _body: Any) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "/v1/models"})


async def _status_429(_request: web.Request, _body: Any) -> web.StreamResponse:
    return web.Response(status=429, text="slow down")


async def _hang(_request: web.Request, _body: Any) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _hang_inside(request: web.Request, _body: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n')
    await asyncio.Event().wait()
    raise AssertionError


async def _close(request: web.Request, _body: Any) -> web.StreamResponse:
    drop(request)
    return web.Response()


async def _half(request: web.Request, _body: Any) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name"')
    drop(request)
    return response


async def _no_end(request: web.Request, _body: Any) -> web.StreamResponse:
    """Ends as HTTP wants it, but without a finish reason."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n')
    return response


async def _half_whole(request: web.Request, body: Any) -> web.StreamResponse:
    text = json.dumps(right_call(body)).encode()
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(text))})
    await response.prepare(request)
    await response.write(text[:-20])
    drop(request)
    return response


async def _html(_request: web.Request, _body: Any) -> web.StreamResponse:
    return web.Response(text="<html>login</html>", content_type="text/html")


async def _error_event(_request: web.Request, _body: Any) -> web.StreamResponse:
    text = 'data: {"error": {"code": 503, "message": "aborted"}}\n\ndata: [DONE]\n\n'
    return web.Response(text=text, content_type="text/event-stream")


async def _abort(_request: web.Request, body: Any) -> web.StreamResponse:
    whole = right_call(body)
    whole["choices"][0]["finish_reason"] = "abort"
    return web.json_response(whole)


@pytest.mark.parametrize(
    ("stream", "misdeed", "kind"),
    [
        (Stream.MIX, _status_500, "server-error"),
        (Stream.MIX, _status_429, "rejected"),
        (Stream.MIX, _redirect, "server-error"),
        (Stream.MIX, _hang, "timeout"),
        (Stream.ALWAYS, _hang_inside, "timeout"),
        (Stream.MIX, _close, "lost"),
        (Stream.ALWAYS, _half, "cut"),
        (Stream.ALWAYS, _no_end, "cut"),
        (Stream.NEVER, _half_whole, "cut"),
        (Stream.NEVER, _html, "no-completion"),
        (Stream.ALWAYS, _error_event, "error-event"),
        (Stream.NEVER, _abort, "aborted"),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
async def test_each_misdeed_has_its_kind(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path, stream: Stream, misdeed: Any, kind: str
) -> None:
    async def behaviour(request: web.Request, body: Any, number: int) -> web.StreamResponse | None:
        return await misdeed(request, body) if number % 3 == 0 else None  # type: ignore[no-any-return]

    endpoint.behaviour = behaviour
    status = await run_job(
        job(endpoint.url, stream=stream, timeout=2.0 if kind == "timeout" else 60.0, baseline=0, api_key="sk-secret")
    )
    found = report(tmp_path)
    load = found["phases"]["load"]
    assert load["failures"] == {kind: 4}
    assert (load["recorded"], load["notDone"]) == (12, 0)
    assert load["verdicts"] == {"clean": 8, "corrupted": 0, "budget": 0, "failed": 4}
    assert status == 3  # 4 of 12 are more than 10 %
    assert found["verdict"] == "unusable"
    if misdeed is _status_500:
        assert load["statuses"] == {"500": 4}
        assert load["details"] == ["scheduler died in ***"]
        assert "sk-secret" not in (tmp_path / "t.jsonl").read_text()


async def test_an_endpoint_that_dies_leaves_all_in_the_books(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    async def behaviour(_request: web.Request, _body: Any, number: int) -> None:
        if number == 6:  # 12 requests are planned
            assert endpoint.runner is not None
            await endpoint.runner.sites.copy().pop().stop()
            drop(_request)

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, baseline=0, stream=Stream.NEVER)) == 3
    load = report(tmp_path)["phases"]["load"]
    assert load["recorded"] == 12
    assert load["failures"]["refused"] >= 1
    assert sum(load["failures"].values()) + load["verdicts"]["clean"] == 12


async def test_a_dead_endpoint_is_given_up(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    async def behaviour(_request: web.Request, _body: Any, number: int) -> web.StreamResponse | None:
        return web.Response(status=503) if number >= 9 else None

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, sessions=4, rounds=20, give_up=8, baseline=0)) == 3
    found = report(tmp_path)
    load = found["phases"]["load"]
    assert found["endpointLost"]
    # Replies that had come by then are in the books too.
    failed = load["failures"]["server-error"]
    assert 8 <= failed <= 8 + 3
    assert load["recorded"] == 9 + failed
    assert load["notDone"] == 80 - load["recorded"]
    # When it is back, the run goes on with what was never asked.
    endpoint.behaviour = None
    assert await run_job(job(endpoint.url, sessions=4, rounds=20, give_up=8, baseline=0, resume=True)) == 3
    load = report(tmp_path)["phases"]["load"]
    assert (load["recorded"], load["notDone"], load["failures"]) == (80, 0, {"server-error": failed})


async def test_a_baseline_without_a_reply_ends_the_run(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    async def behaviour(_request: web.Request, _body: Any, _number: int) -> web.StreamResponse:
        return web.Response(status=400, text="unknown field tools")

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url)) == 3
    found = report(tmp_path)
    assert len(endpoint.bodies) == 3
    assert found["phases"]["baseline"]["details"] == ["unknown field tools"]


async def test_damage_under_load_is_found_and_put_on_the_engine(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    """One reply of the load is damaged; asked again alone it comes back right."""

    async def behaviour(_request: web.Request, body: Any, number: int) -> web.StreamResponse | None:
        if number == 7:
            text = "<｜DSML｜tool_calls>\n<｜DSML｜invoke"
            message = {"role": "assistant", "content": text}
            whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            return web.json_response(whole)
        return None

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url)) == 1
    found = report(tmp_path)
    assert found["verdict"] == "corrupted"
    assert found["attribution"] == {
        "engine": 1,
        "model": 0,
        "engineSessions": 1,
        "askedAgain": 1,
        "rightAgain": 1,
        "loadAboveBaselineP": pytest.approx(4 / 6),
        "engineBySignature": {"S1": 1, "S2": 1},
        "modelBySignature": {},
    }
    assert found["phases"]["load"]["corruptedSessions"]["events"] == 1
    assert found["phases"]["reask"]["verdicts"]["clean"] == 1
    # The same call is asked for behind a beginning that nothing before it had.
    *earlier, again = endpoint.bodies
    assert again["messages"][-1]["content"].endswith(earlier[7]["messages"][-1]["content"].rpartition("\n\n")[2])
    assert again["messages"][0] not in [body["messages"][0] for body in earlier]


async def test_a_slip_of_the_model_is_none_of_the_engine(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    """The same tool is always called without its arguments, load or not."""

    async def behaviour(_request: web.Request, body: Any, _number: int) -> web.StreamResponse | None:
        if "Call the tool blob_put" not in body["messages"][-1]["content"]:
            return None
        calls = [{"function": {"name": "blob_put", "arguments": "{}"}}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, sessions=8, concurrency=8, baseline=6, stream=Stream.NEVER)) == 0
    found = report(tmp_path)
    assert found["verdict"] == "slips"
    assert found["attribution"]["engine"] == 0
    assert found["attribution"]["modelBySignature"]["S12"] >= 1


async def test_a_loop_that_hits_the_timeout_is_damage(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    async def behaviour(request: web.Request, _body: Any, number: int) -> web.StreamResponse | None:
        if number != 2:
            return None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "ramp " * 40}}]})
        await response.write(f"data: {chunk}\n\n".encode())
        await asyncio.Event().wait()
        raise AssertionError

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, stream=Stream.ALWAYS, timeout=2.0, baseline=0)) == 1
    found = report(tmp_path)
    assert found["phases"]["load"]["failures"] == {"timeout": 1}
    assert found["phases"]["load"]["signatures"]["S25"]["replies"] == 1
    # What only the end of a reply can show is not claimed.
    assert list(found["phases"]["load"]["signatures"]) == ["S25"]


async def test_text_of_others_is_masked_in_every_file(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    async def behaviour(_request: web.Request, _body: Any, number: int) -> web.StreamResponse | None:
        message = {"role": "assistant", "content": "Dear Ms Holloway, your diagnosis is confidential"}
        whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return web.json_response(whole) if number % 4 == 0 else None

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, baseline=0)) == 1
    for path in tmp_path.iterdir():
        assert "Holloway" not in path.read_text()
        assert "diagnosis" not in path.read_text()


async def test_empty_arguments_of_a_call_without_any_are_accepted(endpoint: Any, job: Callable[..., Job]) -> None:
    async def behaviour(_request: web.Request, body: Any, _number: int) -> web.StreamResponse | None:
        if "session_ping" not in body["messages"][-1]["content"]:
            return None
        message = {"role": "assistant", "tool_calls": [{"function": {"name": "session_ping", "arguments": ""}}]}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})

    endpoint.behaviour = behaviour
    assert await run_job(job(endpoint.url, rounds=8, baseline=0, stream=Stream.NEVER)) == 0
    assert sum("Call the tool session_ping" in body["messages"][-1]["content"] for body in endpoint.bodies) == 4
