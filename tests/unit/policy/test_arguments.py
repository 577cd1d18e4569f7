"""extraArgs and env, read as SGLang's parser reads them."""

from __future__ import annotations

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.desired import overlay
from dsv4_operator.engine.releases import DEFAULT_RELEASE
from dsv4_operator.policy import ownership
from dsv4_operator.policy.arguments import read_arguments, read_variables
from dsv4_operator.policy.quantities import as_bytes, in_gib


def spec_with(items: list[str], env: list[dict[str, object]] | None = None) -> DSV4DeploymentSpec:
    patch = {"spec": {"decode": {"extraArgs": items, "env": env or []}}}
    return parse_deployment(merged(minimal(), patch)).spec


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["--log-level", "info"], [(0, "--log-level", ("info",))]),
        (["--log-level=info"], [(0, "--log-level", ("info",))]),
        (["--log-level=a=b"], [(0, "--log-level", ("a=b",))]),
        (["--log-level="], [(0, "--log-level", ("",))]),
        (["--trust-remote-code", "--log-level", "x"], [(0, "--trust-remote-code", ()), (1, "--log-level", ("x",))]),
        (["a", "b", "--log-level", "x"], [(0, "", ("a", "b")), (2, "--log-level", ("x",))]),
        (["--random-seed", "-1"], [(0, "--random-seed", ("-1",))]),
        (["--random-seed", "-1.5", "-x"], [(0, "--random-seed", ("-1.5",)), (2, "-x", ())]),
        (["--chat-template", "-- a b"], [(0, "--chat-template", ("-- a b",))]),
        (["--chat-template={{ a b }}"], [(0, "--chat-template", ("{{ a b }}",))]),
        (["-"], [(0, "", ("-",))]),
        (["--"], [(0, "--", ())]),
        (["-x=1"], [(0, "-x", ("1",))]),
    ],
)
def test_flags_and_values(items: list[str], expected: list[tuple[int, str, tuple[str, ...]]]) -> None:
    found = list(read_arguments(spec_with(items), DEFAULT_RELEASE))
    assert [(a.path, a.written, a.values) for a in found] == [
        (f"spec.decode.extraArgs[{index}]", written, values) for index, written, values in expected
    ]


def test_spelling_and_owner() -> None:
    given = ["--max-queued", "1", "--mem-fraction-stat=0.9", "--no-such", "--device", "cuda"]
    short, ours, unknown, exact = read_arguments(spec_with(given), DEFAULT_RELEASE)
    assert (short.name, short.exact, short.owned) == ("--max-queued-requests", False, None)
    assert ours.owned is not None
    assert ours.owned.name == "--mem-fraction-static"
    assert (unknown.name, unknown.flag, unknown.candidates) == ("--no-such", None, ())
    assert (exact.name, exact.exact, exact.owned) == ("--device", True, None)


def test_two_dashes_and_one_name_no_flag() -> None:
    for argument in read_arguments(spec_with(["--", "-h"]), DEFAULT_RELEASE):
        assert (argument.flag, argument.candidates, argument.owned) == (None, (), None)


def test_without_a_release_only_the_spelling_counts() -> None:
    argument, ours = read_arguments(spec_with(["--no-such", "--hicac"]), None)
    assert (argument.flag, argument.exact, argument.candidates) == (None, False, ())
    assert ours.owned is not None


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("true", True), ("x", True), ("0", False), ("False", False), ("", False), ("no", False)],
)
def test_variables(value: str, on: bool) -> None:
    (variable,) = read_variables(spec_with([], [{"name": "A", "value": value}]))
    assert (variable.path, variable.name, variable.on) == ("spec.decode.env[0]", "A", on)


def test_a_variable_from_a_secret_counts_as_on() -> None:
    (variable,) = read_variables(spec_with([], [{"name": "A", "secretKeyRef": {"name": "s", "key": "k"}}]))
    assert variable.value is None
    assert variable.on


def test_the_overlay_guards_what_policy_speaks_of() -> None:
    assert ownership.GUARDED_CONTAINER_FIELDS == overlay._GUARDED_CONTAINER_FIELDS
    assert ownership.GUARDED_POD_FIELDS == overlay._GUARDED_POD_FIELDS
    assert ownership.GUARDED_VOLUMES == overlay._GUARDED_VOLUMES


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("1", 1),
        ("64Gi", 64 << 30),
        ("1.5Ki", 1536),
        ("2k", 2000),
        ("1e3", 1000),
        ("1E", 10**18),
        ("100m", 1),
        ("+3M", 3000000),
        (".5Mi", 1 << 19),
        ("2.", 2),
    ],
)
def test_quantities(quantity: str, number: int) -> None:
    assert as_bytes(quantity) == number


@pytest.mark.parametrize("quantity", ["", "x", "1Zi", "1e999", "1e0.5", "Gi"])
def test_what_is_no_quantity(quantity: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        as_bytes(quantity)


def test_bytes_for_people() -> None:
    assert in_gib(3 << 29) == "1.5 GiB"
    assert in_gib(950 << 30) == "950 GiB"
