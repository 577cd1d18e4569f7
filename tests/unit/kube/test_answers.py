"""The bodies are answers of a Kubernetes 1.36 API server, shortened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsv4_operator.kube import errors
from dsv4_operator.kube.answers import MAX_MESSAGE, Call, error_of, no_answer
from dsv4_operator.kube.kinds import DEPLOYMENT, LEADER_WORKER_SET, SECRET

CALL = Call("apply", DEPLOYMENT, "ns", "demo")


def status(code: int, message: str, reason: str = "", **details: Any) -> bytes:
    answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return json.dumps(answer | {"reason": reason, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        pytest.param(
            404, status(404, 'deployments "demo" not found', "NotFound", name="demo"), errors.NotFound, id="object"
        ),
        pytest.param(
            404,
            status(404, 'namespaces "ns" not found', "NotFound", name="ns", kind="namespaces"),
            errors.NotFound,
            id="namespace",
        ),
        pytest.param(404, b"404 page not found\n", errors.KindNotInstalled, id="path nobody serves"),
        pytest.param(
            404,
            status(404, "the server could not find the requested resource", "NotFound"),
            errors.KindNotInstalled,
            id="unknown resource",
        ),
        pytest.param(409, status(409, "exists", "AlreadyExists", name="demo"), errors.AlreadyExists, id="exists"),
        pytest.param(409, status(409, "modified", "Conflict", name="demo"), errors.Conflict, id="conflict"),
        pytest.param(
            422,
            status(422, "x", "Invalid", causes=[{"field": "metadata.uid", "message": "immutable"}]),
            errors.Conflict,
            id="another object has the name",
        ),
        pytest.param(422, status(422, "invalid", "Invalid"), errors.Invalid, id="invalid"),
        pytest.param(401, status(401, "Unauthorized", "Unauthorized"), errors.Unauthorized, id="unauthorized"),
        pytest.param(403, status(403, "forbidden", "Forbidden"), errors.Forbidden, id="forbidden"),
        pytest.param(429, status(429, "slow", "TooManyRequests"), errors.TooManyRequests, id="throttled"),
        pytest.param(500, status(500, "etcdserver: timed out"), errors.ApiUnavailable, id="internal"),
        pytest.param(503, b"<html>bad gateway</html>", errors.ApiUnavailable, id="proxy"),
        pytest.param(504, status(504, "timeout", "Timeout"), errors.ApiUnavailable, id="timeout"),
        pytest.param(400, status(400, 'admission webhook "x" denied'), errors.Invalid, id="denied by a webhook"),
        pytest.param(405, status(405, "no", "MethodNotAllowed"), errors.Invalid, id="method"),
        pytest.param(413, status(413, "big", "RequestEntityTooLarge"), errors.Invalid, id="too large"),
        pytest.param(415, status(415, "bad", "UnsupportedMediaType"), errors.ApiError, id="anything else"),
        pytest.param(302, b"", errors.ApiError, id="not even an error"),
        pytest.param(500, b"[1]", errors.ApiUnavailable, id="json of another shape"),
    ],
)
def test_class(code: int, body: bytes, expected: type[errors.ApiError]) -> None:
    error = error_of(CALL, code, {}, body)
    assert type(error) is expected
    assert error.status == code
    assert str(error).startswith(f"apply Deployment ns/demo: {code}")


def test_causes_carry_field_paths() -> None:
    causes = [{"reason": "FieldManagerConflict", "message": 'conflict with "kubectl"', "field": ".spec.replicas"}]
    error = error_of(CALL, 409, {}, status(409, "1 conflict", "Conflict", causes=causes))
    assert error.causes == (errors.Cause(".spec.replicas", 'conflict with "kubectl"', "FieldManagerConflict"),)
    assert error.reason == "Conflict"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (".spec.nonsense: field not declared in schema", ["spec.nonsense"]),
        (
            'errors:\n  .spec.replicas: expected numeric (int or float), got string\n  .spec.x[name="c"].zz: field not '
            "declared in schema",
            ["spec.replicas", 'spec.x[name="c"].zz'],
        ),
        ("something new", [""]),
    ],
)
def test_a_failed_typed_patch_is_the_users_fault_though_the_code_is_500(text: str, fields: list[str]) -> None:
    message = f"failed to create typed patch object (ns/demo; apps/v1, Kind=Deployment): {text}"
    error = error_of(CALL, 500, {}, status(500, message))
    assert type(error) is errors.Invalid
    assert [cause.field for cause in error.causes] == fields
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7),
        ({}, {"retryAfterSeconds": 5}, 5),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {"retryAfterSeconds": 5}, 5),
        ({"Retry-After": "inf"}, {}, None),
        ({}, {}, None),
    ],
)
def test_retry_after(headers: dict[str, str], details: dict[str, Any], seconds: float | None) -> None:
    assert error_of(CALL, 429, headers, status(429, "slow", **details)).retry_after == seconds


def test_words_about_a_secret_are_withheld() -> None:
    causes = [{"field": "data[key]", "message": 'Invalid value: "hunter2"', "reason": "FieldValueInvalid"}]
    body = status(422, 'Secret "s" is invalid: "hunter2"', "Invalid", causes=causes)
    error = error_of(Call("apply", SECRET, "ns", "s"), 422, {}, body)
    assert type(error) is errors.Invalid
    assert "hunter2" not in str(error) + repr(error.causes)
    assert error.causes[0].field == "data[key]"
    patch = status(500, "failed to create typed patch object (ns/s; /v1, Kind=Secret): .data.k: got hunter2")
    error = error_of(Call("apply", SECRET, "ns", "s"), 500, {}, patch)
    assert type(error) is errors.Invalid
    assert "hunter2" not in str(error) + repr(error.causes)


def test_long_messages_are_cut() -> None:
    assert len(str(error_of(CALL, 400, {}, status(400, "x" * 100_000)))) < MAX_MESSAGE + 100


def test_no_answer_says_why() -> None:
    call = Call("list", LEADER_WORKER_SET)
    timeout = no_answer(call, TimeoutError(), 30)
    assert (timeout.reason, timeout.status) == ("Timeout", None)
    assert str(timeout) == "list LeaderWorkerSet: no answer from the API server within 30 s"
    refused = no_answer(call, ConnectionResetError(), 30)
    assert str(refused).endswith("ConnectionResetError")
