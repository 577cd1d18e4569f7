"""The whole import: two launches in, an object and findings out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from dsv4_operator.api.constants import API_VERSION, ENGINE_ROLES, KIND, Role
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.cli.importer.draft import RoleDraft
from dsv4_operator.cli.importer.environment import read_environment
from dsv4_operator.cli.importer.flags import read_flags
from dsv4_operator.cli.importer.launch import Launch, finding
from dsv4_operator.cli.importer.pair import merge, put
from dsv4_operator.engine.releases import Release
from dsv4_operator.policy import Action, Finding

_REPO: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+")
_CLAIM: Final = re.compile(r"pvc:([a-z0-9]([-a-z0-9.]*[a-z0-9])?)(?:/(.*))?")
_OTHER_MODEL: Final = re.compile(r"V4\.\d|V[0-35-9](?![0-9])|(?<![A-Z])R1(?![0-9])", re.IGNORECASE)
_ORDER: Final = {Action.REFUSE: 0, Action.WARN: 1, Action.SET: 2}
_SPEC_ORDER: Final = ("model", "engine", "indexK", "hiCache", "overlapSchedule", "prefill", "decode", "network")


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import gave: the object, its findings, and where each flag and variable went."""

    deployment: dict[str, Any]
    findings: list[Finding]
    mapped: list[tuple[str, str]]

    def as_json(self) -> dict[str, Any]:
        """The documented form."""
        return {
            "deployment": self.deployment,
            "findings": [
                {"rule": f.rule, "action": f.action.value, "path": f.path, "message": f.message, "source": f.source}
                for f in self.findings
            ],
            "mapped": [{"from": source, "to": target} for source, target in self.mapped],
        }


@dataclass(frozen=True, slots=True)
class Target:
    """What the user says about the object to be made."""

    name: str
    release: Release
    image: str | None = None
    model: str | None = None
    gpus_per_node: int | None = None
    release_is_in_tag: bool = False


def import_pair(launches: dict[Role, Launch], target: Target) -> Imported:
    """Make the object. Total: whatever was given, what cannot be carried over is a finding."""
    drafts = {role: RoleDraft(role, target.release) for role in ENGINE_ROLES}
    findings: list[Finding] = []
    for role, launch in launches.items():
        findings += launch.notes
        read_flags(launch, drafts[role])
        read_environment(launch, drafts[role])
    spec, disagreements = merge(drafts, target.gpus_per_node)
    _model(spec, drafts, launches, target, disagreements)
    if target.image is not None:
        put(spec, "spec.engine.image", target.image)
    if not target.release_is_in_tag:
        put(spec, "spec.engine.release", str(target.release))
    findings += [found for draft in drafts.values() for found in draft.findings]
    findings += disagreements
    if target.model is not None:
        findings = [found for found in findings if not found.path.endswith(": --model-path")]
    deployment = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": target.name},
        "spec": {key: spec[key] for key in (*_SPEC_ORDER, *spec) if key in spec},
    }
    findings += _not_taken(deployment)
    mapped = [entry for draft in drafts.values() for entry in draft.mapped]
    return Imported(deployment, sorted(_both(findings), key=lambda f: _ORDER[f.action]), mapped)


def _not_taken(deployment: dict[str, Any]) -> list[Finding]:
    """Values that the schema refuses; what it misses of the model has been said."""
    try:
        parse_deployment(deployment)
    except InvalidSpecError as error:
        return [
            finding("import-field", path, message)
            for path, message in error.problems
            if not path.startswith("spec.model")
        ]
    return []


def _both(findings: list[Finding]) -> list[Finding]:
    """The findings, with those that say the same of both roles as one."""
    result: list[Finding] = []
    for found in findings:
        role, colon, rest = found.path.partition(": ")
        twin = replace(found, path=f"{Role.PREFILL.value}{colon}{rest}")
        if role == Role.DECODE.value and twin in result:
            result[result.index(twin)] = replace(found, path=f"{Role.PREFILL.value}, {found.path}")
        else:
            result.append(found)
    return result


def _model(
    spec: dict[str, Any],
    drafts: dict[Role, RoleDraft],
    launches: dict[Role, Launch],
    target: Target,
    findings: list[Finding],
) -> None:
    paths = {role: draft.shared["model-path"] for role, draft in drafts.items() if "model-path" in draft.shared}
    if target.model is None and len(set(paths.values())) > 1:
        told = " and ".join(f"{role.value} loads {path}" for role, path in paths.items())
        findings.append(finding("import-role-conflict", "spec.model.source", f"{told}; decide with --model"))
    where = target.model or next(iter(paths.values()), None)
    model = spec.setdefault("model", {})
    if where is None:
        stated = next((launch.model for launch in launches.values() if launch.model), None)
        hint = f" (the entry speaks of {stated})" if stated else ""
        if not any(found.path.endswith(": --model-path") for draft in drafts.values() for found in draft.findings):
            message = f"no --model-path was given{hint}; say where the weights are with --model"
            findings.append(finding("import-model", "spec.model.source", message))
    else:
        _source(model, where, drafts, findings)
    known = where or next((launch.model for launch in launches.values() if launch.model), None)
    for text in {known, model.get("id")} - {None}:
        other = _OTHER_MODEL.search(str(text))
        if other is not None:
            message = f"{text} is no DeepSeek-V4: the operator's parsers, layouts and rules are those of V4"
            findings.append(finding("import-model", "spec.model", message))
            break
    if "id" not in model and where is not None:
        model["id"] = where.removeprefix("pvc:")
        message = f"no --served-model-name: clients call it {model['id']}, as SGLang would"
        findings.append(finding("import-default", "spec.model.id", message))


def _source(model: dict[str, Any], where: str, drafts: dict[Role, RoleDraft], findings: list[Finding]) -> None:
    revisions = [draft.shared["revision"] for draft in drafts.values() if "revision" in draft.shared]
    claim = _CLAIM.fullmatch(where)
    if claim is not None:
        source: dict[str, Any] = {"claimName": claim.group(1)} | ({"path": claim.group(3)} if claim.group(3) else {})
        model["source"] = {"persistentVolumeClaim": source}
    elif where.startswith("/"):
        model["source"] = {"hostPath": {"path": where}}
        message = f"{where} is taken from each node's own disk; for a volume give --model pvc:CLAIM/PATH"
        findings.append(finding("import-changed", "spec.model.source.hostPath", message))
    elif _REPO.fullmatch(where):
        model["source"] = {"huggingFace": {"repo": where} | ({"revision": revisions[0]} if revisions else {})}
        if len(set(revisions)) > 1:
            message = f"the roles load revisions {' and '.join(revisions)}; decide"
            findings.append(finding("import-role-conflict", "spec.model.source.huggingFace.revision", message))
    else:
        message = f"{where} is neither a repository nor an absolute path; give --model"
        findings.append(finding("import-model", "spec.model.source", message))
