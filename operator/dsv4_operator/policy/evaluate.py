"""evaluate(): every rule on one spec, all findings at once, the same answer for the same input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.images import Images
from dsv4_operator.policy import (
    availability,
    forbidden_kv,
    forbidden_serving,
    guard,
    hicache,
    images,
    kv_format,
    network,
    ownership,
    scheduling,
    speculation,
    strictness,
    topology,
    transfer,
)
from dsv4_operator.policy.finding import Action, Finding, Remark, Rule
from dsv4_operator.policy.subject import Subject

_ALLOW = "spec.policy.allow"


def _bad_allowances(subject: Subject) -> Iterator[Remark]:
    for entry in subject.spec.policy.allow:
        rule = RULES_BY_ID.get(entry.rule)
        if rule is None:
            close = difflib.get_close_matches(entry.rule, RULES_BY_ID, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            yield _ALLOW, f"{entry.rule} is no rule of this operator; {hint}use an id of docs/policy.md"
        elif rule.action is Action.REFUSE and not rule.allowable:
            yield (
                _ALLOW,
                f"{entry.rule} cannot be allowed: what it refuses cannot start, or is mended at no cost; "
                "remove the entry and follow the finding",
            )
        elif rule.action is Action.SET:
            yield _ALLOW, f"{entry.rule} refuses nothing, it renders a safe value, which stays; remove the entry"


_ALLOWANCES: Final = Rule(
    id="unknown-allowance",
    action=Action.REFUSE,
    title="Allowances that mean nothing",
    source="this operator",
    explanation=(
        "policy.allow turns a refusal into a warning, with your reason, which status and metrics show. An entry that "
        "names no rule, or one that refuses nothing, would make you believe that something was allowed. Some rules "
        "cannot be allowed: what they refuse cannot start, whatever is accepted. An entry for a rule that does not "
        "apply at present, or only warns, is fine."
    ),
    check=_bad_allowances,
    allowable=False,
)

RULES: Final[tuple[Rule, ...]] = (
    *images.RULES,
    *ownership.RULES,
    *strictness.RULES,
    *forbidden_kv.RULES,
    *forbidden_serving.RULES,
    *transfer.RULES,
    *hicache.RULES,
    *kv_format.RULES,
    *guard.RULES,
    *speculation.RULES,
    *scheduling.RULES,
    *topology.RULES,
    *network.RULES,
    *availability.RULES,
    _ALLOWANCES,
)

RULES_BY_ID: Final = {rule.id: rule for rule in RULES}

_ORDER: Final = {Action.REFUSE: 0, Action.SET: 1, Action.WARN: 2}


def evaluate(spec: DSV4DeploymentSpec, resolved: Images) -> list[Finding]:
    """All findings: refusals first, then by path and rule.

    `policy.allow` turns an allowable refusal into a warning that quotes the user's reason; an allowance that names no
    rule, or a rule that cannot be allowed, is itself refused.
    """
    subject = Subject.of(spec, resolved)
    allowed = {entry.rule: entry.reason for entry in spec.policy.allow}
    findings = [_allow(finding, allowed) for rule in RULES for finding in rule.findings(subject)]
    return sorted(findings, key=lambda f: (_ORDER[f.action], f.path, f.rule, f.message))


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that forbid the spec."""
    return [finding for finding in findings if finding.action is Action.REFUSE]


def _allow(finding: Finding, allowed: dict[str, str]) -> Finding:
    if finding.action is not Action.REFUSE or not finding.allowable or finding.rule not in allowed:
        return finding
    return replace(finding, action=Action.WARN, message=f"allowed ({allowed[finding.rule]}): {finding.message}")
