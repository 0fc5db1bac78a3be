"""`callslip tail`: follow a session, on a terminal or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

import click
import msgspec

from callslip.api.follow import Frame
from callslip.api.sync import SyncLedger
from callslip.cli.options import ID, db_option, json_option, open_selected, server_options, wants_json
from callslip.cli.terminal import tables
from callslip.errors import CursorExpiredError, InvalidInputError
from callslip.model.records import SessionRecord

INITIAL_ENTRIES = 10
"""How many existing entries are shown on a terminal."""


@click.command()
@click.argument("session", type=ID, default="@last")
@click.option("--after", type=click.IntRange(0), metavar="SEQ", help="Start after this event.")
@click.option("--from-start", is_flag=True, help="Start with the first event.")
@click.option("--format", "format_", type=click.Choice(["entries", "events"]), default="entries", show_default=True)
@click.option("--until-end", is_flag=True, help="Stop when the open turn has ended; at once if none is open.")
@server_options
@db_option
@json_option
def tail(session: str, after: int | None, from_start: bool, format_: str, until_end: bool) -> None:
    """Follow a session live.

    SESSION defaults to the one that was written last. On a terminal it shows texts as they arrive and a line for each
    change of a call. In a pipe, or with --json, it writes JSON lines: {"snapshot"} once, then {"seq", "patches"} for
    each event; with --after or --from-start only the latter, unless too many events are in between; with --format
    events, the events. It runs until Ctrl-C, and reconnects to a server after a lost connection.
    """
    if after is not None and from_start:
        raise click.UsageError("--after and --from-start are exclusive; pass one of them")
    start = 0 if from_start else after
    with open_selected() as selected:
        ledger = selected.ledger
        record = ledger.find_session(session)
        if after is not None and after > record.last_seq:
            raise InvalidInputError("--after", f"{after} is beyond the last event ({record.last_seq})")
        end = TurnEnd(record) if until_end else None
        if format_ == "entries" and sys.stdout.isatty() and not wants_json():
            _print_session(ledger, record, start, end, selected.flags)
        else:
            start = record.last_seq if start is None and format_ == "events" else start
            _write_frames(_frames(ledger, record, format_, start, from_start), end, start)


class TurnEnd:
    """Knows when the open turn has ended: no turn is open, and everything that existed at the start was seen."""

    def __init__(self, record: SessionRecord) -> None:
        self._last_seq = record.last_seq
        self._seq = 0
        self._turn = record.turn

    @property
    def is_reached(self) -> bool:
        return not self._turn and self._seq >= self._last_seq

    def start_after(self, seq: int | None) -> bool:
        """Start after an event, and return whether the end is reached already."""
        self._seq = seq or 0
        return self.is_reached

    def see(self, frame: Frame) -> None:
        self._seq = frame.seq
        if frame.seq > self._last_seq:
            self._turn = _OPEN_TURN[frame.kind](msgspec.json.decode(frame.body), self._turn)


def _turn_in_snapshot(body: dict[str, Any], turn: str) -> str:
    return body["info"].get("turn", "")


def _turn_in_patches(body: dict[str, Any], turn: str) -> str:
    for patch in body["patches"]:
        if patch["op"] == "set" and patch["id"] == 0 and "turn" in patch["fields"]:
            turn = patch["fields"]["turn"] or ""
    return turn


def _turn_in_event(body: dict[str, Any], turn: str) -> str:
    if body.get("verdict", "applied") != "applied":
        return turn
    return {"turn.started": body.get("turn", "") or "open", "turn.ended": ""}.get(body["type"], turn)


_OPEN_TURN = {"snapshot": _turn_in_snapshot, "patches": _turn_in_patches, "event": _turn_in_event}


# In a pipe


def _frames(
    ledger: SyncLedger[Any], record: SessionRecord, format: str, after: int | None, from_start: bool
) -> Generator[Frame]:
    """Yield frames from the requested start. If retention removed the first events, start with what is left."""
    if format == "events":
        yield from ledger.frames(record.name, format, None if from_start else after)
        return
    try:
        yield from ledger.frames(record.name, format, after)
    except CursorExpiredError:
        if not from_start:
            raise
        yield from ledger.frames(record.name, format, None)


def _write_frames(frames: Generator[Frame], end: TurnEnd | None, after: int | None) -> None:
    with closing(frames):
        if end is not None and end.start_after(after):
            return
        for frame in frames:
            prefix, suffix = (b'{"snapshot":', b"}\n") if frame.kind == "snapshot" else (b"", b"\n")
            tables.write_bytes([prefix + frame.body + suffix])
            if end is not None:
                end.see(frame)
                if end.is_reached:
                    return


# On a terminal


def _print_session(
    ledger: SyncLedger[Any], record: SessionRecord, after: int | None, end: TurnEnd | None, flags: str
) -> None:
    from callslip.cli.terminal.session_printer import SessionPrinter

    view = FollowedSession(SessionPrinter(tables.console(), flags), after)
    with closing(ledger.frames(record.name, "entries", None)) as frames:
        try:
            for frame in frames:
                view.apply(frame)
                if end is not None:
                    end.see(frame)
                    if end.is_reached:
                        return
        finally:
            view.printer.end_line()


class FollowedSession:
    """A session on the terminal: its entries after all patches, and their printer."""

    def __init__(self, printer: Any, after: int | None) -> None:
        from callslip.cli.terminal.patched_session import PatchedSession

        self.printer = printer
        self._session = PatchedSession()
        self._after = after
        self._has_started = False

    def apply(self, frame: Frame) -> None:
        if frame.kind == "snapshot":
            self._load(frame.body)
            return
        body = msgspec.json.decode(frame.body)
        self._session.apply(body["seq"], body["patches"])
        for patch in body["patches"]:
            entry = patch["entry"]["id"] if patch["op"] == "put" else patch["id"]
            if entry:
                self.printer.print_changes(self._session.entries[entry])

    def _load(self, body: bytes) -> None:
        from callslip.model.entries import Snapshot

        self._session.load(msgspec.json.decode(body, type=Snapshot))
        entries = list(self._session.entries.values())
        if self._has_started:  # Too much was missed to print every change.
            for entry in entries:
                self.printer.print_changes(entry)
            return
        self._has_started = True
        first = len(entries) - INITIAL_ENTRIES
        if self._after is not None:
            first = sum(entry["id"] <= self._after for entry in entries)
        first = max(0, first)
        self.printer.print_existing(entries[:first], entries[first:])
