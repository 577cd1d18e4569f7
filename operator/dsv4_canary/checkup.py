"""One look at a pair or an endpoint from anywhere: who is there, one set of probes, what the engines did meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from dsv4_canary import pair, probe_set
from dsv4_canary.attempt import ProbeResult
from dsv4_canary.conclude import TURNED_AWAY, Seen, Verdict, conclude
from dsv4_canary.engine_view import EngineSample, read_engine
from dsv4_canary.guard import check
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.model import ProbeName, Role
from dsv4_canary.pair import LegKind, Target
from dsv4_canary.probe_set import SetSettings
from dsv4_canary.timeout import Look, explain
from dsv4_canary.wedge import WedgeDetector

_INFO_TIMEOUT = 10.0
_SAMPLE_EVERY = 1.0
_ENOUGH = 3
"""Requests in a row that got no answer; more of them tell nothing new."""


class CheckupError(Exception):
    """Nobody to ask, or the wrong one: one line that names the address."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask, and whom."""

    target: Target
    settings: SetSettings
    """An empty model is found out."""
    rounds: int = 1
    api_key: str | None = None


@dataclass(slots=True)
class Engine:
    """One engine as it introduces itself."""

    role: str
    """prefill, decode, or endpoint."""
    url: str
    healthy: bool = False
    release: str | None = None
    mode: str | None = None
    """Disaggregation mode that it says it is in; None when it does not say."""
    hicache: bool = False
    guard: str | None = None
    """Index-K format that the guard's marker names; None without a complete marker."""

    def to_json(self) -> dict[str, object]:
        """Form for programs."""
        return {
            "role": self.role,
            "url": self.url,
            "healthy": self.healthy,
            "release": self.release,
            "hiCache": self.hicache,
            "guardIndexK": self.guard,
        }


@dataclass(slots=True)
class Report:
    """Everything that was found out."""

    model: str
    engines: list[Engine]
    results: list[ProbeResult] = field(default_factory=list)
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Watcher:
    """Called as things become known. Must not block."""

    met: Callable[[Report], None] = lambda _report: None
    """Once, before the first probe."""
    result: Callable[[ProbeResult], None] = lambda _result: None


class _Enough(Exception):
    """No more probes are needed."""


async def run(plan: Plan, watcher: Watcher | None = None) -> Report:
    """Look at the engines, run the set, conclude.

    Raises CheckupError when an engine cannot be reached, is another one than it should be, or names no model.
    """
    watcher = watcher or Watcher()
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    connector = aiohttp.TCPConnector(force_close=True, limit=16)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        engines = await asyncio.gather(*(_meet(session, role, url) for role, url in _addresses(plan.target)))
        model = plan.settings.model or await _model(session, plan.target.decode)
        report = Report(model, list(engines))
        watcher.met(report)
        watch = _Watch(session, report, plan.settings.seconds)
        sampling = asyncio.create_task(watch.run())
        try:
            stopped = await _rounds(session, plan, report, watch, watcher)
        finally:
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
    hicache = any(engine.hicache for engine in report.engines)
    bootstrap = f"{plan.target.bootstrap_host}:{plan.target.bootstrap_port}" if plan.target.prefill else ""
    report.verdict = conclude(report.results, Seen(watch.wedges, hicache, stopped, bootstrap))
    return report


async def _rounds(session: aiohttp.ClientSession, plan: Plan, report: Report, watch: _Watch, watcher: Watcher) -> str:
    """Run the set so often. Returns why it ended early."""

    def take(result: ProbeResult) -> None:
        result = _turned_away(watch.explained(result, settings.prompt_tokens))
        if not report.results and _status(result) in (401, 403):
            raise CheckupError(
                f"{plan.target.decode}: answers HTTP {_status(result)} to requests; an API key is read from the "
                "environment, see --help"
            )
        report.results.append(result)
        watcher.result(result)
        watch.probed(result)
        last = report.results[-_ENOUGH:]
        if len(last) == _ENOUGH and all(one.judgement.transport or one.judgement.kind is Kind.BUSY for one in last):
            raise _Enough

    settings = replace(plan.settings, model=report.model)
    try:
        for _ in range(plan.rounds):
            before = len(report.results)
            await probe_set.run_set(session, plan.target, settings, take)
            kinds = {result.judgement.kind for result in report.results[before:]}
            if kinds & {Kind.PEER_LOADING, Kind.PEER_UNREACHABLE, Kind.ENGINE_GONE}:
                return "stopped, because an engine went away"
    except _Enough:
        return f"stopped after {_ENOUGH} requests in a row without an answer"
    return ""


def _status(result: ProbeResult) -> int | None:
    """HTTP status of a refusal (4xx), None for anything else."""
    legs = () if result.raw is None else (result.raw.decode, result.raw.prefill)
    return next((leg.status for leg in legs if leg.status is not None and 400 <= leg.status < 500), None)


def _turned_away(result: ProbeResult) -> ProbeResult:
    """The result; HTTP 429 says that there is no room now, which accuses nobody."""
    if result.judgement.kind is not Kind.FAIL or _status(result) != 429:
        return result
    return replace(result, judgement=Judgement(Kind.BUSY, what=TURNED_AWAY))


def _addresses(target: Target) -> list[tuple[str, str]]:
    if target.prefill is None:
        return [("endpoint", target.decode)]
    return [("prefill", target.prefill), ("decode", target.decode)]


async def _meet(session: aiohttp.ClientSession, role: str, url: str) -> Engine:
    health, info, sample = await asyncio.gather(
        pair.health(session, url), _info(session, url), read_engine(session, url)
    )
    why = {
        LegKind.REFUSED: "refuses connections; is the port right, and has the engine started?",
        LegKind.UNREACHABLE: "cannot be reached from here; check name, network and port-forward",
        LegKind.LOST: "closes connections without an answer; is it an HTTP port?",
    }.get(health)
    if why is not None:
        raise CheckupError(f"{role} {url}: {why}")
    engine = Engine(role, url, healthy=health == 200)
    release, mode = info.get("version"), info.get("disaggregation_mode")
    engine.release = release if isinstance(release, str) else None
    engine.mode = mode if isinstance(mode, str) else None
    if sample is not None:
        engine.hicache = sample.hicache
        state = check(None, sample.guard)
        engine.guard = state.index_k if state.present else None
    await _check_role(session, engine)
    return engine


async def _check_role(session: aiohttp.ClientSession, engine: Engine) -> None:
    """That the engine is what it was given as, where it says what it is."""
    half = engine.mode in ("prefill", "decode")
    # A router may pass the question on to one of its engines; engines have no /readiness, routers do.
    if engine.role == "endpoint" and half and await _json(session, f"{engine.url}/readiness") == 404:
        raise CheckupError(
            f"endpoint {engine.url}: is the {engine.mode} of a pair, which answers nothing alone; "
            "give both with --prefill and --decode"
        )
    if engine.role != "endpoint" and (half or engine.mode == "null") and engine.mode != engine.role:
        what = "no half of a pair; give it as --endpoint" if engine.mode == "null" else f"a {engine.mode}; swap the two"
        raise CheckupError(f"{engine.role} {engine.url}: is {what}")


async def _info(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    found = await _json(session, f"{url}/server_info")
    return found if isinstance(found, dict) else {}


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    found = await _json(session, f"{url}/v1/models")
    if isinstance(found, int):
        key = "; an API key is read from the environment, see --help" if found in (401, 403) else ""
        raise CheckupError(f"{url}/v1/models: answers HTTP {found}{key or '; give --model'}")
    try:
        names = [item["id"] for item in found["data"] if isinstance(item["id"], str)]  # type: ignore[index]
    except (TypeError, KeyError):
        names = []
    if len(names) != 1:
        said = f"lists {', '.join(names[:5])}" if names else "lists no model"
        raise CheckupError(f"{url}/v1/models: {said}; say which one with --model")
    return str(names[0])


async def _json(session: aiohttp.ClientSession, url: str) -> object:
    """Decoded answer; the HTTP status if it is not 200; None for anything else."""
    limits = aiohttp.ClientTimeout(total=_INFO_TIMEOUT, sock_connect=pair.CONNECT_TIMEOUT)
    try:
        async with session.get(url, timeout=limits) as response:
            if response.status != 200:
                return response.status
            return await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, ValueError, RecursionError):
        return None


class _Watch:
    """Looks at the engines' metrics while probes run, to tell which of them is stuck."""

    def __init__(self, session: aiohttp.ClientSession, report: Report, seconds: float) -> None:
        self._session = session
        self._engines = report.engines
        limit = max(3.0, min(60.0, seconds / 2))
        self._detectors = {engine.role: WedgeDetector(limit, gauge_age=limit) for engine in report.engines}
        self._before: dict[str, EngineSample] = {}
        self._after: dict[str, EngineSample] = {}
        self.wedges: dict[str, str] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            samples = await asyncio.gather(*(read_engine(self._session, engine.url) for engine in self._engines))
            for engine, sample in zip(self._engines, samples, strict=True):
                self._observe(engine.role, sample)
            await asyncio.sleep(_SAMPLE_EVERY)

    def _observe(self, role: str, sample: EngineSample | None) -> None:
        if sample is not None:
            self._before.setdefault(role, sample)
            self._after[role] = sample
        self._note(role, self._detectors[role].observe(sample, time.monotonic()).message)

    def explained(self, result: ProbeResult, prompt_tokens: int) -> ProbeResult:
        """The result; one without an answer in time judged again by what the engines did since the one before."""
        looks = {role: Look(self._before.get(role), self._after.get(role)) for role in self._detectors}
        self._before = dict(self._after)
        if result.raw is None:
            return result
        judgement = explain(
            result.judgement,
            result.raw,
            Role.DECODE,
            looks.get("decode") or looks.get("endpoint") or Look(),
            looks.get("prefill", Look()),
            peer_wedged="",
            own_wedged=False,
            prompt_tokens=prompt_tokens,
            excused=True,
        )
        return replace(result, judgement=judgement)

    def probed(self, result: ProbeResult) -> None:
        """Take a probe into account."""
        raw = result.raw
        outcome = "timeout" if "timeout" in result.judgement.failures else result.judgement.kind.value
        for role, detector in self._detectors.items():
            done = {"prefill": raw.prefill.good, "decode": raw.decode.good} if raw is not None else {}
            other = {"prefill": "decode", "decode": "prefill"}.get(role, "")
            state = detector.probe(
                outcome, time.monotonic(), peer=other, peer_done=done.get(other, False), own_done=done.get(role, False)
            )
            self._note(role, state.message)

    def _note(self, role: str, message: str) -> None:
        if message:
            self.wedges[role] = message


def probe_names(text: str) -> tuple[ProbeName, ...]:
    """Probes of a comma-separated list. Raises ValueError with one line."""
    known = [name.value for name in ProbeName]
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is no probe; use some of {','.join(known)}")
    if not names:
        raise ValueError(f"names no probe; use some of {','.join(known)}")
    return tuple(name for name in ProbeName if name.value in names)
