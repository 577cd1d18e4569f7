"""The operator's HTTP endpoint: /metrics for Prometheus, /healthz and /readyz for kubelet."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from dsv4_operator.runtime.health import Health
from dsv4_operator.runtime.metrics import CONTENT_TYPE, OperatorMetrics


def build_app(health: Health, metrics: OperatorMetrics | None) -> web.Application:
    """The application; without metrics there is no /metrics."""

    async def healthz(_: web.Request) -> web.Response:
        return _verdict(health.illness(), health.role)

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(health.unreadiness(), health.role)

    app = web.Application(client_max_size=1024)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    if metrics is not None:
        exposition = metrics.exposition

        async def serve_metrics(_: web.Request) -> web.Response:
            return web.Response(body=exposition(), headers={"Content-Type": CONTENT_TYPE})

        app.router.add_get("/metrics", serve_metrics)
    return app


@contextlib.asynccontextmanager
async def serving(app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve while the context lasts, by HTTPS with `tls`; yields the port (the one chosen when `port` is 0).

    Raises OSError when it is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _verdict(problem: str | None, role: str) -> web.Response:
    if problem is None:
        return web.Response(text=f"ok ({role})\n")
    return web.Response(status=503, text=problem + "\n")
