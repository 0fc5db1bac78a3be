"""Cursors for the commands that were changed since a time, by the transactions that had ended at that time.

A row has the number of the transaction that wrote it last. A reader has read the rows of all transactions that had
ended when it read, and needs those of all others later: of transactions that were open then, however long they stay
open, and of those that began after that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

UNFLUSHED_TRANSACTIONS = 1000
"""How many transactions may be lost in a crash of the server: those without a write that someone waits for."""
_TRANSACTIONS = r"\d{1,20}(?:,\d{1,20})*"
_CURSOR = re.compile(rf"({_TRANSACTIONS})/(\d+)(?:/({_TRANSACTIONS})/(\d+))?", re.ASCII)
_OLDER_CURSOR = re.compile(r"(\d{1,20})(?:/(\d{1,20})/(\d+))?", re.ASCII)
_PLACE = re.compile(r"(\d{1,20}):(.*)", re.ASCII | re.DOTALL)


class Ended(NamedTuple):
    """The transactions that had ended at a time: all before `first`, without those that were `open`."""

    first: int
    open: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Ended:
        first, *others = map(int, text.split(","))
        return cls(first, tuple(others))

    def includes(self, other: Ended) -> bool:
        """Return whether all transactions that had ended at another time had ended at this one."""
        return other.first <= self.first and all(
            number >= other.first or number in other.open for number in self.open if number < other.first
        )

    def __str__(self) -> str:
        return ",".join(map(str, (self.first, *self.open)))


class ServerState(NamedTuple):
    """The state of a server when rows were read: the first columns of the statements that read changes.

    `flushed` and `inserted` are positions in the WAL. `following` is the number after those of all transactions that
    had ended. `timeline` is 0 for a standby; a standby that is promoted begins a new one.
    """

    ended: Ended
    flushed: int
    inserted: int
    following: int
    timeline: int

    @classmethod
    def read(cls, row: Sequence[Any]) -> ServerState:
        """Return the state from a row."""
        first, transactions, *others = row[:STATE_COLUMNS]
        return cls(Ended(first, tuple(transactions)), *others)


STATE_COLUMNS = len(ServerState._fields) + 1


class ChangeCursor(NamedTuple):
    """The transactions whose commands were read, and those that follow once they are durable.

    After a crash the server uses the numbers of transactions again that were not flushed. So the cursor does not move
    past them: `following` has ended, too, when the WAL is flushed up to `wal_bytes`.
    """

    ended: Ended
    timeline: int = 0
    following: Ended | None = None
    wal_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> ChangeCursor | None:
        """Return a cursor from its text, also from that of an older version, which knew no open transactions."""
        if (match := _CURSOR.fullmatch(text)) is not None:
            ended, timeline, following, wal_bytes = match.groups()
        elif (match := _OLDER_CURSOR.fullmatch(text)) is not None:
            (ended, following, wal_bytes), timeline = match.groups(), 0
        else:
            return None
        later = Ended.parse(following) if following else None
        return cls(Ended.parse(ended), int(timeline), later, int(wal_bytes or 0))

    @classmethod
    def now(cls, state: ServerState) -> ChangeCursor:
        """Return the cursor for the future."""
        if state.flushed >= state.inserted:
            return cls(state.ended, state.timeline)
        first = max(0, state.ended.first - UNFLUSHED_TRANSACTIONS)
        ended = Ended(first, tuple(number for number in state.ended.open if number < first))
        return cls(ended, state.timeline, state.ended, state.inserted)

    def is_valid(self, state: ServerState) -> bool:
        """Return whether the server still has the transactions that count as read.

        After a failover the new primary may have lost some of them, and uses their numbers again.
        """
        is_same = not self.timeline or not state.timeline or self.timeline == state.timeline
        return is_same and self.ended.first <= state.following

    def advance(self, state: ServerState) -> ChangeCursor:
        """Return the cursor after all visible rows were read."""
        timeline = state.timeline or self.timeline
        if state.flushed >= state.inserted:
            return ChangeCursor(state.ended, timeline)
        if self.following is None or not state.ended.includes(self.following):  # The numbers went back.
            return ChangeCursor(self.ended, timeline, state.ended, state.inserted)
        if state.flushed >= self.wal_bytes:
            return ChangeCursor(self.following, timeline, state.ended, state.inserted)
        return self

    def __str__(self) -> str:
        text = f"{self.ended}/{self.timeline}"
        return f"{text}/{self.following}/{self.wal_bytes}" if self.following is not None else text


class ChangePage(NamedTuple):
    """What the next read returns: a page of the changes since `start`, from the row after `change` and `call` on.

    `following` is the cursor after the last page, by the state when the first one was read. Transactions that ended
    between two pages belong to the next round.
    """

    start: ChangeCursor
    following: ChangeCursor | None = None
    change: int = 0
    call: str = ""

    @classmethod
    def parse(cls, text: str) -> ChangePage | None:
        """Return a page from its text, also from that of an older version."""
        head, colon, rest = text.partition(":")
        start = following = ChangeCursor.parse(head)
        if start is None or not colon:
            return None if start is None else cls(start)
        is_older = _OLDER_CURSOR.fullmatch(head) is not None
        if not is_older:
            head, _, rest = rest.partition(":")
            following = ChangeCursor.parse(head)
        match = _PLACE.fullmatch(rest)
        if following is None or match is None:
            return None
        change = int(match[1])
        return cls(ChangeCursor(Ended(change)) if is_older else start, following, change, match[2])

    @property
    def open(self) -> list[str]:
        """The transactions that were open at the start and that this page may still have rows of."""
        return [str(number) for number in self.start.ended.open if number >= self.change]

    @property
    def place(self) -> tuple[str, str]:
        """The row after which those of open transactions are read."""
        return str(self.change), self.call

    @property
    def place_of_later(self) -> tuple[str, str]:
        """The row after which those of later transactions are read."""
        first = self.start.ended.first
        return self.place if self.change >= first else (str(first), "")

    def __str__(self) -> str:
        if self.following is None:
            return str(self.start)
        return f"{self.start}:{self.following}:{self.change}:{self.call}"
