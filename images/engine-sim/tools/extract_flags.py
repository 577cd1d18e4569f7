"""Extract SGLang's command-line flags from a release wheel, without importing it.

Usage::

    pip download sglang==0.5.23 --no-deps -d WHEELS
    python tools/extract_flags.py WHEELS/sglang-0.5.23-*.whl src/dsv4_engine_sim/releases/0.5.23.json

The wheel's Python files are parsed with :mod:`ast`. Two layouts of the source are understood:

* ``sglang/srt/arg_groups/fields/*.py`` (0.5.2x): struct fields annotated with ``A[type, help | Arg(...)]``, turned into
  flags by the rules of ``arg_groups/arg_utils.py: add_cli_args_from_dataclass``;
* explicit ``parser.add_argument(...)`` calls in ``server_args.py`` (dynamic choices, retired flags, ``--config``).

Output: JSON ``{"release", "flags": [{"names", "dest", "action", "type", "choices", "nargs", "const", "default",
"required"}]}``. Help texts are left out on purpose. A flag that cannot be understood is an error, never skipped.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

FIELDS = "sglang/srt/arg_groups/fields/"
SERVER_ARGS = "sglang/srt/server_args.py"
CONSTANT_FILES = (
    "sglang/srt/arg_groups/choices.py",
    "sglang/srt/utils/common.py",
    "sglang/srt/function_call/parser_names.py",
    "sglang/srt/parser/reasoning_parser_names.py",
    "sglang/srt/model_executor/cuda_graph_config.py",
    SERVER_ARGS,
)
ACTIONS = {
    "BooleanOptionalAction": "boolean_optional",
    "DeprecatedStoreTrueAction": "store_true",
    "DeprecatedStoreConstAction": "store_const",
    "LoRAPathAction": "store",
}


class Unknown(Exception):
    """An expression that this tool does not understand."""


class Extractor:
    """Reads one wheel; `constants` maps names such as ``LOAD_FORMAT_CHOICES`` to their values."""

    def __init__(self, wheel: zipfile.ZipFile) -> None:
        self.wheel = wheel
        self.constants: dict[str, Any] = {}
        for path in CONSTANT_FILES:
            if path in wheel.namelist():
                self._load_constants(self._parse(path).body, "")
        kv_hash = "sglang/kernels/ops/kv_canary/consts.py"
        if kv_hash in wheel.namelist():
            self._load_constants(self._parse(kv_hash).body, "")

    def _parse(self, path: str) -> ast.Module:
        return ast.parse(self.wheel.read(path).decode(), path)

    def _load_constants(self, body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._load_constants(node.body, f"{prefix}{node.name}.")
                continue
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                continue
            if not isinstance(target, ast.Name):
                continue
            try:
                self.constants[prefix + target.id] = self.value(value, prefix)
            except Unknown:
                continue

    def value(self, node: ast.expr, scope: str = "") -> Any:
        """Evaluate a literal-like expression; raises `Unknown` for anything else."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(item, scope) for item in node.elts]
        if isinstance(node, ast.Dict) and not node.keys:
            return {}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand, scope)
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, scope), self.value(node.right, scope)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Pow):
                return left**right
        if isinstance(node, ast.Name):
            for name in (scope + node.id, node.id):
                if name in self.constants:
                    return self.constants[name]
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in self.constants:
                return self.constants[name]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("set", "frozenset", "list", "tuple") and len(node.args) == 1:
                return self.value(node.args[0], scope)
            if name == "msgspec.field" or name.endswith(".field") or name == "field":
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        return self.value(keyword.value, scope)
                    if keyword.arg == "default_factory":
                        return {"list": [], "dict": {}}.get(ast.unparse(keyword.value))
        raise Unknown(ast.unparse(node))

    # -- struct fields ----------------------------------------------------------------------------------------------

    def field_flags(self) -> list[dict[str, Any]]:
        """Flags derived from the annotated fields of ``arg_groups/fields``."""
        flags: list[dict[str, Any]] = []
        self.field_defaults: dict[str, Any] = {}
        for path in sorted(self.wheel.namelist()):
            if not path.startswith(FIELDS) or not path.endswith(".py"):
                continue
            module = self._parse(path)
            self._load_constants(module.body, "")
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    for item in node.body:
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                            flag = self._field(item.target.id, item)
                            if flag is not None:
                                flags.append(flag)
        return flags

    def _field(self, name: str, node: ast.AnnAssign) -> dict[str, Any] | None:
        annotation = node.annotation
        required = node.value is None
        default = None
        if node.value is not None:
            try:
                default = self.value(node.value)
            except Unknown as error:
                print(f"default of {name} not literal: {error}", file=sys.stderr)
        self.field_defaults[name] = default
        if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("A", "Annotated")):
            return None
        assert isinstance(annotation.slice, ast.Tuple)
        inner, *metadata = annotation.slice.elts
        arg: dict[str, ast.expr] = {}
        found = False
        for item in metadata:
            if isinstance(item, ast.Call) and ast.unparse(item.func) == "Arg":
                arg = {keyword.arg: keyword.value for keyword in item.keywords if keyword.arg}
                found = True
                break
            try:
                found = found or isinstance(self.value(item), str)
            except Unknown:
                continue
        if not found or ("no_cli" in arg and self.value(arg["no_cli"])):
            return None
        names = [self.value(arg["cli_name"]) if "cli_name" in arg else "--" + name.replace("_", "-")]
        if "aliases" in arg:
            names += self.value(arg["aliases"]) or []
        flag: dict[str, Any] = {"names": names, "dest": name, "action": "store", "default": default}
        if "action" in arg:
            flag["action"] = ACTIONS[ast.unparse(arg["action"]).split(".")[-1]]
            if "action_kwargs" in arg and isinstance(arg["action_kwargs"], ast.Dict):
                for key, value in zip(arg["action_kwargs"].keys, arg["action_kwargs"].values, strict=True):
                    if key is not None and self.value(key) == "nargs":
                        flag["nargs"] = self.value(value)
            return flag
        return self._typed(flag, inner, arg, required)

    def _typed(self, flag: dict[str, Any], inner: ast.expr, arg: dict[str, ast.expr], required: bool) -> dict[str, Any]:
        """The type rules of ``add_cli_args_from_dataclass``."""
        inner = _unwrap_optional(inner)
        parser = ast.unparse(arg["type_parser"]) if "type_parser" in arg else None
        text = ast.unparse(inner)
        outer = ast.unparse(inner.value) if isinstance(inner, ast.Subscript) else text
        if outer == "Literal":
            assert isinstance(inner, ast.Subscript)
            literal = self.value(inner.slice)
            literal = literal if isinstance(literal, list) else [literal]
            flag["choices"] = self.value(arg["choices"]) if "choices" in arg else literal
            first = type(literal[0]).__name__  # upstream infers str for everything but int and float
            flag["type"] = parser or (first if first in ("int", "float") else "str")
        elif outer in ("List", "list") and parser is None:
            element = ast.unparse(inner.slice) if isinstance(inner, ast.Subscript) else "str"
            flag["type"] = element if element in ("int", "float") else "str"
            flag["nargs"] = self.value(arg["nargs"]) if "nargs" in arg else "+"
        elif text == "bool":
            flag["action"] = "store_true"
            return flag
        else:
            flag["type"] = parser or (text if text in ("int", "float", "str") else "str")
            if "nargs" in arg:
                flag["nargs"] = self.value(arg["nargs"])
            if required and not ("required" in arg and self.value(arg["required"]) is False):
                flag["required"] = True
        if "choices" in arg:
            flag["choices"] = self.value(arg["choices"])
        if "const" in arg:
            flag["const"] = self.value(arg["const"])
        if isinstance(flag.get("choices"), list):
            flag["choices"] = list(flag["choices"])
        return flag

    # -- explicit add_argument calls --------------------------------------------------------------------------------

    def explicit_flags(self) -> list[dict[str, Any]]:
        """``parser.add_argument`` calls inside ``ServerArgs.add_cli_args``."""
        local: dict[str, Any] = {
            "sampling_backend_choices": sorted(self.constants.get("SAMPLING_BACKEND_CHOICES", [])),
            "reasoning_parser_choices": self.constants.get("REASONING_PARSER_NAMES", []),
            "tool_call_parser_choices": self.constants.get("TOOL_CALL_PARSER_NAMES", []),
        }
        self.constants.update(local)
        flags = []
        for node in ast.walk(self._parse(SERVER_ARGS)):
            if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                flags += [
                    self._explicit(call)
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument"
                ]
        return flags

    def _explicit(self, call: ast.Call) -> dict[str, Any]:
        names = [self.value(item) for item in call.args]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        dest = names[0].lstrip("-").replace("-", "_")
        flag: dict[str, Any] = {"names": names, "dest": dest, "action": "store", "type": "str", "default": None}
        if "dest" in keywords:
            flag["dest"] = self.value(keywords["dest"])
        if "type" in keywords:
            flag["type"] = ast.unparse(keywords["type"])
        if "action" in keywords:
            action = ast.unparse(keywords["action"]).split(".")[-1].strip("'")
            flag["action"] = ACTIONS.get(action, action)
            if "const_value" in keywords:
                flag["const"] = self.value(keywords["const_value"])
                if "nargs" in keywords and self.value(keywords["nargs"]) is None:
                    flag["action"] = "store_const_valued"
        if flag["action"] == "store_true":
            flag["default"] = False
        if "choices" in keywords:
            flag["choices"] = self._choices(keywords["choices"])
        if "default" in keywords:
            flag["default"] = self._default(keywords["default"])
        return flag

    def _choices(self, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.ListComp) and "_real_kv_hash_modes" in ast.unparse(node):
            prefix = "RealKvHashMode."
            return [name[len(prefix) :].lower() for name in self.constants if name.startswith(prefix)]
        return list(self.value(node))

    def _default(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_declared_default":
            return self.field_defaults.get(self.value(node.args[0]))
        return self.value(node)


def _unwrap_optional(node: ast.expr) -> ast.expr:
    """``Optional[X]``, ``X | None`` and ``Union[X, None]`` give ``X``."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Optional":
        return node.slice
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [part for part in (node.left, node.right) if ast.unparse(part) != "None"]
        if len(parts) == 1:
            return parts[0]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Union":
        assert isinstance(node.slice, ast.Tuple)
        parts = [part for part in node.slice.elts if ast.unparse(part) != "None"]
        if len(parts) == 1:
            return parts[0]
    return node


def extract(path: str) -> dict[str, Any]:
    """All flags of the wheel at `path`, sorted by their first name."""
    with zipfile.ZipFile(path) as wheel:
        extractor = Extractor(wheel)
        flags = extractor.field_flags() + extractor.explicit_flags()
    release = path.rsplit("/", 1)[-1].split("-")[1]
    seen: dict[str, str] = {}
    for flag in flags:
        for name in flag["names"]:
            if name in seen:
                raise SystemExit(f"{name} defined twice")
            seen[name] = flag["dest"]
    return {"release": release, "flags": sorted(flags, key=lambda flag: str(flag["names"][0]))}


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description="extract SGLang's command-line flags from a wheel")
    parser.add_argument("wheel")
    parser.add_argument("output")
    options = parser.parse_args()
    table = extract(options.wheel)
    lines = ",\n".join("  " + json.dumps(flag) for flag in table["flags"])
    text = '{"release": ' + json.dumps(table["release"]) + ', "flags": [\n' + lines + "\n]}\n"
    Path(options.output).write_text(text, encoding="utf-8")
    print(f"{len(table['flags'])} flags of {table['release']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
