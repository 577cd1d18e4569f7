"""What the plugin costs on the host: per chunk, request, layer and transfer poll. Needs neither SGLang nor a GPU.

    PYTHONPATH=images/sglang/src python3 images/sglang/proof/cost.py

Prints one JSON object per figure: name, median and 95th percentile in microseconds, and what it is per.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from dsv4_guard import gates
from dsv4_guard.live import tally
from dsv4_guard.live.judge import Call, Completion, judge, matches_schema

SCHEMA = {
    "type": "object",
    "properties": {"restaurant": {"type": "string"}, "guests": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["restaurant", "guests"],
}
TOOLS = {"book_table": SCHEMA}
ARGUMENTS = json.dumps({"restaurant": "Luna Rossa", "guests": 4, "note": "by the window, if there is one. " * 8})
NOUNS = ("table", "window", "eight", "door", "nine", "which", "shall", "book")
WORDS = [f"{word}{number} " for number in range(125) for word in NOUNS]
TEXT = "".join(WORDS * 2)[:12000]


def measure(name: str, per: str, action: Callable[[], Any], count: int, inner: int = 1) -> None:
    """Time `action` `count` times, each doing `inner` of what is reported."""
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        action()
        spent.append((time.perf_counter() - begun) / inner * 1e6)
    spent.sort()
    figure = {"median_us": round(statistics.median(spent), 3), "p95_us": round(spent[int(0.95 * len(spent)) - 1], 3)}
    print(json.dumps({"name": name, "per": per, **figure}))


def event(delta: dict[str, Any], finish: str | None = None) -> str:
    """One server-sent event as SGLang writes it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    body = {
        "id": "c" * 32,
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "deepseek-v4",
        "choices": [choice],
    }
    return f"data: {json.dumps(body)}\n\n"


def counters() -> None:
    """A stream of 2,500 chunks, and an answer at once."""
    words = (WORDS * 3)[:2500]
    chunks = [event({"role": "assistant", "content": word}) for word in words] + [event({}, "stop")]

    def stream() -> None:
        gathered = tally.Gathered(TOOLS)
        for chunk in chunks:
            gathered.take(chunk)
        assert gathered.outcome() == "none"

    def end() -> None:
        judge(Completion(TEXT, [Call("book_table", ARGUMENTS)]), TOOLS, matches_schema)

    stream()
    measure("streamed completion", "chunk", stream, 40, len(chunks))
    measure("streamed completion, 2,500 chunks", "request", stream, 40)
    measure("answer with a call, 12,000 characters of text", "request", end, 200)


def accessors() -> None:
    """The wait of our own, without HiCache and with (a counter that does nothing)."""

    class Pool:
        start_layer = 0

        def get(self, layer_id: int) -> int:
            return layer_id

    pool, counter = Pool(), types.SimpleNamespace(wait_until=lambda layer: None)
    wrapped = gates.waiting(Pool.get)

    def repeated(function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(1000):
                function(pool, layer_id=3)

        return run

    measure("accessor as it is", "layer and call", repeated(Pool.get), 100, 1000)
    for name, value in (("no HiCache", None), ("HiCache", counter)):
        pool.layer_transfer_counter = value  # type: ignore[attr-defined]
        measure(f"accessor with a wait of our own, {name}", "layer and call", repeated(wrapped), 100, 1000)


def transfers() -> None:
    """A chunk through the source in front of a worker, and a look at a transfer's state."""
    from dsv4_guard.transfer import deadline, work

    # All that is taken from SGLang here is the name of a state.
    conn = types.ModuleType("sglang.srt.disaggregation.base.conn")
    conn.KVPoll = types.SimpleNamespace(Failed=0)  # type: ignore[attr-defined]
    sys.modules[conn.__name__] = conn
    chunk = types.SimpleNamespace(room=1)
    manager = types.SimpleNamespace(
        agent=types.SimpleNamespace(), failure_lock=threading.Lock(), request_status={1: 2}, transfer_infos={}
    )
    manager.agent.check_xfer_state = lambda handle: "PROC"
    manager.agent.release_xfer_handle = lambda handle: None
    source = work.ChunkSource(manager, types.SimpleNamespace(get=lambda: chunk))

    def chunks() -> None:
        for _ in range(1000):
            source.get()

    measure("chunk source", "chunk", chunks, 100, 1000)
    deadline.watch(manager, 3600.0, False)
    source.get()

    def polls() -> None:
        for _ in range(1000):
            manager.agent.check_xfer_state(manager)

    measure("transfer state with a deadline", "poll", polls, 100, 1000)


def main() -> int:
    counters()
    accessors()
    transfers()
    return 0


if __name__ == "__main__":
    sys.exit(main())
