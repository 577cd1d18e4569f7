"""SGLang releases that the operator knows, what is thought of each, and how a release is found for an image.

Adding one: `python hack/contract/update.py X.Y.Z` writes its data and says what changed, then a line in `_VERDICTS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.post\d+)?")


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One SGLang release.

    Compares by version; `ready_endpoint` is the cheapest HTTP path that means "serves requests".
    """

    version: tuple[int, int, int]
    ready_endpoint: str = field(default="/health", compare=False)

    @classmethod
    def parse(cls, text: str) -> Release:
        """From "0.5.21" or "0.5.21.post1"; ValueError for anything else. A known release is returned as known."""
        match = _VERSION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a SGLang release such as {DEFAULT_RELEASE}")
        major, minor, patch = (int(part) for part in match.groups())
        found = cls((major, minor, patch))
        return KNOWN_RELEASES.get(str(found), found)

    def __str__(self) -> str:
        return ".".join(str(part) for part in self.version)


@dataclass(frozen=True, slots=True)
class ReleaseRange:
    """Releases from `first` to `last`, both inside; None leaves that end open."""

    first: Release | None = None
    last: Release | None = None

    @classmethod
    def of(cls, first: str | None = None, last: str | None = None) -> ReleaseRange:
        """From texts: `ReleaseRange.of("0.5.15", "0.5.22")`."""
        return cls(Release.parse(first) if first else None, Release.parse(last) if last else None)

    def __contains__(self, release: Release) -> bool:
        return (self.first is None or self.first <= release) and (self.last is None or release <= self.last)

    def __str__(self) -> str:
        if self.first is not None and self.last is not None:
            return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
        if self.first is not None:
            return f"{self.first} and later"
        return f"up to {self.last}" if self.last is not None else "all"

    def known(self) -> list[Release]:
        """The known releases inside, rising."""
        return [release for release in KNOWN_RELEASES.values() if release in self]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is thought of a release for DeepSeek-V4 in prefill/decode over NIXL.

    `usable`: it can serve, with the values that policy sets. `recommended`: with nothing known to be open that the
    canary alone would have to catch.
    """

    usable: bool
    recommended: bool
    note: str
    source: str


_READY_ROUTE: Final = (0, 5, 20)
"""GET /ready exists from 0.5.20 on (sglang srt/entrypoints/http_server.py); it answers at once, /health does not."""

_NIXL_REPORTS = "sgl-project/sglang #34692 (a NIXL prefill request stays in Bootstrapping for ever; fixed in 0.5.18)"

_VERDICTS: Final[dict[tuple[int, int, int], Verdict]] = {
    (0, 5, 12): Verdict(
        False,
        False,
        "NIXL too old; first release with V4, text parser, abort race open, no scheduler barrier",
        _NIXL_REPORTS,
    ),
    (0, 5, 13): Verdict(
        False,
        False,
        "NIXL too old; overlap with EAGLE and attention data parallelism hangs",
        "sgl-project/sglang #34692, #27938",
    ),
    (0, 5, 14): Verdict(False, False, "NIXL too old; HiCache deadlocks reported", _NIXL_REPORTS),
    (0, 5, 15): Verdict(
        False,
        False,
        "NIXL too old; early send of cached prefixes races with overlap and with HiCache loads",
        "sgl-project/sglang #34692, #44070",
    ),
    (0, 5, 16): Verdict(
        False,
        False,
        "NIXL too old; sliding-window corruption reported; retraction crashes",
        "sgl-project/sglang #34692, #33656",
    ),
    (0, 5, 17): Verdict(
        False,
        False,
        "NIXL too old; HiCache loses the draft's state with speculation",
        "sgl-project/sglang #34692, #32176",
    ),
    (0, 5, 18): Verdict(
        True,
        False,
        "oldest on which NIXL serves V4; decode must never retract, aborted pages are reused at once",
        "sgl-project/sglang #36179 (a good run), #35049, #35360 (abort reuse)",
    ),
    (0, 5, 19): Verdict(
        True,
        False,
        "stale metadata fixed; tool-call markup leaks remain; NIXL does not defer the release of aborted pages",
        "sgl-project/sglang #35049",
    ),
    (0, 5, 20): Verdict(
        True,
        False,
        "as 0.5.19, with GET /ready",
        "sglang srt/entrypoints/http_server.py (0.5.20)",
    ),
    (0, 5, 21): Verdict(
        True,
        True,
        "good: NIXL defers the release of aborted pages, the parser fails closed; retraction backup none is set",
        "sglang srt/disaggregation/nixl/conn.py (0.5.21)",
    ),
    (0, 5, 22): Verdict(
        True, True, "good: a retracted request is prefilled again", "sglang srt/disaggregation/decode.py (0.5.22)"
    ),
    (0, 5, 23): Verdict(
        True,
        True,
        "best: HiCache loads are guarded against early send, tool calls are parsed by token",
        "sgl-project/sglang #44070",
    ),
}


def _release(version: tuple[int, int, int]) -> Release:
    return Release(version, ready_endpoint="/ready" if version >= _READY_ROUTE else "/health")


KNOWN_RELEASES: Final[dict[str, Release]] = {
    str(release): release for release in (_release(version) for version in sorted(_VERDICTS))
}
"""By name, rising. The data of each was read in its wheel; tests/contract proves it."""

DEFAULT_RELEASE: Final = KNOWN_RELEASES["0.5.23"]
"""The newest release read and tested."""

OLDEST_USABLE: Final = min(release for release in KNOWN_RELEASES.values() if _VERDICTS[release.version].usable)
OLDEST_RECOMMENDED: Final = min(
    release for release in KNOWN_RELEASES.values() if _VERDICTS[release.version].recommended
)


def verdict(release: Release) -> Verdict:
    """What is thought of `release`; an unknown one is neither usable nor recommended."""
    unknown = Verdict(False, False, "unknown to this operator: flags and faults of it were not read", "none")
    return _VERDICTS.get(release.version, unknown)


def recommended_releases() -> list[Release]:
    """Rising."""
    return [release for release in KNOWN_RELEASES.values() if verdict(release).recommended]


def range_of(releases: Iterable[Release]) -> ReleaseRange | None:
    """The smallest range that holds `releases`, open where it reaches the oldest or newest known; None when empty."""
    held = sorted(releases)
    if not held:
        return None
    known = list(KNOWN_RELEASES.values())
    return ReleaseRange(
        None if held[0] == known[0] else held[0],
        None if held[-1] == known[-1] else held[-1],
    )


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
