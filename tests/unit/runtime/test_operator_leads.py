"""The running operator, as far as it goes without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dsv4_operator.kube.client import KubeClient
from dsv4_operator.operator import Operator
from dsv4_operator.runtime.settings import parse_settings
from localcluster.ports import free_port


async def test_a_replica_without_a_lease_says_that_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else DSV4OperatorDown fires for it."""
    exposed: list[bytes] = []

    class Api:
        async def close(self) -> None:
            pass

    async def connect(**_: Any) -> Api:
        return Api()

    async def work(operator: Operator, *_: Any) -> None:
        exposed.append(operator._metrics.exposition())

    monkeypatch.setattr(KubeClient, "connect", connect)
    monkeypatch.setattr(Operator, "_work", work)
    await Operator(
        parse_settings(["--no-lease", "--listen-host", "127.0.0.1", "--listen-port", str(free_port())])
    ).run()
    assert b"\ndsv4_operator_leader 1.0\n" in exposed[0]
