"""The whole sidecar in one process, against scripted engines on loopback addresses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dsv4_canary.loop import Canary
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Role
from dsv4_canary.settings import Environment
from dsv4_canary.watch import SettingsFile

pytestmark = pytest.mark.processes

DEADLINE = 60.0
SETTINGS = {
    "version": 1,
    "model": "m",
    "intervalSeconds": 1,
    "timeoutSeconds": 5,
    "failureThreshold": 2,
    "promptTokens": 50,
}


class Engine:
    """Answers the echo probe, whole and streamed, damaged as the test says."""

    def __init__(self) -> None:
        self.health = 200
        self.damage: Callable[[dict[str, Any], str], str] = lambda _body, arguments: arguments
        self.probes = 0
        self.health_calls = 0
        self.heads: set[str] = set()
        self.metrics: str | None = None
        self.quiet = True
        self.hang = False

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.probes += 1
        while self.hang:
            await asyncio.sleep(0.05)
        ask = body["messages"][-1]["content"]
        if "Do not call" in ask:
            if self.quiet:
                return self.plain(body)
            ask = 'token "zk-41-quartz-ramp" and n 7.'
        arguments = json.dumps({"token": ask.split('"')[1], "n": int(ask.split(" n ")[1].split(".")[0])})
        function = {"name": "probe_echo", "arguments": self.damage(body, arguments)}
        call = {"index": 0, "id": "c", "type": "function", "function": function}
        head = json.dumps(body["messages"][:-1])
        details = {"cached_tokens": 256 if head in self.heads else 0}
        usage = {"prompt_tokens": 300 + self.probes % 4, "completion_tokens": 40, "prompt_tokens_details": details}
        self.heads.add(head)
        if not body["stream"]:
            message = {"content": "", "tool_calls": [call]}
            return web.json_response(
                {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}
            )
        chunks = (
            {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": usage},
        )
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")

    def plain(self, body: dict[str, Any]) -> web.Response:
        """No call, as asked."""
        usage = {"prompt_tokens": 300, "completion_tokens": 6}
        text = "The harbour is calm today."
        if body["stream"]:
            chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}], "usage": usage}
            return web.Response(text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": usage})

    async def answer_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(status=404) if self.metrics is None else web.Response(text=self.metrics)

    async def answer_health(self, _request: web.Request) -> web.Response:
        self.health_calls += 1
        return web.Response(status=self.health)

    @asynccontextmanager
    async def serving(self, address: str, port: int = 0) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/health", self.answer_health)
        app.router.add_get("/metrics", self.answer_metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, address, port).start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()


@asynccontextmanager
async def sidecar(
    folder: Path,
    engine_port: int,
    peer_port: int,
    resolve: Callable[[str], Awaitable[list[str]]],
    *,
    engine_dead: float = 600.0,
    guard: str | None = None,
    settings: dict[str, Any] = SETTINGS,
) -> AsyncIterator[Canary]:
    path = folder / "canary.json"
    path.write_text(json.dumps(settings))
    env = Environment(
        role=Role.DECODE,
        listen_port=1,
        engine_url=f"http://127.0.0.1:{engine_port}",
        peer_host="peers",
        peer_port=peer_port,
        bootstrap_port=8998,
        fingerprint="f",
        pod_name="p",
        pod_namespace="n",
        pod_uid="u",
        pod_ip="127.0.0.1",
        engine_dead=engine_dead,
        config_path=str(path),
        require_guard=guard,
    )
    canary = Canary(env, SettingsFile(str(path)), Metrics("decode", "f"), resolve)
    task = asyncio.create_task(canary.run())
    try:
        yield canary
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def peers(*addresses: str) -> Callable[[str], Awaitable[list[str]]]:
    async def resolve(_host: str) -> list[str]:
        return list(addresses)

    return resolve


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.02)


async def test_streamed_failure_alone_takes_readiness(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: canary.verdict.ready)
        own.damage = lambda body, arguments: arguments[:-3] if body["stream"] else arguments
        await until(lambda: not canary.verdict.ready)
        assert "127.0.0.2" in canary.verdict.message
        assert "(S11)" in canary.verdict.message
        (peer_status,) = canary.status()["peers"]  # type: ignore[misc]
        assert peer_status.pop("lastSuccessTime") < peer_status["lastProbeTime"]
        assert peer_status.pop("failingSince") <= peer_status["lastProbeTime"]
        assert peer_status.pop("consecutiveFailures") >= 2
        assert peer_status == {
            "address": "127.0.0.2",
            "outcome": "Fail",
            "lastProbeTime": canary.status()["history"][-1]["time"],  # type: ignore[index]
            "signatures": ["S11"],
            "message": "came back with arguments that are not JSON (S11)",
        }
        own.damage = lambda _body, arguments: arguments
        await until(lambda: canary.verdict.ready)


async def test_one_bad_peer_among_two_does_not_take_readiness(tmp_path: Path) -> None:
    own, good, bad = Engine(), Engine(), Engine()
    async with own.serving("127.0.0.1") as a, good.serving("127.0.0.2") as b, bad.serving("127.0.0.3", b):
        # The answer is this decode's; it is wrong when the bytes come from the bad prefill.
        own.damage = lambda body, text: "{}" if body["bootstrap_host"] == "127.0.0.3" else text
        async with sidecar(tmp_path, a, b, peers("127.0.0.2", "127.0.0.3")) as canary:
            await until(lambda: canary.verdict.ready)
            seen = bad.probes
            await until(lambda: bad.probes >= seen + 3)
            assert canary.verdict.ready
            outcomes = {peer["address"]: peer["outcome"] for peer in canary.status()["peers"]}  # type: ignore[attr-defined]
            assert outcomes == {"127.0.0.2": "Pass", "127.0.0.3": "Fail"}


async def test_failing_lookup_keeps_known_peers_and_none_is_no_peer(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    answers: dict[str, Any] = {"result": []}

    async def resolve(_host: str) -> list[str]:
        if isinstance(answers["result"], OSError):
            raise answers["result"]
        return list(answers["result"])

    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, resolve) as canary,
    ):
        await until(lambda: canary.verdict.reason == "NoPeer")
        answers["result"] = ["127.0.0.2"]
        await until(lambda: canary.verdict.ready)
        answers["result"] = OSError("name server down")
        seen = peer.probes
        await until(lambda: peer.probes >= seen + 2)
        assert canary.verdict.ready
        answers["result"] = []
        await until(lambda: not canary.verdict.ready)
        assert canary.verdict.reason == "NoPeer"
        assert canary.status()["peers"] == []
        assert b"peer_result{" not in canary.metrics.render()


async def test_busy_engine_keeps_readiness_while_probes_pass(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: canary.verdict.ready)
        own.health = 503
        await until(lambda: canary.status()["engine"] == {"healthy": False})
        seen = own.probes
        await until(lambda: own.probes >= seen + 2)
        assert canary.verdict.ready


async def test_unfinished_start_of_the_engine_gets_no_probe(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    own.health = 503
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: own.health_calls >= 3)
        assert canary.verdict.reason == "EngineLoading"
        assert own.probes == peer.probes == 0
        own.health = 200
        await until(lambda: canary.verdict.ready)


async def test_after_the_proof_all_kinds_of_probes_take_turns(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: canary.verdict.ready)
        history: Any = canary.status()["history"]
        assert [(entry["probe"], entry["cache"]) for entry in history] == [("echo", "cold"), ("echo", "cold")]
        kinds: set[tuple[str, str]] = set()

        def seen() -> bool:
            entries: Any = canary.status()["history"]
            kinds.update((entry["probe"], entry["cache"]) for entry in entries)
            return {("repeat", "device"), ("parity", "cold"), ("parity", "device"), ("echo", "cold")} <= kinds

        await until(seen)
        history = canary.status()["history"]
        assert all(entry["excerpt"] == "" for entry in history)
        # This engine serves no /generate, which is no failure of the pair. The cycle begins anywhere: it may come last.
        await until(lambda: 'dsv4_canary_probe_usable{probe="drift"} 0.0' in canary.metrics.render().decode())
        text = canary.metrics.render().decode()
        assert 'dsv4_canary_probes_total{cache="device",outcome="pass",probe="repeat"}' in text
        assert 'dsv4_canary_probe_usable{probe="echo"} 1.0' in text
        (drift,) = (probe for probe in canary.status()["probes"] if probe["name"] == "drift")  # type: ignore[attr-defined]
        assert (drift["usable"], drift["why"]) == (False, "the engine refuses such requests with HTTP 404")
        assert canary.verdict.ready


def marker(index_k: str, *processes: str) -> str:
    return "".join(
        f'dsv4_guard_info{{version="1",release="0.5.23",index_k="{index_k}",process="{process}"}} 1\n'
        for process in processes
    )


async def test_required_guard_must_be_shown_before_and_while_the_pod_serves(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2"), guard="bf16") as canary,
    ):
        for metrics, hint in (
            (None, "cannot be read"),
            ("sglang:num_running_reqs 0\n", "does not carry the guard"),
            (marker("bf16", "api"), "scheduler"),
            (marker("fp8", "api", "scheduler"), "fp8"),
        ):
            own.metrics, seen = metrics, own.probes
            await until(lambda text=hint: text in canary.verdict.message)  # type: ignore[misc]
            assert (canary.verdict.ready, canary.verdict.reason) == (False, "GuardMissing")
            await until(lambda count=seen: own.probes > count)  # type: ignore[misc]
            assert not canary.verdict.ready
        own.metrics = marker("bf16", "api", "scheduler")
        await until(lambda: canary.verdict.ready)
        guard: Any = canary.status()["guard"]
        assert guard == {"required": True, "present": True, "indexK": "bf16", "version": "1", "message": ""}
        text = canary.metrics.render()
        assert b"dsv4_canary_guard_present 1.0" in text
        assert b"dsv4_canary_guard_required 1.0" in text
        # Metrics that cannot be read for a while take nothing back; a marker that is gone does.
        own.metrics = None
        await until(lambda: "metrics" in canary.status()["blind"])  # type: ignore[operator]
        assert canary.verdict.ready
        own.metrics = marker("fp8", "api", "scheduler")
        await until(lambda: canary.verdict.reason == "GuardMissing")


async def test_without_a_required_guard_nothing_is_missed(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: canary.verdict.ready)
        guard: Any = canary.status()["guard"]
        assert (guard["required"], guard["message"]) == (False, "")


async def test_a_model_that_always_calls_makes_the_quiet_probe_unusable_and_alarms_nobody(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    own.quiet = False
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: b'dsv4_canary_probe_usable{probe="quiet"} 0.0' in canary.metrics.render())
        assert canary.verdict.ready
        status: Any = canary.status()
        assert status["corruption"]["verdict"] == "None"
        assert {window["failures"] for window in status["corruption"]["window"].values()} == {0}
        (quiet,) = (probe for probe in status["probes"] if probe["name"] == "quiet")
        assert "never passed" in quiet["why"]
        assert [peer["outcome"] for peer in status["peers"]] == ["Pass"]


async def test_a_model_that_cannot_call_tools_is_never_ready(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    own.damage = lambda _body, _arguments: "{}"
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2")) as canary,
    ):
        await until(lambda: own.probes >= 12)
        assert (canary.verdict.ready, canary.verdict.reason) == (False, "ProbeFailed")
        assert canary.status()["corruption"]["verdict"] == "None"  # type: ignore[index]


async def test_long_wedge_ends_life_and_the_end_of_it_gives_it_back(tmp_path: Path) -> None:
    own, peer = Engine(), Engine()
    stuck = (
        'sglang:num_running_reqs 3\nsglang:generation_tokens_total 10\nsglang:realtime_tokens_total{mode="decode"} 10\n'
    )
    own.metrics = stuck.replace("reqs 3", "reqs 0")
    settings = SETTINGS | {"wedgeSeconds": 1}
    async with (
        own.serving("127.0.0.1") as a,
        peer.serving("127.0.0.2") as b,
        sidecar(tmp_path, a, b, peers("127.0.0.2"), engine_dead=1.0, settings=settings) as canary,
    ):
        await until(lambda: canary.verdict.ready)
        own.metrics = stuck
        own.hang = True
        await until(lambda: canary.verdict.reason == "EngineWedged")
        text = canary.metrics.render()
        assert b"dsv4_engine_wedged 1.0" in text
        assert b'dsv4_engine_wedge_info{kind="generation"} 1.0' in text
        await until(lambda: not canary.live)
        own.hang = False
        own.metrics = stuck.replace("reqs 3", "reqs 0").replace(" 10\n", " 500\n")
        await until(lambda: canary.verdict.ready)
        assert canary.live
        assert b"dsv4_engine_wedged 0.0" in canary.metrics.render()
