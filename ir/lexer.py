"""Splits the text form of the IR into tokens, and points at mistakes in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s*(?:(?P<comment>//[^\n]*)|(?P<string>"(?:\\.|[^"\\])*")|(?P<arrow>->)|(?P<range>\.\.)
    |(?P<param>@[\w./-]+)|(?P<value>%\w+)
    |(?P<number>-?(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+))
    |(?P<word>-?[A-Za-z_][\w.-]*)|(?P<sign>[(){}\[\]=,:|*+-]))""",
    re.X,
)


class ParseError(ValueError):
    """Text that is not IR; the message has the line with a caret."""


@dataclass(frozen=True)
class Token:
    """A piece of text and where it starts."""

    kind: str
    text: str
    start: int


def tokens(source: str) -> list[Token]:
    """Split text into tokens, without comments and space; ends with a token of kind `end`."""
    end = len(source.rstrip())
    out, position = list[Token](), 0
    while position < end:
        match = _TOKEN.match(source, position)
        if match is None:
            at = position + len(source[position:]) - len(source[position:].lstrip())
            raise ParseError(caret(source, at, "unexpected character"))
        kind = str(match.lastgroup)
        if kind != "comment":
            out.append(Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return [*out, Token("end", "", end)]


def caret(source: str, position: int, message: str) -> str:
    """The message with line number, the line, and a caret under the position."""
    line = source.count("\n", 0, position)
    start = source.rfind("\n", 0, position) + 1
    text = source[start:].split("\n", 1)[0]
    return f"line {line + 1}: {message}\n{text}\n{' ' * (position - start)}^"
