"""Read the environment variables that a SGLang release knows out of its wheel, without importing it.

Two kinds of places: `srt/environ.py`, a class whose attributes are the variables with type and default, and code that
reads `os.environ` or one of SGLang's own helpers directly. Only names of SGLang's own (SGLANG_..., SGL_...) count.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

ENVIRON = "sglang/srt/environ.py"
NAME = re.compile(r"^(SGLANG|SGL)_[A-Z0-9_]+$")
_MENTION = re.compile(rb"[\"'](SGLANG|SGL)_[A-Z0-9_]+[\"']")
_SKIPPED = ("sglang/test/", "sglang/multimodal_gen/", "sglang/benchmark/")
"""Not part of a text model's server."""
KINDS = {"Bool": "bool", "Int": "int", "Float": "float", "Str": "str", "JSON": "json", "Tuple": "list"}
COMPUTED = "<computed>"
READERS = re.compile(r"(^|\.)(getenv|get_bool_env_var|get_int_env_var|get_float_env_var|get_str_env_var|get_env\w*)$")
_ENVIRON_METHODS = {"get", "setdefault", "pop"}


def read_env(path: Path) -> dict[str, dict[str, Any]]:
    """All variables of the wheel at `path`: {name: {kind, default, use, retired}}; undeclared ones have no kind."""
    found: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(path) as wheel:
        for name in sorted(wheel.namelist()):
            if not name.endswith(".py") or name.startswith(_SKIPPED):
                continue
            data = wheel.read(name)
            if _MENTION.search(data):
                for variable in _reads(ast.parse(data)):
                    found.setdefault(variable, {})
        found.update(_declared(ast.parse(wheel.read(ENVIRON))))
    return dict(sorted(found.items()))


def _reads(module: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(module):
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and node.args:
            text = ast.unparse(node.func)
            method = text.rsplit(".", 1)
            if READERS.search(text) or (
                len(method) == 2 and method[0].endswith("environ") and method[1] in _ENVIRON_METHODS
            ):
                key = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            key = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            key = node.left
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and NAME.match(key.value):
            found.add(key.value)
    return found


def _declared(module: ast.Module) -> dict[str, dict[str, Any]]:
    """Attributes of `class Envs`, and names that the module itself calls deprecated."""
    found: dict[str, dict[str, Any]] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == "Envs":
            for item in node.body:
                if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                    name = item.targets[0].id
                    if NAME.match(name) and isinstance(item.value, ast.Call):
                        found |= _field(name, item.value)
    for name in _retired(module):
        found.setdefault(name, {"retired": True})
    return found


def _retired(module: ast.Module) -> set[str]:
    """Keys of `_DEPRECATED_ENVS` (0.5.18 on) and arguments of `_print_deprecated_env(...)` and its like (before)."""
    texts: list[ast.expr | None] = []
    for node in ast.walk(module):
        if isinstance(node, (ast.AnnAssign, ast.Assign)) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) == "_DEPRECATED_ENVS":
                texts += node.value.keys
        elif isinstance(node, ast.Call) and "deprecated" in ast.unparse(node.func).lower():
            texts += node.args
    return {
        text.value
        for text in texts
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and NAME.match(text.value)
    }


def _field(name: str, call: ast.Call) -> dict[str, dict[str, Any]]:
    kind = ast.unparse(call.func).removeprefix("Env").removesuffix("WithAlias")
    entry: dict[str, Any] = {"kind": KINDS.get(kind, "str")}
    default = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "default"), None)
    try:
        entry["default"] = ast.literal_eval(default) if default is not None else None
    except ValueError:
        entry["default"] = COMPUTED
    if isinstance(entry["default"], tuple):
        entry["default"] = list(entry["default"])
    found = {name: entry}
    for keyword in call.keywords:
        if keyword.arg == "deprecated_name" and isinstance(keyword.value, ast.Constant):
            found[str(keyword.value.value)] = {"retired": True, "use": name}
    return found


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        table = read_env(Path(argument))
        print(argument, len(table), sum("kind" in entry for entry in table.values()))
