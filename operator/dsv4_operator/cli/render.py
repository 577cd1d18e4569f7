"""`dsv4ctl render`: every child that the operator would apply, in its order."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from dsv4_operator.api.v1alpha1 import DSV4Deployment
from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, UnreadableError
from dsv4_operator.cli.judge import Judgement, finding_line, image_defaults, judge
from dsv4_operator.cli.output import print_json, print_line, print_yaml
from dsv4_operator.desired import DesiredContext, build_children
from dsv4_operator.desired.router import build_router_key_secret
from dsv4_operator.desired.workers import build_workers
from dsv4_operator.engine.images import Images
from dsv4_operator.engine.releases import DEFAULT_RELEASE, Release

EMPTY: Final[dict[str, Any]] = {"apiVersion": "v1", "kind": "List", "items": []}
NO_IMAGE: Final = "unset.invalid/image"
"""Stands where a forced rendering has no image; .invalid can never resolve."""


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when refused (also with --force, which renders all the same)."""
    judgement = judge(args.filename, image_defaults(args), assume=args.assume_images)
    if judgement.unreadable:
        raise UnreadableError(judgement.unreadable[0])
    for finding in judgement.findings:
        print_line(finding_line(finding), sys.stderr)
    children: list[dict[str, Any]] = []
    if judgement.deployment is not None and (args.force or not judgement.refused):
        children = children_of(context(judgement, judgement.deployment))
    elif judgement.deployment is None:
        print_line(f"{judgement.file}: not rendered: the schema refuses it, which --force cannot pass over", sys.stderr)
    else:
        print_line(f"{judgement.file}: not rendered: policy refuses it; --force renders it all the same", sys.stderr)
    if args.output == "json":
        print_json(EMPTY | {"items": children})
    elif children:
        print_yaml(children)
    return EXIT_REFUSED if judgement.refused else EXIT_FINE


def context(judgement: Judgement, deployment: DSV4Deployment) -> DesiredContext:
    """What the builders need."""
    images = judgement.images
    return make_context(deployment, images or Images(None, None, None), judgement.release or DEFAULT_RELEASE)


def make_context(deployment: DSV4Deployment, images: Images, release: Release) -> DesiredContext:
    """The builders' context of an object that may come from a file, without uid."""
    return DesiredContext(
        name=deployment.metadata.name,
        namespace=deployment.metadata.namespace,
        uid=deployment.metadata.uid,
        spec=deployment.spec,
        images=Images(
            engine=images.engine or NO_IMAGE, canary=images.canary or NO_IMAGE, router=images.router or NO_IMAGE
        ),
        release=release,
    )


def children_of(ctx: DesiredContext) -> list[dict[str, Any]]:
    """All children in the order of their application.

    Owner references are left out where the object has no uid yet: the cluster would collect objects with a wrong
    owner. The router's key is left out always: the operator makes it, once, and nobody shall know it beforehand.
    """
    children: list[dict[str, Any]] = []
    if ctx.spec.router.enabled:
        secret = build_router_key_secret(ctx, "")
        del secret["stringData"]
        children += [secret, build_workers(ctx.name, ctx.namespace, ctx.uid, ctx.fingerprint, [], {})]
    children += build_children(ctx)
    if not ctx.uid:
        for child in children:
            del child["metadata"]["ownerReferences"]
    return children
