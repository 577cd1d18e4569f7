"""SGLang releases that the operator knows, and how a release is found for an image.

Adding a release is adding data here and running the contract tests against its wheel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One SGLang release.

    Compares by version; `ready_endpoint` is the cheapest HTTP path that means "serves requests".
    """

    version: tuple[int, int, int]
    ready_endpoint: str = "/health"

    def __str__(self) -> str:
        return ".".join(str(part) for part in self.version)


DEFAULT_RELEASE: Final = Release((0, 5, 23), ready_endpoint="/ready")
"""The newest release read and tested: GET /ready exists from 0.5.23 on (sglang srt/entrypoints/http_server.py)."""

KNOWN_RELEASES: Final[dict[str, Release]] = {str(release): release for release in (DEFAULT_RELEASE,)}

_TAG_RELEASE = re.compile(r"(?:^|[^0-9.])v?(\d+\.\d+\.\d+)(?:[^0-9.]|\.post|$)")
_MOVING_TAGS: Final = frozenset({"latest", "dev", "main", "nightly", "edge", "stable"})


def image_tag(image: str) -> str | None:
    """The tag of an image reference, or None when it has none or is given by digest alone."""
    name = image.split("@", 1)[0]
    last = name.rsplit("/", 1)[-1]
    return last.split(":", 1)[1] if ":" in last else None


def release_of(image: str, declared: str | None) -> str | None:
    """The SGLang release inside `image`: as declared in the spec, else as the tag says, else None."""
    if declared is not None:
        return declared
    match = _TAG_RELEASE.search(image_tag(image) or "")
    return match.group(1) if match else None


def is_moving(image: str) -> bool:
    """Whether the same reference can mean another image tomorrow: no digest, and a tag such as latest or none."""
    if "@" in image:
        return False
    tag = image_tag(image)
    return tag is None or tag in _MOVING_TAGS
