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


def _remedy(field: str) -> str:
    """What to do instead: `field` names ours, or says after "nothing: " why there is none."""
    why = field.removeprefix("nothing: ")
    return f"remove it and use {field}" if why == field else f"remove it, nothing replaces it: {why}"


def _owned_flags(subject: Subject) -> Iterator[tuple[str, str]]:
    for path, arguments in _argument_lists(subject):
        for index, argument in enumerate(arguments):
            flag = owned_flag(argument)
            if flag is not None:
                yield (
                    f"{path}[{index}]",
                    (
                        # The name alone: a value may be a key, and findings go into status and events.
                        f"{argument.split('=', 1)[0]} sets {flag.name}, which the operator owns, so that both roles "
                        f"stay compatible and policy sees it; {_remedy(flag.field)}"
                    ),
                )


def _owned_env(subject: Subject) -> Iterator[tuple[str, str]]:
    for path, variables in _env_lists(subject):
        for index, variable in enumerate(variables):
            if variable.name in OWNED_ENV:
                yield (
                    f"{path}[{index}]",
                    (
                        f"{variable.name} is set by the operator itself, and another value could break the pair; "
                        f"{_remedy(OWNED_ENV[variable.name])}"
                    ),
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
