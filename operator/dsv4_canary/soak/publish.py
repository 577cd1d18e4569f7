"""Results of a soak that runs in a pod, written into a ConfigMap that exists already.

The pod's service account needs one right: to patch that one ConfigMap. Spoken over plain HTTP, since the canary image
carries no Kubernetes client. A ConfigMap holds at most 1 MiB (Kubernetes, ConfigMap: "cannot exceed 1 MiB"); what does
not fit is left out, the journal first.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts token, certificate authority and namespace."""
LARGEST = 900_000
"""Bytes of all values together; the rest of the 1 MiB is room for names and metadata."""
_PATIENCE = 60.0
"""Seconds for which an API server that does not answer is asked again."""
_PAUSE = 2.0


class PublishError(Exception):
    """Results could not be written; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Account:
    """How a pod speaks to its API server."""

    server: str
    namespace: str
    token: str
    ca: Path


def own_account(environ: Mapping[str, str], folder: Path = ACCOUNT) -> Account:
    """The pod's account. Raises PublishError outside a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        token = (folder / "token").read_text().strip()
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise PublishError(
            f"--publish: {error.filename} cannot be read ({error.strerror}); it works in a pod with a service account"
        ) from None
    if not host:
        raise PublishError("--publish: KUBERNETES_SERVICE_HOST is not set; it works in a pod only")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Account(server, namespace, token, folder / "ca.crt")


def content(folder: Path, tag: str, status: int, limit: int = LARGEST) -> dict[str, Any]:
    """The patch of the ConfigMap: texts under ``data``, the packed journal under ``binaryData``.

    A file that is missing or does not fit is named under ``left-out``. Raises OSError.
    """
    data = {"exit-status": str(status)}
    binary: dict[str, str] = {}
    left_out: list[str] = []
    room = limit
    report = folder / f"{tag}.json"
    if report.exists():
        value = json.loads(report.read_bytes())
        data |= {"verdict": str(value["verdict"]), "sentence": str(value["sentence"])}
    for kind in ("json", "md", "jsonl"):
        path = folder / f"{tag}.{kind}"
        name = f"{path.name}.gz" if kind == "jsonl" else path.name
        raw = path.read_bytes() if path.exists() else None
        if raw is not None and kind == "jsonl":
            raw = base64.b64encode(gzip.compress(raw, mtime=0))
        if raw is None or len(raw) > room:
            left_out.append(name)
            continue
        room -= len(raw)
        (binary if kind == "jsonl" else data)[name] = raw.decode("utf-8", "replace")
    data["left-out"] = " ".join(left_out)
    return {"data": data, "binaryData": binary}


async def publish(account: Account, name: str, patch: Mapping[str, Any], *, patience: float = _PATIENCE) -> None:
    """Write the patch into the ConfigMap; asks again while the API server does not answer. Raises PublishError."""
    url = f"{account.server}/api/v1/namespaces/{account.namespace}/configmaps/{name}"
    headers = {"Authorization": f"Bearer {account.token}", "Content-Type": "application/merge-patch+json"}
    try:
        context = ssl.create_default_context(cafile=str(account.ca))
    except OSError as error:
        raise PublishError(f"ConfigMap {name}: {account.ca} cannot be used ({error})") from None
    body = json.dumps(patch).encode()
    deadline = time.monotonic() + patience
    while True:
        said, final = await _attempt(url, body, headers, context)
        if said is None:
            return
        if final or time.monotonic() >= deadline:
            raise PublishError(f"ConfigMap {account.namespace}/{name}: not written: {said}")
        await asyncio.sleep(_PAUSE)


async def _attempt(
    url: str, body: bytes, headers: Mapping[str, str], context: ssl.SSLContext
) -> tuple[str | None, bool]:
    """What went wrong, None if nothing; and whether to try again is useless."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as session,
            session.patch(url, data=body, headers=headers, ssl=context) as response,
        ):
            if response.status == 200:
                return None, True
            text = (await response.text())[:300]
            return f"HTTP {response.status}: {' '.join(text.split())}", 400 <= response.status < 500 and (
                response.status not in (408, 409, 429)
            )
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return str(error) or type(error).__name__, False
