"""Prometheus metrics of a running soak, and the server that shows them. All labels but ``tag`` come from fixed sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from dsv4_canary.soak.record import Phase, Record, Verdict
from dsv4_canary.soak.tally import Tally

disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 120, 180, 300, 600)
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SoakMetrics:
    """All series of one soak."""

    def __init__(self, tag: str) -> None:
        self.registry = CollectorRegistry()
        self._tag = tag
        self._replies = Counter(
            "dsv4_soak_replies",
            "Finished requests by verdict: clean, corrupted, budget, failed.",
            ("tag", "phase", "verdict"),
            registry=self.registry,
        )
        self._findings = Counter(
            "dsv4_soak_findings",
            "Signatures S1 to S32 found in replies.",
            ("tag", "phase", "signature", "severity"),
            registry=self.registry,
        )
        self._failures = Counter(
            "dsv4_soak_failures",
            "Requests without a whole reply, by kind.",
            ("tag", "phase", "kind"),
            registry=self.registry,
        )
        self._tokens = Counter(
            "dsv4_soak_tokens",
            "Tokens as the endpoint counted them: prompt, cached (part of prompt), completion.",
            ("tag", "phase", "kind"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "dsv4_soak_reply_seconds",
            "Time of whole replies.",
            ("tag", "phase", "stream"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._first = Histogram(
            "dsv4_soak_first_byte_seconds",
            "Time until a streamed reply began.",
            ("tag", "phase"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._sessions = Gauge(
            "dsv4_soak_sessions",
            "Sessions of the present phase: planned, finished, corrupted.",
            ("tag", "phase", "state"),
            registry=self.registry,
        )
        self._running = Gauge("dsv4_soak_requests_running", "Requests in flight.", ("tag",), registry=self.registry)
        # Series that alerts divide by must exist before the first event.
        for phase in Phase:
            for verdict in Verdict:
                self._replies.labels(tag, phase.value, verdict.value)

    def record(self, record: Record) -> None:
        """Count one finished request."""
        tag, phase = self._tag, record.phase.value
        self._replies.labels(tag, phase, record.verdict.value).inc()
        for name, severity in record.signatures.items():
            self._findings.labels(tag, phase, name, severity.value).inc()
        for kind, count in (
            ("prompt", record.prompt_tokens),
            ("cached", record.cached_tokens),
            ("completion", record.completion_tokens),
        ):
            if count:
                self._tokens.labels(tag, phase, kind).inc(count)
        if record.failure is not None:
            self._failures.labels(tag, phase, record.failure.value).inc()
            return
        self._seconds.labels(tag, phase, str(record.stream).lower()).observe(record.seconds)
        if record.first_byte is not None:
            self._first.labels(tag, phase).observe(record.first_byte)

    def sessions(self, tally: Tally) -> None:
        """Set the gauges from the live counts."""
        phase = tally.phase.value
        for state, count in (
            ("planned", tally.planned_sessions),
            ("finished", tally.finished_sessions),
            ("corrupted", len(tally.corrupted_sessions)),
        ):
            self._sessions.labels(self._tag, phase, state).set(count)
        self._running.labels(self._tag).set(tally.running)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)


@asynccontextmanager
async def served(metrics: SoakMetrics, host: str, port: int | None) -> AsyncIterator[None]:
    """Serve ``/metrics`` meanwhile; does nothing without a port. Raises OSError when the port is taken."""
    if port is None:
        yield
        return

    async def show(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": _CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()
