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

_TAG_RELEASE = re.compile(r"(?<![0-9.])(\d+\.\d+\.\d+)(?![0-9]|\.[0-9]|\.?dev|-?rc|[ab][0-9])")
"""A release in a tag: 0.5.23, v0.5.23-cu130, 0.5.23.post1; not 0.5.23rc1 or 0.5.23.dev4, whose content differs."""
_POST = re.compile(r"\.post\d+$")
_MOVING_TAGS: Final = frozenset({"latest", "dev", "main", "nightly", "edge", "stable"})
_PINNED = re.compile(r"(^|-)([0-9]{8}|[0-9a-f]{7,40})(-|$)")
"""A date or a commit in a tag: it names one build."""


def image_tag(image: str) -> str | None:
    """The tag of an image reference, or None when it has none or is given by digest alone."""
    name = image.split("@", 1)[0]
    last = name.rsplit("/", 1)[-1]
    return last.split(":", 1)[1] if ":" in last else None


def release_of(image: str, declared: str | None) -> str | None:
    """The SGLang release inside `image`: as declared in the spec, else as the tag says, else None.

    A post release counts as the release that it mends: flags and rules are the same. Where a tag holds several
    versions (cuda13.0.1-0.5.23), a known release is meant.
    """
    if declared is not None:
        return _POST.sub("", declared)
    found: list[str] = _TAG_RELEASE.findall(image_tag(image) or "")
    return next((release for release in found if release in KNOWN_RELEASES), next(iter(found), None))


def is_moving(image: str) -> bool:
    """Whether the same reference can mean another image tomorrow: no digest, and no tag or one such as latest-cu130."""
    if "@" in image:
        return False
    tag = image_tag(image)
    return tag is None or (tag.split("-", 1)[0] in _MOVING_TAGS and _PINNED.search(tag) is None)
