"""Read the command-line flags of any known SGLang release out of its wheel, without importing it.

Builds on `images/engine-sim/tools/extract_flags.py`, which understands the newest layout, and adds the older ones:

* 0.5.12, 0.5.13: every flag is a `parser.add_argument(...)` call;
* 0.5.14 to 0.5.19: annotated fields of `class ServerArgs` in server_args.py;
* 0.5.20 and later: annotated fields in arg_groups/fields/*.py.

What cannot be understood is an error, never skipped. Help texts are left out.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("extract_flags", ROOT / "images/engine-sim/tools/extract_flags.py")
assert _SPEC is not None
assert _SPEC.loader is not None
extract_flags = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(extract_flags)

Unknown = extract_flags.Unknown
SERVER_ARGS = extract_flags.SERVER_ARGS

PARSER_NAMES = {
    # Where the values of --reasoning-parser and --tool-call-parser stood before parser_names.py existed.
    "reasoning_parser_choices": (
        "REASONING_PARSER_NAMES",
        "sglang/srt/parser/reasoning_parser.py",
        "ReasoningParser.DetectorMap",
    ),
    "tool_call_parser_choices": (
        "TOOL_CALL_PARSER_NAMES",
        "sglang/srt/function_call/function_call_parser.py",
        "FunctionCallParser.ToolCallParserEnum",
    ),
}
ACTIONS = {
    "store_true": "switch",
    "DeprecatedStoreTrueAction": "switch",
    "store_false": "switch",
    "BooleanOptionalAction": "optional-switch",
    "DeprecatedStoreConstAction": "switch",
    "DeprecatedAction": "retired",
    "DeprecatedAliasStoreAction": "",
    "LoRAPathAction": "",
    "store": "",
}
"""Kind of a flag by its argparse action; empty: by its type."""

TYPES = {"int": "int", "float": "float", "str": "str", "json.loads": "json", "json_list_type": "json"}
"""Kind by argparse type; every other converter of SGLang takes text."""

MORE_CONSTANTS = (
    "sglang/srt/lora/utils.py",
    "sglang/jit_kernel/kv_canary/consts.py",
    "sglang/kernels/ops/kv_canary/consts.py",
)

DYNAMIC_DEFAULT = "<computed>"
"""Default that the wheel computes when it is loaded."""


class Reader(extract_flags.Extractor):  # type: ignore[misc, name-defined]
    """Flags of one wheel as {first name: {names, dest, kind, choices, default, nargs, required}}."""

    def __init__(self, wheel: zipfile.ZipFile) -> None:
        self.names = set(wheel.namelist())
        self.found: dict[str, dict[str, Any]] = {}
        self.defaults: dict[str, Any] = {}
        super().__init__(wheel)
        for target, (constant, path, attribute) in PARSER_NAMES.items():
            if constant not in self.constants:
                self._load_constants(self._parse(path).body, "")
                self.constants[constant] = list(self.constants[attribute])
            self.constants[target] = list(self.constants[constant])
        self._aliases()

    def _aliases(self) -> None:
        """Constants that server_args.py imports under another name, and choices made from enums."""
        for path in MORE_CONSTANTS:
            if path in self.names:
                self._load_constants(self._parse(path).body, "")
        self._load_constants(self._parse(SERVER_ARGS).body, "")
        self.constants.setdefault("sampling_backend_choices", self.constants["SAMPLING_BACKEND_CHOICES"])

    def value(self, node: ast.expr, scope: str = "") -> Any:
        """As the base, and: mappings (their keys matter), `list(x.keys())`, sorted, set unions, subscripts."""
        if isinstance(node, ast.Dict) and node.keys and all(key is not None for key in node.keys):
            return {self.value(key, scope): DYNAMIC_DEFAULT for key in node.keys if key is not None}
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(".keys") and isinstance(node.func, ast.Attribute):
                return list(self.value(node.func.value, scope))
            if name in ("list", "sorted", "set", "tuple", "frozenset"):
                items = self.value(node.args[0], scope) if node.args else []
                return sorted(items) if name == "sorted" else list(items)
        if isinstance(node, ast.Attribute) and node.attr == "value":
            return self.value(node.value, scope)
        if isinstance(node, ast.Subscript):
            return self.value(node.value, scope)[self.value(node.slice, scope)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return list(self.value(node.left, scope)) + list(self.value(node.right, scope))
        return super().value(node, scope)

    def _choices(self, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.ListComp) and "RealKvHashMode" in ast.unparse(node):
            prefix = "RealKvHashMode."
            return [name.removeprefix(prefix).lower() for name in self.constants if name.startswith(prefix)]
        return list(super()._choices(node))

    # -- fields -------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, dict[str, Any]]:
        """All flags, by first name."""
        modules = sorted(path for path in self.names if path.startswith(extract_flags.FIELDS) and path.endswith(".py"))
        for path in modules:
            module = self._parse(path)
            self._load_constants(module.body, "")
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    self._fields(node)
        for node in self._parse(SERVER_ARGS).body:
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                self._fields(node)
                self._explicit_calls(node)
        return dict(sorted(self.found.items()))

    def _fields(self, node: ast.ClassDef) -> None:
        fields: dict[str, ast.AnnAssign] = {}
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                fields[item.target.id] = item  # 0.5.15 and 0.5.16 declare dcp_size twice: the last one counts
        for name, item in fields.items():
            self.defaults[name] = self._literal(item.value) if item.value is not None else None
            annotation = item.annotation
            if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("A", "Annotated"):
                self._annotated(name, item)

    def _literal(self, node: ast.expr) -> Any:
        try:
            return self.value(node)
        except Unknown:
            return DYNAMIC_DEFAULT

    def _annotated(self, name: str, item: ast.AnnAssign) -> None:
        annotation = item.annotation
        assert isinstance(annotation, ast.Subscript)
        assert isinstance(annotation.slice, ast.Tuple)
        inner, *metadata = annotation.slice.elts
        arg: dict[str, ast.expr] | None = None
        for entry in metadata:
            if isinstance(entry, ast.Call) and ast.unparse(entry.func) == "Arg":
                arg = {keyword.arg: keyword.value for keyword in entry.keywords if keyword.arg}
                break
            if isinstance(entry, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                arg = {}
                break
            if isinstance(entry, ast.Call) and ast.unparse(entry.func) in ("Derived", "NS"):
                continue
            raise Unknown(f"metadata of {name}: {ast.unparse(entry)}")
        if arg is None or ("no_cli" in arg and self.value(arg["no_cli"])):
            return
        names = [self.value(arg["cli_name"]) if "cli_name" in arg else "--" + name.replace("_", "-")]
        names += (self.value(arg["aliases"]) or []) if "aliases" in arg else []
        flag: dict[str, Any] = {"names": names, "dest": name, "default": self.defaults[name]}
        kind = ACTIONS[ast.unparse(arg["action"]).split(".")[-1].strip("'")] if "action" in arg else ""
        if kind:
            flag["kind"] = kind
        elif "action" in arg:
            flag["kind"] = "str"
            extra = arg.get("action_kwargs")
            if isinstance(extra, ast.Dict):
                for key, value in zip(extra.keys, extra.values, strict=True):
                    if key is not None and self.value(key) == "nargs":
                        flag["nargs"] = self.value(value)
        else:
            self._kind(flag, inner, arg, required=item.value is None)
        self._add(flag)

    def _kind(self, flag: dict[str, Any], inner: ast.expr, arg: dict[str, ast.expr], *, required: bool) -> None:
        """The type rules of upstream's `add_cli_args_from_dataclass`."""
        inner = extract_flags._unwrap_optional(inner)
        parser = ast.unparse(arg["type_parser"]) if "type_parser" in arg else None
        outer = ast.unparse(inner.value) if isinstance(inner, ast.Subscript) else ast.unparse(inner)
        if outer == "Literal":
            assert isinstance(inner, ast.Subscript)
            literal = self.value(inner.slice)
            literal = literal if isinstance(literal, list) else [literal]
            flag["choices"] = literal
            flag["kind"] = TYPES.get(parser or type(literal[0]).__name__, "str")
        elif outer in ("List", "list") and parser is None:
            element = ast.unparse(inner.slice) if isinstance(inner, ast.Subscript) else "str"
            flag["kind"] = TYPES.get(element, "str")
            flag["nargs"] = "+"
        elif outer == "bool":
            flag["kind"] = "switch"
        else:
            flag["kind"] = TYPES.get(parser or outer, "str")
            if required and not ("required" in arg and self.value(arg["required"]) is False):
                flag["required"] = True
        if "nargs" in arg and flag["kind"] != "switch":
            flag["nargs"] = self.value(arg["nargs"])
        if "choices" in arg and self.value(arg["choices"]) is not None:
            flag["choices"] = list(self.value(arg["choices"]))

    # -- explicit calls -----------------------------------------------------------------------------------------

    def _explicit_calls(self, server_args: ast.ClassDef) -> None:
        for node in server_args.body:
            if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".add_argument"):
                        self._call(call)

    def _call(self, call: ast.Call) -> None:
        names = [self.value(item) for item in call.args]
        given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        flag: dict[str, Any] = {"names": names, "dest": names[0].lstrip("-").replace("-", "_"), "default": None}
        if "dest" in given:
            flag["dest"] = self.value(given["dest"])
        action = ast.unparse(given["action"]).split(".")[-1].strip("'") if "action" in given else "store"
        text = ast.unparse(given["type"]) if "type" in given else "str"
        flag["kind"] = ACTIONS[action] or TYPES.get(text, "str")
        if action == "DeprecatedStoreConstAction" and "nargs" in given and self.value(given["nargs"]) is None:
            flag["kind"] = "str"
        elif "nargs" in given:
            flag["nargs"] = self.value(given["nargs"])
        if "choices" in given:
            flag["choices"] = self._choices(given["choices"])
        if "required" in given and self.value(given["required"]):
            flag["required"] = True
        if "default" in given:
            flag["default"] = self._call_default(given["default"])
        elif flag["kind"] == "switch":
            flag["default"] = None if action == "DeprecatedStoreConstAction" else False
        if "new_flag" in given:
            flag["use"] = self.value(given["new_flag"])
        self._add(flag)

    def _call_default(self, node: ast.expr) -> Any:
        text = ast.unparse(node)
        if text == "argparse.SUPPRESS":
            return None
        for prefix in ("ServerArgs.", "_declared_default('"):
            if text.startswith(prefix):
                return self.defaults[text.removeprefix(prefix).rstrip("')")]
        return self._literal(node)

    def _add(self, flag: dict[str, Any]) -> None:
        flag["names"] = list(dict.fromkeys(flag["names"]))
        known = {name for other in self.found.values() for name in other["names"]}
        for name in flag["names"]:
            if not name.startswith("-"):
                raise Unknown(f"positional argument {name}")
            if name in known:
                raise Unknown(f"{name} defined twice")
        if isinstance(flag.get("choices"), list):
            flag["choices"] = sorted(set(flag["choices"]), key=str)
        self.found[flag["names"][0]] = {
            key: value for key, value in flag.items() if value is not None or key == "default"
        }


def read_flags(path: Path) -> dict[str, dict[str, Any]]:
    """All flags of the wheel at `path`, by first name."""
    with zipfile.ZipFile(path) as wheel:
        return Reader(wheel).read()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        table = read_flags(Path(argument))
        print(argument, len(table), sum(flag["default"] == DYNAMIC_DEFAULT for flag in table.values()))
        print([n for n, flag in table.items() if flag["default"] == DYNAMIC_DEFAULT])
