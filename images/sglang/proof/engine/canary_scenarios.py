"""The canary's own drift probe through a real pair: green when left alone, and under a load that races load-backs.

The engines run without a tokenizer, so the chat probes do not apply; a drift probe passes through the same path: bootstrap,
prefill, load-back, transfer, decode.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import tokens
from scenarios import EARLY_OFF, GUARD, SLOW_LOADS, STOCK, Arm, Result, _evict
from servers import Pair

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "operator"))

import aiohttp
from dsv4_canary import attempt, drift
from dsv4_canary.attempt import Context, ProbeResult
from dsv4_canary.model import Role
from dsv4_canary.pair import Target

LENGTH = 6000
"""Token ids of a probe: 23 whole pages are cached and come back from host."""
AT_ONCE = 4


def _context(pair: Pair) -> Context:
    target = Target(
        decode=f"http://127.0.0.1:{pair.decodes[0].port}",
        prefill=f"http://127.0.0.1:{pair.prefill.port}",
        bootstrap_host="127.0.0.1",
        bootstrap_port=pair.bootstrap,
    )
    return Context(target, Role.DECODE, "tiny", LENGTH, 60.0)


def _brief(found: ProbeResult) -> dict[str, Any]:
    shown = found.to_json()
    return {key: shown[key] for key in ("outcome", "cache", "message", "seconds", "cachedTokens", "drift")}


async def _drive(pair: Pair, rounds: int) -> Result:
    context = _context(pair)
    connector = aiohttp.TCPConnector(force_close=True)
    blockers = [tokens(900 + number, 6000) for number in range(2)]
    async with aiohttp.ClientSession(connector=connector) as session:
        cold = await attempt.drifting(session, context, "proof", None)
        if cold.reading is None:
            return {"verdict": "error", "answer": _brief(cold)}
        noise = drift.Noise()
        alone = [_brief(cold)]
        device = cold.reading
        for _ in range(6):
            again = await attempt.drifting(session, context, "proof", cold.reading, noise.margin)
            if again.deviation is not None:
                noise.add(again.deviation)
            device = again.reading or device
            alone.append(_brief(again))
        for blocker in blockers:
            await asyncio.to_thread(pair.answer, blocker, 1)
        for _ in range(3):
            await asyncio.to_thread(_evict, pair.answer)
            back = await attempt.drifting(session, context, "proof", cold.reading, noise.margin, device)
            alone.append(_brief(back))
        red_alone = sum(entry["outcome"] != "pass" for entry in alone)
        raced, red_rounds = [], 0
        for _ in range(rounds):
            await asyncio.to_thread(_evict, pair.answer)
            threads = []
            # Two load-backs in front keep the scheduler busy, so that the probes form one batch.
            for blocker in blockers:
                threads.append(threading.Thread(target=pair.answer, args=(blocker, 1)))
                threads[-1].start()
                await asyncio.sleep(0.06)
            found = await asyncio.gather(
                *(
                    attempt.drifting(session, context, "proof", cold.reading, noise.margin, device)
                    for _ in range(AT_ONCE)
                )
            )
            for thread in threads:
                await asyncio.to_thread(thread.join)
            entries = [_brief(one) for one in found]
            red_rounds += any(entry["outcome"] != "pass" for entry in entries)
            raced.append(entries)
    verdict = "red" if red_rounds and not red_alone else "green" if not red_rounds and not red_alone else "noisy"
    return {
        "verdict": verdict,
        "red_alone": red_alone,
        "wrong_rounds": red_rounds,
        "of": rounds,
        "red_probes": sum(entry["outcome"] != "pass" for entries in raced for entry in entries),
        "probes": rounds * AT_ONCE,
        "margin": noise.margin,
        "alone": alone,
        "rounds": raced,
    }


def _check(pair: Pair, rounds: int) -> Callable[[], Result]:
    def run() -> Result:
        begun = time.time()
        result = asyncio.run(_drive(pair, rounds))
        return {**result, "check_seconds": round(time.time() - begun, 1)}

    return run


def canary(port: int, logs: Path, rounds: int = 8) -> list[Arm]:
    """(f) Drift probes of the product: upstream's default early send, what the operator renders, and the plugin."""
    arms = []
    for name, environ, expect in (
        ("canary-default", {**STOCK, **SLOW_LOADS}, "red"),
        ("canary-early-off", {**STOCK, **SLOW_LOADS, **EARLY_OFF}, "green"),
        ("canary-guard", {**GUARD, **SLOW_LOADS}, "green"),
    ):
        pair = Pair(name, port, logs, environ)
        port += 200
        arms.append(Arm(name, pair.servers, _check(pair, rounds), expect))
    # Cold in three chunks, later from a cache: how far another shape of computation alone moves logprobs.
    pair = Pair("canary-chunks", port, logs, STOCK, chunk=2048)
    arms.append(Arm("canary-chunks", pair.servers, _check(pair, 0), "green"))
    return arms


SCENARIOS: dict[str, Callable[[int, Path], list[Arm]]] = {"canary": canary}
