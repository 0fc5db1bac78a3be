"""Define what the history of an agent is: where it is, which session a part of it belongs to, and how to read it.

A transcript is one part of the history that grows at its end: a file of JSON lines, or the rows of one session in a
database. It belongs to one session, which may have several transcripts, for example one for each sub-agent. A source
finds and reads the transcripts of one agent; the decoder of the same name turns their messages into drafts. A source
keeps no state: what a transcript has been read up to is its position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

Messages = Sequence[Any]


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an agent's history.

    `path` is the file, `part` the session in it if it is a database. `mark` differs whenever there may be new messages.
    `session` is the agent's own id of the session, "" if only the messages tell it. `size` is about how many bytes it
    has in all, for a progress bar, and `changed_at` the time of the last change, in ms since the epoch. `is_secondary`:
    it is that of a sub-agent, and is read after the one that has its call.
    """

    path: str
    part: str = ""
    mark: str = ""
    session: str = ""
    size: int = 0
    changed_at: int = 0
    is_secondary: bool = False

    @property
    def name(self) -> str:
        """What identifies the transcript."""
        return f"{self.shown_path}#{self.part}" if self.part else self.shown_path

    @property
    def shown_path(self) -> str:
        """The path as text. Bytes that are not UTF-8 have the form `\\xff`."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")


class Problem(msgspec.Struct, frozen=True):
    """Something in a transcript that cannot be read, and is skipped. `line` counts from 1; 0 is not a line."""

    line: int
    reason: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages of a transcript in order, and the position after them.

    A message is a JSON value. `skipped` counts what could not be read among them, of which `problem` is the first.
    `size` is about how many bytes were read. `restarted`: the transcript is not a longer version of what was read
    before, so this piece is read from its start.
    """

    messages: Messages = ()
    position: bytes
    size: int = 0
    skipped: int = 0
    problem: Problem | None = None
    restarted: bool = False


class Source(Protocol):
    """The history of one agent."""

    @property
    def name(self) -> str:
        """The name of the agent's format, which is also the source of its events."""
        ...

    @property
    def session_prefix(self) -> str:
        """What the names of its sessions start with, before the agent's own id: `claude` in `claude-3834204f-...`."""
        ...

    def folders(self, environ: Mapping[str, str], home: str) -> list[str]:
        """Return where this agent keeps its history for a user: the folders, or a database. They need not exist."""
        ...

    def find(self, path: str) -> Iterator[Transcript]:
        """Yield the transcripts in a folder, or in one file or database. What cannot be read is left out.

        This is called every few seconds while a folder is followed: it reads no messages.
        """
        ...

    def refresh(self, transcript: Transcript) -> Transcript | None:
        """Return a transcript with its current mark, size and time; None if it is gone. This is called often."""
        ...

    def session_of(self, transcript: Transcript, messages: Messages) -> str:
        """Return the agent's own id of the session from the first messages, "" if they do not tell it yet."""
        ...

    def opening(self, transcript: Transcript) -> Messages:
        """Return what the decoder is fed before the first message: what only the path or another file tells."""
        ...

    def read(self, transcript: Transcript, position: bytes) -> Iterator[Piece]:
        """Yield the messages after a position, b"" for the start, in pieces of limited size.

        A part that is not complete, such as a last line without its end, is left for the next time. The position also
        identifies what was read before, so that a shorter or other history under the same name is read from its start.
        """
        ...
