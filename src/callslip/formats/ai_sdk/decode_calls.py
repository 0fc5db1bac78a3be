"""Turn each chunk about a tool call into events. The ledger resolves ids and judges events.

A call waits for the client from the moment its arguments are complete. Our own streams have facts under
`toolMetadata.callslip` that version 6 cannot express; they are read too, so that decoding our streams loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, structs

from callslip.formats.ai_sdk.message_state import MessageState, UiCall
from callslip.formats.ai_sdk.wire import Chunk
from callslip.formats.base import Events
from callslip.formats.call_tracker import ENDS_WITHOUT_RESULT, CallTracker
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier, value_digest
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event
from callslip.rules.approval_options import choose_option
from callslip.rules.lifecycle import APPROVAL_OPTIONS

STEP_RESTARTED = "the model began its step anew"

# The answer to a pending request that an end implies.
ANSWERS: dict[type[CallEnd], type[ev.ApprovalAnswer]] = {
    ev.CallCompleted: ev.ApprovalGranted,
    ev.CallDenied: ev.ApprovalRefused,
    ev.CallCancelled: ev.ApprovalWithdrawn,
}

_KNOWN_FIELDS = {
    *("type", "toolCallId", "toolName", "title", "dynamic", "inputEncoding", "toolMetadata", "input", "inputTextDelta"),
    *("output", "preliminary", "errorText", "approvalId", "approvalDescriptor", "approved", "reason"),
}
_METADATA_FIELDS = {"callId", "state", "kind", "reason", "exitStatus", "scope"}
_DESCRIPTOR_FIELDS = {"description", "options"}


def needs_raw(chunk: Chunk) -> bool:
    """Return whether a chunk has more than its events carry."""
    return (
        has_other_fields(chunk, _KNOWN_FIELDS)
        or has_other_fields(as_dict(chunk.get("toolMetadata")), {"callslip"})
        or has_other_fields(_metadata(chunk), _METADATA_FIELDS)
        or has_other_fields(as_dict(chunk.get("approvalDescriptor")), _DESCRIPTOR_FIELDS)
    )


class Calls:
    """All calls of one conversation."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._calls: CallTracker[str, UiCall] = CallTracker(UiCall)

    def read(self, message: MessageState, chunk: Chunk) -> Events | None:
        """Return the events of a chunk; None if it is not understood."""
        call_id = identifier(chunk.get("toolCallId"))
        handler = self._HANDLERS[chunk["type"]]
        return handler(self, message, call_id, chunk) if call_id else _read_unnamed(message, chunk)

    def drop_step(self, message: MessageState) -> Events:
        """Cancel the open calls of a step that the model restarts."""
        open_ids = message.drop_step()
        return [ev.CallCancelled(aliases=self._aliases(call_id), reason=STEP_RESTARTED) for call_id in open_ids]

    def _aliases(self, call_id: str) -> tuple[Alias, ...]:
        return (Alias(self._format, call_id),)

    def _find_or_begin(self, message: MessageState, call_id: str) -> UiCall:
        """Return the newest call of an id, which may have no proposal."""
        return self._calls.find(call_id) or self._calls.add(message.begin_call(call_id), call_id)

    def _find_in_step(self, message: MessageState, call_id: str) -> UiCall:
        return self._calls.add(message.find_call(call_id) or message.begin_call(call_id), call_id)

    # Arguments

    def _begin_input(self, message: MessageState, call_id: str, chunk: Chunk) -> Events:
        call = message.find_call(call_id)
        if call is not None and message.is_repeated:
            return []
        if call is None or call.end:
            call = message.begin_call(call_id)
        self._calls.add(call, call_id)
        return [self._propose(call_id, call, chunk), *self._metadata_state(call_id, call, chunk)]

    def _add_input(self, message: MessageState, call_id: str, chunk: Chunk) -> Events | None:
        piece = chunk.get("inputTextDelta")
        if not isinstance(piece, str):
            return None
        new, is_different = self._find_or_begin(message, call_id).arguments.add(piece)
        return [ev.CallInputDelta(aliases=self._aliases(call_id), text=new)] if new and not is_different else []

    def _end_input(self, message: MessageState, call_id: str, chunk: Chunk) -> Events:
        """Read complete arguments. In one step they may change later; in the next step they belong to another call."""
        call = self._find_in_step(message, call_id)
        events: Events = []
        digest = value_digest(call_fields(chunk))
        if not call.is_proposed and not call.end:
            events = [self._propose(call_id, call, chunk)]
        elif not message.is_repeated or call.input_digest != digest:
            events = [ev.CallInput(aliases=self._aliases(call_id), **call_fields(chunk))]
        call.is_input_complete, call.input_digest = True, digest
        call.is_served = call.is_served or chunk.get("providerExecuted") is True
        return events + self._metadata_state(call_id, call, chunk)

    def _propose(self, call_id: str, call: UiCall, chunk: Chunk) -> Event:
        call.is_proposed = True
        fields = call_fields(chunk)
        return ev.CallProposed(aliases=self._aliases(call_id), **fields, iteration=call.iteration, index=call.index)

    def _metadata_state(self, call_id: str, call: UiCall, chunk: Chunk) -> Events:
        """Read the state of an open call in our own streams; the protocol does not distinguish them."""
        state = _metadata(chunk).get("state")
        return self._approve(call_id, call, state == "running") if state in ("queued", "running") else []

    def _approve(self, call_id: str, call: UiCall, is_running: bool = True) -> Events:
        """Answer the pending request of a call that is queued or running, even if the answer was not seen."""
        if call.end:
            return []
        events = self._answer(call_id, call, ev.ApprovalGranted) if call.pending_request else []
        if is_running and not call.is_started:
            call.is_started = True
            events.append(ev.CallStarted(aliases=self._aliases(call_id)))
        return events

    def _input_error(self, message: MessageState, call_id: str, chunk: Chunk) -> Events:
        """Read arguments that the tool rejects: only this call fails."""
        call = self._find_in_step(message, call_id)
        proposed = [] if call.is_proposed or call.end else [self._propose(call_id, call, chunk)]
        return proposed + self._end(message, call_id, ev.CallFailed(**call_fields(chunk), **_error_field(chunk)))

    # Results

    def _output(self, message: MessageState, call_id: str, chunk: Chunk) -> Events:
        """Read the output; `preliminary` is the output so far of an open call."""
        output = chunk.get("output", UNSET)
        if chunk.get("preliminary") is not True:
            return self._end(message, call_id, ev.CallCompleted(output=output, **_metadata_fields(chunk)))
        call = self._find_or_begin(message, call_id)
        if message.is_repeated and call.end:
            return []
        started = self._approve(call_id, call)
        return [*started, ev.CallProgress(aliases=self._aliases(call_id), progress=output)]

    def _output_error(self, message: MessageState, call_id: str, chunk: Chunk) -> Events:
        """Read an error; in our own streams also the ends that the protocol cannot express."""
        end_type = ENDS_WITHOUT_RESULT.get(as_str(_metadata(chunk).get("state")))
        fields = _error_field(chunk) if end_type is None else _own_error_fields(chunk)
        return self._end(message, call_id, (end_type or ev.CallFailed)(**fields, **_metadata_fields(chunk)))

    def _end(self, message: MessageState, call_id: str, end: CallEnd) -> Events:
        """End a call, and answer its pending request if the end implies an answer."""
        call, digest = self._find_or_begin(message, call_id), value_digest(end)
        is_echo = call.is_refused and isinstance(end, ev.CallDenied)
        if is_echo or (message.is_repeated and call.end == digest):
            return []
        answer_type = ANSWERS.get(type(end)) if call.pending_request else None
        answer = self._answer(call_id, call, answer_type, end.reason) if answer_type else []
        call.end, call.pending_request = digest, ""
        if answer and not isinstance(end, ev.CallCompleted):
            return answer  # A refusal or withdrawal ends the call.
        return [*answer, structs.replace(end, aliases=self._aliases(call_id))]

    # Approval

    def _request(self, message: MessageState, call_id: str, chunk: Chunk) -> Events | None:
        """Read an approval request. The protocol has only yes and no, which become two options."""
        request, descriptor = identifier(chunk.get("approvalId")), as_dict(chunk.get("approvalDescriptor"))
        if not request:
            return None
        call = self._find_or_begin(message, call_id)
        if not self._calls.add_request(request, call_id, call):
            return []
        call.options = as_list(descriptor.get("options")) or APPROVAL_OPTIONS
        description = as_str(descriptor.get("description")) or as_str(chunk.get("reason"))
        aliases = (*self._aliases(call_id), *self._request_alias(request))
        return [ev.ApprovalRequested(aliases=aliases, description=description, options=call.options)]

    def _request_alias(self, request: str) -> tuple[Alias, ...]:
        """Return a second name of a call, by which an answer without a call id finds it."""
        return (Alias(f"{self._format}-approval", request),)

    def respond(self, chunk: Chunk) -> Events | None:
        """Read an answer: the agent's own in a stream; the client's in a message, which names the call."""
        approved, request = chunk.get("approved"), identifier(chunk.get("approvalId"))
        if not isinstance(approved, bool) or not request:
            return None
        answer_type = ev.ApprovalGranted if approved else ev.ApprovalRefused
        by = "client" if "toolCallId" in chunk and chunk.get("isAutomatic") is not True else "agent"
        call_id = identifier(chunk.get("toolCallId")) or self._calls.find_request(request) or ""
        call, reason = self._calls.find(call_id), as_str(chunk.get("reason"))
        if call is not None and call.has_answer(request):
            return []
        if call is not None and call.pending_request == request:
            return self._answer(call_id, call, answer_type, reason, by, choose_option(call.options, approved))
        option = choose_option(APPROVAL_OPTIONS, approved)
        aliases = self._aliases(call_id) if call_id else self._request_alias(request)
        return [answer_type(approval=request, aliases=aliases, option=option, by=by, reason=reason)]

    def _answer(
        self,
        call_id: str,
        call: UiCall,
        answer_type: type[ev.ApprovalAnswer],
        reason: str = "",
        by: str = "agent",
        option: str = "",
    ) -> Events:
        call.close_request()
        if answer_type is not ev.ApprovalGranted:
            call.end, call.is_refused = answer_type.__name__, answer_type is ev.ApprovalRefused
        return [answer_type(aliases=self._aliases(call_id), option=option, by=by, reason=reason)]

    _HANDLERS: ClassVar[dict[str, Callable[[Any, MessageState, str, Chunk], Events | None]]] = {
        "tool-input-start": _begin_input,
        "tool-input-delta": _add_input,
        "tool-input-available": _end_input,
        "tool-input-error": _input_error,
        "tool-output-available": _output,
        "tool-output-error": _output_error,
        "tool-output-denied": lambda self, message, call_id, chunk: self._end(message, call_id, ev.CallDenied()),
        "tool-approval-request": _request,
    }
    KINDS: ClassVar[frozenset[str]] = frozenset(_HANDLERS)


def call_fields(chunk: Chunk) -> dict[str, Any]:
    """Return the fields of a call event that a chunk contains."""
    texts = {"tool_name": chunk.get("toolName"), "title": chunk.get("title"), "kind": _metadata(chunk).get("kind")}
    fields: dict[str, Any] = {name: value for name, value in texts.items() if value and isinstance(value, str)}
    return {**fields, "input": chunk["input"]} if "input" in chunk else fields


def _metadata(chunk: Chunk) -> dict[str, Any]:
    return as_dict(as_dict(chunk.get("toolMetadata")).get("callslip"))


def _error_field(chunk: Chunk) -> dict[str, Any]:
    return {"error": chunk["errorText"]} if "errorText" in chunk else {}


def _own_error_fields(chunk: Chunk) -> dict[str, Any]:
    """Parse the error text of our own streams: how the call ended, the reason, and the output on further lines."""
    text, reason = as_str(chunk.get("errorText")), as_str(_metadata(chunk).get("reason"))
    head, _, output = text.partition("\n")
    _, separator, message = text.partition(": ")
    if separator and ": " in head:
        if not reason or not f"{message}\n".startswith(f"{reason}\n"):
            return {"error": message}
        output = message[len(reason) + 1 :]
    return {"output": output} if output else {}


def _metadata_fields(chunk: Chunk) -> dict[str, Any]:
    """Return the facts about an end, besides its output, in our own streams."""
    metadata = _metadata(chunk)
    fields: dict[str, Any] = {"reason": as_str(metadata.get("reason"))}
    fields |= {"kind": metadata["kind"]} if isinstance(metadata.get("kind"), str) else {}
    return fields | ({"exit_status": metadata["exitStatus"]} if "exitStatus" in metadata else {})


def _read_unnamed(message: MessageState, chunk: Chunk) -> Events | None:
    """Read a chunk about a call without an id: no other chunk can refer to it."""
    kind = chunk["type"]
    if kind == "tool-input-available":
        return [ev.CallProposed(**call_fields(chunk), iteration=message.iteration(), index=message.next_index())]
    if kind in ("tool-input-error", "tool-output-error"):
        return [ev.CallFailed(**call_fields(chunk), **_error_field(chunk))]
    if kind == "tool-output-available":
        return [ev.CallCompleted(output=chunk.get("output", UNSET))]
    return None
