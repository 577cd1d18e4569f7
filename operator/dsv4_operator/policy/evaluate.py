"""evaluate(): every rule on one spec, all findings at once, the same answer for the same input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.images import Images
from dsv4_operator.engine.releases import release_of
from dsv4_operator.policy import availability, corruption, images, ownership, topology
from dsv4_operator.policy.finding import Action, Finding, Rule, Subject

RULES: tuple[Rule, ...] = (
    *images.RULES,
    *ownership.RULES,
    *corruption.RULES,
    *topology.RULES,
    *availability.RULES,
)

_ORDER = {Action.REFUSE: 0, Action.SET: 1, Action.WARN: 2}


def evaluate(spec: DSV4DeploymentSpec, resolved: Images) -> list[Finding]:
    """All findings: refusals first, then by path and rule.

    `policy.allow` turns an allowable refusal into a warning that quotes the user's reason; an allowance that names no
    rule, or a rule that cannot be allowed, is itself refused.
    """
    subject = Subject(spec, resolved, release_of(resolved.engine or "", spec.engine.release))
    findings = [finding for rule in RULES for finding in rule.findings(subject)]
    allowed = {entry.rule: entry.reason for entry in spec.policy.allow}
    findings = [_allow(finding, allowed) for finding in findings]
    findings.extend(_bad_allowances(allowed))
    return sorted(findings, key=lambda f: (_ORDER[f.action], f.path, f.rule))


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that forbid the spec."""
    return [finding for finding in findings if finding.action is Action.REFUSE]


def _allow(finding: Finding, allowed: dict[str, str]) -> Finding:
    if finding.action is not Action.REFUSE or not finding.allowable or finding.rule not in allowed:
        return finding
    return replace(finding, action=Action.WARN, message=f"allowed ({allowed[finding.rule]}): {finding.message}")


def _bad_allowances(allowed: dict[str, str]) -> Iterable[Finding]:
    rules = {rule.id: rule for rule in RULES}
    for rule_id in allowed:
        rule = rules.get(rule_id)
        if rule is None:
            message = f"{rule_id} is no rule of this operator; docs/policy.md lists them"
        elif rule.action is Action.REFUSE and not rule.allowable:
            message = (
                f"{rule_id} cannot be allowed: what it refuses cannot start; remove the entry and follow the finding"
            )
        elif rule.action is Action.SET:
            message = f"{rule_id} refuses nothing, it renders a safe value, which stays; remove the entry"
        else:
            continue
        yield Finding(
            "unknown-allowance", Action.REFUSE, "spec.policy.allow", message, "this operator", allowable=False
        )
