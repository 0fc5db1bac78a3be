"""`callslip tail`: a session as it goes on, for a person at a terminal or for the program at the end of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

import click
import msgspec

from callslip.cli.ids import ID
from callslip.cli.place import db_option, json_option, wants_json
from callslip.cli.reach import LedgerClient, News, Session, open_client, server_options
from callslip.cli.terminal import tables
from callslip.errors import CursorExpiredError, InvalidInputError

INITIAL_ENTRIES = 10
"""How many entries that were there before are shown on a terminal."""


@click.command()
@click.argument("session", type=ID, default="@last")
@click.option("--after", type=click.IntRange(0), metavar="SEQ", help="Begin after this event.")
@click.option("--from-start", is_flag=True, help="Begin with the first event.")
@click.option("--format", "format_", type=click.Choice(["entries", "events"]), default="entries", show_default=True)
@click.option("--until-end", is_flag=True, help="Stop when the open turn has ended; at once if none is open.")
@server_options
@db_option
@json_option
def tail(session: str, after: int | None, from_start: bool, format_: str, until_end: bool) -> None:
    """Follow a session as it goes on.

    SESSION is the one that was written last unless given. On a terminal it shows texts as they come and a line for each
    change of a call. In a pipe, or with --json, it writes JSON lines: {"snapshot"} once, then {"seq", "patches"} for
    each event; with --after or --from-start only the latter, unless too much lies in between; with --format events, the
    events. It goes on until Ctrl-C, and comes back by itself to a server that went away.
    """
    if after is not None and from_start:
        raise click.UsageError("--after and --from-start say two things; give one of them")
    begin = 0 if from_start else after
    with open_client() as reach:
        found = reach.session(session)
        if after is not None and after > found.seq:
            raise InvalidInputError(
                "--after", f"{after} is not a seq of session {found.name}, which goes to {found.seq}"
            )
        end = End(found) if until_end else None
        if format_ == "entries" and sys.stdout.isatty() and not wants_json():
            _show(reach, found, begin, end)
        else:
            begin = found.seq if begin is None and format_ == "events" else begin
            _write(_news(reach, found, format_, begin, from_start), end, begin)


class End:
    """Knows when the open turn has ended: none is, and everything that was there at the beginning was seen."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seq = 0
        self._turn = session.turn

    @property
    def reached(self) -> bool:
        return not self._turn and self._seq >= self._session.seq

    def begin(self, after: int | None) -> bool:
        """Whether it is reached already, for somebody who has what came before."""
        self._seq = after or 0
        return self.reached

    def see(self, news: News) -> None:
        self._seq = news.seq
        if news.seq > self._session.seq:
            told = msgspec.json.decode(news.body)
            self._turn = _TURNS[news.kind](told, self._turn)


def _by_snapshot(told: dict[str, Any], turn: str) -> str:
    return told["info"].get("turn", "")


def _by_patches(told: dict[str, Any], turn: str) -> str:
    for patch in told["patches"]:
        if patch["op"] == "set" and patch["id"] == 0 and "turn" in patch["fields"]:
            turn = patch["fields"]["turn"] or ""
    return turn


def _by_event(told: dict[str, Any], turn: str) -> str:
    if told.get("verdict", "applied") != "applied":
        return turn
    return {"turn.started": told.get("turn", "") or "open", "turn.ended": ""}.get(told["type"], turn)


_TURNS = {"snapshot": _by_snapshot, "patches": _by_patches, "event": _by_event}


# For a program


def _news(reach: LedgerClient, session: Session, format: str, after: int | None, from_start: bool) -> Generator[News]:
    """From where it was asked for. The start of a log that retention has shortened is what is left of it."""
    if format == "events":
        after = None if from_start else after
    news = reach.follow(session.name, format, after)
    if not from_start or format == "events":
        return news
    return _or_all(reach, session, news)


def _or_all(reach: LedgerClient, session: Session, news: Generator[News]) -> Generator[News]:
    try:
        yield from news
    except CursorExpiredError:
        yield from reach.follow(session.name, "entries", None)


def _write(news: Generator[News], end: End | None, after: int | None) -> None:
    with closing(news):
        if end is not None and end.begin(after):
            return
        for one in news:
            lead, trail = (b'{"snapshot":', b"}\n") if one.kind == "snapshot" else (b"", b"\n")
            tables.write_bytes([lead + one.body + trail])
            if end is not None:
                end.see(one)
                if end.reached:
                    return


# For a person


def _show(reach: LedgerClient, session: Session, after: int | None, end: End | None) -> None:
    from callslip.cli.terminal.session_printer import SessionPrinter

    shown = Shown(SessionPrinter(tables.console(), reach.flags), after)
    with closing(reach.follow(session.name, "entries", None)) as news:
        try:
            for one in news:
                shown.take(one)
                if end is not None:
                    end.see(one)
                    if end.reached:
                        return
        finally:
            shown.teller.end_line()


class Shown:
    """What is on the terminal: the entries as patches have left them, and who tells of them."""

    def __init__(self, teller: Any, after: int | None) -> None:
        from callslip.cli.terminal.patched_session import PatchedSession

        self.teller = teller
        self._view = PatchedSession()
        self._after = after
        self._begun = False

    def take(self, news: News) -> None:
        if news.kind == "snapshot":
            self._snapshot(news.body)
            return
        told = msgspec.json.decode(news.body)
        self._view.apply(told["seq"], told["patches"])
        for patch in told["patches"]:
            identity = patch["entry"]["id"] if patch["op"] == "put" else patch["id"]
            if identity:
                self.teller.tell(self._view.entries[identity])

    def _snapshot(self, body: bytes) -> None:
        from callslip.model.entries import Snapshot

        self._view.load(msgspec.json.decode(body, type=Snapshot))
        entries = list(self._view.entries.values())
        if self._begun:  # Too much was missed to be told one by one.
            for entry in entries:
                self.teller.tell(entry)
            return
        self._begun = True
        first = (
            len(entries) - INITIAL_ENTRIES if self._after is None else sum(one["id"] <= self._after for one in entries)
        )
        first = max(0, first)
        self.teller.past(entries[:first], entries[first:])
