"""The seven types of entry, notices, the info of a session, and the three patches that change them.

Only the fold changes entries. In JSON a field with its default value is left out, and a patch that sets a field to null
removes it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.model.events import Blob


class Entry(msgspec.Struct, kw_only=True, gc=False, tag_field="type", rename="camel", omit_defaults=True):
    """An entry of a session. Its id is the seq of the event that created it."""

    id: int
    at: int = 0
    turn: str = ""


class Meta(Entry, tag="meta"):
    """The modes, models, commands and options that the agent offers. RULE 7."""

    available_modes: list[Any] = []
    available_models: list[Any] = []
    available_commands: list[Any] = []
    current_mode_id: str = ""
    current_model_id: str = ""
    options: list[Any] = []


class Message(Entry, tag="message", kw_only=True):
    """A message of the user or the agent. RULES 1, 2, 8.

    `namesMessage`: `messageId` and `at` are the id and the time of a stored message. One of the agent contains all of
    the turn. `parent` is the call of the sub-agent that wrote it, or for which it is the prompt.
    """

    role: str
    content: str
    message_id: str = ""
    streaming: bool = False
    blocks: Any = None
    names_message: bool = False
    parent: str = ""


class Thought(Entry, tag="thought", kw_only=True):
    """A thought of the agent. RULE 9. `namesMessage` and `parent` are as in a message."""

    content: str
    message_id: str = ""
    streaming: bool = False
    names_message: bool = False
    parent: str = ""


class AgentReport(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the agent reported about a call after its end, and the seq of that event."""

    seq: int
    text: str
    exit_status: Any = None


class ToolCall(Entry, tag="tool_call", kw_only=True):
    """A call. `toolCallId` is its id for foreign clients, `callId` its id in the ledger. RULES 3, 4.

    `foreignIds` has the producer's ids by namespace, for formats that return them. `durationMs` is the producer's own
    measurement. `end` is the seq of the event that ended it, `late` that of the newest event after the end. `report` is
    what the agent reported about the call after its end, and the seq of that event. `cutBytes` is how
    much of the output was left out when the tool ran; it is not stored. `truncated` and `blob` are about the output;
    `contentBlob` is the full content if the entry has a preview of it. `parent` is the call whose sub-agent made it.
    """

    call_id: str
    tool_call_id: str
    parent: str = ""
    foreign_ids: dict[str, str] | None = None
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
    content_blob: Blob | None = None
    cut_bytes: int = 0
    scope: str = "turn"
    iteration: int = -1
    index: int = -1
    attempt: int = 0
    worker: str = ""
    approval: str = ""
    started_at: int = 0
    ended_at: int = 0
    duration_ms: int | float | None = None
    end: int = 0
    source: str = ""
    report: AgentReport | None = None
    late: int = 0


class PermissionRequest(Entry, tag="permission_request", kw_only=True):
    """A request for approval and its answer. `schema` is the JSON Schema for edited arguments. RULES 5, 6.

    `requestId` is its id in the protocol of the agent, which may be used again. Then `approvalId` is the id by which it
    is answered here; without an `approvalId` the `requestId` is.

    `responseInput` is set if the approved arguments differ from the requested ones. `answerAt` is the program in which
    a person must answer while the request is pending, if that is not possible here.
    """

    request_id: str | int
    call_id: str
    approval_id: str = ""
    parent: str = ""
    tool_call_id: str = ""
    state: str = "pending"
    tool_name: str | None = None
    description: str = ""
    options: list[Any] = []
    raw_input: Any = None
    schema: Any = None
    expires_at: int = 0
    answer_at: str = ""
    response_option: str | None = None
    response_input: Any = None
    response_time: int = 0
    by: str = ""
    reason: str = ""

    @property
    def approval(self) -> str:
        """Return its id in the ledger."""
        return self.approval_id or str(self.request_id)


class Plan(Entry, tag="plan", kw_only=True):
    """The plan of the agent at this point. RULE 10."""

    entries: list[Any]


class ModeChange(Entry, tag="mode_change", kw_only=True):
    """A change of mode. RULE 11."""

    previous_mode_id: str
    new_mode_id: str


class Notice(Entry, tag="notice", kw_only=True):
    """A notice of the agent to its user, for example a warning. `details` are its other fields."""

    content: str
    severity: str = ""
    details: Any = None


class Info(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Info about the session: the open turn, how the last one ended, title, usage. Patches address it as entry 0."""

    title: str | None = None
    agent: str | None = None
    agent_version: str | None = None
    model: str | None = None
    project: str | None = None
    branch: str | None = None
    foreign_id: str = ""
    continues: str = ""
    ended: bool = False
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


def blob_of_entry(entry: Entry) -> Blob | None:
    """Return the blob with a value of an open entry, if there is one: the content of a call."""
    return entry.content_blob if isinstance(entry, ToolCall) else None


AnyEntry = Meta | Message | Thought | ToolCall | PermissionRequest | Plan | ModeChange | Notice


class Put(msgspec.Struct, frozen=True, tag="put", tag_field="op", gc=False):
    """Add or replace an entry."""

    entry: AnyEntry


class Set(msgspec.Struct, frozen=True, tag="set", tag_field="op", gc=False):
    """Set fields of an entry; null removes a field. Entry 0 is the info of the session."""

    id: int
    fields: dict[str, Any]


class Append(msgspec.Struct, frozen=True, tag="append", tag_field="op", gc=False):
    """Append text to a field that is `offset` UTF-16 code units long."""

    id: int
    field: str
    offset: int
    text: str


Patch = Put | Set | Append


class Snapshot(msgspec.Struct, frozen=True):
    """A session after event `seq`."""

    session: str
    seq: int
    info: Info
    entries: list[Any]


_JSON_FIELDS: dict[type[msgspec.Struct], dict[str, tuple[str, Any, bool]]] = {}


def _json_fields(cls: type[msgspec.Struct]) -> dict[str, tuple[str, Any, bool]]:
    """Return the JSON name, the default, and whether the default is an empty list, for each field."""
    if cls not in _JSON_FIELDS:
        _JSON_FIELDS[cls] = {
            field.name: (field.encode_name, field.default, field.default_factory is list)
            for field in msgspec.structs.fields(cls)
        }
    return _JSON_FIELDS[cls]


def fields_patch(target: msgspec.Struct, identity: int, changed: tuple[str, ...] | list[str]) -> Set:
    """Return the patch that sets the changed fields. A field with its default value becomes null, which removes it."""
    json_fields = _json_fields(type(target))
    fields: dict[str, Any] = {}
    for name in changed:
        json_name, default, is_list = json_fields[name]
        value = getattr(target, name)
        fields[json_name] = None if value is default or (is_list and value == []) else value
    return Set(identity, fields)
