"""What a reader sees: seven types of entry (S2.1), the session's own facts, and the three patches that change them.

Entries are mutable here and belong to the fold; nobody else writes to them. On the wire a field that has its default
is left out, and a patch that sets a field to null takes it away again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.model.events import Blob


class Entry(msgspec.Struct, kw_only=True, gc=False, tag_field="type", rename="camel", omit_defaults=True):
    """Its id is the seq of the event that made it (S2.9)."""

    id: int
    at: int = 0
    turn: str = ""


class Meta(Entry, tag="meta"):
    """What the agent offers. RULE 7."""

    available_modes: list[Any] = []
    available_models: list[Any] = []
    available_commands: list[Any] = []
    current_mode_id: str = ""
    current_model_id: str = ""
    options: list[Any] = []


class Message(Entry, tag="message", kw_only=True):
    """What a person or the agent said. RULES 1, 2, 8."""

    role: str
    content: str
    message_id: str = ""
    streaming: bool = False
    blocks: Any = None


class Thought(Entry, tag="thought", kw_only=True):
    """What the agent thought. RULE 9."""

    content: str
    message_id: str = ""
    streaming: bool = False


class ToolCall(Entry, tag="tool_call", kw_only=True):
    """One call. `toolCallId` is what foreign clients know it by, `callId` is its execution id. RULES 3, 4.

    `end` is the seq of the event that ended it, `late` that of the last one that came after.
    """

    call_id: str
    tool_call_id: str
    status: str = "none"
    tool_name: str | None = None
    raw_tool_name: str | None = None
    title: str | None = None
    kind: str | None = None
    raw_input: Any = None
    input_text: str = ""
    content: Any = None
    locations: Any = None
    output: Any = None
    output_text: str = ""
    progress: Any = None
    error: Any = None
    reason: str = ""
    exit_status: Any = None
    truncated: bool = False
    blob: Blob | None = None
    scope: str = "turn"
    iteration: int = -1
    index: int = -1
    attempt: int = 0
    worker: str = ""
    approval: str = ""
    started_at: int = 0
    ended_at: int = 0
    end: int = 0
    source: str = ""
    late: int = 0


class PermissionRequest(Entry, tag="permission_request", kw_only=True):
    """A request for approval, and its answer. `schema` is what edited arguments must fit. RULES 5, 6.

    `response_input` is there if other arguments were approved than were asked for.
    """

    request_id: str
    call_id: str
    tool_call_id: str = ""
    state: str = "pending"
    tool_name: str | None = None
    description: str = ""
    options: list[Any] = []
    raw_input: Any = None
    schema: Any = None
    expires_at: int = 0
    response_option: str | None = None
    response_input: Any = None
    response_time: int = 0
    by: str = ""
    reason: str = ""


class Plan(Entry, tag="plan", kw_only=True):
    """The agent's plan as it stood then. RULE 10."""

    entries: list[Any]


class ModeChange(Entry, tag="mode_change", kw_only=True):
    """A switch of mode. RULE 11."""

    previous_mode_id: str
    new_mode_id: str


class Info(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The session's own facts: which turn is open, and how the one before it ended. Patches reach it as entry 0."""

    title: str | None = None
    turn: str = ""
    last_turn: str = ""
    last_reason: str = ""
    current_mode_id: str = ""
    current_model_id: str = ""
    available_commands: list[Any] = []
    usage: Any = None
    options: Any = None
    notice: Any = None
    labels: Any = None
    owner: str = ""


AnyEntry = Meta | Message | Thought | ToolCall | PermissionRequest | Plan | ModeChange


class Put(msgspec.Struct, frozen=True, tag="put", tag_field="op", gc=False):
    """This entry, whole."""

    entry: AnyEntry


class Set(msgspec.Struct, frozen=True, tag="set", tag_field="op", gc=False):
    """These fields of an entry; null takes a field away. Entry 0 is the session's info."""

    id: int
    fields: dict[str, Any]


class Append(msgspec.Struct, frozen=True, tag="append", tag_field="op", gc=False):
    """More text at the end of a field that is `offset` UTF-16 units long."""

    id: int
    field: str
    offset: int
    text: str


Patch = Put | Set | Append


class Snapshot(msgspec.Struct, frozen=True):
    """A session as it stands after event `seq`."""

    session: str
    seq: int
    info: Info
    entries: list[Any]


_WIRE: dict[type[msgspec.Struct], dict[str, tuple[str, Any, bool]]] = {}


def _wire(cls: type[msgspec.Struct]) -> dict[str, tuple[str, Any, bool]]:
    """Each field's name on the wire, its default, and whether that default is an empty list."""
    if cls not in _WIRE:
        _WIRE[cls] = {
            field.name: (field.encode_name, field.default, field.default_factory is list)
            for field in msgspec.structs.fields(cls)
        }
    return _WIRE[cls]


def fields_patch(target: msgspec.Struct, identity: int, changed: tuple[str, ...] | list[str]) -> Set:
    """The patch that says how these fields stand now. A field back at its default is said as null: it leaves."""
    known = _wire(type(target))
    fields: dict[str, Any] = {}
    for name in changed:
        wire, default, listed = known[name]
        value = getattr(target, name)
        fields[wire] = None if value is default or (listed and value == []) else value
    return Set(identity, fields)
