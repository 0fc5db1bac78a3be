"""Tool calls and the interrupts that request their approval: turn each event about them into ledger events.

A call and its answer may be in two runs: a run that needs an approval ends, and the next one has the result. So does a
run that calls a tool of the application: the result is among the messages of the next input.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, structs

from callslip.formats.ag_ui.wire import ENDED, FORMAT, parse_arguments
from callslip.formats.call_tracker import CallTracker, TrackedCall
from callslip.formats.json_fields import as_dict, as_str, has_other_fields, identifier, value_digest
from callslip.formats.repeated_text import RepeatedText
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event
from callslip.rules.lifecycle import APPROVAL_OPTIONS

Events: TypeAlias = list[Event]
INTERRUPT = f"{FORMAT}-interrupt"
PAYLOAD_FIELDS = {"approved", "reason", "editedArgs"}
ANSWER_FIELDS = {"interruptId", "status", "payload"}


class AgUiCall(TrackedCall, kw_only=True):
    """A call. Its `pending_request` is an interrupt, its `end` a digest of the event that ended it."""

    arguments: RepeatedText = msgspec.field(default_factory=RepeatedText)

    def restart_input(self) -> None:
        """Forget the arguments: its id was used again without a result, and other arguments follow."""
        self.input_pieces, self.arguments, self.is_input_complete = [], RepeatedText(), False


class Calls:
    """All calls of one conversation. `is_repeated` while a run is read again."""

    def __init__(self) -> None:
        self.is_repeated = False
        self._calls: CallTracker[str, AgUiCall] = CallTracker(AgUiCall)
        self._openings: dict[tuple[str, str, str], AgUiCall] = {}
        self._run = ""
        self._rounds: dict[str, int] = {}
        self._indexes: dict[str, int] = {}

    def start_turn(self) -> None:
        for call in self._calls.turn_calls:
            call.input_pieces = [] if call.is_input_complete else call.input_pieces  # No longer needed.
        self._calls.start_turn()
        self._rounds.clear()
        self._indexes.clear()

    def start_run(self, run: str, is_repeated: bool) -> None:
        self._run, self.is_repeated = run, is_repeated
        if is_repeated:
            for call in (*(call for _, call in self._calls.calls()), *self._openings.values()):
                call.arguments.restart()

    def is_known(self, call_id: str) -> bool:
        return self._calls.find(call_id) is not None

    def await_client(self) -> bool:
        """Return whether the client must act before the turn can continue."""
        return any(call.awaits_client for call in self._calls.turn_calls)

    # Arguments

    def start(self, call_id: str, name: str, parent: str) -> Events:
        """Open a call. Its parent message is the answer of one model round."""
        opening = (self._run, parent, call_id)
        if self.is_repeated and opening in self._openings:
            self._calls.add(self._openings[opening], call_id)
            return []
        call = self._calls.find(call_id)
        fields: dict[str, Any] = {"tool_name": name} if name else {}
        is_current = call is not None and self._calls.is_of_turn(call)
        if call is not None and is_current and call.end and not call.is_proposed:
            call.is_proposed = True
            return [ev.CallInput(aliases=aliases_of(call_id), **fields)]  # Late: its result arrived first.
        if call is None or call.end or not is_current:
            call = self._calls.open(call_id)
        elif call.is_input_complete:
            call.restart_input()
        call.is_proposed = True
        self._openings[opening] = call
        iteration = self._rounds.setdefault(parent, len(self._rounds)) if parent else -1
        index = self._indexes[parent] = self._indexes.get(parent, -1) + 1
        fields |= {"iteration": iteration, "index": index if parent else -1}
        return [ev.CallProposed(aliases=aliases_of(call_id), **fields)]

    def add_input(self, call_id: str, piece: str) -> Events:
        call = self._calls.find_or_open(call_id)
        new = call.arguments.take_new(piece)
        call.input_pieces += [new] if new else []
        return [ev.CallInputDelta(aliases=aliases_of(call_id), text=new)] if new else []

    def end_input(self, call_id: str) -> Events | None:
        """Complete the arguments."""
        call = self._calls.find(call_id)
        if call is not None and call.is_input_complete and self.is_repeated:
            return []
        if call is None or (call.is_input_complete and not self._calls.is_of_turn(call)):
            return None
        call.is_input_complete = True
        return [ev.CallInput(aliases=aliases_of(call_id), input=parse_arguments(call.input_text))]

    def add_listed(self, call_id: str, function: dict[str, Any]) -> Event:
        """Open a call with all its arguments from a message."""
        self._calls.open(call_id, is_proposed=True, is_input_complete=True)
        return ev.CallProposed(aliases=aliases_of(call_id), **_function_fields(function))

    def add_ended(self, call_id: str, function: dict[str, Any], end: CallEnd) -> Event:
        """Return all of an ended call in one event."""
        self._calls.open(call_id, end=type(end).__name__)
        end_type = ev.CallCompleted if isinstance(end, ev.CallCompleted) else ev.CallFailed
        fields: dict[str, Any] = {"output": end.output, "error": end.error, "reason": end.reason}
        return end_type(aliases=aliases_of(call_id), **_function_fields(function), **fields)

    # Results

    def result(self, call_id: str, message: dict[str, Any]) -> Events:
        """Read the result of a tool in an event or a message."""
        end = read_end(message)
        if not call_id:
            return [end]  # No other message can refer to this call.
        call, digest = self._calls.find_or_open(call_id), value_digest(end)
        if call.end == digest and self.is_repeated:
            return []
        if call.is_refused:
            end = ev.CallFailed(output=end.output, error=end.error)  # The agent's own text about the refusal.
        granted = self._answer(call_id, call, ev.ApprovalGranted, by="agent") if call.pending_request else []
        call.end = digest
        return [*granted, structs.replace(end, aliases=aliases_of(call_id))]

    def result_if_open(self, call_id: str, message: dict[str, Any]) -> Events:
        """Read a message with the result of a known call, unless the call has ended."""
        return [] if self._calls.find_or_open(call_id).end else self.result(call_id, message)

    # Interrupts

    def interrupt(self, interrupt: dict[str, Any]) -> Events:
        """Read an approval request; an interrupt without a call requests something else."""
        call_id, request = identifier(interrupt.get("toolCallId")), identifier(interrupt.get("id"))
        if not call_id or not request:
            return []
        if not self._calls.add_request(request, call_id, self._calls.find_or_open(call_id)):
            return []
        reason = as_str(interrupt.get("reason"))
        description = as_str(interrupt.get("message")) or ("" if reason == "tool_call" else reason)
        aliases = (*aliases_of(call_id), Alias(INTERRUPT, request))
        return [ev.ApprovalRequested(aliases=aliases, description=description, options=APPROVAL_OPTIONS)]

    def resume(self, entry: dict[str, Any]) -> Events:
        """Read an answer. The payload has a refusal; the status `cancelled` means that there is no answer."""
        request, payload = identifier(entry.get("interruptId")), entry.get("payload")
        answer_type: type[ev.ApprovalAnswer] = ev.ApprovalGranted
        if entry.get("status") == "cancelled":
            answer_type = ev.ApprovalWithdrawn
        elif payload is False or as_dict(payload).get("approved") is False:
            answer_type = ev.ApprovalRefused
        if not request or entry.get("status") not in ("resolved", "cancelled"):
            return []
        call_id = self._calls.find_request(request) or ""
        call = self._calls.find(call_id)
        if call is not None and call.has_answer(request):
            return []
        return self._answer(call_id, call, answer_type, by="client", request=request, payload=as_dict(payload))

    def _answer(
        self,
        call_id: str,
        call: AgUiCall | None,
        answer_type: type[ev.ApprovalAnswer],
        *,
        by: str,
        request: str = "",
        payload: dict[str, Any] | None = None,
    ) -> Events:
        if call is not None:
            call.close_request()
            call.is_refused = answer_type is not ev.ApprovalGranted
            call.end = answer_type.__name__ if call.is_refused else ""
        fields: dict[str, Any] = {"reason": as_str((payload or {}).get("reason"))}
        if answer_type is ev.ApprovalGranted and payload and "editedArgs" in payload:
            fields["input"] = payload["editedArgs"]
        aliases = aliases_of(call_id) if call_id else (Alias(INTERRUPT, request),)
        option = _OPTION.get(answer_type, "") if by == "client" else ""
        return [answer_type(aliases=aliases, option=option, by=by, **fields)]


_OPTION: dict[type[ev.ApprovalAnswer], str] = {ev.ApprovalGranted: "approve", ev.ApprovalRefused: "deny"}


def aliases_of(call_id: str) -> tuple[Alias, ...]:
    return (Alias(FORMAT, call_id),)


def _function_fields(function: dict[str, Any]) -> dict[str, Any]:
    """Return the name and arguments of a call in a message."""
    name, arguments = as_str(function.get("name")), function.get("arguments")
    fields: dict[str, Any] = {"tool_name": name} if name else {}
    return {**fields, "input": parse_arguments(arguments) if isinstance(arguments, str) else arguments}


def read_end(message: dict[str, Any]) -> CallEnd:
    """Return how a call ended: a message may have an error, an event only `metadata.callslip`."""
    output, error = message.get("content", UNSET), as_str(message.get("error"))
    metadata = as_dict(as_dict(message.get("metadata")).get("callslip"))
    end_type = ENDED.get(as_str(metadata.get("state")))
    if end_type is not None:
        return end_type(output=output, reason=as_str(metadata.get("reason")))
    return ev.CallFailed(output=output, error=error) if error else ev.CallCompleted(output=output)


def answer_needs_raw(entry: dict[str, Any]) -> bool:
    """Return whether an answer has more than its events carry."""
    payload = entry.get("payload")
    is_odd = not isinstance(payload, bool | dict | None) or has_other_fields(as_dict(payload), PAYLOAD_FIELDS)
    return is_odd or has_other_fields(entry, ANSWER_FIELDS)
