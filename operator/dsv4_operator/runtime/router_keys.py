"""The key that guards each deployment's routers: made once, kept in a Secret, never logged."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.desired.router import KEY_NAME, build_router_key_secret
from dsv4_operator.kube.errors import AlreadyExists
from dsv4_operator.kube.kinds import SECRET
from dsv4_operator.kube.port import JsonObject, KubeApi
from dsv4_operator.plan.pruning import is_owned
from dsv4_operator.runtime.children import ForeignObject
from dsv4_operator.runtime.outcome import NotYet

REREAD_SECONDS = 300.0


class RouterKeys:
    """Reads or makes the Secret of a deployment, and remembers the key for five minutes.

    Secrets are never listed or watched: the operator's rights on them are get and create, no more.
    """

    def __init__(self, api: KubeApi, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, str, str]] = {}

    async def ensure(self, ctx: DesiredContext) -> str:
        """The key of this deployment; creates the Secret when there is none. Raises ForeignObject, NotYet, ApiError."""
        known = self._known.get((ctx.namespace, ctx.name))
        if known is not None and known[1] == ctx.uid and self._clock() - known[0] < REREAD_SECONDS:
            return known[2]
        intent = build_router_key_secret(ctx, secrets.token_urlsafe(32))
        name = intent["metadata"]["name"]
        live = await self._api.get(SECRET, ctx.namespace, name)
        if live is None:
            try:
                live = await self._api.create(intent)
            except AlreadyExists:
                raise NotYet(f"Secret {name} appeared meanwhile", after=1.0) from None
        key = self._read(live, ctx)
        self._known[ctx.namespace, ctx.name] = (self._clock(), ctx.uid, key)
        return key

    def forget(self, namespace: str, name: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._known.pop((namespace, name), None)

    @staticmethod
    def _read(live: JsonObject, ctx: DesiredContext) -> str:
        name = live["metadata"]["name"]
        if not is_owned(live, ctx.uid):
            if live["metadata"].get("ownerReferences"):
                raise NotYet(f"Secret {name} of a deleted deployment is being collected", after=2.0)
            raise ForeignObject(f"Secret {name} exists and is not ours; delete it, or rename this deployment")
        try:
            return base64.b64decode(live["data"][KEY_NAME]).decode()
        except (KeyError, TypeError, ValueError):
            raise ForeignObject(f"Secret {name} has no key {KEY_NAME!r}; delete it and it is made anew") from None
