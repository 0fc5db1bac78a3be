"""Make the part and the annotation of a call for the AI SDK 4, for the stream and for the history.

A part can be sent again at any time; an annotation cannot be changed once it was sent. So the stream sends the
annotation of a call when it has ended, and while it waits for approval. In a history every call has one.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.ai_sdk_v4.messages import CallNote, Invocation
from callslip.formats.ai_sdk_v4.wire import ACCEPTED, NOT_REQUIRED, PENDING, REJECTED
from callslip.formats.js_json import readable
from callslip.formats.outcome import error_of, error_output, output_of, queued
from callslip.formats.providers.results import input_of, result_of
from callslip.model.entries import PermissionRequest, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

PARTIAL = "partial-call"

# Other requests were never answered: withdrawn, or not needed by the call.
_VALIDATED_BY_REQUEST = {"granted": ACCEPTED, "pending": PENDING}


class Annotation(msgspec.Struct, frozen=True):
    """The annotation of an entry, and the seq of the event with which the stream sent it; 0 if it did not yet."""

    entry: int
    sent_at: int
    note: CallNote


# Parts


def invocation(entry: ToolCall, step: int) -> Invocation:
    """Return the current part of a call. Incomplete arguments are left out: the client would guess the rest."""
    is_detached = entry.scope == "detached"
    is_new = not is_detached and entry.status == "queued" and not entry.approval and not entry.started_at
    state = STATE_NAMES["completed" if is_detached else entry.status].v4
    if is_new and entry.raw_input is None:
        state = PARTIAL
    call = Invocation(state, step, entry.tool_call_id, entry.tool_name or entry.kind or "unknown")
    if call.state != PARTIAL:
        is_final = entry.raw_input is not None or (not is_detached and entry.status in TERMINAL_STATES)
        call.args = readable(input_of(entry)) if is_final else {}  # The client ends the stream if it is not an object.
    if call.state == "result":
        call.result = _result(entry)
    return call


def _result(entry: ToolCall) -> Any:
    """Return the result, or an object with `error`: the client has no state for failed calls."""
    if entry.scope == "detached":
        return queued(entry)
    if STATE_NAMES[entry.status].error:
        return _failure(entry)
    return result_of(entry).text if entry.output is None else readable(entry.output)


def _failure(entry: ToolCall) -> Any:
    if fields := error_output(entry):
        return readable(fields)
    error, output = error_of(entry) if entry.status == "failed" else None, output_of(entry)
    if error is None or (isinstance(error, str) and isinstance(output, str)):
        return {"error": result_of(entry).text}
    return {"error": readable(error), **({} if output is None else {"output": readable(output)})}


# Annotations


def note_of(entry: ToolCall, request: PermissionRequest | None) -> Annotation:
    """Return the annotation of a call. `request` is its request for approval in the same turn."""
    if entry.scope == "detached":
        note = CallNote(entry.tool_call_id, NOT_REQUIRED, STATE_NAMES["completed"].complete)
        return Annotation(entry.id, entry.id, note)
    is_ended, sent_at = entry.status in TERMINAL_STATES, 0
    if is_ended:
        sent_at = entry.end
    elif entry.status == "awaiting_approval" and request is not None:
        sent_at = request.id
    note = CallNote(entry.tool_call_id, _validated(entry, request), STATE_NAMES[entry.status].complete)
    if note.validated == PENDING and not (request and request.answer_at):
        note.approval_id = entry.approval
    if is_ended:  # Add what the result does not show: the exit status, and the blob with the full output.
        note.exit_status = UNSET if entry.exit_status is None else readable(entry.exit_status)
        if entry.blob is not None:
            note.truncated, note.size, note.blob = True, entry.blob.size, entry.blob.hash
    return Annotation(entry.id, sent_at, note)


def _validated(entry: ToolCall, request: PermissionRequest | None) -> str:
    """Return the decision of a user about a call. A denied call is rejected, with or without a request."""
    if entry.status == "denied":
        return REJECTED
    if entry.status == "awaiting_approval":
        return PENDING
    if request is None:  # The request is in another turn. The call continued, so it was granted.
        return ACCEPTED if entry.approval else NOT_REQUIRED
    return _VALIDATED_BY_REQUEST.get(request.state, NOT_REQUIRED)
