"""Prometheus metrics of the sidecar, in a registry of its own.

Cardinality: ``peer`` is bounded by the live peers (a peer that is gone takes its series along); all other
labels come from fixed sets.
"""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dsv4_canary.model import Cache, PeerOutcome, Severity
from dsv4_canary.probes import ECHO

disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 120, 300)
_PEER_VALUE = {PeerOutcome.PASS: 1, PeerOutcome.FAIL: 0, PeerOutcome.LOADING: -1, PeerOutcome.UNREACHABLE: -2}


class Metrics:
    """All series of one sidecar."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, role: str, fingerprint: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._probes = Counter(
            "dsv4_canary_probes",
            "Attempts to send a probe through the pair, by outcome: pass, fail, loading, unreachable, engine.",
            ("probe", "outcome", "cache"),
            registry=self.registry,
        )
        self._failures = Counter(
            "dsv4_canary_failures",
            "Findings in probe replies: signature S1 to S32, or timeout, transfer, rejected, cut, lost.",
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
        self.last_success = Gauge(
            "dsv4_canary_last_success_timestamp_seconds",
            "Unix time of the last passed probe, 0 when there was none.",
            registry=self.registry,
        )
        self.ready = Gauge(
            "dsv4_canary_ready", "1 when the pair is proved and the pod may serve.", registry=self.registry
        )
        self.engine_healthy = Gauge(
            "dsv4_canary_engine_healthy", "1 when this engine's health check passes.", registry=self.registry
        )
        self._peer_result = Gauge(
            "dsv4_canary_peer_result",
            "Latest result with a peer: 1 pass, 0 fail, -1 loading, -2 unreachable.",
            ("peer",),
            registry=self.registry,
        )
        self._peers: set[str] = set()
        Gauge("dsv4_canary_info", "Constant 1.", ("role", "fingerprint"), registry=self.registry).labels(
            role, fingerprint
        ).set(1)
        self.settings_errors = Counter(
            "dsv4_canary_settings_errors", "Settings files that were refused.", registry=self.registry
        )
        self.settings_valid = Gauge(
            "dsv4_canary_settings_valid",
            "0 while the settings file is refused and older settings hold.",
            registry=self.registry,
        )
        self.settings_valid.set(1)
        self.lookup_errors = Counter(
            "dsv4_canary_peer_lookup_errors", "Failed name lookups of the peers.", registry=self.registry
        )
        self.prompt_tokens = Gauge(
            "dsv4_canary_prompt_tokens",
            "Prompt tokens of the last probe as the engine counted them.",
            registry=self.registry,
        )
        # Series that alerts divide by must exist before the first event.
        for cache in Cache:
            for outcome in ("pass", "fail"):
                self._probes.labels(ECHO, outcome, cache.value)
        self._failures.labels("timeout", Severity.TRANSPORT.value, Cache.UNKNOWN.value)

    def attempt(self, probe: str, outcome: str, cache: Cache) -> None:
        """Count one attempt."""
        self._probes.labels(probe, outcome, cache.value).inc()

    def findings(self, failures: dict[str, Severity], cache: Cache) -> None:
        """Count what was found wrong."""
        for name, severity in failures.items():
            self._failures.labels(name, severity.value, cache.value).inc()

    def conclusive(self, probe: str, seconds: float) -> None:
        """Observe the time of a probe that passed or failed."""
        self._seconds.labels(probe).observe(seconds)

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
