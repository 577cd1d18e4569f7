"""Rules about images and the release inside them."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.engine.releases import KNOWN_RELEASES, OLDEST_RECOMMENDED, ReleaseRange, is_moving, verdict
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_KNOWN = ", ".join(KNOWN_RELEASES)
_NOT_RECOMMENDED = [release for release in KNOWN_RELEASES.values() if not verdict(release).recommended]


def _image_unset(subject: Subject) -> Iterator[Remark]:
    wanted = [("spec.engine.image", subject.images.engine, "engineImage")]
    if subject.spec.canary.enabled:
        wanted.append(("spec.canary.image", subject.images.canary, "canaryImage"))
    if subject.spec.router.enabled:
        wanted.append(("spec.router.image", subject.images.router, "routerImage"))
    for path, image, setting in wanted:
        if not image:
            yield (
                path,
                f"no image: neither {path} nor the operator's default is set, and there is no published one to "
                f"fall back to; build it from images/ and set {path} or the chart value defaults.{setting}",
            )


def _unknown_release(subject: Subject) -> Iterator[Remark]:
    image = subject.images.engine
    if not image:
        return
    if subject.release is None:
        yield (
            "spec.engine.release",
            f"the SGLang release inside {image} is unknown: its tag names none; "
            f"set spec.engine.release (known: {_KNOWN})",
        )
    elif subject.known is None:
        yield (
            "spec.engine.release",
            f"SGLang {subject.release} is not a release that this operator knows, so its flags and faults are "
            f"unknown (known: {_KNOWN}); use a known one, or a newer operator; where the tag speaks of something "
            "else, set spec.engine.release",
        )


def _moving_tag(subject: Subject) -> Iterator[Remark]:
    if subject.images.engine and is_moving(subject.images.engine):
        yield (
            "spec.engine.image",
            f"{subject.images.engine} can mean another image tomorrow: the KV fingerprint cannot see that, and a "
            "pod that is replaced may not match its peers; pin a version tag or a digest",
        )


def _not_recommended(subject: Subject) -> Iterator[Remark]:
    if subject.known is not None and subject.known in _NOT_RECOMMENDED:
        yield (
            "spec.engine.release",
            f"SGLang {subject.known} is not recommended for V4 in prefill/decode: {verdict(subject.known).note}; "
            f"use an image of SGLang {OLDEST_RECOMMENDED} or later",
        )


RULES = (
    Rule(
        id="image-unset",
        action=Action.REFUSE,
        title="Every container needs an image",
        source="this operator",
        explanation=(
            "The engine image carries SGLang, NIXL and the gate of the index keys; nobody publishes it, so there is no "
            "default that would work everywhere. The administrator sets defaults for all deployments with chart "
            "values, or each deployment names its own."
        ),
        check=_image_unset,
        allowable=False,
    ),
    Rule(
        id="unknown-release",
        action=Action.REFUSE,
        title="The SGLang release must be known",
        source="this operator",
        explanation=(
            "Flags are renamed and faults come and go with nearly every release of SGLang. Without knowing which one "
            "an image holds, the operator can neither write a command that it accepts nor avoid what it gets wrong. "
            "The release is read from the image's tag, or from spec.engine.release, which wins."
        ),
        check=_unknown_release,
        allowable=False,
    ),
    Rule(
        id="moving-tag",
        action=Action.WARN,
        title="An image tag that moves hides changes from the fingerprint",
        source="this operator",
        explanation=(
            "Prefill and decode may be paired only when they agree on what the bytes of KV mean. The operator knows "
            "that from the image reference, among other things. When the same reference means another image next "
            "week, a pod that is replaced then joins peers that it may not match."
        ),
        check=_moving_tag,
    ),
    Rule(
        id="release-not-recommended",
        action=Action.WARN,
        title="Releases that work, with known faults",
        source="sglang 0.5.12 to 0.5.23, all wheels read",
        releases=ReleaseRange(_NOT_RECOMMENDED[0], _NOT_RECOMMENDED[-1]),
        explanation=(
            "Each release of SGLang has faults on the path from prefill to decode that a later one mends. The note "
            "says which ones are left after what the operator renders around them; single rules speak of those that "
            "your spec can meet."
        ),
        check=_not_recommended,
    ),
)
