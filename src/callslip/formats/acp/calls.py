"""Tool calls and permission requests of one conversation: turn each message about them into events.

The ledger resolves ids and judges events. This module only decides what a message is: a `tool_call` opens a call, a
`tool_call_update` adds to it and never reopens a call that has ended.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp import messages, permission
from callslip.formats.acp.growing_text import GrowingText
from callslip.formats.acp.permission import PendingPermission, Question
from callslip.formats.acp.terminals import Terminals, TerminalUpdate
from callslip.formats.acp.update import ENDING, call_fields, progress_fields, result_fields, status_of, tool_response
from callslip.formats.acp.wire import FORMAT, Message
from callslip.formats.call_tracker import ENDED, CallTracker, TrackedCall
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.lifecycle import TURN_CLOSES

MAX_SINGLE_ITEMS = 64
"""Up to this count each new item of content sends all items; beyond it, only every few items do."""

Json = dict[str, Any]


class AcpCall(TrackedCall, kw_only=True):
    """A call. `opening` is the digest of the message that opened it, `name` the name of its tool.

    `content` excludes `streamed`, the text that arrived in pieces; `sent_items` counts the items that were passed on.
    `has_shown` is true if it is content of the call itself, and not only of a permission request.
    """

    opening: str = ""
    name: str = ""
    response: Any = UNSET
    content: list[Any] = msgspec.field(default_factory=list[Any])
    sent_items: int = 0
    has_shown: bool = False
    streamed: GrowingText | None = None


class Calls:
    """All calls of one conversation."""

    def __init__(self) -> None:
        self._calls: CallTracker[str, AcpCall] = CallTracker(AcpCall)
        self._permissions: dict[str, PendingPermission] = {}
        self._unnamed = 0
        self.terminals = Terminals()

    def start_turn(self) -> None:
        self._calls.start_turn()

    def end_turn(self, reason: str) -> None:
        """Separate what follows from the turn. The ledger ends open calls if a turn ends with a failure."""
        self._calls.start_turn()
        if reason in TURN_CLOSES:
            for call_id, call in self._calls.open_calls():
                self._end(call_id, call)

    def close(self, reason: str) -> None:
        """End the turn at the end of the connection: no answer can arrive any more."""
        self._permissions.clear()
        self.end_turn(reason)

    def open(self, update: Json) -> list[Event]:
        """Read a `tool_call`: it opens a call, or describes an open one again."""
        call_id, status = identifier(update.get("toolCallId")), status_of(update)
        if not call_id:
            return self._unnamed_call(update, status)
        opening = codec.digest(codec.encode(update))
        call = self._calls.find(call_id)
        is_current = call is not None and self._calls.is_of_turn(call)
        is_repeated = is_current and call is not None and bool(call.end) and call.opening == opening
        if call is None or not is_current or (call.end and not is_repeated):
            call = self._begin(call_id, opening)
        proposed: list[Event] = [ev.CallProposed(aliases=aliases_of(call_id), **_read_fields(call, update))]
        if status in ENDING or (status == "in_progress" and not is_repeated):
            return proposed + self._status_events(call_id, call, status, {}, update)
        progress = self._progress(call_id, call, update)
        return [*proposed, ev.CallProgress(aliases=aliases_of(call_id), **progress)] if progress else proposed

    def _unnamed_call(self, update: Json, status: str) -> list[Event]:
        """Return the events of a call without an id: no other message can refer to it."""
        self._unnamed += 1
        call, progress = f"new:{self._unnamed}", progress_fields(update)
        events: list[Event] = [ev.CallProposed(call=call, **call_fields(update))]
        events += [ev.CallStarted(call=call)] if status == "in_progress" else []
        if status in ENDING:
            events += [ev.CallProgress(call=call, text=progress["text"])] if "text" in progress else []
            return [*events, ENDING[status](call=call, **result_fields(update, tool_response(update)))]
        return [*events, ev.CallProgress(call=call, **progress)] if progress else events

    def update(self, update: Json, version: int) -> list[Event]:
        """Read a `tool_call_update`, which may be the first message about a call."""
        call_id, status = identifier(update.get("toolCallId")), status_of(update, version)
        if not call_id:
            return []
        call = self._calls.find(call_id) or self._begin(call_id)
        if status == "in_progress" and (call.end or not self._calls.is_of_turn(call)):
            status = ""  # A start would open a new call, but this one is only late.
        return self._status_events(call_id, call, status, _read_fields(call, update), update)

    def is_unstarted(self, update: Json) -> bool:
        """Return whether an update sets a started call back to pending, which no event can express."""
        call = self._calls.find(identifier(update.get("toolCallId")))
        return call is not None and call.is_started and not call.end and status_of(update) == "pending"

    def concerns_open_call(self, update: Json) -> bool:
        """Return whether an update is about an open call of this turn, or about a terminal of one."""
        call_ids = [identifier(update.get("toolCallId")), *self.terminals.calls_of(update.get("terminalId"))]
        calls = map(self._calls.find, call_ids)
        return any(call is not None and not call.end and self._calls.is_of_turn(call) for call in calls)

    def add_content(self, update: Json) -> list[Event]:
        """Read a `tool_call_content_chunk` of draft 2: one more item. Text is appended, other items are sent as a list.

        The list is sent when it has grown by a share of its length, so that many items do not cost quadratic time.
        """
        call_id, item = identifier(update.get("toolCallId")), as_dict(update.get("content"))
        if not call_id or not item:
            return []
        call = self._calls.find(call_id) or self._begin(call_id)
        text = messages.item_text(item)
        if text is not None:
            call.streamed = call.streamed or GrowingText()
            call.streamed.add(text)
            return [ev.CallProgress(aliases=aliases_of(call_id), text=text)]
        call.content.append(item)
        fields = self._show_terminals(call_id, call, [item])
        if fields or len(call.content) - call.sent_items > max(0, call.sent_items - MAX_SINGLE_ITEMS) // 8:
            call.sent_items, fields["content"] = len(call.content), call.content[:]
        return [ev.CallProgress(aliases=aliases_of(call_id), **fields)] if fields else []

    def terminal_progress(self, update: TerminalUpdate | None) -> list[Event]:
        """Return the output of a terminal as progress of the calls that show it."""
        if update is None or (not update.fields and (update.needs_raw or not update.is_open)):
            return []
        return [ev.CallProgress(aliases=aliases_of(call_id), **update.fields) for call_id in update.calls]

    def _status_events(self, call_id: str, call: AcpCall, status: str, fields: Json, update: Json) -> list[Event]:
        """Return the events of an update by its status; an end is one event with all fields."""
        aliases, progress = aliases_of(call_id), self._progress(call_id, call, update)
        if status in ENDING:
            if call.sent_items < len(call.content):
                fields = {**fields, "content": call.content}
            text = progress.get("text", "") + self.terminals.flush(call_id)
            printed: list[Event] = [ev.CallProgress(aliases=aliases, text=text)] if text else []
            exit_status = {"exit_status": progress["exit_status"]} if "exit_status" in progress else {}
            result = {**exit_status, **self._result(call_id, call, update)}
            self._end(call_id, call)
            return [*printed, ENDING[status](aliases=aliases, **fields, **result)]
        if status != "in_progress":
            return [ev.CallProgress(aliases=aliases, **fields, **progress)]
        call.is_started = True
        # An agent that starts a call has its permission, even if the answer was not seen.
        granted = [ev.ApprovalGranted(aliases=aliases, by="agent")] if call.pending_request else []
        call.pending_request = ""
        events: list[Event] = [*granted, ev.CallStarted(aliases=aliases, **fields)]
        return [*events, ev.CallProgress(aliases=aliases, **progress)] if progress else events

    def _progress(self, call_id: str, call: AcpCall, update: Json) -> Json:
        """Return the progress in an update, including the output of terminals and additions to streamed text."""
        call.input = update.get("rawInput", call.input)
        if tool_response(update) is not UNSET:
            call.response = tool_response(update)
        terminal, progress = self._show_terminals(call_id, call, update.get("content")), progress_fields(update)
        text = terminal.get("text", "") + progress.get("text", "")
        if "content" in update:
            call.content = as_list(update["content"])[:]
            call.sent_items = len(call.content)
            call.has_shown = "sessionUpdate" in update
            content_text = "".join(messages.item_text(item) or "" for item in call.content)
            text += (call.streamed.extend_to(content_text) or "") if call.streamed is not None else ""
        return {**terminal, **progress, **({"text": text} if text else {})}

    def _show_terminals(self, call_id: str, call: AcpCall, content: Any) -> Json:
        fields = self.terminals.show(call_id, content)
        if call.end:
            self.terminals.end_call(call_id)
        return fields

    def _result(self, call_id: str, call: AcpCall, update: Json) -> Json:
        result = result_fields(update, call.response)
        if "output" not in result and call.has_shown and call.streamed is None:
            result = result_fields({**update, "content": call.content})
        text = call.streamed.replacement if call.streamed is not None else None
        output = self.terminals.screen(call_id) if text is None else text
        return result if "output" in result or output is UNSET else {**result, "output": output}

    def _begin(self, call_id: str, opening: str = "") -> AcpCall:
        self.terminals.forget(call_id)
        return self._calls.open(call_id, opening=opening)

    def _end(self, call_id: str, call: AcpCall) -> None:
        call.end, call.pending_request, call.response = ENDED, "", UNSET
        call.content, call.sent_items, call.has_shown, call.streamed, call.input = [], 0, False, None, UNSET
        self.terminals.end_call(call_id)

    # Permission

    def request_permission(self, message: Message, question: Question) -> list[Event]:
        """Read a permission request. What it contains about the call is an update of the call."""
        shown_by = self.terminals.calls_of(question.terminal)[-1:]
        call_id = identifier(question.update.get("toolCallId")) or "".join(shown_by) or f"request:{message.key}"
        call, update = self._calls.find(call_id), question.update
        if call is None or call.end:
            call = self._begin(call_id)
            fields = _read_fields(call, {**question.new_call, **update})
        else:
            if _is_part_of(update.get("rawInput"), call.input):  # Else a refused call would lose the other arguments.
                update = {name: value for name, value in update.items() if name != "rawInput"}
            fields = _read_fields(call, update)
        call.pending_request, call.is_started = message.key, False
        self._permissions[message.key] = PendingPermission(call_id, question.options, question.is_standalone)
        progress = self._progress(call_id, call, update)
        aliases = aliases_of(call_id)
        requested = ev.ApprovalRequested(
            aliases=aliases,
            request_id=permission.request_id(message.id),
            options=question.options,
            description=question.description,
            **fields,
        )
        return [requested, ev.CallProgress(aliases=aliases, **progress)] if progress else [requested]

    def answer_permission(self, message: Message) -> list[Event]:
        """Read the client's answer, if the request is still pending."""
        request = self._permissions.pop(message.key, None)
        call = self._calls.find(request.call) if request else None
        if request is None or call is None or call.pending_request != message.key:
            return []
        event = permission.read_answer(request, message, aliases_of(request.call))
        if event is None:
            return []
        call.pending_request = ""
        is_granted = isinstance(event, ev.ApprovalGranted)
        if not is_granted or request.is_standalone:
            self._end(request.call, call)
        is_done = is_granted and request.is_standalone
        return [event, ev.CallCompleted(aliases=aliases_of(request.call))] if is_done else [event]


def _is_part_of(part: Any, whole: Any) -> bool:
    """Return whether an object has only fields of another one, with the same values, and not all of them."""
    fields, known = as_dict(part), as_dict(whole)
    return (
        isinstance(part, dict)
        and len(fields) < len(known)
        and all(name in known and codec.json_equal(value, known[name]) for name, value in fields.items())
    )


def _read_fields(call: AcpCall, update: Json) -> Json:
    """Return the fields that an update sets, and note the name of the tool."""
    fields = call_fields(update, call.name)
    call.name = fields.get("tool_name", call.name)
    return fields


def aliases_of(call_id: str) -> tuple[Alias, ...]:
    return (Alias(FORMAT, call_id),)
