"""HTTP side of the sidecar. Every answer comes from memory, at once."""

from __future__ import annotations

from aiohttp import web

from dsv4_canary.loop import Canary


def application(canary: Canary) -> web.Application:
    """The sidecar's web application: /readyz, /livez, /status, /metrics."""

    async def readyz(_request: web.Request) -> web.Response:
        verdict = canary.verdict
        text = f"{verdict.reason.value}: {verdict.message}\n"
        return web.Response(status=200 if verdict.ready else 503, text=text)

    async def livez(_request: web.Request) -> web.Response:
        if canary.live:
            return web.Response(text="live\n")
        return web.Response(
            status=503, text="the engine served before and has refused connections or been wedged for too long\n"
        )

    async def status(_request: web.Request) -> web.Response:
        return web.json_response(canary.status())

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=canary.metrics.render(), headers={"Content-Type": canary.metrics.content_type})

    app = web.Application()
    app.add_routes(
        [
            web.get("/readyz", readyz),
            web.get("/livez", livez),
            web.get("/status", status),
            web.get("/metrics", metrics),
        ]
    )
    return app
