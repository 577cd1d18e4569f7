"""`dsv4ctl bisect`: from a DSV4Deployment to the factor that corrupts its replies."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any, Final

from dsv4_operator.cli.bisect import report as reports
from dsv4_operator.cli.bisect.backup import Backup
from dsv4_operator.cli.bisect.cluster import ClusterRunner
from dsv4_operator.cli.bisect.execute import Bisection
from dsv4_operator.cli.bisect.factors import Factor
from dsv4_operator.cli.bisect.objects import setting_of
from dsv4_operator.cli.bisect.plan import Limits, Plan, make_plan
from dsv4_operator.cli.bisect.runner import TeardownError
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.files import load_object, shown_name
from dsv4_operator.cli.judge import Judgement, finding_line, image_defaults, judge_object
from dsv4_operator.cli.kubectl import ClusterError, connect
from dsv4_operator.cli.output import print_json, warn
from dsv4_operator.cli.soak_cluster import check_load, new_run, termination_as_interrupt
from dsv4_operator.policy import refusals

EMPTY: Final[dict[str, Any]] = {"kind": "dsv4-bisection"}
_LOAD: Final = ("sessions", "rounds", "ctx", "shared_ctx", "share", "max_tokens", "timeout")
_RANGES: Final = (
    ("batches", 1, 50),
    ("startup_minutes", 0, 10_000),
    ("batch_minutes", 0, 10_000),
    ("max_gpu_hours", 0, 1e6),
    ("start_timeout", 1, 1e6),
)
_EARLY_SEND: Final = "the operator turns it off wherever it exists"


def run(args: argparse.Namespace) -> int:
    """Exit status as in the epilog of --help."""
    raw = load_object(args.filename)
    name = shown_name(args.filename)
    judgement = judge_object(raw, name, image_defaults(args), assume=True)
    if judgement.unreadable:
        raise UnreadableError(judgement.unreadable[0])
    refused = refusals(judgement.findings)
    if refused or judgement.deployment is None:
        raise UnreadableError(f"{name}: is refused, so no arm of it could run: {finding_line(refused[0])}")
    plan = plan_of(args, judgement)
    if args.dry_run:
        if args.output == "json":
            print_json({"kind": "dsv4-bisection-plan", **reports.plan_json(plan)})
        else:
            sys.stdout.write(reports.plan_text(plan))
        return 0
    return _run(args, raw, judgement, plan)


def plan_of(args: argparse.Namespace, judgement: Judgement) -> Plan:
    """The plan that options and object ask for. Raises UnreadableError."""
    assert judgement.deployment is not None
    spec = judgement.deployment.spec
    for name, low, high in _RANGES:
        value = getattr(args, name)
        if value is not None and not low <= value <= high:  # also refuses NaN, which no limit would ever stop
            raise UnreadableError(f"--{name.replace('_', '-')} = {value:g}: out of range; give {low:g} to {high:g}")
    check_load({name: getattr(args, name) for name in (*_LOAD, "seed")})
    given = setting_of(spec, _release(judgement), spec.engine.image)
    limits = Limits(
        sessions=args.sessions,
        batches=args.batches,
        gpus_pair=sum(role.gpus * role.nodes * role.replicas for role in (spec.prefill, spec.decode)),
        gpus_alone=spec.prefill.gpus * spec.prefill.nodes,
        startup_minutes=args.startup_minutes,
        batch_minutes=args.batch_minutes,
        max_gpu_hours=args.max_gpu_hours,
        stop_at_cure=args.stop_at_cure,
        recheck=not args.no_recheck,
    )
    impossible = {Factor.EARLY_SEND: _EARLY_SEND}
    if spec.prefill.nodes > 1:
        impossible[Factor.TOPOLOGY] = "prefill takes several nodes, and one server is made for one node"
    elif not (spec.engine.image or args.engine_image):
        impossible[Factor.TOPOLOGY] = "needs the engine image (spec.engine.image or --engine-image)"
    plan = make_plan(given, limits, safe_image=args.safe_image, factors=_factors(args.factors), impossible=impossible)
    if not plan.singles:
        raise UnreadableError(
            "nothing to change: " + "; ".join(f"{factor}: {why}" for factor, why in plan.skipped.items())
        )
    return plan


def _release(judgement: Judgement) -> Any:
    from dsv4_operator.engine.releases import DEFAULT_RELEASE  # noqa: PLC0415 - beside the use

    return judgement.release or DEFAULT_RELEASE


def _factors(names: list[str] | None) -> tuple[Factor, ...]:
    if not names:
        return tuple(Factor)
    unknown = next((name for name in names if name not in set(Factor)), None)
    if unknown is not None:
        raise UnreadableError(f"--factor = {unknown!r}: is none; give one of {', '.join(Factor)}")
    return tuple(Factor(name) for name in names)


def load_of(args: argparse.Namespace) -> dict[str, Any]:
    """Options of every soak.

    No baseline: the given setting and the arms are held against each other, and a stalled engine would end the run in
    it. Every corrupted reply is asked again, which is what tells engine from model.
    """
    values = {name: getattr(args, name) for name in _LOAD}
    return {**values, "baseline": 0, "reask": args.sessions, "give_up": args.sessions}


def _run(args: argparse.Namespace, raw: dict[str, Any], judgement: Judgement, plan: Plan) -> int:
    assert judgement.deployment is not None
    canary = judgement.deployment.spec.canary.image or args.canary_image
    if not canary:
        raise UnreadableError("--canary-image: the soaks run in the canary image; give it, or set DSV4CTL_CANARY_IMAGE")
    folder = Path(args.out)
    if (folder / "state.json").exists() and not args.resume:
        raise UnreadableError(f"--out = {args.out!r}: holds a bisection; go on with --resume, or give another folder")
    kubectl = connect(args)

    def say(line: str) -> None:
        if not args.quiet:
            warn(f"bisect: {line}")

    runner = ClusterRunner(
        kubectl,
        raw,
        plan.given.setting,
        new_run(),
        images=image_defaults(args),
        canary_image=canary,
        start_timeout=args.start_timeout,
        test_deployment=args.test_deployment,
        backup=Backup(folder / f"{args.test_deployment}-before.json") if args.test_deployment else None,
        say=say,
        quiet=args.quiet,
    )
    seed = args.seed if args.seed is not None else secrets.randbelow(2**31)
    bisection = Bisection(plan, runner, folder, load=load_of(args), seed=seed, say=say)
    if args.resume:
        bisection.resume()
    say(f"{len(plan.singles) + 1} arms, {plan.bounds()[0]:.1f} to {plan.bounds()[1]:.1f} GPU-hours; Ctrl-C stops")
    try:
        with termination_as_interrupt(), runner:
            report = bisection.run()
    except (ClusterError, TeardownError) as error:
        warn(f"bisect: {error}")
        return 3
    if args.output == "json":
        print_json(report)
    else:
        sys.stdout.write(reports.text(report))
        sys.stdout.write(f"files: {folder}/bisect.json, bisect.md, and a report for each batch\n")
    return 130 if report["interrupted"] else reports.exit_status_of(report)
