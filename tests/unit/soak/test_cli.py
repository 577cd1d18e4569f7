"""The command line: bad input in one line, resume, interruption, metrics, exit statuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from dsv4_canary.soak.cli import build_parser, main
from dsv4_canary.soak.job import Job, run_job

SOURCES = Path(__file__).parents[3] / "operator"


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]


GOOD = ["run", "--endpoint", "http://127.0.0.1:1", "--tag", "t", "--model", "m"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "command"),
        (["walk"], "walk"),
        (["run", "--tag", "t"], "--endpoint"),
        (["run", "--endpoint", "nowhere", "--tag", "t"], "--endpoint = 'nowhere'"),
        ([*GOOD, "--sessions", "many"], "--sessions"),
        ([*GOOD, "--sessions", "0"], "--sessions = 0"),
        ([*GOOD, "--tag", "a/b"], "--tag = 'a/b'"),
        ([*GOOD, "--stream", "perhaps"], "--stream"),
        ([*GOOD, "--timeout", "nan"], "--timeout"),
        ([*GOOD, "--api-key-env", "NOT_SET"], "--api-key-env = 'NOT_SET'"),
        ([*GOOD, "--api-key-env", "ODD"], "--api-key-env = 'ODD'"),
        ([*GOOD, "--metrics-port", "70000"], "--metrics-port = 70000"),
        (["compare", "/nonexistent.json", "/nonexistent.json"], "/nonexistent.json"),
        (["report", "/nonexistent.jsonl"], "/nonexistent.jsonl"),
        (["needed", "--percent", "0"], "--percent = 0"),
        (["needed", "--percent", "1", "--confidence", "100"], "--confidence = 100"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(argv, {"ODD": "a\nb"})
    except SystemExit as left:
        status = int(str(left.code))
    err = capsys.readouterr().err
    assert status == 2
    assert err.count("\n") == 1
    assert named in err
    assert list(tmp_path.iterdir()) == []


def test_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["needed", "--percent", "1"]) == 0
    assert capsys.readouterr().out.startswith("299 sessions")


def test_defaults_are_those_of_the_field_report() -> None:
    args = build_parser().parse_args(["run", "--endpoint", "http://h", "--tag", "t"])
    assert (args.sessions, args.rounds, args.ctx, args.max_tokens, args.timeout) == (80, 4, 300, 2500, 180.0)


def test_nobody_listens(capsys: pytest.CaptureFixture[str], tmp_path: Path, unused_tcp_port: int) -> None:
    argv = ["run", "--endpoint", f"http://127.0.0.1:{unused_tcp_port}", "--tag", "t", "--out", str(tmp_path / "o")]
    assert main(argv) == 3
    assert "refuses connections" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


async def test_several_models_need_a_choice(endpoint: Any, job: Callable[..., Job]) -> None:
    endpoint.models = ["a", "b"]
    with pytest.raises(Exception, match="--model") as caught:
        await run_job(job(endpoint.url))
    assert caught.value.status == 2  # type: ignore[attr-defined]
    assert await run_job(job(endpoint.url, model="b")) == 0
    assert {body["model"] for body in endpoint.bodies} == {"b"}


async def test_a_tag_is_not_used_twice_and_resume_takes_the_same_settings(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    assert await run_job(job(endpoint.url)) == 0
    asked = len(endpoint.bodies)
    with pytest.raises(ValueError, match="exists"):
        await run_job(job(endpoint.url))
    with pytest.raises(ValueError, match=r"--ctx = 21.*20"):
        await run_job(job(endpoint.url, ctx=21, resume=True))
    assert await run_job(job(endpoint.url, resume=True)) == 0
    assert len(endpoint.bodies) == asked
    # Whatever is not named again is taken from the journal.
    assert await run_job(job(endpoint.url, resume=True, seed=None)) == 0
    assert len(lines(tmp_path)) == 1 + 18 + 2


async def test_resume_asks_only_what_is_missing_and_says_the_same(
    endpoint: Any, job: Callable[..., Job], tmp_path: Path
) -> None:
    assert await run_job(job(endpoint.url)) == 0
    first = [json.dumps(body) for body in endpoint.bodies]
    whole = (tmp_path / "t.jsonl").read_bytes().splitlines(keepends=True)
    # Killed after five replies, inside the sixth line.
    (tmp_path / "t.jsonl").write_bytes(b"".join(whole[:6]) + whole[6][:20])
    endpoint.bodies.clear()
    assert await run_job(job(endpoint.url, resume=True)) == 0
    second = [json.dumps(body) for body in endpoint.bodies]
    assert len(second) == 13
    assert set(second) <= set(first)
    records = [line for line in lines(tmp_path) if "phase" in line]
    assert len({(line["phase"], line["session"], line["round"]) for line in records}) == len(records) == 18


async def test_metrics_while_running(
    endpoint: Any, job: Callable[..., Job], unused_tcp_port: int, tmp_path: Path
) -> None:
    texts: list[str] = []

    async def behaviour(_request: web.Request, _body: Any, number: int) -> web.StreamResponse | None:
        if number == 17:  # the last request: all others are counted
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{unused_tcp_port}/metrics") as response,
            ):
                texts.append(await response.text())
        return web.Response(status=500) if number == 7 else None

    endpoint.behaviour = behaviour
    await run_job(job(endpoint.url, metrics_port=unused_tcp_port, concurrency=1))
    (text,) = texts
    for series in (
        'dsv4_soak_replies_total{phase="baseline",tag="t",verdict="clean"} 6.0',
        'dsv4_soak_replies_total{phase="load",tag="t",verdict="clean"} 10.0',
        'dsv4_soak_replies_total{phase="load",tag="t",verdict="corrupted"} 0.0',
        'dsv4_soak_failures_total{kind="server-error",phase="load",tag="t"} 1.0',
        'dsv4_soak_sessions{phase="load",state="planned",tag="t"} 4.0',
        'dsv4_soak_sessions{phase="load",state="finished",tag="t"} 3.0',
        'dsv4_soak_requests_running{tag="t"} 1.0',
    ):
        assert series in text.splitlines(), text


async def test_a_taken_metrics_port_is_named(endpoint: Any, job: Callable[..., Job], tmp_path: Path) -> None:
    port = int(endpoint.url.rpartition(":")[2])
    with pytest.raises(ValueError, match="--metrics-port"):
        await run_job(job(endpoint.url, metrics_port=port))
    assert list(tmp_path.iterdir()) == []


HARNESS = ("dsv4_canary.soak", "run")
DSV4CTL = ("dsv4_operator.cli.main", "soak")


async def soak(url: str, folder: Path, *more: str, program: tuple[str, ...] = HARNESS) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", *program, "--endpoint", url, "--tag", "t", "--out", str(folder)]
    command += [
        "--sessions",
        "4",
        "--rounds",
        "3",
        "--ctx",
        "20",
        "--shared-ctx",
        "60",
        "--baseline",
        "1",
        "--seed",
        "7",
    ]
    environ = os.environ | {"PYTHONPATH": str(SOURCES)}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, *more, env=environ, stdout=pipe, stderr=pipe)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "program"), [(signal.SIGINT, HARNESS), (signal.SIGTERM, HARNESS), (signal.SIGINT, DSV4CTL)]
)
async def test_a_signal_stops_cleanly_and_resume_finishes(
    endpoint: Any, tmp_path: Path, number: signal.Signals, program: tuple[str, ...]
) -> None:
    held = asyncio.Event()

    async def behaviour(_request: web.Request, _body: Any, seen: int) -> None:
        if seen >= 8:  # 3 of the baseline and 5 of the load are answered, the rest hangs
            held.set()
            await asyncio.Event().wait()

    endpoint.behaviour = behaviour
    process = await soak(endpoint.url, tmp_path, program=program)
    async with asyncio.timeout(60):
        await held.wait()
        while endpoint.now < 4:
            await asyncio.sleep(0.01)
        process.send_signal(number)
        out, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    report = json.loads((tmp_path / "t.json").read_text())
    assert report["interrupted"]
    assert report["inFlightWhenStopped"] == 4
    load = report["phases"]["load"]
    assert (load["recorded"], load["notDone"]) == (5, 7)
    assert b"interrupted" in out
    endpoint.behaviour = None
    process = await soak(endpoint.url, tmp_path, "--resume", program=program)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    report = json.loads((tmp_path / "t.json").read_text())
    assert report["starts"] == 2
    assert report["phases"]["load"]["recorded"] == 12
    assert not report["interrupted"]


@pytest.mark.processes
async def test_a_killed_run_leaves_a_journal_that_makes_a_report(endpoint: Any, tmp_path: Path) -> None:
    async def behaviour(_request: web.Request, _body: Any, seen: int) -> None:
        if seen >= 8:
            await asyncio.Event().wait()

    endpoint.behaviour = behaviour
    process = await soak(endpoint.url, tmp_path, "--quiet")
    journal = tmp_path / "t.jsonl"
    async with asyncio.timeout(60):
        while not journal.exists() or len(journal.read_text().splitlines()) < 9:
            await asyncio.sleep(0.02)
        process.kill()
        await process.communicate()
    assert not (tmp_path / "t.json").exists()
    assert main(["report", str(journal)]) == 130
    assert json.loads((tmp_path / "t.json").read_text())["phases"]["load"]["recorded"] == 5
