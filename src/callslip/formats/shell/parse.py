"""Finds the commands in a text that comes in pieces: everything about the tags is here (S0.1, S0.2, S0.3).

A command stands between `<shell>` and the first `</shell>` after it. The tags are exact: lower case, no blanks, no
attributes. Nothing else about the text matters, so that a tag within a code fence or a quotation counts as any other,
a second `<shell>` before the end is part of the command, and a `</shell>` with no beginning is text.

What is not a command is text, and comes out as it went in: a tag that is never closed, an empty pair of tags. Of a
command neither the tags nor the blanks around it are shown; it is trimmed and given out once, when its end was read.
Text comes out at once, but for what may be the beginning of a tag.

Every character is looked at once, whatever the pieces: "<" is in a tag only at its beginning, so that no more than the
last "<" of a piece can be the beginning of one that the next piece goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

OPEN, CLOSE = "<shell>", "</shell>"


class Text(msgspec.Struct, frozen=True, gc=False):
    """Some text to be shown."""

    text: str


class Command(msgspec.Struct, frozen=True, gc=False):
    """A command, trimmed, and its place among those of the round, from 0."""

    command: str
    index: int


Piece: TypeAlias = Text | Command


class ShellParser:
    """Reads what a model writes in one round; `close` ends the round and begins the next."""

    def __init__(self) -> None:
        self._index = 0
        self._held = ""  # may be the beginning of a tag
        self._body: list[str] | None = None  # of the command that is being read, in pieces

    def feed(self, text: str) -> list[Piece]:
        """What a piece of text brings: texts to show and commands, in their order."""
        return list(self._pieces(text))

    def close(self) -> list[Piece]:
        """The text ends here: what waited for more of it is text, too."""
        unclosed = [] if self._body is None else [OPEN, *self._body]
        rest = "".join([*unclosed, self._held])
        self._index, self._held, self._body = 0, "", None
        return [Text(rest)] if rest else []

    def _pieces(self, text: str) -> Iterator[Piece]:
        """The text from tag to tag."""
        rest, at = self._held + text, 0
        while True:
            tag = OPEN if self._body is None else CLOSE
            found, end = seek(rest, tag, at)
            if end > at:
                yield from self._take(rest[at:end])
            if not found:
                break
            at = end + len(tag)
            yield from self._tag()
        self._held = rest[end:]

    def _take(self, text: str) -> Iterator[Piece]:
        if self._body is None:
            yield Text(text)
        else:
            self._body.append(text)

    def _tag(self) -> Iterator[Piece]:
        """A tag was read to its end: the first opens, the next one closes."""
        if self._body is None:
            self._body = []
            return
        body, self._body = "".join(self._body), None
        command = body.strip()
        if not command:
            yield Text(OPEN + body + CLOSE)
            return
        yield Command(command, self._index)
        self._index += 1


def seek(text: str, tag: str, start: int) -> tuple[bool, int]:
    """Whether there is such a tag from `start` on, and where; if not, where one may begin that is not whole yet."""
    at = text.find(tag, start)
    if at >= 0:
        return True, at
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return False, at if at >= 0 and tag.startswith(text[at:]) else len(text)


def command_id(iteration: int, index: int) -> str:
    """What a command is called within its turn: both numbers count from 0 (S0.3)."""
    return f"cmd-{iteration}-{index}"


def extract_commands(text: str, iteration: int = 0) -> list[tuple[str, str]]:
    """The commands of a whole text, each with its id (S0.9)."""
    found = ShellParser().feed(text)
    return [(command_id(iteration, piece.index), piece.command) for piece in found if isinstance(piece, Command)]
