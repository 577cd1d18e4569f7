"""`dsv4ctl plan`: what a change does to each role, which fields cause it, and in which steps it is made."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.api.v1alpha1 import DSV4Deployment
from dsv4_operator.cli.comparison import Plan, RoleAction, RolePlan, compare, first_plan
from dsv4_operator.cli.errors import EXIT_FINE, EXIT_REFUSED, UnreadableError
from dsv4_operator.cli.judge import Judgement, assumed_images, finding_line, image_defaults, judge
from dsv4_operator.cli.output import print_json, print_line, print_table
from dsv4_operator.cli.render import context, make_context
from dsv4_operator.desired import DesiredContext
from dsv4_operator.engine.images import resolve_images
from dsv4_operator.engine.releases import KNOWN_RELEASES, release_of
from dsv4_operator.policy import refusals

_NOTHING: Final[dict[str, Any]] = {role.value: {"action": "None", "because": []} for role in ENGINE_ROLES}
EMPTY: Final[dict[str, Any]] = {"roles": _NOTHING, "steps": []}


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 1 when policy refuses the new spec (nothing is changed then, unless --force)."""
    new = _read(args.filename, args)
    old = _read(args.old, args) if args.old is not None else None
    if new.refused and (new.deployment is None or not args.force):
        first = refusals(new.findings)[0]
        plan = _no_change(f"nothing is changed: {first.rule} refuses {first.path}")
    else:
        assert new.deployment is not None  # else refused
        plan = _plan(old, new, new.deployment, args)
        if new.deployment.spec.paused:
            plan = _no_change("nothing is changed while spec.paused is true")
    for finding in new.findings:
        print_line(finding_line(finding), sys.stderr)
    if args.output == "json":
        print_json(plan_json(plan))
    else:
        _show(plan)
    return EXIT_REFUSED if new.refused else EXIT_FINE


def _no_change(why: str) -> Plan:
    return Plan({role: RolePlan(RoleAction.NONE, []) for role in ENGINE_ROLES}, [why])


def _read(path: str, args: argparse.Namespace) -> Judgement:
    # An image that neither object names is the same before and after, so it need not be known.
    judgement = judge(path, image_defaults(args), assume=True)
    if judgement.unreadable:
        raise UnreadableError(judgement.unreadable[0])
    return judgement


def _plan(old: Judgement | None, new: Judgement, wanted: DSV4Deployment, args: argparse.Namespace) -> Plan:
    if old is None:
        return first_plan(context(new, wanted))
    if old.deployment is None:
        problem = old.findings[0]
        raise UnreadableError(f"{old.file}: {problem.path}: {problem.message}")
    for field in ("name", "namespace"):
        was, now = getattr(old.deployment.metadata, field), getattr(wanted.metadata, field)
        if was != now:
            raise UnreadableError(f"{old.file}: metadata.{field} is {was}, in {new.file} {now}: not the same object")

    def context_of(deployment: DSV4Deployment) -> DesiredContext | None:
        spec = deployment.spec
        images = resolve_images(spec, assumed_images(spec, image_defaults(args)))
        release = KNOWN_RELEASES.get(release_of(images.engine or "", spec.engine.release) or "")
        return None if release is None else make_context(deployment, images, release)

    return compare(old.deployment, wanted, context_of)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The documented form of a plan."""
    return {
        "roles": {
            role.value: {"action": entry.action.value, "because": entry.because} for role, entry in plan.roles.items()
        },
        "steps": plan.steps,
    }


def _show(plan: Plan) -> None:
    rows = [(role.value, entry.action.value, ", ".join(entry.because)) for role, entry in plan.roles.items()]
    print_table(
        ("ROLE", "ACTION", "BECAUSE OF"),
        rows,
        [f"{role:<8} {action:<13} {because}".rstrip() for role, action, because in rows],
    )
    for number, step in enumerate(plan.steps, start=1):
        print_line(f"{number}. {step}")
    if not plan.steps:
        print_line("Nothing changes.")
