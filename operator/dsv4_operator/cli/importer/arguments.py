"""Splits command-line words into flags with their values, as argparse would, for any release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsv4_operator.cli.importer.launch import FlagUse

_NUMBER: Final = re.compile(r"-\d|-\.\d")


def split_arguments(words: Iterable[str]) -> tuple[list[FlagUse], list[str]]:
    """Flags in their order, and words that belong to none."""
    flags: list[FlagUse] = []
    stray: list[str] = []
    for word in words:
        if word.startswith("-") and word not in ("-", "--") and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            flags.append(FlagUse(name, (value,) if equals else ()))
        elif flags:
            flags[-1] = FlagUse(flags[-1].flag, (*flags[-1].values, word))
        else:
            stray.append(word)
    return flags, stray


def flags_of_config(config: Mapping[str, Any]) -> list[FlagUse]:
    """Flags of a `--config` file: keys are flag names, true is a switch, false is its absence."""
    flags = []
    for key, value in config.items():
        flag = "--" + str(key).removeprefix("--").replace("_", "-")
        if value is True:
            flags.append(FlagUse(flag))
        elif value is False or value is None:
            continue
        elif isinstance(value, list):
            flags.append(FlagUse(flag, tuple(_text(item) for item in value)))
        else:
            flags.append(FlagUse(flag, (_text(value),)))
    return flags


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
