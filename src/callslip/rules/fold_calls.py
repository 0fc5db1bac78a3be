"""The rules of the fold for calls and approvals: RULES 3 to 6, numbered as in docs/entry-rules.md.

States change only by `lifecycle.TRANSITIONS`.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from msgspec import UNSET

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import AgentReport, Append, PermissionRequest, Set, ToolCall
from callslip.model.events import Event
from callslip.model.ids import CALL
from callslip.rules.agent_report import report_text
from callslip.rules.call_content import content_blob, output_blob
from callslip.rules.fold_state import FoldState, Out, add_entry, close_text, note_parentless, set_fields
from callslip.rules.lifecycle import (
    ANSWER_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    client_call_id,
    next_state,
    returned_ids,
    scope_of,
    strip_mcp_prefix,
)
from callslip.rules.streamed_text import StreamedText

# Fields of events that update a call, and those that have another name in the entry.
_ENTRY_NAMES = {"input": "raw_input"}
_UPDATE_FIELDS = (
    *("title", "kind", "input", "content", "locations", "progress", "exit_status", "output", "error"),
    "duration_ms",
)

_UPDATES = {
    cls: tuple((field, _ENTRY_NAMES.get(field, field)) for field in cls.__struct_fields__ if field in _UPDATE_FIELDS)
    for cls in ev.EVENT_TYPES.values()
}


def _update(entry: ToolCall, event: ev.CallEvent) -> list[str]:
    """RULE 4: copy the fields that the event has into the entry; return the fields that changed."""
    changed: list[str] = []
    if event.aliases and (foreign_ids := returned_ids(entry, event.aliases)) != entry.foreign_ids:
        entry.foreign_ids = foreign_ids
        changed.append("foreign_ids")
    for field, name in _UPDATES[event.__class__]:
        value = getattr(event, field)
        if value is not UNSET:
            before = getattr(entry, name)
            if value is None if before is None else codec.json_equal(before, value):
                continue
            setattr(entry, name, value)
            changed.append(name)
    if isinstance(event, ev.CallUpdate) and isinstance(event.tool_name, str):
        name, raw_name = event.tool_name, event.raw_tool_name
        entry.tool_name = strip_mcp_prefix(name)
        entry.raw_tool_name = raw_name if isinstance(raw_name, str) else (name if name != entry.tool_name else None)
        changed += ("tool_name", "raw_tool_name")
    if isinstance(event, ev.CallUpdate) and event.parent and not entry.parent:
        entry.parent = event.parent
        changed.append("parent")
    if isinstance(event, ev.CallUpdate) and (ev.blob_of(event) is not None or entry.content_blob is not None):
        _update_blobs(entry, event, changed)
    update = _SPECIFIC_UPDATES.get(event.__class__)
    if update is not None:
        update(entry, event, changed)
    return changed


def _update_blobs(entry: ToolCall, event: ev.CallUpdate, changed: list[str]) -> None:
    """Refer to the full values of the content and of the output. Each has its own blob, or both have the same.

    Content of a call that ends without an output is its output.
    """
    if event.content is not UNSET:
        entry.content_blob = content_blob(event)
        changed.append("content_blob")
    blob = output_blob(event)
    if blob is None and isinstance(event, ev.CallEnd) and entry.output is None:
        blob = entry.content_blob
    if blob is not None:
        entry.blob, entry.truncated = blob, True
        changed += ("blob", "truncated")


def _proposed(entry: ToolCall, event: ev.CallProposed, changed: list[str]) -> None:
    """Update fields that cannot be UNSET: their defaults mean that the event does not have them."""
    scope = scope_of(entry.status, entry.scope, event)
    fields = (("iteration", event.iteration >= 0), ("index", event.index >= 0), ("scope", scope != entry.scope))
    for name in [name for name, is_set in fields if is_set]:
        setattr(entry, name, getattr(event, name))
        changed.append(name)


def _started(entry: ToolCall, event: ev.CallStarted, changed: list[str]) -> None:
    if event.attempt or event.worker:
        entry.attempt, entry.worker = event.attempt or entry.attempt, event.worker or entry.worker
        changed += ("attempt", "worker")
    if entry.status != "running":
        entry.started_at = event.at
        changed.append("started_at")


def _ended(entry: ToolCall, event: ev.CallEnd, changed: list[str]) -> None:
    if event.reason:
        entry.reason = event.reason
        changed.append("reason")
    if event.cut_bytes > 0:
        entry.cut_bytes = event.cut_bytes
        changed.append("cut_bytes")


_SPECIFIC_UPDATES: dict[type[Event], Any] = {
    ev.CallProposed: _proposed,
    ev.CallStarted: _started,
    **dict.fromkeys(ev.TERMINAL, _ended),
}

# Streamed arguments and output: the field of the entry and its name in JSON.
_STREAMED_FIELDS: dict[type[Event], tuple[str, str]] = {
    ev.CallInputDelta: ("input_text", "inputText"),
    ev.CallProgress: ("output_text", "outputText"),
}
_STREAMED = (ev.CallInputDelta, ev.CallProgress)


def call(state: FoldState, event: ev.CallEvent, out: Out) -> None:
    """RULE 3, RULE 4: the first event about a call adds its entry, later ones update it."""
    entry = state.calls.get(event.call)
    is_new = entry is None
    if entry is None:
        client_id = client_call_id(event, event.call)
        entry = ToolCall(id=event.seq, at=event.at, call_id=event.call, tool_call_id=client_id, source=event.source)
    status = TRANSITIONS[entry.status].get(event.__class__)  # pyright: ignore[reportArgumentType]
    if status is None:
        return
    changed = _update(entry, event)
    appended = _append_text(state, entry, event) if isinstance(event, _STREAMED) else None
    if "raw_input" in changed:
        _clear_streamed_input(state, entry, changed)
    if status != entry.status:
        _set_status(state, entry, status, event, changed)
    if is_new:
        add_entry(state, entry, out)
        if status not in TERMINAL_STATES:
            state.calls[event.call] = entry
    elif out is not None:
        set_fields(entry, changed, out)
    if not is_new and "parent" in changed and not CALL.match(entry.parent):
        note_parentless(state, entry.parent, entry)
    if appended is not None and out is not None:
        out.append(appended)
    if state.requests and entry.approval in state.requests and status != "awaiting_approval":
        _answer(state.requests.pop(entry.approval), "moot", event, out)


def _append_text(state: FoldState, entry: ToolCall, event: ev.CallInputDelta | ev.CallProgress) -> Append | None:
    if not event.text:
        return None
    field, json_name = _STREAMED_FIELDS[event.__class__]
    text = state.texts.setdefault((entry.id, field), StreamedText())
    offset = text.length()
    text.append(event.text)
    return Append(entry.id, json_name, offset, event.text)


def _clear_streamed_input(state: FoldState, entry: ToolCall, changed: list[str]) -> None:
    """Clear the streamed arguments when the complete ones arrive."""
    streamed = state.texts.get((entry.id, "input_text"))
    if streamed is not None:
        streamed.replace("")
        entry.input_text = ""
        changed.append("input_text")


def _set_status(state: FoldState, entry: ToolCall, status: str, event: Event, changed: list[str]) -> None:
    """Set the next state of a call; an ended call leaves the open calls and its texts are joined."""
    entry.status = status
    changed.append("status")
    if status in TERMINAL_STATES:
        entry.ended_at, entry.end = event.at, event.seq
        changed += ("ended_at", "end")
        state.calls.pop(entry.call_id, None)
        for field in ("input_text", "output_text") if state.texts else ():
            text = state.texts.pop((entry.id, field), None)
            if text is not None:
                close_text(state, entry, field, text)


def requested(state: FoldState, event: ev.ApprovalRequested, out: Out) -> None:
    """RULE 5: add an entry for the request, and update the call with its fields."""
    call = state.calls.get(event.call)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    if call.approval in state.requests:
        _answer(state.requests.pop(call.approval), "superseded", event, out)
    changed = _update(call, event)
    if "raw_input" in changed:
        _clear_streamed_input(state, call, changed)
    if status != call.status:
        _set_status(state, call, status, event, changed)
    call.approval = event.approval
    set_fields(call, [*changed, "approval"], out)
    entry = PermissionRequest(
        id=event.seq,
        at=event.at,
        request_id=event.approval if event.request_id is UNSET else event.request_id,
        approval_id="" if event.request_id is UNSET else event.approval,
        call_id=call.call_id,
        parent=call.parent,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        description=event.description or call.title or "",
        options=event.options,
        raw_input=call.raw_input,
        schema=event.schema,
        expires_at=event.expires_at,
        answer_at=event.answer_at,
    )
    state.requests[event.approval] = entry
    add_entry(state, entry, out)


def answered(state: FoldState, event: ev.ApprovalAnswer, out: Out) -> None:
    """RULE 6: set the answer of a request and the next state of its call."""
    request = state.requests.pop(event.approval, None)
    if request is None:
        return
    _answer(request, ANSWER_STATES[type(event)], event, out)
    call = state.calls.get(request.call_id)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    changed: list[str] = []
    if _is_edited(event, call.raw_input):
        call.raw_input = event.input
        changed.append("raw_input")
    if isinstance(event, ev.ApprovalGranted) and event.title is not UNSET:
        call.title = event.title
        changed.append("title")
    _set_status(state, call, status, event, changed)
    if status in TERMINAL_STATES and event.reason:
        call.reason = event.reason
        changed.append("reason")
    set_fields(call, changed, out)


def _answer(request: PermissionRequest, state: str, event: Event, out: Out) -> None:
    request.state = state
    changed = ["state"]
    if request.answer_at:
        request.answer_at = ""
        changed.append("answer_at")
    if isinstance(event, ev.ApprovalAnswer):
        request.response_option = event.option or None
        request.response_time = event.at
        request.by, request.reason = event.by, event.reason
        changed += ["response_option", "response_time", "by", "reason"]
        if _is_edited(event, request.raw_input):
            request.response_input = event.input
            changed.append("response_input")
    set_fields(request, changed, out)


def _is_edited(event: ev.ApprovalAnswer, before: Any) -> TypeGuard[ev.ApprovalGranted]:
    """Return whether the approved arguments differ from those before."""
    return (
        isinstance(event, ev.ApprovalGranted) and event.input is not UNSET and not codec.json_equal(before, event.input)
    )


def reported(state: FoldState, event: ev.CallReported, out: Out) -> None:
    """RULE 4: note what the agent's own record says about a call that has completed."""
    exit_status = None if event.exit_status is UNSET else event.exit_status
    _note(state, event.entry, "report", AgentReport(event.seq, event.text, exit_status), out)


def late(state: FoldState, event: Event, out: Out) -> None:
    """Note an event after the end on its call, and change nothing else."""
    if isinstance(event, ev.CallEvent) and event.entry:
        _note(state, event.entry, "late", event.seq, out)


def repeated(state: FoldState, event: Event, out: Out) -> None:
    """Note what an agent reports about a call that was denied or cancelled before, and change nothing else."""
    if isinstance(event, ev.CallEnd) and event.entry:
        _note(state, event.entry, "report", AgentReport(event.seq, report_text(event)), out)


def adopt(state: FoldState, event: ev.CallEvent, out: Out) -> None:
    """RULE 4: a call gets the id of its sub-agent: make it the parent of the sub-agent's entries so far."""
    for alias in event.aliases if event.call else ():
        for entry in state.parentless.pop(alias.id, ()):
            _note(state, entry, "parent", event.call, out)


def _note(state: FoldState, entry_id: int, field: str, value: Any, out: Out) -> None:
    """Set a field of an entry that may have ended, and be stored already."""
    entry = state.entries.get(entry_id)
    if entry is not None:
        setattr(entry, field, value)
    else:
        state.noted.setdefault(entry_id, {})[field] = value
    if out is not None:
        out.append(Set(entry_id, {field: value}))
