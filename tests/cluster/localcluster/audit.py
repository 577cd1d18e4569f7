"""Reading the API server's audit log: who asked for what."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WRITE_VERBS = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class AuditEvent:
    """One finished request. `received` is the API server's clock, which is this machine's."""

    received: datetime
    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user_agent: str
    status: int
    uri: str
    stage: str

    @property
    def is_write(self) -> bool:
        """True for verbs that change something."""
        return self.verb in WRITE_VERBS


def _parse(raw: dict[str, Any]) -> AuditEvent:
    target = raw.get("objectRef") or {}
    return AuditEvent(
        received=datetime.fromisoformat(raw["requestReceivedTimestamp"].replace("Z", "+00:00")),
        user=raw["user"].get("username", ""),
        verb=raw["verb"],
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user_agent=raw.get("userAgent", ""),
        status=(raw.get("responseStatus") or {}).get("code", 0),
        uri=raw["requestURI"],
        stage=raw["stage"],
    )


def read_events(path: Path, since: datetime | None = None, stage: str = "ResponseComplete") -> Iterator[AuditEvent]:
    """Events of one stage, received at `since` or later (aware datetime), in the order of the file.

    Watches finish when they end; pass stage "ResponseStarted" to see them open.
    """
    if since is not None and since.tzinfo is None:
        raise ValueError("since must carry a time zone")
    with path.open() as handle:
        for line in handle:
            if not line.endswith("\n"):
                return
            event = _parse(json.loads(line))
            if event.stage == stage and (since is None or event.received >= since):
                yield event


def now() -> datetime:
    """A mark for `read_events(since=...)`."""
    return datetime.now(UTC)
