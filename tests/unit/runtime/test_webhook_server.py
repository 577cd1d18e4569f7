"""The webhook's HTTPS server, met by a real TLS client on loopback."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import aiohttp
import pytest

from dsv4_operator.kube.port import KubeApi
from dsv4_operator.runtime import webhook as module
from dsv4_operator.runtime.certificates import Material, renew_authority, renew_serving
from dsv4_operator.runtime.http import serving
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.settings import parse_settings
from dsv4_operator.runtime.webhook import MAX_BODY, PATH, Webhook

LIFE = timedelta(days=1)
HOSTS = ("127.0.0.1",)


def make() -> tuple[Webhook, OperatorMetrics]:
    metrics = OperatorMetrics("1")
    return Webhook(cast(KubeApi, None), parse_settings(["--webhook", "--webhook-hosts=127.0.0.1"]), metrics), metrics


def fresh() -> Material:
    now = datetime.now(UTC)
    return renew_serving(renew_authority(None, now, LIFE), HOSTS, now, LIFE)


async def post(port: int, trusted: Material, body: Any) -> tuple[int, str]:
    tls = ssl.create_default_context(cadata="".join(trusted.authorities))
    connector = aiohttp.TCPConnector(ssl=tls, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://127.0.0.1:{port}{PATH}", data=body) as answer,
    ):
        return answer.status, await answer.text()


async def test_certificates_are_changed_while_it_serves() -> None:
    webhook, metrics = make()
    async with serving(webhook.build_app(), "127.0.0.1", 0, webhook._tls) as port:
        first, second = fresh(), fresh()
        with pytest.raises(aiohttp.ClientConnectorError):
            await post(port, first, b"{}")
        assert webhook.unreadiness() == "the webhook has no certificate yet"
        webhook._install(first)
        assert webhook.unreadiness() is None
        assert (await post(port, first, b"{}"))[0] == 400
        webhook._install(second)
        assert (await post(port, second, b"{}"))[0] == 400
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await post(port, first, b"{}")
    assert second.expires is not None
    series = "dsv4_operator_webhook_certificate_expiry_timestamp_seconds"
    assert metrics.registry.get_sample_value(series) == second.expires.timestamp()


async def test_a_replica_is_ready_without_a_certificate_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    webhook, _ = make()
    assert webhook.unreadiness() is not None
    monkeypatch.setattr(module, "HOLD_READY_SECONDS", -1.0)
    assert webhook.unreadiness() is None


@pytest.mark.parametrize(
    ("body", "status", "result"),
    [
        (b"not json", 400, "bad"),
        (b"\xff\xfe", 400, "bad"),
        (b"[" * 100_000, 400, "bad"),
        (b'{"request": {}}', 400, "bad"),
        (b" " * (MAX_BODY + 1), 413, "bad"),
    ],
    ids=["text", "binary", "nested", "no uid", "too much"],
)
async def test_bad_requests_are_answered_and_counted(body: bytes, status: int, result: str) -> None:
    webhook, metrics = make()
    material = fresh()
    webhook._install(material)
    async with serving(webhook.build_app(), "127.0.0.1", 0, webhook._tls) as port:
        assert (await post(port, material, body))[0] == status
    assert f'dsv4_operator_webhook_reviews_total{{result="{result}"}} 1.0' in metrics.exposition().decode()


async def test_an_error_of_ours_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "review", broken)
    webhook, metrics = make()
    material = fresh()
    webhook._install(material)
    async with serving(webhook.build_app(), "127.0.0.1", 0, webhook._tls) as port:
        status, text = await post(port, material, b"{}")
    assert status == 500
    assert "ZeroDivisionError" not in text
    assert 'dsv4_operator_webhook_reviews_total{result="error"} 1.0' in metrics.exposition().decode()
