"""Decide which entries make up the message of the agent, which id it has, and how it finished."""

from __future__ import annotations

from typing import Any

from callslip.model.entries import Entry, Message, ModeChange, Plan, Thought, ToolCall
from callslip.rules.entry_blocks import message_name

# The finish reason of the AI SDK by the reason that the turn ended; `other` for any other reason.
AI_SDK_FINISH_REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "content-filter",
    "error": "error",
    "eof": "error",
}


def turn_message_id(turn: str) -> str:
    """Return the id of the message that holds everything the agent did in a turn."""
    return f"turn-{turn}"


def agent_message_id(first: Entry) -> str:
    """Return the id of the agent's message that begins with an entry."""
    return turn_message_id(first.turn) if first.turn else message_name(first.id)


def is_user_message(entry: Entry) -> bool:
    """Return whether a user wrote this entry."""
    return isinstance(entry, Message) and entry.role == "user"


def is_text_or_call(entry: Entry) -> bool:
    """Return whether an entry is a text, a thought or a call of the agent."""
    return isinstance(entry, Thought | ToolCall) or (isinstance(entry, Message) and entry.role != "user")


def activity_data(entry: Plan | ModeChange) -> tuple[str, dict[str, Any]]:
    """Return the kind and the data of what users see and models do not."""
    if isinstance(entry, Plan):
        return "plan", {"entries": entry.entries}
    return "mode", {"previousModeId": entry.previous_mode_id, "newModeId": entry.new_mode_id}
