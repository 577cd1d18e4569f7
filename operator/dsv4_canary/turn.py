"""One turn of the sidecar: choose a peer and a probe, ask, judge in the light of both engines, record."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

import aiohttp

from dsv4_canary import attempt, discovery, pair
from dsv4_canary.attempt import Context, ProbeResult
from dsv4_canary.budget import Budget
from dsv4_canary.engine_view import EngineSample
from dsv4_canary.engine_watch import EngineWatch, PeerWatch
from dsv4_canary.evidence import Item, Level
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.model import Cache, Mode, PeerOutcome, PeerState, ProbeName, Reason, Role
from dsv4_canary.pair import Target
from dsv4_canary.peer_book import PeerBook
from dsv4_canary.probes import fresh_nonce
from dsv4_canary.recorder import WARM, Recorder, proves, tokens
from dsv4_canary.rotation import Rotation
from dsv4_canary.schedule import Plan, Schedule, Situation
from dsv4_canary.settings import Environment, Settings
from dsv4_canary.timeout import Allowance, Look, explain
from dsv4_canary.verdict import Failure, VerdictMachine

log = logging.getLogger("dsv4_canary")

_PEERS_PER_TURN = 8
_RECHECKS = 3


@dataclass(slots=True)
class _Recheck:
    """A wrong answer behind a cached prefix: the same is asked on a fresh one."""

    peer: str
    mode: Mode
    item: Item | None
    tries: int = 0
    turns: int = 0


class Prober:
    """Peers, and the probes sent to them."""

    def __init__(
        self,
        env: Environment,
        engine: EngineWatch,
        machine: VerdictMachine,
        recorder: Recorder,
        settings: Settings,
        book: PeerBook,
    ) -> None:
        self._env, self._engine, self._machine, self._recorder = env, engine, machine, recorder
        self._book = book
        self._settings = settings
        self.rotation = Rotation()
        # Unique per process, so that a "new" prefix is one that no cache has seen.
        self._schedule = Schedule(f"{env.pod_name}-{fresh_nonce()}", recorder.chats, recorder.drifts)
        self.budget = Budget(settings.tokens_per_minute)
        self._recheck: _Recheck | None = None
        self._allowance = Allowance(time.monotonic())

    def configure(self, settings: Settings) -> None:
        """Take changed settings."""
        self._settings = settings
        self.budget.configure(settings.tokens_per_minute)
        for watch in self._book.watches.values():
            watch.detector.configure(settings.wedge)

    @property
    def hurried(self) -> bool:
        """Something is to be confirmed or refuted soon."""
        return (
            self._machine.consecutive_failures > 0
            or self._recheck is not None
            or self._recorder.opinion.level is not Level.NONE
        )

    @property
    def proving(self) -> bool:
        """A mode has yet to pass until the pod can be Ready."""
        return self._machine.next_mode is not None

    @property
    def corrupts(self) -> bool:
        """The corruption that is known comes from this engine."""
        cache = self._recorder.opinion.cache
        evidence, role = self._recorder.evidence, self._env.role
        return cache is not None and evidence.own_fault(role, cache, self._book.testable)

    @property
    def _settled(self) -> bool:
        """The pod is Ready and nothing is looked into: the budget holds. What a fault costs is not held against it."""
        return self._machine.verdict.ready and not self._machine.consecutive_failures and self._recheck is None

    def wait_for_budget(self) -> float:
        """Seconds until the next probe may be paid for; 0 while something is wrong or the pod is not Ready."""
        if not self._settled:
            return 0.0
        return self.budget.wait(self._recorder.estimate(self._settings.prompt_tokens), time.monotonic())

    def engine_alive(self) -> None:
        """The own engine serves now: what it could not answer before is not held against it."""
        self._allowance.renew(time.monotonic())

    def engine_gone(self) -> None:
        """The own engine is not the process that was probed before."""
        self._recorder.forget()
        self._recheck = None

    async def turn(self, session: aiohttp.ClientSession) -> Kind | None:
        """One turn: the first due peer that serves is probed. What it showed; None when no peer could be tested."""
        await self._find_peers()
        if self._recheck is not None:
            self._recheck.turns += 1
            if self._recheck.turns > 2 * _RECHECKS:
                self._recheck = None  # that peer does not answer any more
        kinds: set[Kind] = set()
        for address in self._order()[:_PEERS_PER_TURN]:
            self.rotation.tried(address, time.monotonic())
            kind = await self._probe_peer(session, self._book.states[address])
            self._book.tell()
            if kind in (Kind.PASS, Kind.FAIL, Kind.UNUSABLE, Kind.ENGINE_GONE):
                return kind
            kinds.add(kind)
        if not kinds & {Kind.BUSY, Kind.PEER_WEDGED}:
            self._allowance.nobody_busy(time.monotonic())
        self._book.none_usable(kinds)
        return None

    def _order(self) -> list[str]:
        order = self.rotation.order(self._book.states)
        if self._recheck is not None and self._recheck.peer in order:
            order.remove(self._recheck.peer)
            order.insert(0, self._recheck.peer)
        return order

    async def _find_peers(self) -> None:
        await self._book.find(self._settings.wedge)
        addresses = list(self._book.states)
        if self._recheck is not None and self._recheck.peer not in addresses:
            self._recheck = None
        self._recorder.keep_peers(addresses)
        self._schedule.keep_peers(addresses)

    # One peer.

    async def _probe_peer(self, session: aiohttp.ClientSession, peer: PeerState) -> Kind:
        """Probe one peer, after a look at its health when that is not known, and record the result."""
        url = discovery.base_url(peer.address, self._env.peer_port)
        watch = self._book.watches[peer.address]
        if not peer.answered_health:
            seen = await pair.health(session, url)
            # An engine that served before and answers 503 or nothing is at work or stuck: the probe tells.
            if seen != 200 and not (peer.served and seen in (503, pair.LegKind.OPEN)):
                absent = seen in (pair.LegKind.UNREACHABLE, pair.LegKind.LOST)
                kind = Kind.PEER_UNREACHABLE if absent else Kind.PEER_LOADING
                self._away(peer, kind)
                self._recorder.metrics.attempt(ProbeName.ECHO.value, kind.outcome, Cache.UNKNOWN)
                return kind
            peer.answered_health = True
        plan = self._plan(peer.address)
        own_before, peer_before = await self._look(session, watch, url)
        context = await self._context(session, peer.address, watch, plan, own_before, peer_before)
        results = await self._ask(session, context, plan)
        if any(_silent(result) for result in results):
            own_after, peer_after = await self._look(session, watch, url)
            own, other = Look(own_before, own_after), Look(peer_before, peer_after)
            results = [self._explain(result, own, other, watch) for result in results]
        if self._settled:
            estimate = self._recorder.estimate(self._settings.prompt_tokens)
            self.budget.spend(tokens(results, estimate), time.monotonic())
        for result in results:
            self._record(peer, watch, plan, context, result)
        self._recorder.judge(self._settings.interval)
        return _worst(results)

    def _plan(self, peer: str) -> Plan:
        wanted = self._machine.next_mode
        if wanted is None and self._recheck is not None:
            wanted = self._recheck.mode
        return self._schedule.plan(
            Situation(
                peer=peer,
                now=time.monotonic(),
                interval=self._settings.interval,
                wanted=wanted,
                reload=self._recorder.opinion.level is not Level.NONE,
                affordable=self._affordable,
                usable=self._recorder.wanted,
                known=self._book.states[peer].outcome in (PeerOutcome.PASS, PeerOutcome.FAIL),
            )
        )

    def _affordable(self, prompts: int) -> bool:
        cost = prompts * self._recorder.estimate(self._settings.prompt_tokens)
        return self.budget.wait(cost, time.monotonic()) == 0.0

    async def _look(
        self, session: aiohttp.ClientSession, watch: PeerWatch, url: str
    ) -> tuple[EngineSample | None, EngineSample | None]:
        """Metrics of the own engine and the peer's, now."""
        own, peer = await asyncio.gather(self._engine.look(session, self._engine.url), watch.look(session, url))
        return own, peer

    async def _context(
        self,
        session: aiohttp.ClientSession,
        address: str,
        watch: PeerWatch,
        plan: Plan,
        own_before: EngineSample | None,
        peer_before: EngineSample | None,
    ) -> Context:
        env, settings = self._env, self._settings
        url = discovery.base_url(address, env.peer_port)
        if env.role is Role.PREFILL:
            target = Target(url, env.engine_url, env.pod_ip, env.bootstrap_port)
            prefill: PeerWatch = self._engine
            before = own_before
        else:
            target = Target(env.engine_url, url, address, env.bootstrap_port)
            prefill, before = watch, peer_before
        prefill_url = target.prefill or ""
        ranks = await prefill.count_ranks(session, prefill_url)
        first = True

        async def load_back() -> float | None:
            nonlocal first
            sample = before if first else await prefill.look(session, prefill_url)
            first = False
            return (sample.load_back_tokens or 0.0) if sample is not None else None

        return Context(
            target=target,
            role=env.role,
            model=settings.model,
            prompt_tokens=plan.entry.prompt_tokens if plan.entry else settings.prompt_tokens,
            seconds=self._allowance.limit(settings, self._recorder.slowest),
            rank=plan.entry.rank % ranks if plan.entry else self.rotation.rank(prefill_url, ranks),
            ranks=ranks,
            other_nonces=tuple(self._recorder.nonces),
            cached_reported=self._recorder.cached_reported,
            load_back=load_back,
        )

    async def _ask(self, session: aiohttp.ClientSession, context: Context, plan: Plan) -> list[ProbeResult]:
        if plan.probe is ProbeName.TWIN:
            return await attempt.twin(session, context, plan.prefix)
        if plan.probe is ProbeName.PARITY:
            return await attempt.parity(session, context, plan.prefix)
        if plan.probe is ProbeName.DRIFT:
            return await self._ask_drift(session, context, plan)
        return [await attempt.ask(session, context, plan.probe, plan.mode, plan.prefix)]

    async def _ask_drift(self, session: aiohttp.ClientSession, context: Context, plan: Plan) -> list[ProbeResult]:
        """A fresh prefix is asked twice: the second answer, out of the device's cache, shows what noise there is, and
        is what later ones from the host are compared with."""
        margin = self._recorder.noise.margin
        if plan.entry is not None:
            first, device = plan.entry.first, plan.entry.device
            return [await attempt.drifting(session, context, plan.prefix, first, margin, device)]
        result = await attempt.drifting(session, context, plan.prefix, None, margin)
        if result.reading is None:
            return [result]
        return [result, await attempt.drifting(session, context, plan.prefix, result.reading, margin)]

    def _explain(self, result: ProbeResult, own: Look, peer: Look, watch: PeerWatch) -> ProbeResult:
        if result.raw is None:
            return result
        state = watch.detector.state
        judgement = explain(
            result.judgement,
            result.raw,
            self._env.role,
            own,
            peer,
            peer_wedged=state.message if state.wedged else "",
            own_wedged=self._engine.wedge.wedged,
            prompt_tokens=self._recorder.estimate(self._settings.prompt_tokens),
            excused=self._allowance.excused(self._settings, time.monotonic()),
        )
        return replace(result, judgement=judgement)

    # Records.

    def _away(self, peer: PeerState, kind: Kind) -> None:
        self._recorder.peer_gone(peer.address)  # its caches are gone with it
        self._book.away(peer, kind)
        self._engine.probed(Judgement(kind), None, self._env.role, peer.address)

    def _record(self, peer: PeerState, watch: PeerWatch, plan: Plan, context: Context, result: ProbeResult) -> None:
        judgement = result.judgement
        if judgement.overtaken:
            self._allowance.overtaken(context.seconds, self._settings, time.monotonic())
        item = self._recorder.record(
            plan, result, peer.address, len(self._book.states), context.rank, context.prompt_tokens
        )
        self._tell_detectors(peer, watch, result)
        if judgement.kind.conclusive:
            peer.last_probe_time = self._recorder.history[-1].time
            peer.testable = True
            self._conclude(peer, plan, result, item)
            return
        if judgement.kind is Kind.UNUSABLE:
            self._machine.tested()
        elif judgement.kind in (Kind.BUSY, Kind.PEER_WEDGED):
            self._book.untested(peer, judgement)
        elif judgement.kind is not Kind.ENGINE_GONE:
            self._away(peer, judgement.kind)
        log.info("%s probe with %s: %s %s", result.probe.value, peer.address, result.outcome, judgement.what)

    def _tell_detectors(self, peer: PeerState, watch: PeerWatch, result: ProbeResult) -> None:
        role, mine, theirs = self._env.role, result.judgement, result.judgement
        if mine.kind is Kind.PEER_WEDGED:
            mine, theirs = Judgement(Kind.UNUSABLE), Judgement(Kind.FAIL)
        self._engine.probed(mine, result.raw, role, peer.address)
        if theirs.kind is not Kind.ENGINE_GONE:
            watch.probed(theirs, result.raw, role.other, self._env.pod_name)

    def _conclude(self, peer: PeerState, plan: Plan, result: ProbeResult, item: Item | None) -> None:
        """A probe passed or failed."""
        judgement = result.judgement
        passed = judgement.kind is Kind.PASS
        rechecked = self._settle_recheck(peer, plan, result)
        # No cache has an echo's prefix, even where it has the template's head and says so.
        fresh = plan.probe is ProbeName.ECHO or result.cache not in WARM
        if passed:
            self._allowance.renew(time.monotonic())
            if not proves(result):
                self._machine.tested()
                return
            self._machine.passed(result.mode, peer.address)
            self._book.passed(peer, judgement, fresh=fresh)
            return
        log.warning(
            "%s %s probe with %s failed: %s", result.mode.value, result.probe.value, peer.address, judgement.what
        )
        counted = judgement.transport or (proves(result) and fresh and set(judgement.failures) != {"S30"})
        if not counted:
            self._machine.tested()
            if proves(result) and result.cache in WARM and not rechecked:
                self._recheck = _Recheck(peer.address, result.mode, item)
            return
        reason = judgement.reason or Reason.PROBE_FAILED
        self._machine.failed(result.mode, Failure(reason, peer.address, judgement.what))
        if not judgement.transport:
            self._recorder.drifts.doubt(peer.address)
        self._book.failed(peer, judgement)

    def _settle_recheck(self, peer: PeerState, plan: Plan, result: ProbeResult) -> bool:
        """Was this the second look at a wrong answer?"""
        recheck = self._recheck
        if recheck is None or recheck.peer != peer.address or plan.probe is not ProbeName.ECHO:
            return False
        recheck.tries += 1
        if recheck.tries < _RECHECKS and (result.judgement.transport or result.mode is not recheck.mode):
            return True
        if recheck.item is not None and not result.judgement.transport:
            self._recorder.evidence.resolve(recheck.item, cold_passed=result.judgement.kind is Kind.PASS)
        self._recheck = None
        return True


def _silent(result: ProbeResult) -> bool:
    """No answer came in time, or the request was turned away."""
    return (result.raw is not None and result.raw.timed_out) or result.judgement.kind is Kind.BUSY


def _worst(results: list[ProbeResult]) -> Kind:
    """What a turn of one or two requests showed: a failure counts before a pass, an answer before none."""
    kinds = [result.judgement.kind for result in results]
    order = (Kind.ENGINE_GONE, Kind.FAIL, Kind.PASS, Kind.UNUSABLE, Kind.BUSY, Kind.PEER_WEDGED)
    return next((kind for kind in order if kind in kinds), kinds[0])
