"""One call as a page of the AI SDK 4 knows it: its part, and its annotation. Stream and history build both only here.

A part can be told anew at any time; an annotation, once told, cannot be changed (S4.2). So a call has its annotation
when it has ended, and while a person is asked about it. One that is merely queued or running has none in a turn: that
it is not complete is what the page takes it for. Outside of turns nothing is streamed, and every call has one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.ai_sdk_v4.messages import CallNote, Invocation
from callslip.formats.ai_sdk_v4.wire import ACCEPTED, NOT_REQUIRED, PENDING, REJECTED
from callslip.formats.js_json import readable
from callslip.formats.outcome import queued
from callslip.formats.providers.results import input_of, result_of
from callslip.model.entries import PermissionRequest, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

PARTIAL = "partial-call"

# S4.3. A request that was withdrawn, or that its call did not wait for, was never answered.
_ANSWERED = {"granted": ACCEPTED, "pending": PENDING}


class Annotation(msgspec.Struct, frozen=True):
    """An annotation, the entry it is about, and the event by which a page was told."""

    entry: int
    at: int
    note: CallNote


# Parts


def invocation(entry: ToolCall, step: int) -> Invocation:
    """The call as it stands. Arguments in pieces are not shown: what half of them means would be the client's guess."""
    made = Invocation(_state(entry), step, entry.tool_call_id, entry.tool_name or entry.kind or "unknown")
    if made.state != PARTIAL:
        made.args = _args(entry)
    if made.state == "result":
        made.result = _result(entry)
    return made


def _state(entry: ToolCall) -> str:
    if entry.scope == "detached":
        return STATE_NAMES["completed"].v4
    untouched = entry.status == "queued" and not entry.approval and not entry.started_at
    return PARTIAL if untouched and entry.raw_input is None else STATE_NAMES[entry.status].v4


def _args(entry: ToolCall) -> Any:
    """An object: the client ends the stream at anything else. Of a call that ended, as much as ever came."""
    given = entry.raw_input is not None or (entry.scope != "detached" and entry.status in TERMINAL_STATES)
    return readable(input_of(entry)) if given else {}


def _result(entry: ToolCall) -> Any:
    """What it came to; why it came to nothing stands in `error`, since the client knows no failed calls."""
    if entry.scope == "detached":
        return queued(entry)
    if STATE_NAMES[entry.status].error:
        return {"error": result_of(entry).text}
    return result_of(entry).text if entry.output is None else readable(entry.output)


# Annotations


def note_of(entry: ToolCall, asked: PermissionRequest | None) -> Annotation | None:
    """The annotation of a call, if it can have one by now. `asked` is its request, if that is of the same turn."""
    if entry.scope == "detached":
        return Annotation(
            entry.id, entry.id, CallNote(entry.tool_call_id, NOT_REQUIRED, STATE_NAMES["completed"].complete)
        )
    if entry.status in TERMINAL_STATES:
        return Annotation(entry.id, entry.end, _ended(entry, _note(entry, asked)))
    if entry.status == "awaiting_approval" and asked is not None:
        return Annotation(entry.id, asked.id, _note(entry, asked))
    return None if entry.turn else Annotation(entry.id, entry.id, _note(entry, asked))


def _note(entry: ToolCall, asked: PermissionRequest | None) -> CallNote:
    note = CallNote(entry.tool_call_id, _validated(entry, asked), STATE_NAMES[entry.status].complete)
    if note.validated == PENDING:
        note.approval_id = entry.approval
    return note


def _validated(entry: ToolCall, asked: PermissionRequest | None) -> str:
    """S4.3: what a person said to it. Who denied a call rejected it, asked or not."""
    if entry.status == "denied":
        return REJECTED
    if entry.status == "awaiting_approval":
        return PENDING
    if asked is None:  # of another turn, and so not to be looked at here: the call went on, so it was granted
        return ACCEPTED if entry.approval else NOT_REQUIRED
    return _ANSWERED.get(asked.state, NOT_REQUIRED)


def _ended(entry: ToolCall, note: CallNote) -> CallNote:
    """What the result does not show: how its process ended, and where the whole is if this is a beginning (S2.8)."""
    note.exit_status = UNSET if entry.exit_status is None else readable(entry.exit_status)
    if entry.blob is not None:
        note.truncated, note.size, note.blob = True, entry.blob.size, entry.blob.hash
    return note
