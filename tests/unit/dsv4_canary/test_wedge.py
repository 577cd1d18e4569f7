"""Wedge detector: stuck is told apart from busy, idle, slow and from a peer that is stuck itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.engine_view import EngineSample
from dsv4_canary.wedge import WedgeDetector, WedgeKind, WedgeState

LIMIT = 60.0
STEP = 5.0
Values = dict[str, float]


class Engine:
    """An engine as its metrics show it, looked at every five seconds."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.detector = WedgeDetector(limit)
        self.now = 1000.0
        self.values: Values = {"decode_tokens": 0.0, "prefill_tokens": 0.0, "generation_tokens": 0.0}

    def look(self, **values: float) -> WedgeState:
        self.now += STEP
        self.values |= values
        return self.detector.observe(EngineSample(time=self.now, **self.values), self.now)  # type: ignore[arg-type]

    def stay(self, seconds: float, each: Callable[[Values], Values] = lambda _: {}, **values: float) -> WedgeState:
        """Look for so long; `each` makes the changes from one look to the next."""
        state = self.detector.state
        for _ in range(int(seconds / STEP)):
            state = self.look(**values, **each(self.values))
        return state

    def timeout(self, **more: Any) -> WedgeState:
        return self.detector.probe("timeout", self.now, **more)


def grow(name: str, by: float) -> Callable[[Values], Values]:
    return lambda values: {name: values[name] + by}


@pytest.fixture
def engine() -> Engine:
    return Engine()


# Stuck.


def test_running_without_tokens(engine: Engine) -> None:
    engine.stay(30, grow("decode_tokens", 50), running=3)
    assert not engine.stay(55).wedged
    state = engine.stay(10)
    assert (state.wedged, state.kind) == (True, WedgeKind.GENERATION)
    assert state.stalled_seconds >= LIMIT
    message = state.message
    assert engine.stay(60).message == message
    assert not any(char.isdigit() for char in message)


def test_clients_that_give_up_hide_no_wedge(engine: Engine) -> None:
    """Requests vanish when their clients lose patience; between them nothing waits."""
    engine.stay(30, grow("decode_tokens", 50), running=1)
    for _ in range(4):
        engine.stay(20, running=1)
        state = engine.stay(10, running=0)
    assert state.kind is WedgeKind.GENERATION


def test_pool_without_eviction(engine: Engine) -> None:
    state = engine.stay(100, queued=4, running=0, kv_available=0, kv_evictable=900, kv_total=1000)
    assert state.kind is WedgeKind.POOL


def test_full_cache_of_an_idle_engine_is_fine(engine: Engine) -> None:
    assert not engine.stay(600, queued=0, running=0, kv_available=0, kv_evictable=990, kv_total=1000).wedged


def test_decode_out_of_memory(engine: Engine) -> None:
    state = engine.stay(100, decode_prealloc=4, running=0, kv_available=10, kv_evictable=0, kv_total=1000)
    assert state.kind is WedgeKind.PREALLOC


def test_transfers_of_prefill_do_not_end(engine: Engine) -> None:
    engine.look(prefill_tokens=10_000, prefill_inflight=0)
    # Health checks go on, one token each, and republish the gauges.
    state = engine.stay(100, grow("prefill_tokens", 1), prefill_inflight=2, running=1)
    assert state.kind is WedgeKind.INFLIGHT


def test_transfers_of_prefill_do_not_end_under_load(engine: Engine) -> None:
    """New prompts are still computed; only the probes tell it from a busy prefill."""
    compute = grow("prefill_tokens", 5000)
    assert not engine.stay(300, compute, prefill_inflight=6, running=1).wedged
    engine.timeout(peer="a")
    state = engine.timeout(peer="a")
    assert state.kind is WedgeKind.INFLIGHT


def test_registry_of_prefill_hangs(engine: Engine) -> None:
    engine.stay(10, prefill_bootstrap=2)
    engine.detector.registry(False, engine.now)
    engine.stay(70)
    state = engine.detector.registry(False, engine.now)
    assert state.kind is WedgeKind.BOOTSTRAP


def test_registry_that_comes_back(engine: Engine) -> None:
    engine.stay(10, prefill_bootstrap=2)
    engine.detector.registry(False, engine.now)
    engine.stay(30)
    engine.detector.registry(True, engine.now)
    engine.stay(60)
    assert not engine.detector.registry(False, engine.now).wedged


def test_probes_time_out_and_nothing_shows(engine: Engine) -> None:
    """The gauges of an engine without batches stand still: only probes see it."""
    engine.stay(60, running=0)
    engine.timeout()
    engine.stay(60)
    assert engine.timeout().kind is WedgeKind.CANARY


def test_probes_time_out_while_health_is_red(engine: Engine) -> None:
    engine.detector.health(False, engine.now)
    engine.stay(60, running=0)
    engine.timeout()
    engine.stay(60)
    assert not engine.timeout().wedged


# The other side's fault, or nobody's.

PEER_QUEUES = ("decode_transfer", "decode_prealloc", "prefill_bootstrap")


@pytest.mark.parametrize("queue", PEER_QUEUES)
def test_queue_that_waits_for_the_peer_accuses_nobody(engine: Engine, queue: str) -> None:
    engine.stay(120, **{queue: 3}, kv_available=900, kv_evictable=0, kv_total=1000)
    for _ in range(3):
        engine.timeout(peer="a")
        state = engine.stay(60)
    assert not state.wedged
    assert state.stalled_seconds > LIMIT


@pytest.mark.parametrize("queue", PEER_QUEUES)
def test_two_peers_accuse_the_engine(engine: Engine, queue: str) -> None:
    engine.stay(120, **{queue: 3})
    engine.timeout(peer="a")
    assert engine.timeout(peer="b").kind is not None


@pytest.mark.parametrize("queue", ["decode_transfer", "decode_prealloc"])
def test_peer_that_did_its_part_accuses_the_engine(engine: Engine, queue: str) -> None:
    engine.stay(120, **{queue: 3})
    engine.timeout(peer="a", peer_done=True)
    assert engine.timeout(peer="a").kind is not None


def test_engine_that_did_its_part_is_not_accused(engine: Engine) -> None:
    engine.stay(120, decode_transfer=3)
    for _ in range(5):
        engine.timeout(peer="a", own_done=True)
    assert not engine.stay(120).wedged


@pytest.mark.parametrize("queue", [*PEER_QUEUES, "prefill_inflight"])
@pytest.mark.parametrize("outcome", ["loading", "unreachable"])
def test_peer_that_is_gone_explains_every_queue(engine: Engine, queue: str, outcome: str) -> None:
    engine.timeout(peer="a")
    engine.timeout(peer="b")
    engine.detector.probe(outcome, engine.now)
    assert not engine.stay(600, **{queue: 3}).wedged


def test_one_bad_peer_among_good_ones(engine: Engine) -> None:
    """Rooms of the bad one stay in the queue for minutes; the others' requests go on."""

    def rare(values: Values) -> Values:
        return {"decode_tokens": values["decode_tokens"] + (40 if engine.now % 30 < STEP else 0)}

    for _ in range(10):
        engine.timeout(peer="bad")
        state = engine.stay(60, rare, decode_transfer=2)
        engine.detector.probe("pass", engine.now, peer="good")
    assert not state.wedged


# Busy, idle, slow.


def test_busy_prefill(engine: Engine) -> None:
    engine.detector.health(False, engine.now)
    state = engine.stay(90, grow("prefill_tokens", 8192), running=1, queued=5, prefill_bootstrap=2, prefill_inflight=1)
    assert not state.wedged
    for _ in range(3):
        state = engine.timeout(peer="a")
    assert not state.wedged
    assert not engine.stay(600, grow("prefill_tokens", 8192)).wedged


def test_long_answers_are_counted_at_their_end(engine: Engine) -> None:
    """generation_tokens_total stands still through a long answer; the tokens of each step do not."""
    assert not engine.stay(600, grow("decode_tokens", 20), running=1, generation_tokens=7).wedged


def test_idle_engine_with_old_gauges() -> None:
    """A real engine that became idle shows its last batch for up to 30 s more."""
    engine = Engine(limit=10)
    engine.stay(30, grow("decode_tokens", 50), running=1)
    assert not engine.stay(30).wedged
    assert not engine.stay(600, running=0).wedged


def test_short_limit_counts_once_a_probe_timed_out() -> None:
    engine = Engine(limit=10)
    engine.stay(30, grow("decode_tokens", 50), running=1)
    engine.stay(15)
    assert engine.timeout().kind is WedgeKind.GENERATION


def test_unreadable_metrics_prove_nothing(engine: Engine) -> None:
    engine.look(running=3)
    for _ in range(50):
        engine.now += STEP
        state = engine.detector.observe(None, engine.now)
    assert not state.wedged
    assert not engine.look(running=3).wedged


def test_sidecar_that_stood_still(engine: Engine) -> None:
    """An hour without a look is no hour of stall."""
    engine.look(running=3)
    engine.now += 3600
    assert not engine.look(running=3).wedged


# The end of a wedge.


@pytest.fixture
def stuck(engine: Engine) -> Engine:
    engine.stay(10, grow("decode_tokens", 50), running=3)
    assert engine.stay(80).wedged
    return engine


def test_one_token_is_no_recovery(stuck: Engine) -> None:
    assert stuck.look(decode_tokens=stuck.values["decode_tokens"] + 1).wedged
    assert stuck.stay(30).wedged


def test_a_few_tokens_are_no_recovery(stuck: Engine) -> None:
    assert stuck.stay(10, grow("decode_tokens", 1)).wedged
    assert stuck.stay(30).wedged


def test_steady_tokens_are_recovery(stuck: Engine) -> None:
    assert not stuck.stay(20, grow("decode_tokens", 50)).wedged
    assert stuck.detector.state.stalled_seconds == 0


def test_empty_queues_are_no_recovery(stuck: Engine) -> None:
    assert stuck.stay(300, running=0).wedged


def test_restart_ends_it(stuck: Engine) -> None:
    assert not stuck.look(decode_tokens=0, running=0).wedged
    assert not stuck.stay(50, running=1).wedged


def test_engine_gone_ends_it(stuck: Engine) -> None:
    assert not stuck.detector.probe("engine", stuck.now).wedged


def test_probe_that_passes_ends_it(stuck: Engine) -> None:
    assert not stuck.detector.probe("pass", stuck.now).wedged


def test_wrong_reply_does_not_end_it(stuck: Engine) -> None:
    assert stuck.detector.probe("fail", stuck.now).wedged


def test_new_limit(engine: Engine) -> None:
    engine.stay(10, grow("decode_tokens", 50), running=3)
    engine.stay(45)
    engine.detector.configure(30)
    assert engine.look().wedged


# Properties.

GAUGES = ("running", "queued", "decode_prealloc", "decode_transfer", "prefill_bootstrap", "prefill_inflight")
LOOKS = st.lists(st.dictionaries(st.sampled_from(GAUGES), st.integers(0, 5).map(float), max_size=4), max_size=60)


def follow(engine: Engine, looks: Iterable[dict[str, float]], each: Callable[[Values], Values]) -> list[WedgeState]:
    return [engine.look(**look, **each(engine.values)) for look in looks]


@given(LOOKS)
def test_steady_answers_are_never_a_wedge(looks: list[dict[str, float]]) -> None:
    assert not any(state.wedged for state in follow(Engine(), looks, grow("decode_tokens", 1)))


@given(LOOKS)
def test_nothing_is_a_wedge_before_its_time(looks: list[dict[str, float]]) -> None:
    for number, state in enumerate(follow(Engine(), looks, lambda _: {})):
        assert not state.wedged or number * STEP >= LIMIT


@given(LOOKS, st.lists(st.sampled_from(("timeout", "pass", "fail", "loading", "engine", "busy", "unusable"))))
def test_any_history_is_judged(looks: list[dict[str, float]], outcomes: list[str]) -> None:
    engine = Engine()
    for look, outcome in zip(looks, outcomes, strict=False):
        engine.look(**look)
        state = engine.detector.probe(outcome, engine.now, peer="a")
        assert (state.kind is not None) is state.wedged is bool(state.message)
        assert not (outcome == "pass" and state.wedged)


@given(LOOKS, st.floats(-1e6, 1e9))
def test_only_differences_of_time_matter(looks: list[dict[str, float]], shift: float) -> None:
    one, two = Engine(), Engine()
    two.now = float(round(shift))
    assert follow(one, looks, lambda _: {}) == follow(two, looks, lambda _: {})
