"""The words of a shell script: quotes, expansions, arrays, redirections and here-documents, without running anything.

What only a running shell could know (a variable from outside, a command's output) becomes a placeholder `<...>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dsv4_operator.cli.errors import UnreadableError

_OUTPUT: Final = "<output of "
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-])(\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)
_HEREDOC: Final = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_REDIRECTION: Final = re.compile(r"[<>]+[&|]?[ \t]*")
_ARRAY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\(")


@dataclass(slots=True)
class _Word:
    """A word under construction: fields that it has become so far, and whether any of it was quoted."""

    fields: list[str] = field(default_factory=lambda: [""])
    started: bool = False

    def add(self, text: str) -> None:
        self.fields[-1] += text
        self.started = True

    def split(self, text: str) -> None:
        """Add an unquoted expansion, which the shell splits at blanks."""
        parts = text.split()
        if not parts:
            return
        if text[0].isspace() and self.fields[-1]:
            self.fields.append("")
        self.add(parts[0])
        for part in parts[1:]:
            self.fields.append(part)
        if text[-1].isspace():
            self.fields.append("")

    def finish(self) -> list[str]:
        if self.started and len(self.fields) == 1:
            return self.fields
        return [found for found in self.fields if found]


class Lexer:
    """Splits a script into commands, and keeps the variables that expansions need."""

    def __init__(self, text: str, name: str, defined: dict[str, str]) -> None:
        self._text = text.replace("\r\n", "\n")
        self._name = name
        self._at = 0
        self.variables: dict[str, str] = dict(defined)
        self.arrays: dict[str, list[str]] = {}
        self._heredocs: list[str] = []

    @property
    def line(self) -> int:
        """The line that is being read."""
        return self._text.count("\n", 0, self._at) + 1

    def commands(self) -> Iterator[tuple[int, list[str]]]:
        """Line and words of each simple command, in order; assignments seen before apply to expansions after."""
        words: list[str] = []
        first = 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in " \t":
                self._at += 1
            elif char in "\n;&|":
                self._at += 1
                yield first, words
                words = []
                if char == "\n":
                    self._skip_heredocs()
            elif char in "<>":
                self._redirect()
            elif char == "(":
                self._at += 1
            elif char == ")":
                # Ends a subshell, or the pattern of a case.
                self._at += 1
                yield first, words
                words = []
            else:
                if not words:
                    first = self.line
                found = self._array_assignment() or self._word()
                words += found
                if words and words[-1].isdigit() and self._text[self._at : self._at + 1] in ("<", ">"):
                    words.pop()  # 2>&1: the digit is a descriptor
        yield first, words

    def _word(self) -> list[str]:
        word = _Word()
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n;&|()<>":
                break
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "\\":
                word.add(self._text[self._at + 1 : self._at + 2])
                self._at += 2
            elif char == "'":
                end = self._closing("'", self._at + 1)
                word.add(self._text[self._at + 1 : end])
                self._at = end + 1
            elif char == '"':
                self._at += 1
                self._double_quoted(word)
            elif char in "$`":
                expansion = self._expansion(quoted=False)
                if not isinstance(expansion, str):
                    word.split(" ".join(expansion))
                elif expansion.startswith(_OUTPUT):
                    word.add(expansion)
                else:
                    word.split(expansion)
            else:
                word.add(char)
                self._at += 1
        return word.finish()

    def _double_quoted(self, word: _Word) -> None:
        start = self._at
        word.add("")
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\"):
                word.add(self._text[self._at + 1])
                self._at += 2
            elif char in "$`":
                expansion = self._expansion(quoted=True)
                if isinstance(expansion, str):
                    word.add(expansion)
                elif expansion:
                    word.add(expansion[0])
                    for item in expansion[1:]:
                        word.fields.append(item)
                else:
                    word.started = False
            else:
                word.add(char)
                self._at += 1
        raise self._unclosed('"', start)

    def _closing(self, quote: str, start: int) -> int:
        end = self._text.find(quote, start)
        if end < 0:
            raise self._unclosed(quote, start)
        return end

    def _unclosed(self, what: str, at: int) -> UnreadableError:
        line = self._text.count("\n", 0, at) + 1
        return UnreadableError(f"{self._name}:{line}: {what} is never closed")

    def _expansion(self, *, quoted: bool) -> str | list[str]:
        """The expansion that begins here; a list for all items of an array."""
        text, at = self._text, self._at
        if text[at] == "`":
            self._at = self._closing("`", at + 1) + 1
            return _unknown(text[at + 1 : self._at - 1])
        following = text[at + 1 : at + 2]
        if following == "(":
            self._at = self._bracket_end(at + 1, "(", ")")
            return _unknown(text[at + 2 : self._at - 1].strip("()"))
        if following == "{":
            self._at = self._bracket_end(at + 1, "{", "}")
            return self._braced(text[at + 2 : self._at - 1])
        if following == "'" and not quoted:
            end = self._closing("'", at + 2)
            self._at = end + 1
            return text[at + 2 : end]
        match = _NAME.match(text, at + 1)
        if match:
            self._at = match.end()
            return self._value(match.group())
        if following and following in "@*":
            self._at = at + 2
            return []
        if following and following in "0123456789#?!$-":
            self._at = at + 2
            return f"<${following}>"
        self._at = at + 1
        return "$"

    def _bracket_end(self, at: int, opening: str, closing: str) -> int:
        depth = 0
        for index in range(at, len(self._text)):
            if self._text[index] == opening:
                depth += 1
            elif self._text[index] == closing:
                depth -= 1
                if depth == 0:
                    return index + 1
        raise self._unclosed(f"${opening}", at)

    def _braced(self, inner: str) -> str | list[str]:
        match = _BRACED.fullmatch(inner)
        if match is None:
            part = _NAME.search(inner)
            return f"<${part.group() if part else 'expansion'}>"
        name, is_array, operator, other = match.groups()
        if is_array or name in "@*":
            return list(self.arrays.get(name, [self.variables[name]] if name in self.variables else []))
        known = self.variables.get(name)
        if not operator or operator.endswith("?"):
            return self._value(name)
        present = known is not None and (known != "" or ":" not in operator)
        if operator.endswith("+"):
            return self._sub(other) if present else ""
        if present:
            return known or ""
        value = self._sub(other)
        if operator.endswith("="):
            self.variables[name] = value
        return value

    def _sub(self, text: str) -> str:
        """The text of a default, which may hold expansions itself."""
        reader = Lexer(text.replace('"', "").replace("'", ""), self._name, self.variables)
        word = _Word()
        while reader._at < len(reader._text):
            if reader._text[reader._at] in "$`":
                expansion = reader._expansion(quoted=True)
                word.add(expansion if isinstance(expansion, str) else " ".join(expansion))
            else:
                word.add(reader._text[reader._at])
                reader._at += 1
        return "".join(word.fields)

    def _value(self, name: str) -> str:
        if name in self.arrays:
            return next(iter(self.arrays[name]), "")
        return self.variables.get(name, f"<${name}>")

    # -- what is not a word

    def _redirect(self) -> None:
        match = _HEREDOC.match(self._text, self._at)
        if match:
            self._heredocs.append(match.group(2))
            self._at = match.end()
            return
        match = _REDIRECTION.match(self._text, self._at)
        assert match is not None  # called at one of < and >
        self._at = match.end()
        if self._text[self._at : self._at + 1] not in ("(", "\n", ""):
            self._word()

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            match = re.compile(rf"^\t*{end}[ \t]*$", re.MULTILINE).search(self._text, self._at)
            self._at = len(self._text) if match is None else match.end()
        self._heredocs.clear()

    def _array_assignment(self) -> list[str]:
        """`NAME=( ... )` and `NAME+=( ... )`: taken in, no word is left of it."""
        match = _ARRAY.match(self._text, self._at)
        if match is None:
            return []
        start, self._at = self._at, match.end()
        items: list[str] = []
        while True:
            if self._at >= len(self._text):
                raise self._unclosed("(", start)
            char = self._text[self._at]
            if char == ")":
                self._at += 1
                break
            if char in " \t\n":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in ";&|<>(":
                self._at += 1
            else:
                items += self._word()
        name, appends = match.groups()
        self.arrays[name] = [*(self.arrays.get(name, []) if appends else []), *items]
        return [":"]


def _unknown(command: str) -> str:
    """A placeholder for the output of a command."""
    return f"{_OUTPUT}{' '.join(command.replace('<', ' ').replace('>', ' ').split())[:60]}>"
