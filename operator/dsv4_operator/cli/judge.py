"""One object judged as the operator would judge it: schema, images, release, policy."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dsv4_operator.api.base import ApiModel, CelRule
from dsv4_operator.api.constants import API_VERSION
from dsv4_operator.api.v1alpha1 import DSV4Deployment, parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.files import load_object, shown_name
from dsv4_operator.engine.images import ImageDefaults, Images, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, Release, release_of
from dsv4_operator.policy import Action, Finding, evaluate, refusals

SCHEMA_RULE: Final = "schema"
ASSUMED: Final = "assumed.invalid/dsv4"
"""Registry of assumed images; .invalid can never resolve."""
_UNREADABLE_RULES: Final = frozenset({"unknown-release"})
"""Findings after which nothing else can be said about a spec. An unknown rule in policy.allow is the other one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of one object.

    `deployment`, `images` and `release` are None where schema or release forbid more. `unreadable` holds lines about
    what cannot be judged at all; exit code 2.
    """

    file: str
    raw: dict[str, Any]
    deployment: DSV4Deployment | None = None
    images: Images | None = None
    release: Release | None = None
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether a finding forbids the spec."""
        return bool(refusals(self.findings))


def image_defaults(args: argparse.Namespace) -> ImageDefaults:
    """The default images that the user gave by options or environment."""
    return ImageDefaults(engine=args.engine_image, canary=args.canary_image, router=args.router_image)


def judge(path: str, defaults: ImageDefaults, *, assume: bool) -> Judgement:
    """Read and judge one file.

    Raises:
        UnreadableError: when the file holds no single DSV4Deployment.
    """
    return judge_object(load_object(path), shown_name(path), defaults, assume=assume)


def judge_object(raw: dict[str, Any], name: str, defaults: ImageDefaults, *, assume: bool) -> Judgement:
    """Judge an object that was read already; `name` is that of messages.

    Raises:
        UnreadableError: when it is nested too deeply.
    """
    try:
        deployment = parse_deployment(raw)
    except InvalidSpecError as error:
        return Judgement(name, raw, findings=[_schema_finding(*problem) for problem in error.problems])
    except RecursionError:
        raise UnreadableError(f"{name}: nested too deeply") from None
    spec = deployment.spec
    images = resolve_images(spec, assumed_images(spec, defaults) if assume else defaults)
    findings = [_with_advice(finding) for finding in evaluate(spec, images)]
    release = KNOWN_RELEASES.get(release_of(images.engine or "", spec.engine.release) or "")
    unreadable = [f"{name}: {finding.path}: {finding.message}" for finding in findings if _is_unreadable(finding)]
    return Judgement(name, raw, deployment, images, release, findings, unreadable)


def assumed_images(spec: DSV4DeploymentSpec, defaults: ImageDefaults) -> ImageDefaults:
    """The defaults, with stand-ins where the user gave none."""
    return ImageDefaults(
        engine=defaults.engine or f"{ASSUMED}/engine:{spec.engine.release or DEFAULT_RELEASE}",
        canary=defaults.canary or f"{ASSUMED}/canary:assumed",
        router=defaults.router or f"{ASSUMED}/router:assumed",
    )


def _is_unreadable(finding: Finding) -> bool:
    if finding.action is not Action.REFUSE:
        return False
    return finding.rule in _UNREADABLE_RULES or (
        finding.rule == "unknown-allowance" and "is no rule" in finding.message
    )


def _with_advice(finding: Finding) -> Finding:
    if finding.rule != "image-unset":
        return finding
    image = finding.path.split(".")[1]
    advice = (
        f". dsv4ctl does not know the operator's defaults: give --{image}-image, set DSV4CTL_{image.upper()}_IMAGE, "
        "or use --assume-images"
    )
    return Finding(
        finding.rule, finding.action, finding.path, finding.message + advice, finding.source, finding.allowable
    )


def _schema_finding(path: str, message: str) -> Finding:
    rule = next((rule.name for rule in schema_rules() if message.startswith(rule.message)), SCHEMA_RULE)
    return Finding(rule, Action.REFUSE, path, message, f"schema of {API_VERSION}", allowable=False)


def schema_rules() -> list[CelRule]:
    """The rules that the API server itself holds, by CEL in the schema."""
    from dsv4_operator.api.v1alpha1.arguments import ARGUMENT_RULES  # noqa: PLC0415 - beside the use

    found: dict[str, CelRule] = {}
    pending: list[type[ApiModel]] = [ApiModel]
    while pending:
        model = pending.pop()
        pending += model.__subclasses__()
        found |= {rule.name: rule for rule in model.cel_rules}
    found |= {rule.name: rule for rule in ARGUMENT_RULES}
    return [found[name] for name in sorted(found)]


def finding_json(finding: Finding) -> dict[str, str]:
    """The documented form of a finding."""
    values = asdict(finding)
    return {name: str(values[name]) for name in ("rule", "action", "path", "message", "source")}


def finding_line(finding: Finding, prefix: str = "") -> str:
    """A finding on one plain line."""
    source = f" [{finding.source}]" if finding.source else ""
    return f"{prefix}{finding.action.value:<6} {finding.rule}  {finding.path}: {finding.message}{source}"
