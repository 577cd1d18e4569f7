"""SGLang's command line, rebuilt from data extracted from a release wheel (see ``tools/extract_flags.py``).

The parser is an ordinary :class:`argparse.ArgumentParser`, as upstream: unknown flags, wrong choices, wrong types and
ambiguous prefixes end with a message on stderr and exit status 2; unambiguous prefixes are accepted.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

log = logging.getLogger(__name__)


class ReleaseError(ValueError):
    """No flag table exists for the asked release."""


def known_releases() -> list[str]:
    """Releases whose flag tables this distribution carries."""
    folder = resources.files("dsv4_engine_sim") / "releases"
    return sorted(item.name[: -len(".json")] for item in folder.iterdir() if item.name.endswith(".json"))


def load_table(release: str) -> list[dict[str, Any]]:
    """The flag records of `release`. Raises `ReleaseError` naming the known ones."""
    if release not in known_releases():
        raise ReleaseError(f"no flag table for SGLang {release!r}; known: {', '.join(known_releases())}")
    text = (resources.files("dsv4_engine_sim") / "releases" / f"{release}.json").read_text("utf-8")
    flags: list[dict[str, Any]] = json.loads(text)["flags"]
    return flags


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Invalid JSON: {value} ({error})") from error


def _json_object(value: str) -> Any:
    parsed = _json(value)
    if not isinstance(parsed, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _nullable(value: str) -> str | None:
    return None if not value or value == "None" else value


def _human_int(value: str) -> int:
    """``1k`` = 1000, ``25.6k`` = 25600, ``1Ki`` = 1024 (upstream utils/common.py: human_readable_int)."""
    value = value.strip()
    for suffix, factor in {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}.items():
        if value.endswith(suffix):
            return int(value[: -len(suffix)]) * factor
    for suffix, factor in {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.items():
        if value.endswith(suffix):
            return int(float(value[:-1]) * factor)
    return int(value)


TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "json.loads": _json,
    "json_list_type": _json,
    "human_readable_int": _human_int,
    "nullable_str": _nullable,
    "parse_cuda_graph_backend_arg": str,
    "parse_cuda_graph_config_arg": _json_object,
}


class _StoreConst(argparse.Action):
    """A retired valued flag whose one accepted value sets a constant elsewhere."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, self.const)


def build_parser(release: str) -> argparse.ArgumentParser:
    """The argument parser of SGLang `release`, without help texts."""
    parser = argparse.ArgumentParser(
        prog="sglang serve",
        description=f"SIMULATOR of SGLang {release} for DeepSeek-V4 prefill/decode. It has no model.",
    )
    for flag in load_table(release):
        names, action = flag["names"], flag["action"]
        kwargs: dict[str, Any] = {"dest": flag["dest"], "default": flag["default"]}
        if action == "store_true":
            kwargs["action"] = "store_true"
        elif action == "boolean_optional":
            kwargs["action"] = argparse.BooleanOptionalAction
        elif action in ("store_const_valued", "store_const"):
            kwargs |= {"action": _StoreConst, "const": flag["const"], "choices": flag.get("choices")}
            kwargs["nargs"] = None if action == "store_const_valued" else 0
        elif action == "store":
            kwargs["type"] = TYPES[flag.get("type", "str")]
            for key in ("choices", "nargs", "const", "required"):
                if key in flag:
                    kwargs[key] = flag[key]
        else:
            raise ReleaseError(f"flag table of {release}: unknown action {action!r} of {names[0]}")
        parser.add_argument(*names, **kwargs)
    return parser


def parse(argv: Sequence[str], release: str) -> argparse.Namespace:
    """Parse `argv` as SGLang `release` does, ``--config FILE`` included.

    Raises SystemExit(2) with argparse's message for what argparse refuses, ValueError for a bad config file
    (upstream utils/server_args_config_parser.py).
    """
    parser = build_parser(release)
    return parser.parse_args(_merge_config(parser, list(argv)))


def _merge_config(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Put the options of ``--config FILE`` in front of the command line, which therefore wins."""
    if "--config" not in argv:
        return argv
    if argv.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    index = argv.index("--config")
    if index == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    path = Path(argv[index + 1])
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {path}")
    data = yaml.safe_load(path.read_text("utf-8")) or {}
    if not isinstance(data, dict):
        raise ValueError("Config file must contain a dictionary at root level")  # noqa: TRY004  as upstream
    switches = {
        option[2:].replace("-", "_")
        for action in parser._actions
        if isinstance(action, argparse._StoreTrueAction)
        for option in [*action.option_strings, "--" + action.dest]
    }
    options: list[str] = []
    for key, value in data.items():
        if isinstance(value, bool):
            if str(key).replace("-", "_") not in switches:
                options += [f"--{key}", str(value).lower()]
            elif value:
                options.append(f"--{key}")
        elif isinstance(value, list):
            options += [f"--{key}", *map(str, value)] if value else []
        else:
            options += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return options + argv[:index] + argv[index + 2 :]
