"""What `parse_deployment` accepts and refuses, and that it agrees with the schema of the CRD."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crd_cases import (
    SAMPLES,
    Object,
    RuleCase,
    enum_fields,
    merged,
    messages,
    minimal,
    nodes,
    placed_rules,
    rule_cases,
    sample_objects,
    with_value,
)
from dsv4_operator.api import constants
from dsv4_operator.api.crd import object_schema
from dsv4_operator.api.v1alpha1 import DSV4Deployment, parse_deployment
from dsv4_operator.api.v1alpha1.arguments import ARGUMENT_RULES, OWNED_VARIABLES
from dsv4_operator.api.v1alpha1.deployment import InvalidSpecError
from dsv4_operator.engine import flags

SCHEMA = object_schema().schema
CHECKER = jsonschema.Draft4Validator(SCHEMA)
MESSAGES = messages()
CASES = rule_cases()


def problems(raw: Object) -> dict[str, str]:
    with pytest.raises(InvalidSpecError) as caught:
        parse_deployment(raw)
    return dict(caught.value.problems)


# rules


def test_every_rule_has_values_that_break_it_and_values_that_do_not() -> None:
    for placed in placed_rules():
        for breaks in (True, False):
            assert any((case.path, case.rule) == placed and case.breaks is breaks for case in CASES), (placed, breaks)
    assert {case.rule for case in CASES} == {name for _, name in placed_rules()}, "crd_rules.yaml names unknown rules"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: RuleCase) -> None:
    assert not list(CHECKER.iter_errors(case.object())), "rule cases are valid by the schema alone"
    if not case.breaks:
        parse_deployment(case.object())
        return
    found = problems(case.object())
    at = [path for path, text in found.items() if text.startswith(MESSAGES[case.path, case.rule])]
    assert at, found
    if case.path:
        assert at[0].startswith(re.sub(r"\[\]$", "[0]", case.path))


@pytest.mark.parametrize(("path", "name"), placed_rules())
def test_message_says_what_to_do(path: str, name: str) -> None:
    text = MESSAGES[path, name]
    assert len(text) > 40
    assert re.search(r"\b(set|use|remove|choose|change|lower|raise|write|make|add)\b", text), text


def test_every_flag_refused_here_is_owned_by_the_engine_too() -> None:
    """And the other way round, but for flags whose value may well differ between the roles: those are policy's."""
    refused = set(re.findall(r"'(--[a-z0-9-]+)'", " ".join(rule.rule for rule in ARGUMENT_RULES))) - {"--hicache-"}
    assert {flag for flag in refused if flags.owned_flag(flag) is None} == set()
    spellings = {spelling for flag in flags.OWNED_FLAGS for spelling in (flag.name, *flag.aliases)}
    left = {flag for flag in spellings if all(rule.holds(flag) for rule in ARGUMENT_RULES)}
    assert left <= {
        "--context-length",
        "--mem-fraction-static",
        "--max-running-requests",
        "--chunked-prefill-size",
        "--enable-hisparse",
    }
    assert set(OWNED_VARIABLES) <= set(flags.OWNED_ENV)


# single fields


@pytest.mark.parametrize(("path", "values"), enum_fields(), ids=[path for path, _ in enum_fields()])
def test_enumeration(path: str, values: list[str]) -> None:
    found = problems(with_value(path, "Wrong"))
    assert re.match(r"must be .* \(got 'Wrong'\)\..*See `kubectl explain dsv4\.spec\.", found[path]), found
    assert all(f"'{value}'" in found[path] for value in values)


@pytest.mark.parametrize(
    ("patch", "path", "message"),
    [
        ({"hicache": {}}, "spec.hicache", "unknown field; did you mean hiCache? Else remove it"),
        ({"index_k": {}}, "spec.index_k", "unknown field; did you mean indexK? Else remove it"),
        ({"prefill": {"gpu": 4}}, "spec.prefill.gpu", "unknown field; did you mean gpus? Else remove it"),
        ({"policy": {"xyz": 1}}, "spec.policy.xyz", "unknown field; remove it, or use one of allow"),
        (
            {"prefill": {"replicas": -1}},
            "spec.prefill.replicas",
            "must be greater than or equal to 1 (got -1). Engines of this role in one unit. "
            "See `kubectl explain dsv4.spec.prefill.replicas`",
        ),
        ({"replicas": -1}, "spec.replicas", "must be greater than or equal to 0 (got -1)."),
        ({"prefill": {"gpus": "4"}}, "spec.prefill.gpus", "must be a valid integer (got '4')."),
        ({"prefill": {"gpus": True}}, "spec.prefill.gpus", "must be a valid integer (got True)."),
        ({"paused": "yes"}, "spec.paused", "must be a valid boolean (got 'yes')."),
        ({"hiCache": {"ratio": 2}}, "spec.hiCache.ratio", "must be a valid string (got 2)."),
        ({"hiCache": {"ratio": "0"}}, "spec.hiCache.ratio", "has a form that is not accepted, it must match ^"),
        ({"prefill": {"memory": "-1Gi"}}, "spec.prefill.memory", "has a form that is not accepted"),
        ({"prefill": {"memory": True}}, "spec.prefill.memory", "must be a valid string (got True)."),
        ({"hiCache": {"enabled": None}}, "spec.hiCache.enabled", "is null; remove the key to take its default"),
        ({"model": {"source": None}}, "spec.model.source", "is null; remove the key"),
        ({"model": {}}, "spec.model.source", "required field is missing; add it. Where the weights come from."),
        (
            {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            "spec.engine.env",
            "A stands there twice: keep one of them.",
        ),
        ({"network": {"devices": ["mlx5_0", "mlx5_0"]}}, "spec.network.devices", "mlx5_0 stands there twice"),
        (
            {"hiCache": {"ioBackend": "Direct", "layout": "PageFirst"}},
            "spec.hiCache.layout",
            "V4's host pools do not take this layout",
        ),
    ],
    ids=str,
)
def test_problem_names_field_value_and_remedy(patch: Object, path: str, message: str) -> None:
    raw = minimal()
    for key, value in patch.items():
        nulls = isinstance(value, dict) and None in value.values()
        raw["spec"][key] = {**raw["spec"].get(key, {}), **value} if nulls else value
    if "model" in patch and "source" not in patch["model"]:
        raw["spec"]["model"] = {"id": "m"}
    found = problems(raw)
    assert found[path].startswith(message), found


def test_all_problems_are_reported_at_once() -> None:
    patch = {"spec": {"prefill": {"replicas": -1}, "indexK": {"dtype": "bf16"}, "hicache": {}}}
    assert set(problems(merged(minimal(), patch))) == {"spec.prefill.replicas", "spec.indexK.dtype", "spec.hicache"}


def test_two_rules_of_one_object_are_both_reported() -> None:
    found = problems(with_value("spec.decode", {"gpus": 4, "parallelism": {"attentionData": 3, "expert": 3}}))
    assert set(found) == {"spec.decode.parallelism.attentionData", "spec.decode.parallelism.expert"}
    assert found["spec.decode.parallelism.expert"].endswith("(got 3)")


def test_values_that_may_be_secret_or_long_stay_out_of_messages() -> None:
    env = [{"name": "TOKEN", "value": "s3cret"}, {"name": "TOKEN", "value": "s3cret"}]
    assert "s3cret" not in problems(with_value("spec.engine", {"env": env}))["spec.engine.env"]
    assert len(problems(with_value("spec.engine.image", " " + "x" * 400))["spec.engine.image"]) < 400


def test_other_kinds_and_versions_are_refused() -> None:
    assert set(problems({**minimal(), "kind": "Deployment"})) == {"kind"}
    assert set(problems({**minimal(), "apiVersion": "serving.dsv4.dev/v2"})) == {"apiVersion"}
    assert DSV4Deployment.model_fields["api_version"].default == constants.API_VERSION
    assert DSV4Deployment.model_fields["kind"].default == constants.KIND


def test_metadata_of_kubernetes_and_status_are_no_obstacle() -> None:
    raw = minimal()
    raw["metadata"] |= {"managedFields": [{"manager": "kubectl"}], "resourceVersion": "7", "generation": 3}
    raw["status"] = {"nonsense": True}
    parsed = parse_deployment(raw)
    assert (parsed.metadata.resource_version, parsed.metadata.generation) == ("7", 3)


def test_quantity_may_be_a_number() -> None:
    assert parse_deployment(with_value("spec.prefill", {"cpu": 8, "memory": "1.5Ti"})).spec.prefill.cpu == "8"


# samples and generated objects


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample(path: Path) -> None:
    assert sample_objects(path)
    assert path.read_text().startswith("# "), "a sample says what it is for"
    for raw in sample_objects(path):
        CHECKER.validate(raw)
        parsed = parse_deployment(raw)
        stored = parsed.spec.as_stored()
        CHECKER.validate({**raw, "spec": stored})
        assert parse_deployment({**raw, "spec": stored}).spec == parsed.spec


def values(schema: Object) -> st.SearchStrategy[Any]:
    """Values that the structural schema accepts."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = "integer" if schema.get("x-kubernetes-int-or-string") else schema["type"]
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(schema.get("minimum", 0), min(schema.get("maximum", 10**6), 10**6))
    if kind == "string":
        longest = min(schema.get("maxLength", 40), 40)
        if "pattern" not in schema:
            return st.text(st.characters(codec="ascii"), min_size=schema.get("minLength", 0), max_size=longest)
        text = st.from_regex(
            re.compile(schema["pattern"], re.ASCII), fullmatch=True, alphabet=st.characters(codec="ascii")
        )
        return text.filter(lambda found: schema.get("minLength", 0) <= len(found) <= longest and "\n" not in found)
    if kind == "array":
        unique = {"unique_by": lambda item: item["name"] if "name" in item else item["rule"]}
        keyed = schema.get("x-kubernetes-list-type") == "map"
        scalars = schema.get("x-kubernetes-list-type") == "set"
        extra: Any = unique if keyed else {"unique": scalars}
        return st.lists(values(schema["items"]), max_size=2, **extra)
    if "additionalProperties" in schema:
        return st.dictionaries(st.from_regex(r"\A[a-z]{1,8}\Z"), values(schema["additionalProperties"]), max_size=2)
    if "properties" not in schema:
        return st.fixed_dictionaries({"anything": st.integers()})
    required = {name: values(schema["properties"][name]) for name in schema.get("required", [])}
    optional = {name: values(child) for name, child in schema["properties"].items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


SPECS = values(SCHEMA["properties"]["spec"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SPECS)
def test_parser_and_schema_agree(spec: Object) -> None:
    """What the schema accepts the parser refuses for a rule at most; what is left round-trips and stays valid."""
    raw = {**minimal(), "spec": spec}
    CHECKER.validate(raw)
    rules = tuple(MESSAGES.values())
    for _ in range(len(SCHEMA["properties"]["spec"]["properties"]) + 1):
        try:
            parsed = parse_deployment(raw)
            break
        except InvalidSpecError as error:
            for path, message in error.problems:
                assert message.startswith(rules), (path, message)
            raw = without(raw, [path for path, _ in error.problems])
    else:
        raise AssertionError("nothing was left to remove")
    stored = parsed.spec.as_stored()
    CHECKER.validate({**raw, "spec": stored})
    again = parse_deployment({**raw, "spec": stored})
    assert again.spec == parsed.spec
    assert again.spec.as_stored() == stored
    dumped = parsed.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    CHECKER.validate({**raw, "spec": dumped})


def without(raw: Object, paths: list[str]) -> Object:
    """The object without the parts of its spec that broke a rule; the model's goes back to the valid one."""
    result = copy.deepcopy(raw)
    for path in paths:
        field = path.split(".")[1].split("[")[0]
        if field == "model":
            result["spec"]["model"] = minimal()["spec"]["model"]
        else:
            result["spec"].pop(field, None)
            if field == "decode":
                result["spec"].pop("prefill", None)
    return result


def test_walk_reaches_every_kind_of_node() -> None:
    kinds = {node.get("type", "int-or-string") for path, node in nodes(SCHEMA) if path.startswith("spec")}
    assert kinds == {"object", "array", "string", "integer", "boolean", "int-or-string"}
