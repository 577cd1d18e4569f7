"""Finds out what form a launch is given in, and reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dsv4_operator.api.constants import Role
from dsv4_operator.cli.errors import UnreadableError
from dsv4_operator.cli.files import parse_documents, read_text, shown_name
from dsv4_operator.cli.importer.arguments import flags_of_config, split_arguments
from dsv4_operator.cli.importer.launch import FlagUse, Launch, finding, placeholder
from dsv4_operator.cli.importer.shell import LAUNCHERS, ShellLaunch, read_script
from dsv4_operator.policy import Finding

_VARIABLE: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def read_launch(path: str, role: Role, defined: dict[str, str], env_path: str | None = None) -> Launch:
    """The launch of `role` in a file of any form.

    Raises:
        UnreadableError: when there is none.
    """
    file, _, entry = path.partition("#")
    name = shown_name(file)
    text = read_text(file)
    if any(launcher in text for launcher in (*LAUNCHERS, "sglang serve", "launch_server.py")) and not _is_json(text):
        launch = _from_script(text, name, role, defined)
    elif text.lstrip().startswith("-") and not text.lstrip().startswith(("- ", "---")):
        launch = _from_words(read_words(text, name, defined), name, role)
    else:
        launch = _from_data(parse_documents(text, name), name, role, entry, text, defined)
    launch = _with_config(launch, Path(file).parent)
    if env_path is not None:
        launch.env.update(read_env(env_path))
    return launch


def read_env(path: str) -> dict[str, str]:
    """NAME=VALUE lines of a file, as `docker run --env-file` takes them, also with export and quotes.

    Raises:
        UnreadableError: for a line that is none.
    """
    env = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _VARIABLE.fullmatch(stripped)
        if match is None:
            raise UnreadableError(f"{shown_name(path)}:{number}: no NAME=VALUE line")
        value = match.group(2)
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
        env[match.group(1)] = value[1:-1] if quoted else value
    return env


def read_words(text: str, name: str, defined: dict[str, str]) -> list[str]:
    """The words of an argument list written as a shell would take it."""
    script = read_script(f"{LAUNCHERS[0]} " + " ".join(_uncommented(text)), name, defined)
    return script.launches[0].arguments


def _uncommented(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            yield line.removesuffix("\\")


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def _from_script(text: str, name: str, role: Role, defined: dict[str, str]) -> Launch:
    script = read_script(text, name, defined)
    roles = [(_mode(found), found) for found in script.launches]
    fitting = [found for mode, found in roles if mode == role.value]
    if not fitting and len(script.launches) == 1 and roles[0][0] not in (role.peer.value,):
        fitting = script.launches
    if not fitting:
        modes = ", ".join(f"line {found.line}: {mode or 'no --disaggregation-mode'}" for mode, found in roles)
        raise UnreadableError(f"{name}: launches no {role.value} ({modes or 'no launch command found'})")
    chosen = fitting[0]
    launch = _from_words(chosen.arguments, name, role)
    launch.env.update(chosen.env)
    if script.branches:
        lines = ", ".join(str(line) for line in sorted(set(script.branches)))
        message = f"branches or loops at line {lines} were read straight through; check what depends on them"
        launch.notes.append(finding("import-script", f"{role.value}: {name}", message))
    if any(other.arguments != chosen.arguments for other in fitting[1:]):
        lines = ", ".join(str(found.line) for found in fitting)
        message = f"launches {role.value} at lines {lines} with different arguments; the first was taken"
        launch.notes.append(finding("import-script", f"{role.value}: {name}", message))
    return launch


def _mode(found: ShellLaunch) -> str | None:
    flags, _ = split_arguments(found.arguments)
    return next((use.value for use in flags if use.flag == "--disaggregation-mode"), None)


def _from_words(words: Iterable[str], name: str, role: Role) -> Launch:
    flags, stray = split_arguments(words)
    notes = [
        finding("import-value", f"{role.value}: {name}", f"the word {word!r} belongs to no flag; left out")
        for word in stray
    ]
    return Launch(role, flags, {}, notes)


def _from_data(documents: list[Any], name: str, role: Role, entry: str, text: str, defined: dict[str, str]) -> Launch:
    if len(documents) != 1:
        raise UnreadableError(f"{name}: holds {len(documents)} documents; give one launch a file")
    data = documents[0]
    if isinstance(data, list) and data and all(isinstance(item, dict) and "roles" in item for item in data):
        data = _entry(data, name, entry)
    if isinstance(data, dict) and "roles" in data:
        return _from_entry(data, name, role)
    if isinstance(data, dict) and "flags" in data:
        return _from_role(data, name, role)
    if isinstance(data, dict):
        return Launch(role, flags_of_config(data), {})
    if isinstance(data, list) and all(isinstance(item, str | int | float) for item in data):
        return _from_words([str(item) for item in data], name, role)
    if isinstance(data, str) and "--" in data:
        return _from_words(read_words(text, name, defined), name, role)
    raise UnreadableError(f"{name}: no script, argument list, --config file or JSON with flags and env")


def _entry(entries: list[dict[str, Any]], name: str, wanted: str) -> dict[str, Any]:
    ids = [str(item.get("id")) for item in entries]
    if wanted in ids:
        return entries[ids.index(wanted)]
    problem = f"has no entry {wanted}" if wanted else "holds several entries; choose one as FILE#ID"
    raise UnreadableError(f"{name}: {problem} (of {', '.join(ids)})")


def _from_entry(data: Mapping[str, Any], name: str, role: Role) -> Launch:
    roles = data["roles"]
    label = f"{name}#{data['id']}" if "id" in data else name
    found = next((roles[key] for key in roles if key.split(" ")[0] == role.value), None)
    if found is None:
        raise UnreadableError(f"{label}: has no {role.value} role (it has {', '.join(roles)})")
    launch = _from_role(found, label, role)
    model = data.get("model")
    return Launch(role, launch.flags, launch.env, launch.notes, model=str(model) if model else None)


def _from_role(data: Mapping[str, Any], name: str, role: Role) -> Launch:
    try:
        flags = [_flag_use(pair) for pair in data["flags"]]
        pairs = data.get("env") or []
        env = {str(key): str(value) for key, value in (pairs.items() if isinstance(pairs, dict) else pairs)}
    except (TypeError, ValueError):
        raise UnreadableError(f"{name}: flags and env of {role.value} must be lists of [name, value]") from None
    return Launch(role, flags, env)


def _flag_use(pair: Any) -> FlagUse:
    flag, value = (pair, None) if isinstance(pair, str) else pair
    if value is None:
        return FlagUse(str(flag))
    return FlagUse(str(flag), tuple(str(item) for item in value) if isinstance(value, list) else (str(value),))


def _with_config(launch: Launch, folder: Path) -> Launch:
    """The launch with its `--config` file read in; what stands on the command line wins, as in SGLang."""
    uses = [use for use in launch.flags if use.flag == "--config"]
    if not uses:
        return launch
    notes: list[Finding] = []
    flags: list[FlagUse] = []
    for use in uses:
        where = f"{launch.role.value}: --config"
        path = folder / use.value
        if placeholder(use.value) or not path.is_file():
            message = f"{use.value} cannot be read here, and flags may hide in it; put the file beside the script"
            notes.append(finding("import-placeholder", where, message))
            continue
        documents = parse_documents(read_text(str(path)), str(path))
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise UnreadableError(f"{path}: no --config file: one YAML mapping of flags is wanted")
        flags += flags_of_config(documents[0])
        notes.append(finding("import-owned", where, f"{use.value} was read in: a file would hide flags from policy"))
    given = {use.flag for use in launch.flags}
    kept = [use for use in flags if use.flag not in given] + [use for use in launch.flags if use.flag != "--config"]
    return Launch(launch.role, kept, launch.env, [*launch.notes, *notes], launch.model)
