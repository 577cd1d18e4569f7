"""Rules that hold `extraArgs` and `env` to the release: what SGLang's parser would refuse, guess or ignore."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from dsv4_operator.engine.releases import Release
from dsv4_operator.engine.renames import current_name, deprecation
from dsv4_operator.engine.wheel import (
    WheelFlag,
    env_table,
    flag_table,
    releases_with_env,
    releases_with_flag,
)
from dsv4_operator.policy.arguments import Argument, cut
from dsv4_operator.policy.claims import is_claimed, is_claimed_variable
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

TEST_VARIABLE_PREFIXES: Final = ("SGLANG_TEST_", "SGLANG_SIMULATE_", "SGLANG_IS_IN_CI", "SGLANG_CI_", "SGLANG_DEBUG_")
TEST_VARIABLES: Final = (
    "SGLANG_RADIX_FORCE_MISS",
    "SGLANG_DSPARK_SIMULATE_FOLD",
    "SGLANG_OPT_DSV41_DSPARK_SIM_DRAW_AHEAD",
    "SGLANG_JIT_KERNEL_RUN_FULL_TESTS",
)
_CLOSE = 0.75


def _others(subject: Subject) -> Iterator[Argument]:
    """Flags that no other rule claims: neither ours nor forbidden by name."""
    for argument in subject.arguments:
        if argument.owned is None and not is_claimed(argument, subject.known):
            yield argument


def _unknown_flag(subject: Subject) -> Iterator[Remark]:
    release = subject.known
    if release is None:
        return
    for argument in _others(subject):
        if argument.written and argument.flag is None and not argument.candidates:
            yield (
                argument.path,
                f"SGLang {release} has no flag {argument.shown}: the engine would print its usage and exit; "
                f"{_instead(argument.written, release)}",
            )


@lru_cache(maxsize=1024)
def _instead(flag: str, release: Release) -> str:
    rename = current_name(flag, release)
    if rename is not None:
        return f"write {rename.new if rename.old == flag else rename.old} instead"
    elsewhere = releases_with_flag(flag)
    if elsewhere is not None:
        return f"remove it, or use a release that has it ({elsewhere})"
    close = difflib.get_close_matches(flag, list(flag_table(release)), n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]}? Else remove it" if close else "remove it"


def _deprecated(subject: Subject) -> Iterator[Remark]:
    release = subject.known
    if release is None:
        return
    for argument in _others(subject):
        use = deprecation(argument.written, release) if argument.exact else None
        if use:
            yield (
                argument.path,
                f"SGLang {release} calls {argument.written} deprecated and will drop it, and then the engine exits; "
                f"use {use}",
            )
    for variable in subject.variables:
        known = env_table(release).get(variable.name)
        if known is not None and (known.retired or known.use):
            what = f"use {known.use}" if known.use else "remove it"
            yield variable.path, f"SGLang {release} calls {variable.name} deprecated, it may have no effect; {what}"


def _abbreviated_flag(subject: Subject) -> Iterator[Remark]:
    release = subject.known
    if release is None:
        return
    for argument in _others(subject):
        if argument.candidates and not argument.exact:
            names = sorted(argument.candidates)
            shown = ", ".join(names[:4]) + (" and others" if len(names) > 4 else "")
            rename = current_name(argument.written, release)
            yield (
                argument.path,
                f"{argument.shown} is an abbreviation, of {shown}: it means something else, or nothing, as soon as a "
                "release adds a flag that begins the same; "
                + (f"write {rename.new}, its present name" if rename else "write the flag in full"),
            )


def _duplicate_flag(subject: Subject) -> Iterator[Remark]:
    for role in ("prefill", "decode"):
        seen: dict[str, Argument] = {}
        for argument in subject.arguments:
            if argument.scope not in ("engine", role) or not argument.written or argument.owned is not None:
                continue
            first = seen.setdefault(argument.name, argument)
            # A repetition inside spec.engine concerns both roles and is said once.
            if first is not argument and not (role == "decode" and argument.scope == "engine"):
                yield (
                    argument.path,
                    f"{cut(argument.name)} stands there twice, also at {first.path}: SGLang takes the last one "
                    "silently, which reads differently from what is written; keep one, in the list of the role that "
                    "needs it",
                )


def _flag_value(subject: Subject) -> Iterator[Remark]:
    for argument in subject.arguments:
        if not argument.written:
            yield (
                argument.path,
                "a value that belongs to no flag: the engine would print its usage and exit; remove it, or write the "
                "flag before it",
            )
        elif argument.written == "--" or not argument.written.startswith("--"):
            yield (
                argument.path,
                f"{argument.shown} is no flag of SGLang, whose flags begin with two dashes: the engine would print "
                "its usage and exit; remove it, or write the long flag",
            )
        elif argument.flag is not None and argument.owned is None and not is_claimed(argument, subject.known):
            problem = _value_problem(argument, argument.flag)
            if problem:
                yield argument.path, f"{argument.name} {problem}; {_value_remedy(argument.flag)}"


def _value_problem(argument: Argument, flag: WheelFlag) -> str | None:
    """What argparse would say; the value itself is never quoted, since it may be a key."""
    values = argument.values
    if not flag.takes_value:
        return f"takes no value, but {len(values)} stand(s) after it: the engine would exit" if values else None
    if flag.nargs in ("?", "*"):
        return None
    if not values:
        return "needs a value and none stands after it: the engine would exit"
    if flag.nargs in (None, 1) and len(values) > 1:
        return f"takes one value, but {len(values)} stand after it: the engine would exit"
    if all(flag.accepts(value) for value in values):
        return None
    if flag.choices:
        return "has a value that this release does not know: the engine would exit"
    return "needs a number: the engine would exit"


def _value_remedy(flag: WheelFlag) -> str:
    if flag.choices:
        return f"use one of {', '.join(str(choice) for choice in flag.choices)}"
    return "set one value after it" if flag.takes_value else "remove the value"


def _is_test_variable(name: str) -> bool:
    return name.startswith(TEST_VARIABLE_PREFIXES) or name in TEST_VARIABLES


def _test_variable(subject: Subject) -> Iterator[Remark]:
    for variable in subject.variables:
        if _is_test_variable(variable.name):
            yield (
                variable.path,
                f"{variable.name} is made for SGLang's own tests and benchmarks: it injects faults, invents results or "
                "skips work, so what is served is not what the model says; remove it",
            )


def _unknown_variable(subject: Subject) -> Iterator[Remark]:
    release = subject.known
    if release is None:
        return
    for variable in subject.variables:
        name = variable.name
        if not name.startswith(("SGLANG_", "SGL_")) or _is_test_variable(name) or is_claimed_variable(name):
            continue
        if name not in env_table(release):
            yield (
                variable.path,
                f"SGLang {release} does not read {name}, so it has no effect, whatever its value; "
                f"{_instead_of_variable(name, release)}",
            )


@lru_cache(maxsize=1024)
def _instead_of_variable(name: str, release: Release) -> str:
    elsewhere = releases_with_env(name)
    if elsewhere is not None:
        return f"remove it, or use a release that reads it ({elsewhere})"
    close = difflib.get_close_matches(name, list(env_table(release)), n=1, cutoff=0.85)
    return f"did you mean {close[0]}? Else remove it" if close else "remove it"


def _dummy_weights(subject: Subject) -> Iterator[Remark]:
    for argument in subject.uses("--load-format", "--speculative-draft-load-format"):
        if argument.value == "dummy":
            yield (
                argument.path,
                f"{argument.name} dummy serves random weights: the answers are noise and no canary can pass; remove it",
            )


RULES = (
    Rule(
        id="unknown-flag",
        action=Action.REFUSE,
        title="Flags that the release does not have",
        source="sglang 0.5.12 to 0.5.23 srt/server_args.py",
        explanation=(
            "The operator knows the flags of every release from its wheel. An unknown one makes the engine exit at "
            "start, on every pod at once. Where the flag was renamed, the finding has the new name. Allow the rule "
            "only for an image whose fork of SGLang adds the flag."
        ),
        check=_unknown_flag,
    ),
    Rule(
        id="deprecated-name",
        action=Action.WARN,
        title="Names that the release calls deprecated",
        source="sglang 0.5.12 to 0.5.23 srt/server_args.py, sglang 0.5.12 to 0.5.23 srt/environ.py",
        explanation=(
            "SGLang keeps old spellings for some releases, with a warning in the log, and then drops them. An update "
            "of the image would then stop every engine. Some retired variables do nothing already."
        ),
        check=_deprecated,
    ),
    Rule(
        id="abbreviated-flag",
        action=Action.REFUSE,
        title="Flags written in short",
        source="sglang 0.5.23 srt/server_args.py (argparse with abbreviations)",
        explanation=(
            "SGLang's parser takes any unambiguous beginning of a flag. --cuda-graph-max-bs, once a flag, became the "
            "beginning of two and stops the engine now. In full, a flag can be checked against the release and against "
            "what the operator owns."
        ),
        check=_abbreviated_flag,
        allowable=False,
    ),
    Rule(
        id="duplicate-flag",
        action=Action.REFUSE,
        title="The same flag twice",
        source="sglang 0.5.23 srt/server_args.py (argparse)",
        explanation=(
            "The last of two equal flags counts, without a word in the log. Arguments of spec.engine come before those "
            "of the role, so a role's value would hide the engine's. Keep one of them, per role where the roles differ."
        ),
        check=_duplicate_flag,
    ),
    Rule(
        id="flag-value",
        action=Action.REFUSE,
        title="Flags without their value, and values without a flag",
        source="sglang 0.5.12 to 0.5.23 srt/server_args.py (argparse)",
        explanation=(
            "The parser exits with status 2 for a switch with a value, a flag without one, a word that is none of its "
            "choices and a word that belongs to no flag. Every pod would restart for ever."
        ),
        check=_flag_value,
        allowable=False,
    ),
    Rule(
        id="test-variable",
        action=Action.REFUSE,
        title="Variables made for tests and simulations",
        source="sglang 0.5.23 srt/environ.py",
        explanation=(
            "SGLANG_TEST_* injects faults, SGLANG_SIMULATE_* replaces acceptance and routing by invented numbers, "
            "SGLANG_RADIX_FORCE_MISS throws prefix reuse away. They are in published benchmark scripts and get copied "
            "into production. Allow the rule, with the reason, on a cluster that only measures."
        ),
        check=_test_variable,
    ),
    Rule(
        id="unknown-variable",
        action=Action.WARN,
        title="SGLANG_ variables that the release does not read",
        source="sglang 0.5.12 to 0.5.23 srt/environ.py",
        explanation=(
            "A misspelt or retired variable does nothing, and nothing says so. The operator knows which names each "
            "release reads. A plugin or a fork may read more, so this is a warning."
        ),
        check=_unknown_variable,
    ),
    Rule(
        id="dummy-weights",
        action=Action.REFUSE,
        title="Random weights",
        source="sglang 0.5.23 srt/arg_groups/fields/model.py (load_format)",
        explanation=(
            "Load format dummy fills the model with random numbers, for profiling. The canary asks for an exact echo "
            "and could never pass. Allow the rule, and turn the canary off, to measure speed alone."
        ),
        check=_dummy_weights,
    ),
)
