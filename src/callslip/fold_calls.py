"""The rules of the fold about calls and their approvals: RULES 3 to 6, numbered as in docs/entry-rules.md.

States change only as `lifecycle.TRANSITIONS` says.
"""

from __future__ import annotations

from msgspec import UNSET

from callslip import events as ev
from callslip.board import Board, Out, close_text, make, set_fields
from callslip.entries import Append, PermissionRequest, Set, ToolCall
from callslip.events import Event
from callslip.lifecycle import ANSWERED, ENDS, clean_name, next_state, shown_id
from callslip.text import Text

_TOLD = (
    "title",
    "kind",
    "content",
    "locations",
    "progress",
    "exit_status",
    "output",
    "error",
    "iteration",
    "index",
    "scope",
)


def _told_by(cls: type[Event]) -> tuple[tuple[str, str], ...]:
    """Which fields of an event tell of a call, and what the entry calls them."""
    named = {"input": "raw_input", **{name: name for name in _TOLD}}
    return tuple((field, named[field]) for field in cls.__struct_fields__ if field in named)


TELLS = {cls: _told_by(cls) for cls in ev.EVENT_TYPES.values() if issubclass(cls, ev.CallEvent)}


def _tell(entry: ToolCall, event: ev.CallEvent) -> list[str]:
    """RULE 4: take over what the event mentions; what it does not mention stays (C10)."""
    changed: list[str] = []
    for told, name in TELLS[event.__class__]:
        value = getattr(event, told)
        if value is UNSET or value == -1:
            continue
        before = getattr(entry, name)
        if before != value or before.__class__ is not value.__class__:
            setattr(entry, name, value)
            changed.append(name)
    name = getattr(event, "tool_name", UNSET)
    if isinstance(name, str):
        raw = event.raw_tool_name  # pyright: ignore
        entry.tool_name = clean_name(name)
        entry.raw_tool_name = raw if isinstance(raw, str) else (name if name != entry.tool_name else None)
        changed += ("tool_name", "raw_tool_name")
    if isinstance(event, ev.CallStarted):
        entry.attempt, entry.worker = event.attempt or entry.attempt, event.worker or entry.worker
        entry.started_at = event.at if entry.status != "running" else entry.started_at
        changed += ("attempt", "worker", "started_at")
    elif isinstance(event, ev.CallEnd):
        entry.reason, entry.blob, entry.truncated = event.reason, event.blob, event.blob is not None
        changed += ("reason", "blob", "truncated")
    return changed


def call(board: Board, event: ev.CallEvent, out: Out) -> None:
    """RULE 3, RULE 4: the first event about a call makes its entry, the others tell more about it."""
    entry = board.calls.get(event.call)
    made = entry is None
    if entry is None:
        entry = ToolCall(id=event.seq, at=event.at, call_id=event.call, tool_call_id=shown_id(event, event.call))
        entry.source = event.source
    status = next_state(entry.status, event)
    if status is None:
        return
    changed = _tell(entry, event)
    appended = _stream_call(board, entry, event, changed)
    _move(board, entry, status, event, changed)
    if made:
        make(board, entry, out)
        if status not in ENDS:
            board.calls[event.call] = entry
    else:
        set_fields(entry, changed, out)
    if appended is not None and out is not None and status not in ENDS:
        out.append(appended)
    if entry.approval in board.requests and status != "awaiting_approval":
        _answer(board.requests.pop(entry.approval), "moot", event, out)


def _stream_call(board: Board, entry: ToolCall, event: ev.CallEvent, changed: list[str]) -> Append | None:
    """Arguments and output that come in pieces."""
    if isinstance(event, ev.CallInputDelta):
        field, wire, piece = "input_text", "inputText", event.text
    elif isinstance(event, ev.CallProgress):
        field, wire, piece = "output_text", "outputText", event.text
    else:
        if "raw_input" in changed and (board.texts.pop((entry.id, "input_text"), None) or entry.input_text):
            entry.input_text = ""
            changed.append("input_text")
        return None
    if not piece:
        return None
    text = board.texts.setdefault((entry.id, field), Text())
    offset = text.length()
    text.append(piece)
    return Append(entry.id, wire, offset, piece)


def _move(board: Board, entry: ToolCall, status: str, event: Event, changed: list[str]) -> None:
    """Take a call to its next state; an ended one leaves the open calls and its texts are joined for good."""
    if status != entry.status:
        entry.status = status
        changed.append("status")
    if status in ENDS:
        entry.ended_at = event.at
        changed.append("ended_at")
        board.calls.pop(entry.call_id, None)
        for field in ("input_text", "output_text"):
            text = board.texts.pop((entry.id, field), None)
            if text is not None:
                close_text(board, entry, field, text)


def requested(board: Board, event: ev.ApprovalRequested, out: Out) -> None:
    """RULE 5: the question is an entry of its own; what it says of the call is an update of the call (S2.6)."""
    call = board.calls.get(event.call)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    if call.approval in board.requests:
        _answer(board.requests.pop(call.approval), "superseded", event, out)
    changed = _tell(call, event)
    _stream_call(board, call, event, changed)
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
        expires_at=event.expires_at,
    )
    board.requests[event.approval] = entry
    make(board, entry, out)


def answered(board: Board, event: ev.ApprovalAnswer, out: Out) -> None:
    """RULE 6"""
    request = board.requests.pop(event.approval, None)
    if request is None:
        return
    _answer(request, ANSWERED[type(event)], event, out)
    call = board.calls.get(request.call_id)
    if call is None or (status := next_state(call.status, event)) is None:
        return
    changed: list[str] = []
    edited = getattr(event, "input", UNSET)
    if edited is not UNSET and edited != call.raw_input:
        call.raw_input = edited
        changed.append("raw_input")
    _move(board, call, status, event, changed)
    if status in ENDS and event.reason:
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
    set_fields(request, changed, out)


def late(board: Board, event: Event, out: Out) -> None:
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
