"""Rules about images and the release inside them."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.engine.releases import KNOWN_RELEASES, is_moving
from dsv4_operator.policy.finding import Action, Rule, Subject

_KNOWN = ", ".join(KNOWN_RELEASES)


def _image_unset(subject: Subject) -> Iterator[tuple[str, str]]:
    wanted = [("spec.engine.image", subject.images.engine, "engineImage")]
    if subject.spec.canary.enabled:
        wanted.append(("spec.canary.image", subject.images.canary, "canaryImage"))
    if subject.spec.router.enabled:
        wanted.append(("spec.router.image", subject.images.router, "routerImage"))
    for path, image, setting in wanted:
        if not image:
            yield (
                path,
                (
                    f"no image: neither {path} nor the operator's default is set, and there is no published one to "
                    f"fall back to; build it from images/ and set {path} or the chart value defaults.{setting}"
                ),
            )


def _unknown_release(subject: Subject) -> Iterator[tuple[str, str]]:
    image = subject.images.engine
    if not image:
        return
    if subject.release is None:
        yield (
            "spec.engine.release",
            (
                f"the SGLang release inside {image} is unknown: its tag names none; "
                f"set spec.engine.release (known: {_KNOWN})"
            ),
        )
    elif subject.release not in KNOWN_RELEASES:
        yield (
            "spec.engine.release",
            (
                f"SGLang {subject.release} is not a release that this operator knows, so its flags and faults are "
                f"unknown (known: {_KNOWN}); use a known one, or a newer operator; where the tag speaks of something "
                "else, set spec.engine.release"
            ),
        )


def _moving_tag(subject: Subject) -> Iterator[tuple[str, str]]:
    if subject.images.engine and is_moving(subject.images.engine):
        yield (
            "spec.engine.image",
            (
                f"{subject.images.engine} can mean another image tomorrow: the KV fingerprint cannot see that, and a "
                "pod that is replaced may not match its peers; pin a version tag or a digest"
            ),
        )


RULES = (
    Rule(
        "image-unset",
        Action.REFUSE,
        "Every container needs an image",
        "design: nobody publishes the gated image yet",
        _image_unset,
        allowable=False,
    ),
    Rule(
        "unknown-release",
        Action.REFUSE,
        "The SGLang release must be known",
        "flags and faults differ by release",
        _unknown_release,
        allowable=False,
    ),
    Rule(
        "moving-tag",
        Action.WARN,
        "An image tag that moves hides changes from the fingerprint",
        "design section 3",
        _moving_tag,
    ),
)
