"""What commands print: JSON for programs, tables with colour on a terminal, plain lines where output is piped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

_AMBIGUOUS: Final = re.compile(r"[-+]?\.?[0-9][0-9A-Za-z_.:+-]*|[yYnN]|[-+]?\.(inf|nan)", re.IGNORECASE)

COLOURS: Final = {
    "Refuse": "bold red",
    "Warn": "yellow",
    "Set": "cyan",
    "NewGeneration": "bold yellow",
    "InPlace": "cyan",
    "corruption": "bold red",
    "contract": "yellow",
    "budget": "cyan",
    "transport": "red",
    "pass": "green",
    "fail": "bold red",
    "nothing": "yellow",
    "busy": "yellow",
    "loading": "yellow",
    "unreachable": "yellow",
    "engine": "yellow",
    "unusable": "dim",
}


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_yaml(objects: Iterable[Mapping[str, Any]]) -> None:
    """YAML documents on stdout."""
    sys.stdout.write(yaml_text(objects))


def yaml_text(objects: Iterable[Mapping[str, Any]]) -> str:
    """YAML documents: no aliases, keys in the order given, texts of several lines as they are."""
    import yaml  # noqa: PLC0415 - JSON output does without

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        # Kubernetes' YAML reads more texts as numbers and truths than PyYAML does, such as 1e3 and y.
        style = "|" if "\n" in value else "'" if _AMBIGUOUS.fullmatch(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=110, explicit_start=True, allow_unicode=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream` in a terminal that shows colours and boxes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_line(text: str, stream: TextIO | None = None) -> None:
    """One plain line, on stdout unless said otherwise."""
    (stream or sys.stdout).write(text + "\n")


def warn(text: str) -> None:
    """One line on stderr. Nobody may read there any more (`| tee` that Ctrl-C ended, a closed terminal): what is left
    to do, such as removing objects, is done all the same."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], lines: Iterable[str], stream: TextIO | None = None
) -> None:
    """`rows` as a table on a terminal; elsewhere `lines`, which say the same for grep and logs."""
    stream = stream or sys.stdout
    if not is_terminal(stream):
        stream.writelines(f"{line}\n" for line in lines)
        return
    # Here alone: importing rich takes longer than all else that lint does.
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*headers, box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    Console(file=stream, soft_wrap=False).print(table)
