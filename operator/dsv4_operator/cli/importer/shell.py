"""Reads launch commands out of shell scripts: variables, defaults, exports, arrays, continuation lines.

No shell runs. What only a running shell could know (a variable from outside, a command's output) becomes a placeholder
`<...>`, which the importer reports where it matters. Branches and loops are read straight through and reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from dsv4_operator.cli.importer.words import Lexer

LAUNCHERS: Final = ("sglang.launch_server", "dynamo.sglang", "sglang.launch_pd_server")
_SERVE: Final = ("sglang", "serve")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
_KEYWORDS: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in", "function"}
    | {"{", "}", "!", "time", "[", "[["}
)
_BRANCHING: Final = frozenset({"if", "elif", "for", "while", "until", "case", "[", "[["})
_DECLARING: Final = frozenset({"export", "declare", "typeset", "local", "readonly"})
_DEEPEST: Final = 5


@dataclass(frozen=True, slots=True)
class ShellLaunch:
    """One launch command: its arguments, the environment it runs in, and its line."""

    arguments: list[str]
    env: dict[str, str]
    line: int


@dataclass(slots=True)
class Script:
    """What was read: launches, and lines at which the script decides at run time."""

    launches: list[ShellLaunch] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)


def read_script(text: str, name: str, defined: dict[str, str], depth: int = 0) -> Script:
    """All launch commands of a script. `defined` are variables that it gets from outside.

    Raises:
        UnreadableError: for a quote or bracket that is never closed.
    """
    return _Reader(text, name, defined, depth).read()


class _Reader:
    def __init__(self, text: str, name: str, defined: dict[str, str], depth: int) -> None:
        self._lexer = Lexer(text, name, defined)
        self._name = name
        self._depth = depth
        self._exported: dict[str, None] = {}
        self._script = Script()

    def read(self) -> Script:
        for line, words in self._lexer.commands():
            self._command(line, words)
        return self._script

    def _command(self, line: int, words: list[str]) -> None:
        while words and words[0] in _KEYWORDS | {":"}:
            if words[0] in _BRANCHING:
                self._script.branches.append(line)
            words = words[1:]
        if not words:
            return
        start = _launcher_end(words)
        if start is None:
            self._nested(words)
            self._assign(words)
            return
        env = {name: self._lexer.variables[name] for name in self._exported if name in self._lexer.variables}
        env |= self._prefix_env(words[:start])
        self._script.launches.append(ShellLaunch(words[start:], env, line))

    def _nested(self, words: list[str]) -> None:
        """A command inside a word, as in `bash -c "..."`, ssh or docker."""
        for word in words:
            if any(launcher in word for launcher in LAUNCHERS) and " " in word and self._depth < _DEEPEST:
                known = {**self._lexer.variables, **self._prefix_env(words)}
                inner = read_script(word, self._name, known, self._depth + 1)
                env = {name: self._lexer.variables[name] for name in self._exported if name in self._lexer.variables}
                env |= self._prefix_env(words[: words.index(word)])
                self._script.launches += [
                    ShellLaunch(found.arguments, env | found.env, self._lexer.line) for found in inner.launches
                ]

    def _assign(self, words: list[str]) -> None:
        exports = False
        if words[0] in _DECLARING:
            exports = words[0] == "export" or "-x" in words
            words = [word for word in words[1:] if not word.startswith("-")]
        for word in words:
            match = _ASSIGNMENT.fullmatch(word)
            if match is None:
                if not exports:
                    return
                self._exported[word] = None
                continue
            name, appends, value = match.groups()
            self._lexer.variables[name] = self._lexer.variables.get(name, "") + value if appends else value
            if exports:
                self._exported[name] = None

    @staticmethod
    def _prefix_env(words: list[str]) -> dict[str, str]:
        """Variables set in front of a command: `A=B cmd`, `env A=B cmd`, `docker run -e A=B image cmd`."""
        env: dict[str, str] = {}
        for word in words:
            match = _ASSIGNMENT.fullmatch(word.removeprefix("--env=").removeprefix("-e"))
            if match is not None and not match.group(2):
                env[match.group(1)] = match.group(3)
        return env


def _launcher_end(words: list[str]) -> int | None:
    """The index after the words that start an engine; None when the command starts none."""
    for index, word in enumerate(words):
        if word in LAUNCHERS or word.endswith("sglang/launch_server.py"):
            return index + 1
        if tuple(words[index : index + 2]) == _SERVE:
            return index + 2
    return None
