"""The rules of the fold about calls and their approvals: RULES 3 to 6, numbered as in docs/entry-rules.md.

States change only as `lifecycle.TRANSITIONS` says.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from msgspec import UNSET

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Append, PermissionRequest, Set, ToolCall
from callslip.model.events import Event
from callslip.rules.fold_state import FoldState, Out, close_text, make, set_fields
from callslip.rules.lifecycle import (
    ANSWERED,
    TERMINAL_STATES,
    TRANSITIONS,
    client_call_id,
    next_state,
    scope_of,
    strip_mcp_prefix,
)
from callslip.rules.streamed_text import StreamedText

# What an event may tell of a call, and what the entry calls it.
_NAMES = {"input": "raw_input"}
_TOLD = ("title", "kind", "input", "content", "locations", "progress", "exit_status", "output", "error")

TELLS = {
    cls: tuple((field, _NAMES.get(field, field)) for field in cls.__struct_fields__ if field in _TOLD)
    for cls in ev.EVENT_TYPES.values()
}


def _tell(entry: ToolCall, event: ev.CallEvent) -> list[str]:
    """RULE 4: take over what the event mentions; what it does not mention stays (C10). Which fields changed."""
    changed: list[str] = []
    for told, name in TELLS[event.__class__]:
        value = getattr(event, told)
        if value is not UNSET:
            before = getattr(entry, name)
            if value is None if before is None else codec.json_equal(before, value):
                continue
            setattr(entry, name, value)
            changed.append(name)
    if isinstance(event, ev.CallUpdate) and isinstance(event.tool_name, str):
        _name(entry, event.tool_name, event.raw_tool_name, changed)
    more = _MORE.get(event.__class__)
    if more is not None:
        more(entry, event, changed)
    return changed


def _name(entry: ToolCall, name: str, raw: Any, changed: list[str]) -> None:
    entry.tool_name = strip_mcp_prefix(name)
    entry.raw_tool_name = raw if isinstance(raw, str) else (name if name != entry.tool_name else None)
    changed += ("tool_name", "raw_tool_name")


def _proposed(entry: ToolCall, event: ev.CallProposed, changed: list[str]) -> None:
    """Where these have their defaults they say nothing (C10): they cannot be UNSET."""
    scope = scope_of(entry.status, entry.scope, event)
    told = (("iteration", event.iteration >= 0), ("index", event.index >= 0), ("scope", scope != entry.scope))
    for name in [name for name, said in told if said]:
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
    if event.blob is not None:
        entry.blob, entry.truncated = event.blob, True
        changed += ("blob", "truncated")


_MORE: dict[type[Event], Any] = {
    ev.CallProposed: _proposed,
    ev.CallStarted: _started,
    **dict.fromkeys(ev.TERMINAL, _ended),
}

# Arguments and output that come in pieces: the entry's field, and its name on the wire.
_PIECES: dict[type[Event], tuple[str, str]] = {
    ev.CallInputDelta: ("input_text", "inputText"),
    ev.CallProgress: ("output_text", "outputText"),
}
_STREAMED = (ev.CallInputDelta, ev.CallProgress)


def call(board: FoldState, event: ev.CallEvent, out: Out) -> None:
    """RULE 3, RULE 4: the first event about a call makes its entry, the others tell more about it."""
    entry = board.calls.get(event.call)
    made = entry is None
    if entry is None:
        shown = client_call_id(event, event.call)
        entry = ToolCall(id=event.seq, at=event.at, call_id=event.call, tool_call_id=shown, source=event.source)
    status = TRANSITIONS[entry.status].get(event.__class__)  # pyright: ignore[reportArgumentType]
    if status is None:
        return
    changed = _tell(entry, event)
    appended = _stream(board, entry, event) if isinstance(event, _STREAMED) else None
    if "raw_input" in changed:
        _whole_input(board, entry, changed)
    if status != entry.status:
        _move(board, entry, status, event, changed)
    if made:
        make(board, entry, out)
        if status not in TERMINAL_STATES:
            board.calls[event.call] = entry
    elif out is not None:
        set_fields(entry, changed, out)
    if appended is not None and out is not None:
        out.append(appended)
    if board.requests and entry.approval in board.requests and status != "awaiting_approval":
        _answer(board.requests.pop(entry.approval), "moot", event, out)


def _stream(board: FoldState, entry: ToolCall, event: ev.CallInputDelta | ev.CallProgress) -> Append | None:
    if not event.text:
        return None
    field, wire = _PIECES[event.__class__]
    text = board.texts.setdefault((entry.id, field), StreamedText())
    offset = text.length()
    text.append(event.text)
    return Append(entry.id, wire, offset, event.text)


def _whole_input(board: FoldState, entry: ToolCall, changed: list[str]) -> None:
    """Arguments that are whole replace what was streamed of them."""
    streamed = board.texts.get((entry.id, "input_text"))
    if streamed is not None:
        streamed.replace("")
        entry.input_text = ""
        changed.append("input_text")


def _move(board: FoldState, entry: ToolCall, status: str, event: Event, changed: list[str]) -> None:
    """Take a call to its next state; an ended one leaves the open calls and its texts are joined for good."""
    entry.status = status
    changed.append("status")
    if status in TERMINAL_STATES:
        entry.ended_at, entry.end = event.at, event.seq
        changed += ("ended_at", "end")
        board.calls.pop(entry.call_id, None)
        for field in ("input_text", "output_text") if board.texts else ():
            text = board.texts.pop((entry.id, field), None)
            if text is not None:
                close_text(board, entry, field, text)


def requested(board: FoldState, event: ev.ApprovalRequested, out: Out) -> None:
    """RULE 5: the question is an entry of its own; what it says of the call is an update of the call (S2.6)."""
    call = board.calls.get(event.call)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    if call.approval in board.requests:
        _answer(board.requests.pop(call.approval), "superseded", event, out)
    changed = _tell(call, event)
    if "raw_input" in changed:
        _whole_input(board, call, changed)
    if status != call.status:
        _move(board, call, status, event, changed)
    call.approval = event.approval
    set_fields(call, [*changed, "approval"], out)
    entry = PermissionRequest(
        id=event.seq,
        at=event.at,
        request_id=event.approval,
        call_id=call.call_id,
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        description=event.description or call.title or "",
        options=event.options,
        raw_input=call.raw_input,
        schema=event.schema,
        expires_at=event.expires_at,
    )
    board.requests[event.approval] = entry
    make(board, entry, out)


def answered(board: FoldState, event: ev.ApprovalAnswer, out: Out) -> None:
    """RULE 6"""
    request = board.requests.pop(event.approval, None)
    if request is None:
        return
    _answer(request, ANSWERED[type(event)], event, out)
    call = board.calls.get(request.call_id)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    changed: list[str] = []
    if _edited(event, call.raw_input):
        call.raw_input = event.input
        changed.append("raw_input")
    _move(board, call, status, event, changed)
    if status in TERMINAL_STATES and event.reason:
        call.reason = event.reason
        changed.append("reason")
    set_fields(call, changed, out)


def _answer(request: PermissionRequest, how: str, event: Event, out: Out) -> None:
    request.state = how
    changed = ["state"]
    if isinstance(event, ev.ApprovalAnswer):
        request.response_option = event.option or None
        request.response_time = event.at
        request.by, request.reason = event.by, event.reason
        changed += ["response_option", "response_time", "by", "reason"]
        if _edited(event, request.raw_input):
            request.response_input = event.input
            changed.append("response_input")
    set_fields(request, changed, out)


def _edited(event: ev.ApprovalAnswer, known: Any) -> TypeGuard[ev.ApprovalGranted]:
    """Whether other arguments were approved than those that are known."""
    return (
        isinstance(event, ev.ApprovalGranted) and event.input is not UNSET and not codec.json_equal(known, event.input)
    )


def late(board: FoldState, event: Event, out: Out) -> None:
    """C4: what comes after the end is noted on the call and changes nothing else."""
    if not isinstance(event, ev.CallEvent) or not event.entry:
        return
    entry = board.entries.get(event.entry)
    if isinstance(entry, ToolCall):
        entry.late = event.seq
    else:
        board.noted[event.entry] = {"late": event.seq}
    if out is not None:
        out.append(Set(event.entry, {"late": event.seq}))
