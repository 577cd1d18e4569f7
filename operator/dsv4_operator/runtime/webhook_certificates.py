"""Keeps the webhook's certificates: in one Secret, in the caBundle of one ValidatingWebhookConfiguration, and loaded.

Every replica does so and none of them leads, so that a webhook never waits for a lease. Two writers cannot undo each
other: every write carries the resourceVersion that was read, and the configuration is read before the Secret, so a
bundle that is written is never older than one that somebody else wrote meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from dsv4_operator.api.constants import FIELD_MANAGER, LABEL_MANAGED_BY, MANAGED_BY
from dsv4_operator.kube.errors import AlreadyExists, ApiError, Conflict
from dsv4_operator.kube.kinds import SECRET, VALIDATING_WEBHOOK_CONFIGURATION
from dsv4_operator.kube.port import JsonObject, KubeApi
from dsv4_operator.runtime.certificates import (
    BrokenMaterial,
    Material,
    is_servable,
    read_material,
    renew_authority,
    renew_serving,
    secret_data,
)

LOG = logging.getLogger(__name__)

CHECK_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 5.0
LOST_RACE_SECONDS: Final = 0.5
WEBHOOK_FIELD_MANAGER: Final = f"{FIELD_MANAGER}-webhook"


class CertificateKeeper:
    """`run` looks at the Secret and the configuration about once a minute, renews what is due, and hands what is to be
    served to `install`.

    `life` is that of a serving certificate; `hosts` are the names by which API servers call the webhook.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        hosts: tuple[str, ...],
        life: timedelta,
        install: Callable[[Material], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._namespace, self._secret, self._configuration = namespace, secret, configuration
        self._hosts, self._life = hosts, life
        self._install, self._now = install, now
        self._installed: Material | None = None
        self._complaint = ""

    async def run(self) -> None:
        """Check for ever. Whatever goes wrong is logged once and tried again: a webhook takes no operator down."""
        while True:
            try:
                await self.check()
            except (Conflict, AlreadyExists):
                wait = LOST_RACE_SECONDS  # another replica was quicker: read what it wrote
            except ApiError as error:
                self._complain(str(error))
                wait = RETRY_SECONDS
            except Exception:
                LOG.exception("certificates of the webhook")
                wait = CHECK_SECONDS
            else:
                # A sixtieth of a life: far below the third that is left when a certificate is renewed.
                wait = min(CHECK_SECONDS, self._life.total_seconds() / 60)
            await asyncio.sleep(wait * random.uniform(0.9, 1.1))  # noqa: S311 - jitter

    async def check(self) -> None:
        """Look once, and renew what is due. Raises ApiError, Conflict when another replica writes at the same time."""
        configuration = await self._api.get(VALIDATING_WEBHOOK_CONFIGURATION, None, self._configuration)
        live = await self._api.get(SECRET, self._namespace, self._secret)
        if live is not None and (live["metadata"].get("labels") or {}).get(LABEL_MANAGED_BY) != MANAGED_BY:
            self._complain(f"Secret {self._namespace}/{self._secret} exists and is not ours; delete it or rename ours")
            return
        found = self._read(live)
        if found is not None:
            self._load(found)  # before anything that may fail: another replica has renewed it
        material = renew_authority(found, self._now(), self._life)
        if material != found:
            live = await self._store(live, material)
        if configuration is not None:
            await self._publish(configuration, material)
        renewed = renew_serving(material, self._hosts, self._now(), self._life)
        if renewed != material:
            await self._store(live, renewed)
        self._load(renewed)
        if configuration is None:
            self._complain(f"no ValidatingWebhookConfiguration is called {self._configuration}: nobody calls us")
        else:
            self._complaint = ""

    def _read(self, live: JsonObject | None) -> Material | None:
        if live is None:
            return None
        try:
            return read_material(live.get("data") or {})
        except BrokenMaterial as error:
            LOG.error("Secret %s/%s is made anew: %s", self._namespace, self._secret, error)
            return None

    async def _store(self, live: JsonObject | None, material: Material) -> JsonObject:
        data = secret_data(material)
        LOG.info("writing certificates of the webhook to Secret %s/%s", self._namespace, self._secret)
        if live is not None:
            return await self._api.replace(live | {"data": data})
        return await self._api.create(
            {
                "apiVersion": SECRET.api_version,
                "kind": SECRET.kind,
                "metadata": {
                    "namespace": self._namespace,
                    "name": self._secret,
                    "labels": {LABEL_MANAGED_BY: MANAGED_BY},
                },
                "type": "kubernetes.io/tls",
                "data": data,
            }
        )

    async def _publish(self, configuration: JsonObject, material: Material) -> None:
        """Have API servers trust all authorities. Writes nothing but the caBundle of each webhook."""
        webhooks = configuration.get("webhooks") or []
        if all(webhook["clientConfig"].get("caBundle") == material.bundle for webhook in webhooks):
            return
        LOG.info("writing the caBundle of ValidatingWebhookConfiguration %s", self._configuration)
        intent = {
            "apiVersion": VALIDATING_WEBHOOK_CONFIGURATION.api_version,
            "kind": VALIDATING_WEBHOOK_CONFIGURATION.kind,
            "metadata": {
                "name": self._configuration,
                "resourceVersion": configuration["metadata"]["resourceVersion"],
            },
            "webhooks": [
                {"name": webhook["name"], "clientConfig": {"caBundle": material.bundle}} for webhook in webhooks
            ],
        }
        await self._api.apply(intent, WEBHOOK_FIELD_MANAGER, force=True)

    def _load(self, material: Material) -> None:
        if material != self._installed and is_servable(material, self._hosts, self._now()):
            self._install(material)
            self._installed = material

    def _complain(self, text: str) -> None:
        """Log, once until it changes or ends."""
        if text != self._complaint:
            LOG.warning("webhook: %s", text)
            self._complaint = text
