"""Find the commands in a text that arrives in pieces. Only this module handles the tags.

A command is between `<shell>` and the first `</shell>` after it. The tags are exact: lower case, no blanks, no
attributes. The rest of the text has no influence: a tag in a code fence or a quotation counts, a second `<shell>`
before the end is part of the command, and a `</shell>` without a beginning is text.

Everything else is text and is returned unchanged: a tag that is never closed, an empty pair of tags. A command is
trimmed and returned once, without its tags, when its end was read. Text is returned at once, except for what may be the
beginning of a tag.

Every character is inspected once for any split into pieces: "<" occurs in a tag only at its beginning, so only the last
"<" of a piece can begin a tag that the next piece continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

OPEN, CLOSE = "<shell>", "</shell>"


class Text(msgspec.Struct, frozen=True, gc=False):
    """A text to show."""

    text: str


class Command(msgspec.Struct, frozen=True, gc=False):
    """A trimmed command and its index among those of the round, from 0."""

    command: str
    index: int


Piece: TypeAlias = Text | Command


class ShellParser:
    """Reads the text of one round; `close` ends the round and begins the next."""

    def __init__(self) -> None:
        self._index = 0
        self._held = ""  # May be the beginning of a tag.
        self._body: list[str] | None = None  # The pieces of the current command.

    def feed(self, text: str) -> list[Piece]:
        """Return the texts and commands that a piece of text completes, in their order."""
        return list(self._pieces(text))

    @property
    def holds_text(self) -> bool:
        """Return whether a tag or a command is incomplete."""
        return bool(self._held) or self._body is not None

    def close(self) -> list[Piece]:
        """End the text: return what was held back as text."""
        unclosed = [] if self._body is None else [OPEN, *self._body]
        rest = "".join([*unclosed, self._held])
        self._index, self._held, self._body = 0, "", None
        return [Text(rest)] if rest else []

    def _pieces(self, text: str) -> Iterator[Piece]:
        """Yield the text from tag to tag."""
        rest, at = self._held + text, 0
        while True:
            tag = OPEN if self._body is None else CLOSE
            is_found, end = find_tag(rest, tag, at)
            if end > at and self._body is None:
                yield Text(rest[at:end])
            elif end > at and self._body is not None:
                self._body.append(rest[at:end])
            if not is_found:
                break
            at = end + len(tag)
            yield from self._end_tag()
        self._held = rest[end:]

    def _end_tag(self) -> Iterator[Piece]:
        """Handle a complete tag: the first opens a command, the next one closes it."""
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


def find_tag(text: str, tag: str, start: int) -> tuple[bool, int]:
    """Return whether there is a tag after `start`, and its index; if not, where an incomplete one may begin."""
    at = text.find(tag, start)
    if at >= 0:
        return True, at
    at = text.rfind(tag[0], max(start, len(text) - len(tag) + 1))
    return False, at if at >= 0 and tag.startswith(text[at:]) else len(text)


def command_id(iteration: int, index: int) -> str:
    """Return the id of a command within its turn: both numbers count from 0."""
    return f"cmd-{iteration}-{index}"


class ExtractedCommand(NamedTuple):
    """A command of a text and its id within its turn."""

    id: str
    command: str


def extract_commands(text: str, iteration: int = 0) -> list[ExtractedCommand]:
    """Return the commands of a full text, each with its id."""
    commands = [piece for piece in ShellParser().feed(text) if isinstance(piece, Command)]
    return [ExtractedCommand(command_id(iteration, piece.index), piece.command) for piece in commands]
