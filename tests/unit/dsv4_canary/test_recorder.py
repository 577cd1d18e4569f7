"""Memory of a sidecar: what counts as evidence, as noise, as a baseline, and what a restart of the engine ends."""

from __future__ import annotations

from dsv4_canary.attempt import ProbeResult
from dsv4_canary.drift import Deviation, Reading
from dsv4_canary.evidence import Level
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Cache, Mode, ProbeName, Severity
from dsv4_canary.recorder import Recorder
from dsv4_canary.schedule import Plan

PEER = "10.1.0.1"
READING = Reading((7,), ({7: -0.1},), 2560)
DRIFTED = Judgement(Kind.FAIL, what="x", failures={"drift": Severity.CORRUPTION})


class Sidecar:
    def __init__(self) -> None:
        self.recorder = Recorder(Metrics("prefill", "f"), shared_cache=True)
        self.count = 0

    def echo(self, times: int) -> None:
        for _ in range(times):
            self.count += 1
            plan = Plan(ProbeName.ECHO, Mode.FUNCTIONAL, f"echo/{self.count}")
            self._record(plan, ProbeResult(plan.probe, plan.mode, Judgement(Kind.PASS), Cache.COLD, prefix=plan.prefix))

    def drift(self, cache: Cache, nats: float, *, alike: bool, failed: bool = False) -> None:
        self.count += 1
        plan = Plan(ProbeName.DRIFT, Mode.FUNCTIONAL, f"drift/{self.count}")
        self._record(
            plan,
            ProbeResult(
                plan.probe,
                plan.mode,
                DRIFTED if failed else Judgement(Kind.PASS),
                cache,
                prompt_tokens=2600,
                prefix=plan.prefix,
                deviation=Deviation(nats, 20, 20),
                like_with_like=alike,
                reading=READING,
            ),
        )

    def _record(self, plan: Plan, result: ProbeResult) -> None:
        self.recorder.record(plan, result, PEER, 1, 0, 2600)
        self.recorder.judge(30.0)


def test_a_cold_answer_in_other_chunks_is_neither_noise_nor_evidence() -> None:
    sidecar = Sidecar()
    sidecar.echo(60)
    for _ in range(30):
        sidecar.drift(Cache.DEVICE, 1.1, alike=False)
    recorder = sidecar.recorder
    assert recorder.opinion.level is Level.NONE
    assert recorder.evidence.counts()[Cache.DEVICE] == (0, 0)
    assert not recorder.noise.seen
    assert not recorder.why_unusable(ProbeName.DRIFT)
    assert not recorder.baseline.counts(ProbeName.DRIFT), "such a deviation is no baseline either"


def test_the_margin_is_learnt_from_like_answers() -> None:
    sidecar = Sidecar()
    for _ in range(5):
        sidecar.drift(Cache.DEVICE, 0.6, alike=False)
        sidecar.drift(Cache.DEVICE, 0.0, alike=True)
    assert sidecar.recorder.noise.margin == 0.35
    assert sidecar.recorder.baseline.counts(ProbeName.DRIFT)


def test_a_noisy_engine_is_not_called_corrupt_before_its_noise_is_known() -> None:
    sidecar = Sidecar()
    sidecar.echo(60)
    recorder = sidecar.recorder
    for number in range(16):
        loud = number % 3 == 1
        sidecar.drift(Cache.DEVICE, 1.0 if loud else 0.1, alike=True, failed=loud)
        sidecar.drift(Cache.HOST, 1.0 if loud else 0.1, alike=True, failed=loud)
        assert recorder.evidence.counts()[Cache.DEVICE][1] == 0
    assert recorder.why_unusable(ProbeName.DRIFT)
    assert recorder.opinion.level is Level.NONE, "what the reloads showed was noise as well"
    assert recorder.evidence.counts()[Cache.HOST] == (0, 0)


def test_damage_in_the_devices_cache_of_a_quiet_engine_is_confirmed() -> None:
    sidecar = Sidecar()
    sidecar.echo(60)
    for _ in range(30):
        sidecar.drift(Cache.DEVICE, 0.0, alike=True)
    for _ in range(6):
        sidecar.drift(Cache.DEVICE, 2.0, alike=True, failed=True)
    assert sidecar.recorder.opinion.level is Level.CONFIRMED


def test_another_engine_process_is_not_corrupt_from_the_start() -> None:
    sidecar = Sidecar()
    sidecar.echo(60)
    sidecar.drift(Cache.HOST, 0.0, alike=True)
    for _ in range(4):
        sidecar.drift(Cache.HOST, 2.0, alike=True, failed=True)
    recorder = sidecar.recorder
    assert recorder.opinion.level is Level.CONFIRMED
    recorder.forget()
    # Without another probe: the model may load for long.
    assert recorder.corruption_json()["verdict"] == "None"
    assert b"dsv4_canary_corruption_verdict 0.0" in recorder.metrics.render()
