"""`callslip show --replay-diff`: where the agent's replay of a session differs from the record."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from callslip.cli.options import SelectedLedger, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.model.display import pluralize
from callslip.rules.replay_diff import ReplayDifference, diff_replay, newest_replay

if TYPE_CHECKING:
    from rich.table import Table

MAX_LINES = 4


def show_replay_diff(selected: SelectedLedger, session: str, call: str = "", *, full: bool = False) -> None:
    """List where the newest replay differs, in the whole session or in one call."""
    ledger = selected.ledger
    replay = newest_replay([event for event in ledger.events(session) if event.verdict == "witness"])
    entries = ledger.snapshot(session).entries if replay else []
    differences = [found for found in diff_replay(entries, replay) if not call or found.call_id == call]
    if wants_json():
        seqs = {"first": replay[0].seq, "last": replay[-1].seq} if replay else None
        tables.write_json({"session": session, "replay": seqs, "disagreements": differences})
    elif differences:
        _print_differences(differences, {entry.id: entry for entry in entries}, 0 if full else MAX_LINES)
    elif replay:
        count = pluralize(len(replay), "event")
        tables.print_status(f"the agent's replay agrees with the record ({count} compared)")
    else:
        tables.print_status("no replay of this session was recorded")


def _print_differences(differences: list[ReplayDifference], entries: dict[int, Any], lines: int) -> None:
    """Print each entry that differs, with both values of each of its fields that differ."""
    from rich.text import Text

    out = tables.console()
    for (number, _), group in groupby(differences, lambda difference: (difference.entry, _new_item(difference))):
        in_entry = list(group)
        name = in_entry[0].call_id or in_entry[0].type
        title = getattr(entries.get(number), "title", None) or ""
        tables.print_block(
            out,
            Text(escape_controls(name), "bold").append(
                escape_controls(f"  entry {number}  {title}" if number else "  new"), "dim"
            ),
        )
        tables.print_block(out, _value_table(in_entry, lines))


def _new_item(difference: ReplayDifference) -> int:
    """Return the event of what is not recorded; 0 if it is."""
    return 0 if difference.entry else difference.seq


def _value_table(differences: list[ReplayDifference], lines: int) -> Table:
    from rich.text import Text

    from callslip.cli.terminal import timeline

    label = {"no_wrap": True, "style": "dim"}
    grid = tables.grid(label, label, {"overflow": "fold"})
    for difference in differences:
        recorded = (f"  {difference.field}", "recorded", difference.recorded)
        for field, label, value in (recorded, ("", "replayed", difference.replayed)):
            text = Text("nothing", "dim") if value is None else timeline.render_block(timeline.to_text(value), lines)
            grid.add_row(field, label, text)
    return grid
