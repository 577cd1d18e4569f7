"""Tools that sessions call, with arguments that break careless parsers. Pure and reproducible.

Each tool stands for one way in which arguments go wrong between model, markup and JSON. What the values leave out:
control characters other than newline and tab, the markup's own marker (no DSML value can hold its closing tag),
text that loops, and CJK between digits - a correct echo of these would look like damage to the classifier.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_WORDS = (
    "amber", "anvil", "basil", "birch", "cedar", "cobalt", "comet", "copper", "coral", "crane", "delta", "ember",
    "fennel", "fjord", "garnet", "ginger", "glade", "gravel", "hazel", "heron", "indigo", "ivory", "jasper",
    "juniper", "kelp", "lagoon", "lantern", "larch", "linen", "lotus", "maple", "marble", "meadow", "mica",
    "nectar", "nickel", "ochre", "olive", "onyx", "opal", "orchid", "otter", "pebble", "pine", "plume", "poppy",
    "quartz", "quince", "ramp", "raven", "reed", "saffron", "sable", "slate", "spruce", "sumac", "tansy",
    "thistle", "topaz", "tulip", "umber", "velvet", "walnut", "willow", "zinc",
)  # fmt: skip

_FOREIGN = (
    "Zürich–Köln",
    "naïve façade",
    "smörgåsbord",
    "пример запроса",
    "δοκιμή αναζήτησης",
    "データを検索",
    "检索第二页",
    "한국어 검색",
    "بحث عن ملف",
    "बड़ा संदेश",
    "🚢 harbour 🧭",
    "e\u0301clair",
    "½ × ¾ ≠ ∞",
    "“curly” ‘quotes’",
)
_HOSTILE = (
    'he said "stop" twice',
    "C:\\temp\\new\\table",
    "a\ttab and\na newline",
    'first line\n\n    indented: {"a": [1, 2]}\nlast line',
    "it's 'single' and \"double\"",
    "<b>bold</b> & <i>html</i></div>",
    '${HOME}/bin && echo "$PATH" | sort',
    "SELECT * FROM t WHERE name = 'O''Brien';",
    "\\n is not a newline, \\\\ is two",
    "100% of {braces} and [brackets]",
    "trailing parameter",
    "null",
    "0042",
    "true",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One call that a session is asked to make."""

    tool: str
    arguments: Mapping[str, Any]
    nonce: str
    """Part of the arguments that no other request has, or empty when the tool takes none."""

    @property
    def request(self) -> str:
        """The plain request: each argument's name followed by its value; strings and structures as JSON."""
        if not self.arguments:
            return f"Call the tool {self.tool} exactly once, with no arguments. Do not write anything else."
        parts = [f"{name} {_written(value)}" for name, value in self.arguments.items()]
        listed = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
        return f"Call the tool {self.tool} exactly once with {listed}. Do not write anything else."


def _written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if isinstance(value, (dict, list)) else text


def fresh_nonce(rng: random.Random) -> str:
    """A token such as ``zk-41-quartz-ramp``."""
    letters = "".join(rng.choice("abcdefghjkmnpqrstvwxyz") for _ in range(2))
    return f"{letters}-{rng.randrange(10, 100)}-{rng.choice(_WORDS)}-{rng.choice(_WORDS)}"


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def _echo(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {"token": nonce, "n": rng.randrange(2, 1000)}


def _nested(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {
        "label": nonce,
        "record": {
            "owner": {"id": rng.randrange(10_000), "alias": rng.choice(_FOREIGN), "active": rng.random() < 0.5},
            "tags": [rng.choice(_WORDS) for _ in range(rng.randrange(4))],
            "limits": {"low": -rng.randrange(1, 90), "ratio": rng.randrange(1, 40) / 8, "none": None},
            "grid": [[rng.randrange(10) for _ in range(3)] for _ in range(2)],
            "empty": {},
            "note": rng.choice(_HOSTILE),
        },
    }


def _steps(rng: random.Random, nonce: str) -> dict[str, Any]:
    steps = [
        {"step": number, "run": rng.choice(_HOSTILE), "env": {rng.choice(_WORDS): rng.choice(_FOREIGN)}}
        for number in range(1, rng.randrange(3, 5))
    ]
    return {"batch": nonce, "steps": steps}


def _write(rng: random.Random, nonce: str) -> dict[str, Any]:
    body = "\n".join(rng.sample(_HOSTILE, 4))
    return {"path": f"/srv/{nonce}/{rng.choice(_WORDS)} {rng.choice(_WORDS)}.txt", "body": f"# {nonce}\n{body}\n"}


def _search(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {"query": f"{rng.choice(_FOREIGN)} {nonce} {rng.choice(_FOREIGN)}", "limit": rng.randrange(1, 50)}


def _long(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {"key": nonce, "payload": f"{_words(rng, rng.randrange(60, 120))} {nonce}"}


def _switch(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {"name": nonce, "enabled": rng.random() < 0.5, "level": rng.randrange(-80, 80) / 16 + 1 / 32}


def _nothing(_rng: random.Random, _nonce: str) -> dict[str, Any]:
    return {}


_S, _I, _O = {"type": "string"}, {"type": "integer"}, {"type": "object"}

_TOOLS: dict[str, tuple[str, dict[str, Any], Callable[[random.Random, str], dict[str, Any]]]] = {
    "probe_echo": ("Returns its arguments unchanged.", {"token": _S, "n": _I}, _echo),
    "record_store": ("Stores one nested record.", {"label": _S, "record": _O}, _nested),
    "file_write": ("Writes a text file.", {"path": _S, "body": _S}, _write),
    "session_ping": ("Tells that the session is alive. Takes no arguments.", {}, _nothing),
    "text_search": ("Searches in any language.", {"query": _S, "limit": _I}, _search),
    "batch_run": ("Runs steps in order.", {"batch": _S, "steps": {"type": "array", "items": _O}}, _steps),
    "blob_put": ("Stores a long text.", {"key": _S, "payload": _S}, _long),
    "switch_set": (
        "Sets a switch.",
        {"name": _S, "enabled": {"type": "boolean"}, "level": {"type": "number"}},
        _switch,
    ),
}

NAMES = tuple(_TOOLS)

DEFINITIONS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }
    for name, (description, properties, _) in _TOOLS.items()
]
"""The tools as every session offers them, always all and in the same order: they are part of the prefix."""


def task(tool: str, rng: random.Random, nonce: str) -> Task:
    """A call of that tool with arguments drawn from ``rng``."""
    arguments = _TOOLS[tool][2](rng, nonce)
    return Task(tool, arguments, nonce if arguments else "")
