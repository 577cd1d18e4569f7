"""The operator's view of the API server, as a Protocol: what reconcile and runtime are written against.

Objects are plain dicts with apiVersion and kind, those in lists too. Every method raises kube.errors.ApiError
subclasses and nothing else (besides CancelledError), and is bounded by the client's request time-out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from dsv4_operator.kube.kinds import Kind

JsonObject = dict[str, Any]


class Listing(NamedTuple):
    """The whole of one list, after all chunks."""

    items: list[JsonObject]
    resource_version: str
    """Revision the list is consistent with (of its first chunk); feed it to ObjectCache.replace_all."""


class CallObserver(Protocol):
    """Told about every request, including failed ones; runtime.metrics.OperatorMetrics is one."""

    def api_call(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """`verb` get, list, apply, apply_status, patch, create, update, delete; `code` an HTTP status, or a
        lower-case word when there was no answer (`timeout`, `error`)."""


class KubeApi(Protocol):
    """Reads and writes of the API server."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> JsonObject | None:
        """The live object; None when there is none. Raises KindNotInstalled when the kind is not served."""

    async def list(self, kind: Kind, namespace: str | None = None, label_selector: str | None = None) -> Listing:
        """All objects of a kind (in one namespace, or in all), read in chunks of 500.

        A continuation that expired meanwhile (410) falls back to one full list, as client-go's pager does.
        """

    async def apply(self, obj: Mapping[str, Any], field_manager: str, force: bool = False) -> JsonObject:
        """Server-side apply of the full intent of one field manager; creates or updates. Returns the live
        object.

        Raises Conflict with the fields in `causes` when others own some and `force` is False.
        """

    async def apply_status(self, obj: Mapping[str, Any], field_manager: str) -> JsonObject:
        """Server-side apply (forced: status has one owner) to /status. `obj` needs apiVersion, kind,
        metadata.name/namespace and status; NotFound when the object is gone.

        With metadata.uid or metadata.resourceVersion in `obj`, raises Conflict when the live object differs.
        """

    async def annotate(
        self, kind: Kind, namespace: str | None, name: str, annotations: Mapping[str, str | None]
    ) -> JsonObject:
        """Merge-patch of metadata.annotations; a None value removes that key. Raises NotFound."""

    async def create(self, obj: Mapping[str, Any]) -> JsonObject:
        """Create. Raises AlreadyExists."""

    async def replace(self, obj: Mapping[str, Any]) -> JsonObject:
        """Replace the whole object (PUT). With metadata.resourceVersion in `obj` this is optimistic
        concurrency: raises Conflict when the live object moved on."""

    async def delete(
        self, kind: Kind, namespace: str | None, name: str, uid: str | None, propagation: str = "Background"
    ) -> bool:
        """Delete the object with exactly this uid. False when it is gone already, or when an object of that
        name with another uid took its place (which is left alone). `uid` None deletes whatever has the name.
        """

    async def close(self) -> None:
        """Close the connections."""
