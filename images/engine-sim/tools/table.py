"""Reproduce the bisection that found the ungated index-K, with simulated engines on loopback.

Usage::

    python tools/table.py [--sessions 80] [--rounds 4] [--arm NAME ...] [--gate on]

Each arm starts its own engines and runs N concurrent agent sessions of several rounds with a growing context: a system
prompt (half of the sessions share one), notes of the session's own, and in every round one tool call whose arguments
stand in the newest message or in an earlier note. A reply that is not exactly that call is counted, by kind and by
where its prefix came from. Nothing is drawn: two runs differ only in how the races went.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

SOURCES = Path(__file__).resolve().parents[1] / "src"
MODEL = "simulator"
MARK = "｜DSML｜"
TOOL = {
    "type": "function",
    "function": {
        "name": "probe_echo",
        "description": "Echo a token and a number.",
        "parameters": {
            "type": "object",
            "properties": {"token": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["token", "n"],
        },
    },
}
SYSTEM = "You are a careful agent. Follow the notes of the user and answer with one tool call. " * 24
WORDS = ("ledger", "harbour", "quartz", "meadow", "signal", "copper", "lantern", "orchid", "gravel", "timber", "velvet")


@dataclass(frozen=True)
class Arm:
    """One line of the table."""

    name: str
    index_k: str = "bf16"
    hicache: bool = True
    pair: bool = True
    gate: str = "off"
    sessions: int = 80
    rounds: int = 4
    words: int = 245
    """Length of the shortest session's rounds; about two tokens a word."""
    env: dict[str, str] = field(default_factory=dict)
    switches: dict[str, Any] = field(default_factory=dict)


ARMS = (
    Arm("bf16, HiCache, PD"),
    Arm("fp8, HiCache, PD", index_k="fp8"),
    Arm("bf16, HiCache, one server", pair=False),
    Arm("bf16, no HiCache, PD, 60", hicache=False, sessions=60),
    Arm("bf16, no HiCache, PD, 80", hicache=False),
    Arm("bf16, HiCache, PD, gated", gate="on"),
)


@dataclass
class Outcome:
    """Counts of one arm. Keys of `replies` are (tier of the prefix, kind)."""

    replies: Counter[tuple[str, str]] = field(default_factory=Counter)
    corrupted_sessions: set[int] = field(default_factory=set)
    stuck: int = 0
    seconds: float = 0.0
    examples: dict[str, str] = field(default_factory=dict)

    def bad(self, tier: str | None = None) -> int:
        """Corrupted replies, of one tier or of all."""
        return sum(n for (where, kind), n in self.replies.items() if kind in KINDS and tier in (None, where))

    def total(self, tier: str | None = None) -> int:
        """All replies, of one tier or of all."""
        return sum(n for (where, _), n in self.replies.items() if tier in (None, where))


KINDS = ("wrong", "garbled", "missing", "leaked")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def engines(arm: Arm, folder: Path) -> Iterator[tuple[list[str], int]]:
    """The arm's engine processes: URLs (prefill first) and the bootstrap port. Stopped by pid at the end."""
    bootstrap = free_port()
    processes: list[subprocess.Popen[bytes]] = []
    urls: list[str] = []
    try:
        for role in ("prefill", "decode") if arm.pair else ("null",):
            port = free_port()
            command = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/none"]
            command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
            command += ["--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"]
            command += ["--enable-metrics", "--enable-cache-report"]
            if role != "null":
                command += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
                command += ["--disaggregation-bootstrap-port", str(bootstrap)]
            if arm.hicache and role != "decode":
                command += ["--enable-hierarchical-cache"]
            env = os.environ | {"PYTHONPATH": str(SOURCES), "DSV4_SIM_INDEX_K_DTYPE": arm.index_k}
            env |= {"DSV4_SIM_STARTUP_SECONDS": "0", "DSV4_SIM_HOST_POOL_PAGES": "2048"}
            env |= arm.env
            if role == "decode":
                env |= {"DSV4_SIM_POOL_PAGES": "1024"}
            with (folder / f"{role}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            urls.append(f"http://127.0.0.1:{port}")
        yield urls, bootstrap
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def judge(message: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What kind of reply this is: ``right`` or one of `KINDS`."""
    calls = message.get("tool_calls") or []
    content = message.get("content") or ""
    if MARK in content or "invoke name=" in content or "$TOOL_NAME" in content:
        return "leaked"
    if not calls:
        return "missing"
    if len(calls) != 1 or calls[0]["function"]["name"] != "probe_echo":
        return "garbled"
    try:
        arguments = json.loads(calls[0]["function"]["arguments"])
    except ValueError:
        return "garbled"
    if arguments == wanted:
        return "right"
    return "wrong" if isinstance(arguments, dict) and set(arguments) == set(wanted) else "garbled"


def tier(reply: dict[str, Any]) -> str:
    """Where the prefix came from: cold, device, or host as soon as a part did."""
    details = ((reply.get("sglext") or {}).get("cached_tokens_details")) or {}
    return "host" if details.get("host") else "device" if details.get("device") else "cold"


def _filler(session: int, number: int, words: int) -> str:
    return " ".join(WORDS[(session * 7 + number * 5 + i * i) % len(WORDS)] + str(i % 10) for i in range(words))


class Load:
    """N concurrent multi-turn sessions against one arm's engines."""

    def __init__(self, arm: Arm, urls: Sequence[str], bootstrap: int, client: aiohttp.ClientSession) -> None:
        self.arm, self.urls, self.bootstrap, self.client = arm, urls, bootstrap, client
        self.outcome = Outcome()
        self._rooms = count(1)

    async def ready(self) -> None:
        """Wait for the engines and set their switches."""
        async with asyncio.timeout(60):
            for url in self.urls:
                while True:
                    try:
                        async with self.client.get(url + "/ready") as response:
                            if response.status == 200:
                                break
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.05)
                async with self.client.put(
                    url + "/sim/switches", json={"gate": self.arm.gate} | self.arm.switches
                ) as response:
                    response.raise_for_status()

    async def ask(self, messages: list[dict[str, Any]], **extra: Any) -> tuple[int, dict[str, Any]]:
        """One chat completion through the arm's engines; the answer is the last one's."""
        body = {
            "model": MODEL,
            "messages": messages,
            "tools": [TOOL],
            "temperature": 0,
            "max_tokens": 400,
            "return_cached_tokens_details": True,
        } | extra
        if self.arm.pair:
            body |= {
                "bootstrap_host": "127.0.0.1",
                "bootstrap_port": self.bootstrap,
                "bootstrap_room": next(self._rooms),
            }

        async def post(url: str) -> tuple[int, dict[str, Any]]:
            async with self.client.post(url + "/v1/chat/completions", json=body) as response:
                return response.status, await response.json()

        return (await asyncio.gather(*map(post, self.urls)))[-1]

    async def session(self, number: int) -> None:
        """One agent: every round adds a note and asks for one call."""
        # Every other agent has a head of its own, so that tools and format are among what is evicted and reloaded.
        system = f"Agent {number}. {SYSTEM}" if number % 2 else SYSTEM
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        size = (
            self.arm.words + 14 * (number % 12) + 250 * (number % 16 == 5)
        )  # words; sessions differ in how fast they grow
        tokens: list[str] = []
        for turn in range(1, self.arm.rounds + 1):
            tokens.append(f"zk-{number:03d}-{WORDS[(number + turn) % len(WORDS)]}-{turn}")
            looked_up = 1 + (number + turn) % turn
            text = f'note {turn}: token "{tokens[-1]}". {_filler(number, turn, size)}\n'
            text += f"Call the tool probe_echo exactly once with token from note {looked_up} and n {turn}."
            messages.append({"role": "user", "content": text})
            wanted = {"token": tokens[looked_up - 1], "n": turn}
            status, reply = await self.ask(messages)
            if status != 200:
                self.outcome.stuck += "WaitingForInput" in json.dumps(reply)
                self.outcome.replies["error", "error"] += 1
                return
            message = reply["choices"][0]["message"]
            kind = judge(message, wanted)
            self.outcome.replies[tier(reply), kind] += 1
            if kind != "right":
                self.outcome.corrupted_sessions.add(number)
                self.outcome.examples.setdefault(kind, json.dumps(message, ensure_ascii=False)[:300])
            # The agent goes on as if the call had been right, so that later prompts are comparable.
            call = {"id": "c", "type": "function", "function": {"name": "probe_echo", "arguments": json.dumps(wanted)}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "c", "content": "done"})

    async def run(self) -> Outcome:
        """All sessions at once."""
        await self.ready()
        start = time.monotonic()
        await asyncio.gather(*map(self.session, range(self.arm.sessions)))
        self.outcome.seconds = time.monotonic() - start
        return self.outcome


async def run_arm(arm: Arm) -> Outcome:
    """Start the arm's engines, run its load, stop them."""
    with tempfile.TemporaryDirectory() as folder, engines(arm, Path(folder)) as (urls, bootstrap):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=180)) as client:
            return await Load(arm, urls, bootstrap, client).run()


def line(arm: Arm, outcome: Outcome) -> str:
    """One line of the table."""
    kinds = Counter[str]()
    for (_, kind), number in outcome.replies.items():
        kinds[kind] += number
    share = 100 * len(outcome.corrupted_sessions) / arm.sessions
    tiers = "  ".join(f"{where} {outcome.bad(where)}/{outcome.total(where)}" for where in ("cold", "device", "host"))
    found = " ".join(f"{kind}={kinds[kind]}" for kind in KINDS if kinds[kind]) or "-"
    return (
        f"{arm.name:27} gate {arm.gate:3} {arm.sessions:3}x{arm.rounds}  sessions corrupted "
        f"{len(outcome.corrupted_sessions):3} ({share:3.0f} %)  replies: {tiers}  {found}  errors {kinds['error']}  "
        f"stuck {outcome.stuck}  {outcome.seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--arm", action="append", help="part of an arm's name; several may be given")
    parser.add_argument("--gate", choices=("on", "off"), help="instead of the arm's own")
    parser.add_argument("--examples", action="store_true", help="print one reply of each kind")
    args = parser.parse_args()
    for arm in ARMS:
        if args.arm and not any(part in arm.name for part in args.arm):
            continue
        wanted = {key: value for key in ("sessions", "rounds", "gate") if (value := getattr(args, key)) is not None}
        chosen = replace(arm, **wanted)
        outcome = asyncio.run(run_arm(chosen))
        print(line(chosen, outcome), flush=True)
        if args.examples:
            for kind, example in outcome.examples.items():
                print(f"    {kind}: {example}")


if __name__ == "__main__":
    main()
