"""One set of probes against a pair or a plain endpoint, once, from anywhere. What ``dsv4ctl canary`` runs.

Keeps no verdict: a set this small shows whether tool calls work and whether repeats agree, not how often they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from dsv4_canary import attempt
from dsv4_canary.attempt import Context, ProbeResult
from dsv4_canary.drift import CEILING
from dsv4_canary.engine_view import read_engine
from dsv4_canary.judge import Kind
from dsv4_canary.model import Cache, Mode, ProbeName, Role
from dsv4_canary.pair import Target
from dsv4_canary.wording import fresh_nonce

__all__ = ["ProbeResult", "SetSettings", "Target", "run_set"]


@dataclass(frozen=True, slots=True)
class SetSettings:
    """What to ask. ``seconds`` is the longest time of one request, ``prompt_tokens`` the least length of a prompt."""

    model: str
    prompt_tokens: int = 2600
    seconds: float = 60.0
    probes: tuple[ProbeName, ...] = tuple(ProbeName)
    repeats: int = 1
    """How often each old prefix is asked again."""
    ranks: int = 1
    """Data-parallel ranks of the prefill; prefixes are spread over them."""


async def run_set(
    session: aiohttp.ClientSession,
    target: Target,
    settings: SetSettings,
    shown: Callable[[ProbeResult], None] = lambda _result: None,
) -> list[ProbeResult]:
    """Run the set, one request after the other (a twin sends two at once), some 11 requests of ``prompt_tokens``.

    Order: echo whole and streamed, repeat of each, twin, parity, drift cold and from the cache and its repeats, quiet.
    Stops after a request that found nobody to answer. Never raises for anything that the engines do. ``shown`` gets
    each result as it comes.

    ``session``: its ``headers`` are sent along, such as an API key; use ``TCPConnector(force_close=True)``.
    """
    results: list[ProbeResult] = []
    run = f"set-{fresh_nonce()}"
    for rank, name, step in _steps(settings):
        context = _context(session, target, settings, results, rank)
        found = await _run(session, context, name, step, f"{run}/{rank}", results)
        for result in found:
            results.append(result)
            shown(result)
        if any(
            result.judgement.kind in (Kind.PEER_UNREACHABLE, Kind.PEER_LOADING, Kind.ENGINE_GONE) for result in found
        ):
            break
    return results


def _steps(settings: SetSettings) -> list[tuple[int, ProbeName, int]]:
    """(rank, probe, number of its kind) of each step."""
    steps: list[tuple[int, ProbeName, int]] = []
    for rank in range(max(1, settings.ranks)):
        for name in ProbeName:
            if name in settings.probes:
                count = {
                    ProbeName.ECHO: 2,
                    ProbeName.REPEAT: 2 * settings.repeats,
                    ProbeName.DRIFT: 2 + settings.repeats,
                }.get(name, 1)
                steps += [(rank, name, number) for number in range(count)]
    return steps


def _context(
    session: aiohttp.ClientSession, target: Target, settings: SetSettings, results: list[ProbeResult], rank: int
) -> Context:
    async def load_back() -> float | None:
        sample = await read_engine(session, target.prefill or target.decode)
        return sample.load_back_tokens if sample else None

    return Context(
        target=target,
        role=Role.DECODE,
        model=settings.model,
        prompt_tokens=settings.prompt_tokens,
        seconds=settings.seconds,
        rank=rank,
        ranks=max(1, settings.ranks),
        other_nonces=tuple(result.nonce for result in results if result.nonce),
        cached_reported=any(result.cached_tokens is not None for result in results),
        load_back=load_back,
    )


async def _run(
    session: aiohttp.ClientSession, context: Context, name: ProbeName, step: int, run: str, results: list[ProbeResult]
) -> list[ProbeResult]:
    mode = Mode.STREAMED if step % 2 else Mode.FUNCTIONAL
    if name is ProbeName.DRIFT:
        prefix = f"{run}/drift"
        known = [(r.cache, r.reading) for r in results if r.prefix == prefix and r.reading]
        if step and not known:
            return []
        first = known[0][1] if known else None
        device = next((reading for cache, reading in known if cache is Cache.DEVICE), None)
        return [await attempt.drifting(session, context, prefix, first, CEILING, device)]
    if name is ProbeName.TWIN:
        return await attempt.twin(session, context, f"{run}/0")
    if name is ProbeName.PARITY:
        return await attempt.parity(session, context, f"{run}/parity")
    if name is ProbeName.REPEAT:
        # The other way round than the first time, so that each prefix is read whole and streamed.
        other = Mode.FUNCTIONAL if mode is Mode.STREAMED else Mode.STREAMED
        return [await attempt.ask(session, context, name, other, f"{run}/{step % 2}")]
    prefix = f"{run}/{step}" if name is ProbeName.ECHO else f"{run}/{name.value}"
    return [await attempt.ask(session, context, name, mode, prefix)]
