"""Events that people see in `kubectl describe`: collected during a pass, posted once at its end.

An event tells of a transition. As a second guard the same (object, reason, message) is posted at most once in
`ttl` seconds. Nothing here ever fails a pass: an event that cannot be posted is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from dsv4_operator.kube.errors import ApiError, NotFound
from dsv4_operator.kube.kinds import EVENT
from dsv4_operator.kube.port import JsonObject, KubeApi

LOG = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
Fingerprint = tuple[str, str, str]

# pkg/apis/core/validation/events.go: message 1024 bytes, reason, action and reportingInstance 128.
MAX_MESSAGE_BYTES: Final = 1024
MAX_WORD: Final = 128
MAX_REMEMBERED: Final = 10_000
MAX_PER_PASS: Final = 20


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Shared by all passes. `component` names the controller, `instance` this process (Pod name).

    `flush_seconds` bounds the time that one pass spends on posting.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        component: str,
        instance: str,
        ttl: float = 600.0,
        flush_seconds: float = 5.0,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self.api, self.component, self.instance = api, component, instance[:MAX_WORD]
        self.flush_seconds = flush_seconds
        self.now = now
        self._ttl = ttl
        self._posted: OrderedDict[Fingerprint, float] = OrderedDict()

    def batch(self) -> EventBatch:
        """The events of one pass."""
        return EventBatch(self)

    def is_news(self, fingerprint: Fingerprint) -> bool:
        """Whether this was not posted within the last `ttl` seconds."""
        posted = self._posted.get(fingerprint)
        return posted is None or _loop_time() - posted >= self._ttl

    def remember(self, fingerprint: Fingerprint) -> None:
        """Note that this was posted now."""
        self._posted.pop(fingerprint, None)
        self._posted[fingerprint] = _loop_time()
        while len(self._posted) > MAX_REMEMBERED:
            self._posted.popitem(last=False)


class EventBatch:
    """Collects; `flush` posts. Made by EventRecorder.batch."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._waiting: dict[Fingerprint, JsonObject] = {}

    def add(
        self,
        regarding: Mapping[str, Any],
        event_type: EventType,
        reason: str,
        message: str,
        action: str = "Reconcile",
    ) -> None:
        """Note an event about the object `regarding` (a live object: kind, name, namespace and uid are read).

        `reason` and `action` are CamelCase words; the message is one sentence without times or counts.
        """
        fingerprint = (str(regarding["metadata"].get("uid") or ""), reason, message)
        if fingerprint in self._waiting or not self._recorder.is_news(fingerprint):
            return
        if len(self._waiting) >= MAX_PER_PASS:
            LOG.warning("more than %d events in one pass; dropped: %s %s", MAX_PER_PASS, reason, message)
            return
        self._waiting[fingerprint] = _event(self._recorder, regarding, event_type, (reason, message, action))

    async def flush(self) -> int:
        """Post what was collected; returns how many were. Never raises but CancelledError."""
        waiting, self._waiting = self._waiting, {}
        posted = 0
        try:
            async with asyncio.timeout(self._recorder.flush_seconds):
                for fingerprint, event in waiting.items():
                    if await self._post(event):
                        self._recorder.remember(fingerprint)
                        posted += 1
        except TimeoutError:
            LOG.warning(
                "%d of %d events not posted within %g s",
                len(waiting) - posted,
                len(waiting),
                self._recorder.flush_seconds,
            )
        return posted

    async def _post(self, event: JsonObject) -> bool:
        try:
            await self._recorder.api.create(event)
        except NotFound:
            return False  # the namespace went away
        except ApiError as error:
            # A namespace that is being deleted forbids new objects: nobody reads them there.
            LOG.warning("event %s not posted (%s): %s", event["reason"], event["message"], error)
            return False
        return True


def _event(
    recorder: EventRecorder,
    regarding: Mapping[str, Any],
    event_type: EventType,
    words: tuple[str, str, str],
) -> JsonObject:
    reason, message, action = words
    metadata = regarding["metadata"]
    # Events about cluster-scoped objects live in `default`.
    namespace = metadata.get("namespace") or "default"
    stamp = recorder.now().astimezone(UTC)
    seconds = stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            "name": metadata["name"],
            "namespace": metadata.get("namespace") or "",
            "uid": metadata.get("uid") or "",
        },
        "type": event_type,
        "reason": reason[:MAX_WORD],
        "message": _cut(message),
        "action": action[:MAX_WORD],
        "eventTime": stamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        # kubectl sorts and shows by the older fields.
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "count": 1,
        "reportingComponent": recorder.component,
        "reportingInstance": recorder.instance,
        "source": {"component": recorder.component},
    }


def _cut(message: str) -> str:
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "..."


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
