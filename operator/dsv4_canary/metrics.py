"""Prometheus metrics of the sidecar, in a registry of its own.

Cardinality: ``peer`` is bounded by the live peers (a peer that is gone takes its series along); all other
labels come from fixed sets. Series that alerts compare or divide exist from the start, at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dsv4_canary.evidence import TIERS, Level
from dsv4_canary.model import Cache, PeerOutcome, ProbeName, Severity
from dsv4_canary.wedge import WedgeKind, WedgeState

disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 120, 300)
_PEER_VALUE = {
    PeerOutcome.PASS: 1,
    PeerOutcome.FAIL: 0,
    PeerOutcome.LOADING: -1,
    PeerOutcome.UNREACHABLE: -2,
    PeerOutcome.BUSY: -3,
}
BLIND = ("probe", "host", "metrics", "length")
"""What the sidecar may fail to see; the meaning of each is in the documents."""


class Metrics:
    """All series of one sidecar."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, role: str, fingerprint: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._probes = Counter(
            "dsv4_canary_probes",
            "Attempts to send a probe through the pair, by outcome: pass, fail, loading, unreachable, engine, busy, "
            "unusable.",
            ("probe", "outcome", "cache"),
            registry=self.registry,
        )
        self._failures = Counter(
            "dsv4_canary_failures",
            "Findings in probe replies: signature S1 to S32, or timeout, transfer, rejected, cut, lost, drift.",
            ("signature", "severity", "cache"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "dsv4_canary_probe_seconds",
            "Time of a conclusive probe through the pair.",
            ("probe",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.last_success = self._gauge(
            "canary_last_success_timestamp_seconds", "Unix time of the last passed probe, 0 when there was none."
        )
        self.ready = self._gauge("canary_ready", "1 when the pair is proved and the pod may serve.")
        self.engine_healthy = self._gauge("canary_engine_healthy", "1 when this engine's health check passes.")
        self._peer_result = self._labelled(
            "canary_peer_result",
            "Latest result with a peer: 1 pass, 0 fail, -1 loading, -2 unreachable, -3 busy.",
            "peer",
        )
        self._peers: set[str] = set()
        self._labelled("canary_info", "Constant 1.", "role", "fingerprint").labels(role, fingerprint).set(1)
        self.settings_errors = Counter(
            "dsv4_canary_settings_errors", "Settings files that were refused.", registry=self.registry
        )
        self.settings_valid = self._gauge(
            "canary_settings_valid", "0 while the settings file is refused and older settings hold."
        )
        self.settings_valid.set(1)
        self.lookup_errors = Counter(
            "dsv4_canary_peer_lookup_errors", "Failed name lookups of the peers.", registry=self.registry
        )
        self.prompt_tokens = self._gauge(
            "canary_prompt_tokens", "Prompt tokens of the last probe as the engine counted them."
        )
        self._tokens = Counter(
            "dsv4_canary_tokens", "Tokens that the probes have cost.", ("kind",), registry=self.registry
        )
        self._ratio = self._labelled(
            "canary_corruption_ratio", "Share of the window's probes with corruption-class evidence.", "cache"
        )
        self._verdict = self._gauge("canary_corruption_verdict", "0 none, 1 suspected, 2 confirmed.")
        self._window_probes = self._labelled(
            "canary_window_probes", "Conclusive probes in the window behind the corruption verdict.", "cache"
        )
        self._window_failures = self._labelled(
            "canary_window_failures", "Those of them with corruption-class evidence.", "cache"
        )
        self._usable = self._labelled(
            "canary_probe_usable", "0 for a probe that cannot be passed here at all.", "probe"
        )
        self._blind = self._labelled("canary_blind", "1 when the canary cannot see what it should.", "what")
        self._drift = self._labelled(
            "canary_drift_logprob",
            "Latest deviation of output logprobs from the answer out of the device's cache, in nats; cold: between "
            "answers computed in other shapes, which says nothing about damage.",
            "cache",
        )
        self.drift_margin = self._gauge("canary_drift_margin", "Deviation in nats beyond which a repeat is damaged.")
        self._wedged = self._gauge("engine_wedged", "1 when the engine holds requests and does not get on with them.")
        self._wedge_info = self._labelled("engine_wedge_info", "1 for the kind of the present wedge.", "kind")
        self._stalled = self._gauge(
            "engine_stalled_seconds", "Time for which work has waited in the engine without movement."
        )
        self.guard_present = self._gauge("canary_guard_present", "1 when the engine carries the gated image's marker.")
        self.guard_required = self._gauge("canary_guard_required", "1 when it must.")
        self._create_series()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"dsv4_{name}", text, registry=self.registry)

    def _labelled(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dsv4_{name}", text, labels, registry=self.registry)

    def _create_series(self) -> None:
        for cache in Cache:
            for outcome in ("pass", "fail"):
                self._probes.labels(ProbeName.ECHO.value, outcome, cache.value)
        self._failures.labels("timeout", Severity.TRANSPORT.value, Cache.UNKNOWN.value)
        for cache in TIERS:
            for gauge in (self._ratio, self._window_probes, self._window_failures):
                gauge.labels(cache.value).set(0)
        for probe in ProbeName:
            self._usable.labels(probe.value).set(1)
        for what in BLIND:
            self._blind.labels(what).set(0)
        for kind in WedgeKind:
            self._wedge_info.labels(kind.value).set(0)
        for label in ("prompt", "completion"):
            self._tokens.labels(label)

    def attempt(self, probe: str, outcome: str, cache: Cache) -> None:
        """Count one attempt."""
        self._probes.labels(probe, outcome, cache.value).inc()

    def findings(self, failures: Mapping[str, Severity], cache: Cache) -> None:
        """Count what was found wrong."""
        for name, severity in failures.items():
            self._failures.labels(name, severity.value, cache.value).inc()

    def conclusive(self, probe: str, seconds: float) -> None:
        """Observe the time of a probe that passed or failed."""
        self._seconds.labels(probe).observe(seconds)

    def cost(self, prompt: int | None, completion: int | None) -> None:
        """Account the tokens of one request."""
        self._tokens.labels("prompt").inc(prompt or 0)
        self._tokens.labels("completion").inc(completion or 0)

    def drift(self, cache: Cache, nats: float) -> None:
        """Set the latest deviation."""
        self._drift.labels(cache.value).set(nats)

    def corruption(self, level: Level, counts: Mapping[Cache, tuple[int, int]]) -> None:
        """Set verdict and window."""
        self._verdict.set(level.number)
        for cache, (probes, corrupt) in counts.items():
            self._window_probes.labels(cache.value).set(probes)
            self._window_failures.labels(cache.value).set(corrupt)
            self._ratio.labels(cache.value).set(corrupt / probes if probes else 0)

    def wedge(self, state: WedgeState) -> None:
        """Set what the wedge detector says."""
        self._wedged.set(state.wedged)
        self._stalled.set(state.stalled_seconds)
        for kind in WedgeKind:
            self._wedge_info.labels(kind.value).set(state.wedged and state.kind is kind)

    def usable(self, probe: ProbeName, usable: bool) -> None:
        """Set whether a probe can be passed here."""
        self._usable.labels(probe.value).set(usable)

    def blind(self, found: Collection[str]) -> None:
        """Set what cannot be seen."""
        for what in BLIND:
            self._blind.labels(what).set(what in found)

    def peer(self, address: str, outcome: PeerOutcome) -> None:
        """Set the latest result with a peer."""
        self._peers.add(address)
        self._peer_result.labels(address).set(_PEER_VALUE[outcome])

    def keep_peers(self, addresses: Collection[str]) -> None:
        """Drop the series of peers that are gone."""
        for gone in self._peers - set(addresses):
            self._peers.discard(gone)
            self._peer_result.remove(gone)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)
