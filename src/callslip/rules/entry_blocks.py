"""Split the entries of a session into blocks: the runs of entries that no message of any format crosses.

A block is a turn. Outside of turns it ends at the next user message or turn, so producers that send no turns have
blocks too. Histories and streams both use these rules, so that a stream shows what the history has. No event marks the
end of such a block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from callslip.model.entries import Entry, Message, Thought, ToolCall
from callslip.rules.fold_state import FoldState

_MESSAGE_NAME = re.compile(r"msg-([1-9][0-9]{0,17})")


def begins_block(entry: Entry, previous: Entry) -> bool:
    """Return whether a block begins between two entries."""
    is_prompt = isinstance(entry, Message) and entry.role == "user" and not entry.parent
    return entry.turn != previous.turn or (not entry.turn and is_prompt)


def is_of_subagent(entry: Entry) -> bool:
    """Return whether a sub-agent made an entry. The model of the session has not seen it, only the result."""
    return bool(getattr(entry, "parent", ""))


def split_blocks(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return entries grouped by turn, and outside of turns by the user message that they follow."""
    blocks: list[list[Entry]] = []
    for entry in entries:
        if blocks and not begins_block(entry, blocks[-1][-1]):
            blocks[-1].append(entry)
        else:
            blocks.append([entry])
    return blocks


# Names. A turn has a name; a block outside of turns is named by any of its messages, as histories name them.


def message_name(entry: int) -> str:
    """Return the id of the message that begins with an entry outside of turns."""
    return f"msg-{entry}"


def named_entry(name: str) -> int:
    """Return the entry whose message has this id; 0 for the name of a turn."""
    match = _MESSAGE_NAME.fullmatch(name)
    return int(match[1]) if match else 0


def is_talk(entry: Entry) -> bool:
    """Return whether an entry is a message, a thought or a call. Others, such as a change of mode, need no answer."""
    return isinstance(entry, Message | Thought | ToolCall)


def current_block(state: FoldState) -> str:
    """Return the name of the block that is read if none is named; "" before the first one.

    That is the open turn, or else the last block with a message, a thought or a call.
    """
    if state.info.turn:
        return state.info.turn
    block: list[Entry] = []
    for entry in reversed(state.entries.values()):
        if block and begins_block(block[-1], entry):
            break
        if block or is_talk(entry):
            block.append(entry)
    return message_name(block[-1].id) if block and not block[-1].turn else state.info.last_turn
