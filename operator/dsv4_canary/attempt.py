"""One probe against a target: build, send, judge, label. Knows neither schedule nor verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import aiohttp

from dsv4_canary import drift, pair
from dsv4_canary.classify import same_calls
from dsv4_canary.drift import Deviation, Reading
from dsv4_canary.judge import Judgement, Kind, judge, judge_generate
from dsv4_canary.model import Cache, Mode, ProbeName, Reason, Role, Severity
from dsv4_canary.pair import PairResult, Target
from dsv4_canary.probes import Probe, echo_probe, fresh_room, quiet_probe
from dsv4_canary.reply import Reply
from dsv4_canary.signatures import CATALOGUE
from dsv4_canary.tiers import cache_label

LoadBack = Callable[[], Awaitable[float | None]]
"""Reads the load-back counter of the target's prefill, in tokens; None when it cannot be read."""


async def _unknown() -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class Context:
    """What all probes of one turn share."""

    target: Target
    role: Role
    """From whose point of view failures are judged."""
    model: str
    prompt_tokens: int
    seconds: float
    """Longest time of one request."""
    rank: int = 0
    ranks: int = 1
    """Data-parallel rank of the prefill to be visited, and how many there are."""
    other_nonces: tuple[str, ...] = ()
    cached_reported: bool = False
    """Some answer of these engines has told a count of cached tokens before."""
    load_back: LoadBack = _unknown


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One request and what it showed."""

    probe: ProbeName
    mode: Mode
    judgement: Judgement
    cache: Cache = Cache.UNKNOWN
    seconds: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefix: str = ""
    """Name of the prompt's prefix: equal prefixes may come from a cache."""
    nonce: str = ""
    deviation: Deviation | None = None
    """Drift against an earlier answer; None when there is nothing to compare with."""
    like_with_like: bool = False
    """The deviation is from an answer that was computed in the same shape, so it says something about damage."""
    margin: float | None = None
    """Margin in force, in nats."""
    reading: Reading | None = None
    raw: PairResult | None = None
    judged_parity: bool = False
    """The second half of a parity probe: both were compared."""

    @property
    def outcome(self) -> str:
        """Outcome of the metrics contract: pass, fail, loading, unreachable, engine, busy, unusable."""
        return self.judgement.kind.outcome

    @property
    def tokens(self) -> int:
        """Tokens that the request cost, prompt and answer; 0 when unknown."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def to_json(self) -> dict[str, object]:
        """Form for programs: names as in the metrics, seconds, tokens, nats."""
        found = self.deviation
        return {
            "probe": self.probe.value,
            "mode": self.mode.value,
            "outcome": self.outcome,
            "cache": self.cache.value,
            "signatures": {name: severity.value for name, severity in self.judgement.failures.items()},
            "message": self.judgement.what,
            "seconds": round(self.seconds, 3),
            "promptTokens": self.prompt_tokens,
            "completionTokens": self.completion_tokens,
            "cachedTokens": self.cached_tokens,
            "excerpt": self.judgement.excerpt,
            "drift": None
            if found is None
            else {
                "nats": round(found.nats, 4),
                "inCommon": found.common,
                "of": found.top,
                "margin": self.margin,
                "counts": self.like_with_like,
            },
        }


async def ask(
    session: aiohttp.ClientSession, context: Context, name: ProbeName, mode: Mode, prefix: str
) -> ProbeResult:
    """Echo, repeat, or quiet: one chat completion behind ``prefix``."""
    return await _send(session, context, name, _chat_probe(context, name, mode, prefix), prefix)


async def twin(session: aiohttp.ClientSession, context: Context, prefix: str) -> list[ProbeResult]:
    """Two tool calls at once behind one prefix; each must bring its own arguments."""
    first = _chat_probe(context, ProbeName.TWIN, Mode.FUNCTIONAL, prefix)
    second = _chat_probe(context, ProbeName.TWIN, Mode.FUNCTIONAL, prefix)
    # Each is told the other's nonce: one that comes back in the wrong reply means that requests were mixed up.
    first, second = _knowing(first, second.nonce), _knowing(second, first.nonce)
    return list(
        await asyncio.gather(*(_send(session, context, ProbeName.TWIN, probe, prefix) for probe in (first, second)))
    )


async def parity(session: aiohttp.ClientSession, context: Context, prefix: str) -> list[ProbeResult]:
    """The same prompt whole, then streamed. Different calls are S30, told of the streamed one."""
    whole = _chat_probe(context, ProbeName.PARITY, Mode.FUNCTIONAL, prefix)
    arguments = whole.expectation.arguments
    streamed = echo_probe(
        context.model,
        Mode.STREAMED,
        prefix,
        context.prompt_tokens,
        other_nonces=context.other_nonces,
        nonce=whole.nonce,
        number=int(arguments["n"]),
    )
    first = await _send(session, context, ProbeName.PARITY, whole, prefix)
    if not first.judgement.kind.conclusive or first.judgement.transport:
        return [first]
    second = await _send(session, context, ProbeName.PARITY, streamed, prefix)
    whole_reply, streamed_reply = _reply(first), _reply(second)
    if whole_reply is None or streamed_reply is None or second.judgement.transport:
        return [first, second]
    second = replace(second, judged_parity=True)
    if not same_calls(whole_reply, streamed_reply):
        second = replace(second, judgement=_add_failure(second.judgement, "S30", CATALOGUE["S30"].severity))
    return [first, second]


async def drifting(
    session: aiohttp.ClientSession,
    context: Context,
    prefix: str,
    before: Reading | None,
    margin: float = drift.CEILING,
    equal: Reading | None = None,
) -> ProbeResult:
    """Ask ``/generate`` for logprobs of the token ids of ``prefix``, and compare them with an earlier reading.

    ``before``: the first reading of this prefix, None when this is the first. ``equal``: a reading of it out of the
    device's cache. Only a cached answer with as many cached tokens as that one can be damaged: on a sound engine they
    are equal to the bit. A cold one was computed in other shapes and chunks, so its deviation from a cached one is
    told and never counts. ``margin``: for answers out of the host tier; those out of the device's cache are where
    noise is learnt, and are damaged only beyond the greatest margin.
    """
    body = drift.drift_body(prefix, context.prompt_tokens)
    result, loaded = await _drive(session, context, body, pair.GENERATE)
    judgement = judge_generate(result, context.role)
    cache, reading, deviation, alike = Cache.UNKNOWN, None, None, False
    prompt, completion = drift.usage_of(result.decode.body) if result.decode.good else (None, None)
    if judgement.kind is Kind.PASS:
        cache = cache_label(result.cached, reported_before=context.cached_reported, loaded_back=loaded)
        reading = drift.read_output(result.decode.body, result.cached.total)
        margin = margin if cache is Cache.HOST else drift.CEILING
        alike = equal is not None and equal.same_shape(result.cached.total)
        reference = equal if alike else before
        if reading is None and before is None:
            judgement = Judgement(Kind.UNUSABLE, what="the engine answers without logprobs")
        elif reading is None:
            judgement = _drifted("came back without the logprobs that the first answer had")
        elif reference is not None:
            deviation = drift.compare(reference, reading)
            if alike and deviation.beyond(margin):
                judgement = _drifted("came back with other probabilities than before")
    return ProbeResult(
        ProbeName.DRIFT,
        Mode.FUNCTIONAL,
        judgement,
        cache,
        result.seconds,
        prompt,
        completion,
        result.cached.total,
        prefix,
        deviation=deviation,
        like_with_like=alike and deviation is not None,
        margin=margin,
        reading=reading,
        raw=result,
    )


def _drifted(what: str) -> Judgement:
    return Judgement(Kind.FAIL, Reason.PROBE_FAILED, what, {"drift": Severity.CORRUPTION})


def _chat_probe(context: Context, name: ProbeName, mode: Mode, prefix: str) -> Probe:
    build = quiet_probe if name is ProbeName.QUIET else echo_probe
    return build(context.model, mode, prefix, context.prompt_tokens, other_nonces=context.other_nonces)


def _knowing(probe: Probe, nonce: str) -> Probe:
    expectation = replace(probe.expectation, nonces=(*probe.expectation.nonces, nonce))
    return replace(probe, expectation=expectation)


async def _send(
    session: aiohttp.ClientSession, context: Context, name: ProbeName, probe: Probe, prefix: str
) -> ProbeResult:
    result, loaded = await _drive(session, context, probe.body, pair.CHAT)
    judgement = judge(result, context.role, probe.expectation)
    reply = result.reply or Reply()
    cache = Cache.UNKNOWN
    if result.reply is not None:
        cache = cache_label(result.cached, reported_before=context.cached_reported, loaded_back=loaded)
    return ProbeResult(
        name,
        probe.mode,
        judgement,
        cache,
        result.seconds,
        reply.prompt_tokens,
        reply.completion_tokens,
        result.cached.total,
        prefix,
        probe.nonce,
        raw=result,
    )


async def _drive(
    session: aiohttp.ClientSession, context: Context, body: dict[str, object], path: str
) -> tuple[PairResult, float | None]:
    """Send, and tell by how many tokens prefill's load-back counter rose meanwhile."""
    before = await context.load_back()
    result = await pair.drive(
        session,
        context.target,
        body,
        seconds=context.seconds,
        path=path,
        room=fresh_room(context.rank, context.ranks),
    )
    loaded = None
    if before is not None and result.cached.total and result.cached.host is None:
        after = await context.load_back()
        loaded = None if after is None else after - before
    return result, loaded


def _reply(result: ProbeResult) -> Reply | None:
    return result.raw.reply if result.raw else None


def _add_failure(judgement: Judgement, name: str, severity: Severity) -> Judgement:
    failures = {**judgement.failures, name: severity}
    if judgement.kind is Kind.FAIL:
        return replace(judgement, failures=failures)
    return Judgement(Kind.FAIL, Reason.PROBE_FAILED, f"{CATALOGUE[name].meaning} ({name})", failures, judgement.excerpt)
