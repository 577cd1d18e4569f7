"""One AdmissionReview in, its answer out: the same policy.evaluate() as in a reconcile pass. Pure.

Format: admission.k8s.io/v1 (k8s.io/api/admission/v1/types.go).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from dsv4_operator.api.constants import GROUP, KIND
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError, parse_deployment
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.policy import Action, Finding, evaluate, refusals

API_VERSION: Final = "admission.k8s.io/v1"
LONGEST_MESSAGE: Final = 4096
"""Bytes of one finding's message; status keeps as many characters."""
LONGEST_WARNING: Final = 250
"""Above 256 the API server may cut a warning anywhere (k8s.io/apiserver pkg/endpoints/filters/warning.go)."""
WARNINGS_BUDGET: Final = 3800
"""Bytes of all warnings together: the API server sends at most 4096 of them."""


class Result(StrEnum):
    """What became of a review; label of a metric."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    SKIPPED = "skipped"
    """Not judged: the spec does not change, or it is none of ours."""


class BadReview(ValueError):
    """The request is no AdmissionReview of admission.k8s.io/v1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict. `problems` holds (path, text) of everything that refuses the object."""

    uid: str
    result: Result
    problems: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The AdmissionReview to send back."""
        response: dict[str, Any] = {"uid": self.uid, "allowed": self.result is not Result.REFUSED}
        if self.warnings:
            response["warnings"] = list(self.warnings)
        if self.result is Result.REFUSED:
            response["status"] = {
                "code": 422,
                "reason": "Invalid",
                "message": "; ".join(f"{path}: {text}" for path, text in self.problems),
                # kubectl prints the causes as a list, a line for each, as it does for errors of the schema.
                "details": {
                    **self.about,
                    "causes": [
                        {"reason": "FieldValueInvalid", "field": path, "message": text} for path, text in self.problems
                    ],
                },
            }
        return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def review(body: Any, images: ImageDefaults) -> Answer:
    """Judge one AdmissionReview. `images` are the operator's defaults. Raises BadReview."""
    request = _request(body)
    uid = str(request["uid"])
    obj, old = request.get("object"), request.get("oldObject")
    if not _is_ours(request) or not isinstance(obj, dict) or _is_unchanged(request, obj, old):
        return Answer(uid, Result.SKIPPED)
    about = {"group": GROUP, "kind": KIND, "name": str(obj.get("metadata", {}).get("name") or "")}
    try:
        spec = parse_deployment(obj).spec
    except InvalidSpecError as error:
        problems = [(path, _cut(text, LONGEST_MESSAGE)) for path, text in error.problems]
        return Answer(uid, Result.REFUSED, problems, about=about)
    findings = evaluate(spec, resolve_images(spec, images))
    refused = [
        (f.path, _cut(f"{f.message} [{f.rule}]", LONGEST_MESSAGE, f"... [{f.rule}]")) for f in refusals(findings)
    ]
    warnings = _warnings([f for f in findings if f.action is not Action.REFUSE])
    return Answer(uid, Result.REFUSED if refused else Result.ALLOWED, refused, warnings, about)


def _request(body: Any) -> Mapping[str, Any]:
    request = body.get("request") if isinstance(body, dict) else None
    if not isinstance(request, dict) or not request.get("uid"):
        raise BadReview("no AdmissionReview with a request and its uid")
    if body.get("apiVersion") != API_VERSION:
        raise BadReview(f"apiVersion {body.get('apiVersion')!r} is not {API_VERSION}")
    return request


def _is_ours(request: Mapping[str, Any]) -> bool:
    kind = request.get("kind") or {}
    return (
        (kind.get("group"), kind.get("kind")) == (GROUP, KIND)
        and not request.get("subResource")
        and request.get("operation") in {"CREATE", "UPDATE"}
    )


def _is_unchanged(request: Mapping[str, Any], obj: Mapping[str, Any], old: Any) -> bool:
    """Whether the update leaves the spec alone, or the object is going: labels, annotations and finalizers of an object
    whose spec is refused stay editable.
    """
    if request.get("operation") != "UPDATE":
        return False
    same = isinstance(old, dict) and obj.get("spec") == old.get("spec")
    return same or bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def _warnings(findings: Sequence[Finding]) -> list[str]:
    warnings: list[str] = []
    left = WARNINGS_BUDGET
    for index, finding in enumerate(findings):
        text = _cut(f"{finding.path}: {finding.message} [{finding.rule}]", LONGEST_WARNING, f"... [{finding.rule}]")
        size = len(text.encode())
        if size > left:
            warnings.append(f"and {len(findings) - index} more; see status.findings of the object")
            break
        left -= size
        warnings.append(text)
    return warnings


def _cut(text: str, longest: int, end: str = "...") -> str:
    """One line of at most `longest` bytes."""
    line = " ".join(text.split()).encode()
    if len(line) > longest:
        line = line[: longest - len(end.encode())]
    else:
        end = ""
    return line.decode(errors="ignore") + end
