"""Split the entries of a session into blocks: the runs of entries that no message of any format crosses."""

from __future__ import annotations

from collections.abc import Iterable

from callslip.model.entries import Entry, Message


def begins_block(entry: Entry, previous: Entry) -> bool:
    """Return whether a block begins between two entries."""
    return entry.turn != previous.turn or (not entry.turn and isinstance(entry, Message) and entry.role == "user")


def split_blocks(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return entries grouped by turn, and outside of turns by the user message that they follow."""
    blocks: list[list[Entry]] = []
    for entry in entries:
        if blocks and not begins_block(entry, blocks[-1][-1]):
            blocks[-1].append(entry)
        else:
            blocks.append([entry])
    return blocks
