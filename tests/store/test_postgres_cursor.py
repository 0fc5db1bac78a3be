"""Cursors of changed commands, against a small model of a server: transactions, their numbers, the WAL and crashes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.store.postgres_cursor import ChangeCursor, ChangePage, Ended, ServerState

PAGE_ROWS = 2
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin", "commit", "commit", "commit_later", "abort", "flush", "crash", "read", "read"]
        ),
        st.integers(0, 5),
    ),
    max_size=60,
)


class Server:
    """A server whose transactions write one row each. Rows are visible once their transaction is durable.

    Numbers of transactions without a record in the flushed WAL are used again after a crash.
    """

    def __init__(self) -> None:
        self.running: list[int] = []
        self.rows: list[tuple[int, str]] = []
        self.timeline = 1
        self._next = self._following = 1
        self._wal: list[int] = []
        """The transaction of each record."""
        self._flushed = 0
        self._written = 0

    def begin(self) -> None:
        self.running.append(self._next)
        self._next += 1

    def end(self, place: int, *, has_row: bool, is_durable: bool) -> None:
        if self.running:
            number = self.running.pop(place % len(self.running))
            self._wal.append(number)
            self._following = max(self._following, number + 1)
            if is_durable:
                self.flush()
            if has_row:
                self._written += 1
                self.rows.append((number, f"row:{self._written}"))

    def flush(self) -> None:
        self._flushed = len(self._wal)

    def crash(self) -> None:
        self.running.clear()
        del self._wal[self._flushed :]
        self._next = self._following = max([0, *self._wal]) + 1

    def fail_over(self, records: int) -> None:
        """Continue on a standby that has not received the last records."""
        del self._wal[max(0, len(self._wal) - records) :]
        self._flushed = len(self._wal)
        self.rows = [row for row in self.rows if row[0] in self._wal]
        self.crash()
        self.timeline += 1

    @property
    def state(self) -> ServerState:
        open_ones = tuple(number for number in self.running if number < self._following)
        ended = Ended(self._following, open_ones)
        return ServerState(ended, self._flushed, len(self._wal), self._following, self.timeline)


class Reader:
    """What `PostgresStore.commands_changed` does, on the model."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.cursor = str(ChangeCursor.now(server.state))
        self.read_rows: set[str] = set()
        self.returned = 0

    def read(self) -> bool:
        """Read a page; return whether it was the last one of a round."""
        state, page = self._server.state, ChangePage.parse(self.cursor)
        assert page is not None and str(page) == self.cursor
        assert (page.following or page.start).is_valid(state)
        place, later = ((int(change), call) for change, call in (page.place, page.place_of_later))
        found = [row for row in self._server.rows if str(row[0]) in page.open and row > place]
        found += [row for row in self._server.rows if later < row and row[0] < state.following]
        assert len(set(found)) == len(found)
        found = sorted(found)[:PAGE_ROWS]
        following = page.following or page.start.advance(state)
        is_last = len(found) < PAGE_ROWS
        self.cursor = str(following if is_last else ChangePage(page.start, following, *found[-1]))
        self.read_rows |= {row for _, row in found}
        self.returned += len(found)
        return is_last


def run(server: Server, reader: Reader, steps: list[tuple[str, int]]) -> None:
    can_crash = True
    for step, place in steps:
        match step:
            case "begin":
                server.begin()
            case "commit":
                server.end(place, has_row=True, is_durable=True)
            case "commit_later" | "abort":
                server.end(place, has_row=False, is_durable=False)
            case "flush":
                server.flush()
                can_crash = True
            case "crash":
                if can_crash:
                    server.crash()
                can_crash = False  # Not before what was lost is replaced.
            case _:
                reader.read()


@given(STEPS, STEPS)
def test_every_row_is_read_once_it_is_visible(before: list[tuple[str, int]], steps: list[tuple[str, int]]) -> None:
    """PGS9: with open transactions, those lost in a crash, and those that end between two pages."""
    server = Server()
    run(server, Reader(server), before)
    known = {row for _, row in server.rows}
    reader = Reader(server)
    run(server, reader, steps)
    while not reader.read():
        pass
    while not reader.read():  # What was written between the pages.
        pass
    assert {row for _, row in server.rows} - known <= reader.read_rows


def test_a_number_that_is_used_again_and_still_open_is_read() -> None:
    """PGS9: the crash has lost the first transaction with that number, and other ones have written as much since."""
    server = Server()
    server.begin()
    server.end(0, has_row=False, is_durable=False)
    reader = Reader(server)
    reader.read()
    server.crash()
    server.begin()
    assert server.running == [1]
    server.begin()
    server.end(1, has_row=False, is_durable=True)
    server.begin()
    server.end(1, has_row=False, is_durable=False)
    reader.read()
    server.end(0, has_row=True, is_durable=True)
    reader.read()
    assert len(reader.read_rows) == 1


def test_rows_are_not_read_again_while_an_older_transaction_is_open() -> None:
    """PGS9: and the row of that transaction is read when it ends."""
    server = Server()
    server.begin()
    reader = Reader(server)
    for _ in range(50):
        server.begin()
        server.end(1, has_row=True, is_durable=True)
        while not reader.read():
            pass
    assert reader.returned == len(reader.read_rows) == 50
    server.end(0, has_row=True, is_durable=True)
    reader.read()
    assert reader.returned == len(reader.read_rows) == 51


@given(STEPS, st.integers(1, 5), STEPS)
def test_a_failover_that_lost_transactions_ends_a_cursor(
    before: list[tuple[str, int]], records: int, after: list[tuple[str, int]]
) -> None:
    """PGS10: also if the new server has reached the same numbers when it is asked first."""
    server = Server()
    reader = Reader(server)
    run(server, reader, before)
    while not reader.read():
        pass
    server.fail_over(records)
    run(server, Reader(server), after)
    page = ChangePage.parse(reader.cursor)
    assert page is not None and not page.start.is_valid(server.state)


def test_numbers_that_went_back_end_a_cursor() -> None:
    """PGS10: also on a server with the same timeline, as one that was restored from a dump."""
    cursor = ChangeCursor(Ended(100, (90,)), 1)
    assert cursor.is_valid(ServerState(Ended(100, (90,)), 0, 0, 100, 1))
    assert not cursor.is_valid(ServerState(Ended(99), 0, 0, 99, 1))
    assert not cursor.is_valid(ServerState(Ended(200), 0, 0, 200, 2))


def test_a_standby_of_the_same_server_continues_a_cursor() -> None:
    """A standby knows neither its timeline nor the transactions that are open."""
    standby = ServerState(Ended(90), 0, 0, 100, 0)
    cursor = ChangeCursor(Ended(100, (90,)), 3)
    assert cursor.is_valid(standby)
    assert cursor.advance(standby) == ChangeCursor(Ended(90), 3)


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("7", ChangePage(ChangeCursor(Ended(7)))),
        ("7/9/1234", ChangePage(ChangeCursor(Ended(7), 0, Ended(9), 1234))),
        ("7:8:id:1", ChangePage(ChangeCursor(Ended(8)), ChangeCursor(Ended(7)), 8, "id:1")),
        ("7/9/1:8:", ChangePage(ChangeCursor(Ended(8)), ChangeCursor(Ended(7), 0, Ended(9), 1), 8, "")),
    ],
)
def test_a_cursor_of_an_older_version_is_accepted(text: str, page: ChangePage) -> None:
    """PGS9: it has only the first transaction that is to be read."""
    assert ChangePage.parse(text) == page


@pytest.mark.parametrize(
    "text", ["", "x", "7/", "7:", "7:8", "7/1:8:a", "7/1:x:8:a", "7,/1", "7/1/8/", "٣", "-1", "7/1/2,3/4/5"]
)
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    """Such as one with a part missing."""
    assert ChangePage.parse(text) is None
