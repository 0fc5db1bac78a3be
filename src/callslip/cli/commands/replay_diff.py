"""`callslip show --witness`: where the agent's replay of a session tells otherwise than the record."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from callslip.cli.place import wants_json
from callslip.cli.terminal import formatting, tables
from callslip.cli.terminal.escape import escape_controls
from callslip.model.events import Event, decode_event
from callslip.rules.replay_diff import ReplayDifference, diff_replay, newest_replay

if TYPE_CHECKING:
    from rich.table import Table

    from callslip.api.ledger import Ledger

LINES = 4
MARK = b'"witness"'


async def show_witness(ledger: Ledger, session: str, call: str = "", *, full: bool = False) -> None:
    """List what the newest replay tells otherwise, of the whole session or of one call."""
    replay = newest_replay(await _witnesses(ledger, session))
    entries = (await ledger.snapshot(session)).entries if replay else []
    found = [one for one in diff_replay(entries, replay) if not call or one.call_id == call]
    if wants_json():
        seqs = {"first": replay[0].seq, "last": replay[-1].seq} if replay else None
        tables.write_json({"session": session, "replay": seqs, "disagreements": found})
    elif found:
        _page(found, {entry.id: entry for entry in entries}, 0 if full else LINES)
    else:
        tables.print_status(_nothing(replay))


async def _witnesses(ledger: Ledger, session: str) -> list[Event]:
    """The events of replays; the others are not even decoded."""
    found: list[Event] = []
    after = 0
    while rows := await ledger.log.store.events(session, after, 1000):
        after = rows[-1][0]
        found += [decode_event(body) for _, body in rows if MARK in body]
    return found


def _nothing(replay: list[Event]) -> str:
    if not replay:
        return "no replay of this session was recorded"
    return f"the agent's replay agrees with the record ({formatting.pluralize(len(replay), 'event')} compared)"


def _page(found: list[ReplayDifference], entries: dict[int, Any], lines: int) -> None:
    """For each entry what it is, and under it both accounts of every field that differs."""
    from rich.text import Text

    out = tables.console()
    for number, of_entry in groupby(found, lambda one: one.entry):
        alike = list(of_entry)
        name = alike[0].call_id or alike[0].type
        title = getattr(entries.get(number), "title", None) or ""
        tables.emit(
            out,
            Text(escape_controls(name), "bold").append(
                escape_controls(f"  entry {number}  {title}" if number else "  new"), "dim"
            ),
        )
        tables.emit(out, _both(alike, lines))


def _both(alike: list[ReplayDifference], lines: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    from callslip.cli.terminal import timeline

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for one in alike:
        accounts = (f"  {one.field}", "recorded", one.recorded), ("", "replayed", one.replayed)
        for field, account, value in accounts:
            text = Text("nothing", "dim") if value is None else timeline.block(timeline.text_of(value), lines)
            grid.add_row(field, account, text)
    return grid
