"""KubeClient: the port on top of `kubernetes.aio`.

It uses the library's REST layer (TLS, proxy, connection pool) and its configuration loaders, and builds paths
from kinds.Kind: no discovery, no models, JSON dicts in and out. Facts measured against a real API server
stand beside the code they explain.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import yarl
from kubernetes.aio.client.rest import RESTClientObject

from dsv4_operator.kube import answers
from dsv4_operator.kube.answers import Call
from dsv4_operator.kube.connect import ConnectError, Load, load_configuration
from dsv4_operator.kube.errors import ApiError, Conflict, NotFound, Unauthorized
from dsv4_operator.kube.kinds import Kind, kind_of
from dsv4_operator.kube.port import CallObserver, JsonObject, Listing

LOG = logging.getLogger(__name__)

CHUNK: Final = 500
APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
CONNECT_SECONDS: Final = 10.0


class KubeClient:
    """Implements port.KubeApi. Make it with `connect`; close it with `close` or `async with`."""

    def __init__(
        self,
        configuration: Any,
        load: Load,
        *,
        user_agent: str,
        request_timeout: float,
        observer: CallObserver | None = None,
    ) -> None:
        self._configuration = configuration
        self._load = load
        self._rest: Any = RESTClientObject(configuration)
        self._host = str(configuration.host).rstrip("/")
        self._headers = {"User-Agent": user_agent, "Accept": JSON}
        self._timeout = request_timeout
        self._observer = observer
        self._login = asyncio.Lock()
        self._logins = 0

    @classmethod
    async def connect(
        cls,
        *,
        user_agent: str,
        kubeconfig: str | None = None,
        context: str | None = None,
        request_timeout: float = 30.0,
        observer: CallObserver | None = None,
    ) -> KubeClient:
        """A client for the cluster of `kubeconfig` (see kube.connect for the order of places). Sends nothing
        yet.

        `request_timeout` in seconds, over connect, send and the whole answer. Raises ConnectError.
        """
        configuration, load = await load_configuration(kubeconfig, context)
        try:
            return cls(
                configuration,
                load,
                user_agent=user_agent,
                request_timeout=request_timeout,
                observer=observer,
            )
        except OSError as error:  # ssl.SSLError too: CA or client certificate that cannot be read
            raise ConnectError(f"TLS files of {configuration.host}: {error}") from error

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    @property
    def host(self) -> str:
        """URL of the API server, without credentials; for the start-up log."""
        return self._host

    async def get(self, kind: Kind, namespace: str | None, name: str) -> JsonObject | None:
        """See port.KubeApi."""
        try:
            return await self._json(Call("get", kind, namespace, name), "GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def list(self, kind: Kind, namespace: str | None = None, label_selector: str | None = None) -> Listing:
        """See port.KubeApi."""
        call, path = Call("list", kind, namespace), kind.path(namespace)
        base = {"labelSelector": label_selector} if label_selector else {}
        items: list[JsonObject] = []
        revision, token = "", ""
        while True:
            query = base | {"limit": str(CHUNK)} | ({"continue": token} if token else {})
            try:
                page = await self._json(call, "GET", path, query)
            except ApiError as error:
                if error.status != 410 or not token:
                    raise
                # The snapshot was compacted between two chunks. One list without chunks cannot expire
                # (client-go tools/pager: FullListIfExpired).
                LOG.info("%s: the list expired after %d objects, reading it in one piece", call, len(items))
                items, revision, token = [], "", ""
                page = await self._json(call, "GET", path, base)
            metadata = page.get("metadata") or {}
            revision = revision or str(metadata.get("resourceVersion") or "")
            for item in page.get("items") or []:
                # Items of built-in lists come without their kind.
                items.append({"apiVersion": kind.api_version, "kind": kind.kind} | item)
            token = str(metadata.get("continue") or "")
            if not token:
                return Listing(items, revision)

    async def apply(self, obj: Mapping[str, Any], field_manager: str, force: bool = False) -> JsonObject:
        """See port.KubeApi."""
        call, path = _addressed("apply", obj)
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self._json(call, "PATCH", path, query, body=dict(obj), content_type=APPLY_PATCH)

    async def apply_status(self, obj: Mapping[str, Any], field_manager: str) -> JsonObject:
        """See port.KubeApi."""
        call, path = _addressed("apply_status", obj)
        metadata = obj["metadata"]
        kept = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if metadata.get(key)}
        body = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "metadata": kept,
            "status": obj.get("status") or {},
        }
        query = {"fieldManager": field_manager, "force": "true"}
        return await self._json(call, "PATCH", path + "/status", query, body=body, content_type=APPLY_PATCH)

    async def annotate(
        self, kind: Kind, namespace: str | None, name: str, annotations: Mapping[str, str | None]
    ) -> JsonObject:
        """See port.KubeApi."""
        call = Call("patch", kind, namespace, name)
        body = {"metadata": {"annotations": dict(annotations)}}
        return await self._json(call, "PATCH", kind.path(namespace, name), body=body, content_type=MERGE_PATCH)

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        """See port.KubeApi."""
        kind, metadata = kind_of(obj), obj.get("metadata") or {}
        namespace = metadata.get("namespace")
        call = Call("create", kind, namespace, metadata.get("name") or metadata.get("generateName"))
        return await self._json(call, "POST", kind.path(namespace), body=dict(obj))

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        """See port.KubeApi."""
        call, path = _addressed("update", obj)
        return await self._json(call, "PUT", path, body=dict(obj))

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, uid: str | None, propagation: str = "Background"
    ) -> bool:
        """See port.KubeApi."""
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        call = Call("delete", kind, namespace, name)
        try:
            await self._json(call, "DELETE", kind.path(namespace, name), body=options)
        except NotFound:
            return False
        except Conflict:
            if uid is None:
                raise
            # Most likely another object has the name by now. The live object tells, the error's text differs
            # between releases.
            live = await self.get(kind, namespace, name)
            if live is not None and live["metadata"]["uid"] == uid:
                raise
            return False
        return True

    async def _json(
        self,
        call: Call,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: JsonObject | None = None,
        content_type: str = JSON,
    ) -> JsonObject:
        """One request, repeated once after 401 with credentials read anew. Raises ApiError."""
        url = self._host + path + ("?" + urlencode(query) if query else "")
        logins = self._logins
        try:
            return await self._send(call, method, url, body, content_type)
        except Unauthorized:
            await self._log_in(call, logins)
            return await self._send(call, method, url, body, content_type)

    async def _log_in(self, call: Call, seen: int) -> None:
        """Read the credentials again, once for all calls that failed with the same ones."""
        async with self._login:
            if self._logins != seen:
                return
            try:
                await asyncio.wait_for(self._load(self._configuration), self._timeout)
            except (ConnectError, TimeoutError) as error:
                raise Unauthorized(
                    f"{call}: 401, and the credentials cannot be read again: {error}", status=401
                ) from error
            self._logins += 1

    async def _send(self, call: Call, method: str, url: str, body: JsonObject | None, content_type: str) -> JsonObject:
        started, code = time.monotonic(), "error"
        try:
            headers = dict(self._headers)
            headers["Content-Type"] = content_type
            token = (await self._configuration.auth_settings()).get("BearerToken")
            if token and token["value"]:
                headers["Authorization"] = token["value"]
            answer = await self._rest.request(
                method,
                # Percent-encoding is done; aiohttp must not decode and encode it again.
                yarl.URL(url, encoded=True),
                headers=headers,
                body=body,
                _request_timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
            )
            data: bytes = await answer.read()
            code = str(answer.status)
            if not 200 <= answer.status < 300:
                raise answers.error_of(call, answer.status, answer.headers, data)
            return _parsed(call, answer.status, data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = "timeout" if isinstance(error, TimeoutError) else "error"
            raise answers.no_answer(call, error, self._timeout) from error
        finally:
            if self._observer is not None:
                self._observer.api_call(call.verb, call.kind.kind, code, time.monotonic() - started)


def _parsed(call: Call, status: int, data: bytes) -> JsonObject:
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise answers.no_answer(call, ValueError(f"{status} with a body that is no JSON object"), 0)
    return parsed


def _addressed(verb: str, obj: Mapping[str, Any]) -> tuple[Call, str]:
    """Call and path of an object. Raises ValueError without a name, a known kind, or a needed namespace."""
    kind, metadata = kind_of(obj), obj.get("metadata") or {}
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not name:
        raise ValueError(f"{verb} {kind.kind}: metadata.name is missing")
    return Call(verb, kind, namespace, name), kind.path(namespace, name)
