"""Rules about extraArgs and env: what the operator owns cannot be set beside it."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.api.v1alpha1.engine import EnvVar
from dsv4_operator.engine.flags import OWNED_ENV, owned_flag
from dsv4_operator.policy.finding import Action, Rule, Subject


def _argument_lists(subject: Subject) -> Iterator[tuple[str, list[str]]]:
    yield "spec.engine.extraArgs", subject.spec.engine.extra_args
    yield "spec.prefill.extraArgs", subject.spec.prefill.extra_args
    yield "spec.decode.extraArgs", subject.spec.decode.extra_args


def _env_lists(subject: Subject) -> Iterator[tuple[str, list[EnvVar]]]:
    yield "spec.engine.env", subject.spec.engine.env
    yield "spec.prefill.env", subject.spec.prefill.env
    yield "spec.decode.env", subject.spec.decode.env


def _owned_flags(subject: Subject) -> Iterator[tuple[str, str]]:
    for path, arguments in _argument_lists(subject):
        for index, argument in enumerate(arguments):
            flag = owned_flag(argument)
            if flag is not None:
                yield (
                    f"{path}[{index}]",
                    (
                        f"{argument} sets {flag.name}, which the operator owns, so that both roles stay compatible and policy "
                        f"sees it; remove it and use {flag.field}"
                    ),
                )


def _owned_env(subject: Subject) -> Iterator[tuple[str, str]]:
    for path, variables in _env_lists(subject):
        for index, variable in enumerate(variables):
            if variable.name in OWNED_ENV:
                yield (
                    f"{path}[{index}]",
                    (f"{variable.name} is set by the operator itself; remove it and use {OWNED_ENV[variable.name]}"),
                )


RULES = (
    Rule(
        "owned-flag",
        Action.REFUSE,
        "Flags that the operator owns",
        "engine/flags.py",
        _owned_flags,
        allowable=False,
    ),
    Rule(
        "owned-env",
        Action.REFUSE,
        "Variables that the operator owns",
        "engine/flags.py",
        _owned_env,
        allowable=False,
    ),
)
