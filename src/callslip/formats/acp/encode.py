"""Encode a session as the updates that an agent of ACP version 1 sends when a client loads the session.

Every entry is one update with its current state: a call is a `tool_call` with its status and output. Texts are
complete and have ids, so that clients do not join two of them. What the protocol has no field for is in
`_meta.callslip`. The current commands and title come last; plain entries do not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from callslip.formats.acp import blocks
from callslip.formats.acp.outcome import call_update
from callslip.formats.base import Source, snapshot_of
from callslip.formats.json_fields import as_dict, as_str
from callslip.model.entries import Entry, Info, Message, Meta, ModeChange, Plan, Thought, ToolCall

Update: TypeAlias = dict[str, Any]

PRIORITIES = ("high", "medium", "low")
STATUSES = ("pending", "in_progress", "completed")


def history(source: Source) -> list[dict[str, Any]]:
    """Return the `session/update` notifications of a session, oldest first."""
    snapshot = snapshot_of(source)
    updates = [
        _add_meta(entry, update)
        for entry in snapshot.entries
        if type(entry) in _RENDERERS
        for update in _RENDERERS[type(entry)](entry)
    ]
    return [
        {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": snapshot.session, "update": update}}
        for update in [*updates, *_info_updates(snapshot.info)]
    ]


def _add_meta(entry: Entry, update: Update) -> Update:
    origin = {"entry": entry.id, "at": entry.at, "turn": entry.turn}
    extras = as_dict(as_dict(update.get("_meta")).get("callslip"))
    return {**update, "_meta": {"callslip": {**{name: value for name, value in origin.items() if value}, **extras}}}


# Texts


def _message(entry: Message) -> list[Update]:
    if entry.role != "user":
        return [_chunk("agent_message_chunk", entry, blocks.text(entry.content))]
    others = [blocks.block(one) for one in blocks.listed(entry.blocks) if not blocks.is_text(one)]
    texts = [blocks.text(entry.content)] if entry.content or not others else []
    return [_chunk("user_message_chunk", entry, block) for block in [*texts, *others]]


def _thought(entry: Thought) -> list[Update]:
    return [_chunk("agent_thought_chunk", entry, blocks.text(entry.content))]


def _chunk(kind: str, entry: Message | Thought, block: blocks.Block) -> Update:
    return {"sessionUpdate": kind, "messageId": entry.message_id or f"entry-{entry.id}", "content": block}


# Plans and modes


def _plan(entry: Plan) -> list[Update]:
    return [{"sessionUpdate": "plan", "entries": [_step(step) for step in entry.entries]}]


def _step(step: Any) -> dict[str, Any]:
    """Return a step of a plan with the priority and status that the protocol requires."""
    fields = as_dict(step)
    content = fields.get("content")
    return {
        "content": content if isinstance(content, str) else blocks.plain(step),
        "priority": _one_of(PRIORITIES, fields.get("priority"), "medium"),
        "status": _one_of(STATUSES, fields.get("status"), "pending"),
    }


def _one_of(allowed: tuple[str, ...], value: Any, default: str) -> str:
    return value if value in allowed else default


def _mode(entry: ModeChange) -> list[Update]:
    return [{"sessionUpdate": "current_mode_update", "currentModeId": entry.new_mode_id}]


def _meta(entry: Meta) -> list[Update]:
    """Return the mode: an update can carry no other capability."""
    mode = entry.current_mode_id
    return [{"sessionUpdate": "current_mode_update", "currentModeId": mode}] if mode else []


_RENDERERS: dict[type[Entry], Callable[[Any], list[Update]]] = {
    Message: _message,
    Thought: _thought,
    ToolCall: lambda entry: [call_update(entry)],
    Plan: _plan,
    ModeChange: _mode,
    Meta: _meta,
}


# The current facts of the session


def _info_updates(info: Info) -> list[Update]:
    commands = [command for one in info.available_commands if (command := _command(as_dict(one)))]
    updates: list[Update] = []
    if commands:
        updates.append({"sessionUpdate": "available_commands_update", "availableCommands": commands})
    if info.title:
        updates.append({"sessionUpdate": "session_info_update", "title": info.title})
    return updates


def _command(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return a command that a user may type; None if it has no name."""
    name, hint = fields.get("name"), as_dict(fields.get("input")).get("hint")
    if not isinstance(name, str) or not name:
        return None
    command: dict[str, Any] = {"name": name, "description": as_str(fields.get("description"))}
    return {**command, "input": {"hint": hint}} if isinstance(hint, str) else command
