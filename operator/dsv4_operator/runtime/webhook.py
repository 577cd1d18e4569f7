"""The validating admission webhook: an HTTPS server that every replica runs, whether it leads or not.

Kopf has an admission server too, but it lives and ends with kopf's watches, which only the leading replica has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import tempfile
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

from aiohttp import web

from dsv4_operator.engine.images import ImageDefaults
from dsv4_operator.kube.port import KubeApi
from dsv4_operator.runtime.certificates import Material
from dsv4_operator.runtime.http import serving
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.settings import OperatorSettings
from dsv4_operator.runtime.webhook_certificates import CertificateKeeper
from dsv4_operator.runtime.webhook_review import BadReview, Result, review

LOG = logging.getLogger(__name__)

PATH: Final = "/validate"
MAX_BODY: Final = 8 * 1024 * 1024
"""An AdmissionReview carries the object twice, and an object is at most 1.5 MiB (etcd's limit of a request)."""
HOLD_READY_SECONDS: Final = 30.0
"""A replica is not Ready until its webhook serves, for so long; then it is Ready without, and says so."""


class Webhook:
    """Make one for each replica; serve with `running`. Call inside a running event loop."""

    def __init__(self, api: KubeApi, settings: OperatorSettings, metrics: OperatorMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._images = ImageDefaults(settings.engine_image, settings.canary_image, settings.router_image)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._certified = False
        self._started = asyncio.get_running_loop().time()
        self._keeper = CertificateKeeper(
            api,
            namespace=settings.lease_namespace,
            secret=settings.webhook_secret,
            configuration=settings.webhook_configuration,
            hosts=settings.webhook_hosts,
            life=timedelta(seconds=settings.webhook_certificate_seconds),
            install=self._install,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Serve while the context lasts; yields the port. Raises OSError when it is taken."""
        settings = self._settings
        async with serving(self.build_app(), settings.listen_host, settings.webhook_listen_port, self._tls) as port:
            LOG.info("the webhook listens on port %d", port)
            keeping = asyncio.create_task(self._keeper.run(), name="webhook-certificates")
            try:
                yield port
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    def unreadiness(self) -> str | None:
        """Why this replica should get no reviews yet; None when it may."""
        if self._certified or asyncio.get_running_loop().time() - self._started > HOLD_READY_SECONDS:
            return None
        return "the webhook has no certificate yet"

    def build_app(self) -> web.Application:
        """The application, for any server."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post(PATH, self._validate)
        return app

    async def _validate(self, request: web.Request) -> web.Response:
        """Answer one review. An error of ours is no verdict: the API server then does what failurePolicy says."""
        try:
            body = await request.json()
        except web.HTTPException:
            self._metrics.webhook_reviewed("bad")
            raise
        except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deeply
            return self._bad("the body is no JSON that can be read")
        try:
            answer = review(body, self._images)
        except BadReview as error:
            return self._bad(str(error))
        except Exception:
            self._metrics.webhook_reviewed("error")
            LOG.exception("a review failed")
            return web.Response(status=500, text="the review failed; the operator's log says why\n")
        self._metrics.webhook_reviewed(answer.result)
        if answer.result is Result.REFUSED:
            LOG.info("refused %s: %d problem(s)", answer.about.get("name"), len(answer.problems))
        return web.json_response(answer.body())

    def _bad(self, why: str) -> web.Response:
        self._metrics.webhook_reviewed("bad")
        return web.Response(status=400, text=why + "\n")

    def _install(self, material: Material) -> None:
        """Have new connections see this certificate. Nothing is awaited here, so no handshake sees half of it."""
        # OpenSSL reads files alone. This one is readable by us only, and gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(material.key + material.certificate)
            file.flush()
            self._tls.load_cert_chain(file.name)
        self._certified = True
        assert material.expires is not None  # only what can be served is installed
        self._metrics.set_webhook_certificate(material.expires.timestamp())
        LOG.info("the webhook serves with a certificate that is good until %s", material.expires.isoformat())
