"""Keeps copies and descriptions of the chart true: run it after a change of crds/ or values.yaml.

- crds/ is copied into the chart and into manifests/crd/, which can reach no file outside their folders;
- the table of values in the chart's README.md and the descriptions in values.schema.json come from values.yaml.

`python charts/sync.py` writes; with `--check` it changes nothing, shows differences and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "charts" / "dsv4-operator"
CRD: Final = "serving.dsv4.dev_dsv4deployments.yaml"
MARK: Final = "# -- "
BEGIN, END = "<!-- values: made by charts/sync.py -->", "<!-- end of values -->"


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value: its path, default and description."""

    path: tuple[str, ...]
    default: Any
    text: str


def documented_values(source: str) -> list[Value]:
    """The values of a values.yaml that have a `# --` comment, in order.

    Mappings may nest to any depth. Raises ValueError for a comment with no key below it.
    """
    defaults, found = yaml.safe_load(source), []
    path: list[str] = []
    text: list[str] = []
    for line in source.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            if stripped.startswith(MARK):
                text = [stripped.removeprefix(MARK)]
            elif text:
                text.append(stripped.removeprefix("#").strip())
            continue
        key, colon, _ = stripped.partition(":")
        if colon and not stripped.startswith("- "):
            depth = (len(line) - len(line.lstrip())) // 2
            path = [*path[:depth], key]
            if text:
                found.append(Value(tuple(path), _at(defaults, path), " ".join(text)))
        elif text:
            raise ValueError(f"no key follows the comment {' '.join(text)!r}")
        text = []
    return found


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def table(values: list[Value]) -> str:
    """The README's table."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in values:
        default = json.dumps(value.default, separators=(", ", ": ")).replace("|", "\\|")
        rows.append(f"| `{'.'.join(value.path)}` | `{default}` | {value.text} |")
    return "\n".join(rows)


def readme(present: str, values: list[Value]) -> str:
    """The README with its table renewed. Raises ValueError when a marker is missing."""
    before, begin, rest = present.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{table(values)}\n{END}{after}"


def schema(present: str, values: list[Value]) -> str:
    """values.schema.json with the descriptions of values.yaml. Raises KeyError for a value that it does not know."""
    parsed = json.loads(present)
    for value in values:
        node = parsed
        for key in value.path:
            node = node["properties"][key]
        node.pop("description", None)
        described = {"description": value.text.replace("`", ""), **node}
        node.clear()
        node.update(described)
    return json.dumps(parsed, indent=2) + "\n"


def wanted_files() -> Iterator[tuple[Path, str]]:
    """Every file that is kept here, with what it should hold."""
    crd = (ROOT / "crds" / CRD).read_text(encoding="utf-8")
    yield CHART / "files" / CRD, crd
    yield ROOT / "manifests" / "crd" / CRD, crd
    values = documented_values((CHART / "values.yaml").read_text(encoding="utf-8"))
    for path, make in ((CHART / "README.md", readme), (CHART / "values.schema.json", schema)):
        yield path, make(path.read_text(encoding="utf-8"), values)


def main(arguments: list[str] | None = None) -> int:
    """Write or check. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python charts/sync.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when something is stale")
    check = parser.parse_args(arguments).check
    stale = 0
    for path, text in wanted_files():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == text:
            continue
        stale += 1
        if check:
            name = str(path.relative_to(ROOT))
            lines = difflib.unified_diff(present.splitlines(keepends=True), text.splitlines(keepends=True), name, name)
            sys.stdout.writelines(lines)
            sys.stderr.write(f"{name} is stale; run `python charts/sync.py`\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
