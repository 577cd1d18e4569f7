"""Where a prompt's prefix came from, as the engines' answers tell. Pure; never raises on damaged input.

SGLang reports the count of cached prompt tokens with ``--enable-cache-report``, and by tier when the request asks
with ``return_cached_tokens_details`` (``sglext`` of a chat completion) or always (``meta_info`` of ``/generate``).
Releases differ on whether a count of 0 is reported or left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsv4_canary.model import Cache


@dataclass(frozen=True, slots=True)
class Cached:
    """Cached prompt tokens; None where an answer does not say."""

    total: int | None = None
    device: int | None = None
    host: int | None = None
    """From host memory or storage."""

    def merge(self, other: Cached) -> Cached:
        """What two answers to one request say together: in a pair only prefill has the cache.

        Tiers that do not add up to the total come from the side without it, and tell nothing.
        """
        total = _most(self.total, other.total)
        device, host = _most(self.device, other.device), _most(self.host, other.host)
        if total is not None and (device or 0) + (host or 0) < total:
            device, host = None, None
        return Cached(total, device, host)


def _most(a: int | None, b: int | None) -> int | None:
    return max((value for value in (a, b) if value is not None), default=None)


def read_cached(data: bytes) -> Cached:
    """Read a body: a chat completion, its event stream, or the answer of ``/generate``."""
    found = Cached()
    for body in _bodies(data):
        found = found.merge(_of_body(body))
    return found


def _bodies(data: bytes) -> Iterator[Mapping[str, Any]]:
    """Decoded JSON objects that may hold counts."""
    texts = [data]
    if data.lstrip()[:5] == b"data:":
        # Only the last chunks carry counts; a long stream is not parsed twice as a whole.
        texts = [line[5:] for line in data.split(b"\n") if line.startswith(b"data:") and b"cached_tokens" in line]
    for text in texts:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(body, Mapping):
            yield body


def _of_body(body: Mapping[str, Any]) -> Cached:
    found = Cached()
    meta, usage, extension = (_mapping(body.get(key)) for key in ("meta_info", "usage", "sglext"))
    for holder in (meta, _mapping(usage.get("prompt_tokens_details"))):
        found = found.merge(Cached(total=_count(holder.get("cached_tokens"))))
    for holder in (meta, extension):
        details = holder.get("cached_tokens_details")
        if isinstance(details, Mapping):
            counts = {key: _count(value) or 0 for key, value in details.items()}
            host = sum(count for key, count in counts.items() if key in ("host", "storage"))
            device = counts.get("device", 0)
            found = found.merge(Cached(device + host, device, host))
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def cache_label(cached: Cached, *, reported_before: bool, loaded_back: float | None = None) -> Cache:
    """Label a prompt's prefix.

    ``reported_before``: some answer has told a count before, so one that is missing now is 0.
    ``loaded_back``: tokens by which prefill's load-back counter rose meanwhile, None when it is not known. It
    decides only where the answer does not tell the tiers apart: other requests load back too.
    """
    if cached.host:
        return Cache.HOST
    if cached.total is None:
        return Cache.COLD if reported_before else Cache.UNKNOWN
    if not cached.total:
        return Cache.COLD
    if cached.host is None and loaded_back:
        return Cache.HOST
    return Cache.DEVICE
