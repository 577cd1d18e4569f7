from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from dsv4_operator.api.v1alpha1.deployment import parse_deployment
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.policy import Action, Finding, evaluate
from dsv4_operator.runtime import webhook_review
from dsv4_operator.runtime.webhook_review import LONGEST_MESSAGE, WARNINGS_BUDGET, BadReview, Result, review

IMAGES = ImageDefaults("sglang:0.5.23", "canary:1", "router:1")


def obj(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.dsv4.dev/v1alpha1",
        "kind": "DSV4Deployment",
        "metadata": {"name": "pair", "namespace": "ns", "uid": "u"},
        "spec": {
            "model": {"id": "m", "source": {"huggingFace": {"repo": "a/b"}}},
            "prefill": {"gpus": 1},
            "decode": {"gpus": 1},
            **spec,
        },
    }


BAD = obj(prefill={"gpus": 1, "extraArgs": ["--mem-fraction-stat=0.9"]}, engine={"image": "sglang:custom"})


def request(new: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r1",
            "kind": {"group": "serving.dsv4.dev", "version": "v1alpha1", "kind": "DSV4Deployment"},
            "operation": "CREATE" if old is None else "UPDATE",
            "object": new,
            "oldObject": old,
            **more,
        },
    }


def findings(raw: dict[str, Any]) -> list[Finding]:
    spec = parse_deployment(raw).spec
    return evaluate(spec, resolve_images(spec, IMAGES))


def test_all_findings_of_a_refused_spec_are_told() -> None:
    wanted = [finding for finding in findings(BAD) if finding.action is Action.REFUSE]
    assert len(wanted) >= 2
    response = review(request(BAD), IMAGES).body()["response"]
    assert (response["uid"], response["allowed"]) == ("r1", False)
    status = response["status"]
    assert (status["code"], status["reason"], status["details"]["name"]) == (422, "Invalid", "pair")
    for finding, cause in zip(wanted, status["details"]["causes"], strict=True):
        line = f"{' '.join(finding.message.split())} [{finding.rule}]"
        assert cause == {"reason": "FieldValueInvalid", "field": finding.path, "message": line}
        assert f"{finding.path}: {line}" in status["message"]


def test_a_spec_that_does_not_parse_is_refused_with_every_problem() -> None:
    broken = obj(prefill={"gpus": "four", "replica": 1})
    answer = review(request(broken), IMAGES)
    assert answer.result is Result.REFUSED
    assert {path for path, _ in answer.problems} == {"spec.prefill.gpus", "spec.prefill.replica"}


def test_a_good_spec_passes_with_warnings() -> None:
    good = obj(canary={"enabled": False})
    response = review(request(good), IMAGES).body()["response"]
    assert response["allowed"] is True
    assert "status" not in response
    rules = [finding.rule for finding in findings(good)]
    assert [warning.rpartition("[")[2].rstrip("]") for warning in response["warnings"]] == rules


def test_defaults_of_the_operator_count() -> None:
    assert review(request(obj()), ImageDefaults()).result is Result.REFUSED
    assert review(request(obj()), IMAGES).result is Result.ALLOWED


def test_an_update_of_metadata_passes_whatever_the_spec() -> None:
    labelled = deepcopy(BAD)
    labelled["metadata"]["labels"] = {"a": "b"}
    assert review(request(labelled, BAD), IMAGES).result is Result.SKIPPED
    changed = deepcopy(BAD)
    changed["spec"]["paused"] = True
    assert review(request(changed, BAD), IMAGES).result is Result.REFUSED
    changed["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
    assert review(request(changed, BAD), IMAGES).result is Result.SKIPPED


@pytest.mark.parametrize(
    "more",
    [
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"subResource": "status"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": None},
        {"object": None},
    ],
)
def test_what_is_none_of_ours_passes_unjudged(more: dict[str, Any]) -> None:
    answer = review(request(BAD, **more), IMAGES)
    assert answer.result is Result.SKIPPED
    assert answer.body()["response"] == {"uid": "r1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"request": {}},
        {"apiVersion": "admission.k8s.io/v1", "request": {"object": {}}},
        request(BAD) | {"apiVersion": "admission.k8s.io/v1beta1"},
    ],
)
def test_what_is_no_review_is_told_so(body: Any) -> None:
    with pytest.raises(BadReview):
        review(body, IMAGES)


def test_warnings_and_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(*_: Any) -> list[Finding]:
        long = "über\n" * 3000
        return [
            Finding("too-long", Action.REFUSE, "spec.a", long),
            *(Finding(f"rule-{index}", Action.WARN, "spec.b", long) for index in range(100)),
        ]

    monkeypatch.setattr(webhook_review, "evaluate", many)
    answer = review(request(obj()), IMAGES)
    assert [LONGEST_MESSAGE - 1 <= len(text.encode()) <= LONGEST_MESSAGE for _, text in answer.problems] == [True]
    assert answer.problems[0][1].endswith("... [too-long]"), "the rule is never cut off"
    assert all(len(warning.encode()) <= 256 for warning in answer.warnings)
    assert sum(len(warning.encode()) for warning in answer.warnings) <= WARNINGS_BUDGET + 100
    assert answer.warnings[0].endswith("... [rule-0]")
    more = 100 - (len(answer.warnings) - 1)
    assert answer.warnings[-1] == f"and {more} more; see status.findings of the object"
    assert not any("\n" in warning for warning in answer.warnings)
