"""The canary's own drift probe through a real pair: green when left alone, and under a load that races load-backs.

The engines run without a tokenizer, so the chat probes do not apply; a drift probe passes through the same path:
bootstrap, prefill, load-back, transfer, decode.
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
from dsv4_canary.pair import GENERATE, Target, drive

LENGTH = 6000
"""Token ids of a probe: 23 whole pages are cached and come back from host."""
SHARED = 5888
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


async def _alone(session: aiohttp.ClientSession, pair: Pair, noise: drift.Noise) -> list[dict[str, Any]]:
    """The probe as the sidecar sends it: cold, from the device six times, from host three times."""
    context = _context(pair)
    cold = await attempt.drifting(session, context, "proof", None)
    if cold.reading is None:
        return [_brief(cold)]
    seen: list[dict[str, Any]] = [_brief(cold)]
    device = None
    for _ in range(6):
        again = await attempt.drifting(session, context, "proof", cold.reading, noise.margin, device)
        if device is not None and again.deviation is not None:
            noise.add(again.deviation)
        device = device or again.reading
        seen.append(_brief(again))
    for _ in range(3):
        await asyncio.to_thread(_evict, pair.answer)
        seen.append(_brief(await attempt.drifting(session, context, "proof", cold.reading, noise.margin, device)))
    return seen


async def _reading(session: aiohttp.ClientSession, pair: Pair, body: dict[str, Any]) -> drift.Reading | None:
    result = await drive(session, _context(pair).target, body, seconds=60.0, path=GENERATE)
    return drift.read_output(result.decode.body) if result.decode.good and result.prefill.good else None


async def _raced(session: aiohttp.ClientSession, pair: Pair, rounds: int) -> list[list[dict[str, Any]]]:
    """Probes at once that share a long evicted prefix and end differently; two load-backs in front keep the scheduler
    busy, so that some of them form one batch. (Probes that end alike did not show the race.)"""
    bodies = []
    for number in range(AT_ONCE):
        body = drift.drift_body("proof-shared", SHARED)
        body["input_ids"] += drift.drift_ids(f"proof-end-{number}", LENGTH - SHARED)
        bodies.append(body)
    await _reading(session, pair, bodies[0])
    before = [await _reading(session, pair, body) for body in bodies]
    blockers = [tokens(900 + number, 6000) for number in range(2)]
    for blocker in blockers:
        await asyncio.to_thread(pair.answer, blocker, 1)
    found = []
    for _ in range(rounds):
        await asyncio.to_thread(_evict, pair.answer)
        threads = []
        for blocker in blockers:
            threads.append(threading.Thread(target=pair.answer, args=(blocker, 1)))
            threads[-1].start()
            await asyncio.sleep(0.06)
        after = await asyncio.gather(*(_reading(session, pair, body) for body in bodies))
        for thread in threads:
            await asyncio.to_thread(thread.join)
        found.append([_compared(*both) for both in zip(before, after, strict=True)])
    return found


def _compared(before: drift.Reading | None, after: drift.Reading | None) -> dict[str, Any]:
    if before is None or after is None:
        return {"outcome": "no reading"}
    deviation = drift.compare(before, after)
    # The ceiling: company in a batch moves logprobs too, and repeats of one request alone do not teach how far.
    red = deviation.beyond(drift.CEILING)
    return {"outcome": "fail" if red else "pass", "nats": round(deviation.nats, 4), "inCommon": deviation.common}


async def _drive(pair: Pair, rounds: int) -> Result:
    noise = drift.Noise()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        alone = await _alone(session, pair, noise)
        raced = await _raced(session, pair, rounds)
    red_alone = sum(entry["outcome"] != "pass" for entry in alone)
    red_rounds = sum(any(entry["outcome"] != "pass" for entry in entries) for entries in raced)
    return {
        "verdict": "noisy" if red_alone else "red" if red_rounds else "green",
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
