"""An agent's replay of a session that it loads again. It is a second witness and never overwrites what was recorded.

Between the request and its answer all messages and calls are collected, each as one item, and drafted when the answer
arrives. The ledger adds the turns that were never recorded, if they follow everything recorded. Messages of the user
are drafted without their ids: agents assign these ids only now.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from callslip.formats.acp import messages, update
from callslip.formats.acp.calls import aliases_of
from callslip.formats.acp.plans import plan_entries
from callslip.formats.acp.terminals import Terminals, terminals_in
from callslip.formats.acp.wire import FORMAT, Message
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.rules.replay_diff import RESULT_UNKNOWN
from callslip.rules.streamed_text import Proof, StreamedText, merge_chunk, replace_if_cumulative

Json = dict[str, Any]

# Claude's notes about interruptions and local commands, which its transcript has as messages of the user. They are not
# what the user wrote as a prompt.
_NOTE = re.compile(
    r"\s*<(command-name|command-message|local-command-[a-z]+)>|\s*\[Request interrupted by user[a-z ]*\]\s*\Z"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


class ReplayedMessage(msgspec.Struct):
    """One message or thought."""

    sender: str
    id: str
    text: StreamedText
    blocks: list[Any]


class ReplayedCall(msgspec.Struct):
    """One call: its updates merged into one, its content, printed texts, and text that was streamed."""

    update: Json
    content: list[Any] = []
    printed: list[str] = []
    streamed: list[str] = []


Item = ReplayedMessage | ReplayedCall | Event


class Replay:
    """The replay of one `session/load`. `key` is the request, `state` the agent's last state update."""

    def __init__(self, request: Message, chunks: ev.Chunks | None) -> None:
        self.key = request.key
        self.state: Message | None = None
        self._session = request.session
        self._version = request.version
        self._chunks: ev.Chunks = messages.chunk_policy(chunks, request.version)
        self._items: list[Item] = []
        self._messages: dict[tuple[str, str], ReplayedMessage] = {}
        self._calls: dict[str, ReplayedCall] = {}
        self._terminals = Terminals()
        self._terminal_bodies: dict[str, list[Any]] = {}
        self._proofs: dict[str, Proof] = {}
        self._plan_index = -1
        self._mode = ""
        self._bodies: list[Any] = []
        self._raw_bodies: list[Any] = []

    def collect(self, message: Message) -> bool:
        """Collect a message. Return False if it is not part of the replay."""
        fields = as_dict(message.params.get("update"))
        kind = fields.get("sessionUpdate")
        if message.method != "session/update" or message.session != self._session or not isinstance(kind, str):
            return False
        handler = self._HANDLERS.get(kind)
        if handler is None or not handler(self, fields, message):
            return False
        self._bodies.append(message.body)
        return True

    def drafts(self) -> list[Draft]:
        """Return all items in the order of their first message, between two ends of messages."""
        items = [_draft(self._event(item)) for item in self._items if not _is_empty(item)]
        edge = [_draft(ev.MessageEnded())] if items else []
        mode = [Draft(ev.SessionMode(mode=self._mode))] if self._mode else []
        raw = map(Draft, map(_raw, [*self._raw_bodies, *self._unshown_terminals()]))
        return [*edge, *items, *edge, *mode, *raw]

    def abandon(self) -> list[Event]:
        """Return all messages as raw events, after a load that failed."""
        return [_raw(body) for body in self._bodies]

    # Messages

    def _message_chunk(self, fields: Json, message: Message) -> bool:
        sender, block = messages.CHUNKS[fields["sessionUpdate"]], fields.get("content")
        text = messages.block_text(block)
        is_note = sender == messages.USER and bool(_NOTE.match(text or ""))
        if text is None or is_note or messages.chunk_needs_raw(fields):
            self._raw_bodies.append(message.body)
        if is_note or (text is None and sender != messages.USER):
            return True
        item = self._find_message(sender, identifier(fields.get("messageId")))
        item.blocks.append(block)
        change = merge_chunk(item.text, text or "", self._chunks, self._proofs.get(sender, ""))
        self._proofs[sender] = change.proof or self._proofs.get(sender, "")
        return True

    def _full_message(self, fields: Json, message: Message) -> bool:
        message_id = identifier(fields.get("messageId"))
        if not message_id or not isinstance(fields.get("content", ...), list | None):
            return False
        item = self._find_message(messages.FULL_MESSAGES[fields["sessionUpdate"]], message_id)
        item.blocks = list(as_list(fields["content"]))
        item.text.replace(messages.message_text(item.blocks))
        if not item.blocks or messages.message_needs_raw(fields):
            self._raw_bodies.append(message.body)
        return True

    def _find_message(self, sender: str, message_id: str) -> ReplayedMessage:
        """Return the message that a chunk continues: by its id, else the last item if it has no id either."""
        last = self._items[-1] if self._items else None
        if message_id:
            item = self._messages.get((sender, message_id))
        else:
            item = last if isinstance(last, ReplayedMessage) and last.sender == sender and not last.id else None
        if item is None:
            item = self._messages[sender, message_id] = ReplayedMessage(sender, message_id, StreamedText(), [])
            self._items.append(item)
            if sender == messages.USER:
                self._plan_index = -1  # Each turn has its own plan.
        return item

    # Calls

    def _call_update(self, fields: Json, message: Message) -> bool:
        """Collect a call. One without an id cannot be matched with a recorded call, so it is stored raw."""
        call_id = identifier(fields.get("toolCallId"))
        if not call_id or update.needs_raw(fields, self._version):
            self._raw_bodies.append(message.body)
        if not call_id:
            return True
        call = self._find_call(call_id, is_opening=fields["sessionUpdate"] == "tool_call")
        call.printed.append(update.printed_text(fields))
        meta = {**as_dict(call.update.get("_meta")), **as_dict(fields.get("_meta"))}
        call.update = {**call.update, **fields, "_meta": meta}
        if "content" in fields:
            call.content, call.streamed = list(as_list(fields["content"])), []
        return True

    def _find_call(self, call_id: str, *, is_opening: bool = False) -> ReplayedCall:
        call = self._calls.get(call_id)
        if call is None or (is_opening and update.status_of(call.update) in update.ENDING):
            call = self._calls[call_id] = ReplayedCall({"toolCallId": call_id})
            self._items.append(call)
        return call

    def _call_content(self, fields: Json, message: Message) -> bool:
        call_id, item = identifier(fields.get("toolCallId")), as_dict(fields.get("content"))
        if not call_id or not item:
            return False
        call, text = self._find_call(call_id), messages.item_text(item)
        if text is None:
            call.content.append(item)
        call.streamed.append(text or "")
        if messages.item_needs_raw(item):
            self._raw_bodies.append(message.body)
        return True

    def _terminal(self, fields: Json, message: Message) -> bool:
        """Collect terminal output for the call that shows the terminal."""
        change = self._terminals.read(fields)
        if change is None:
            return False
        if change.needs_raw:
            self._raw_bodies.append(message.body)
        else:
            self._terminal_bodies.setdefault(identifier(fields["terminalId"]), []).append(message.body)
        return True

    def _unshown_terminals(self) -> list[Any]:
        """Return the messages about terminals that no call shows."""
        shown = {name for item in self._items if isinstance(item, ReplayedCall) for name in terminals_in(item.content)}
        return [body for name, bodies in self._terminal_bodies.items() if name not in shown for body in bodies]

    # Other updates

    def _plan(self, fields: Json, message: Message) -> bool:
        """Collect a plan. Each is complete: the last one of a turn replaces its first at the position of that."""
        is_removed = fields["sessionUpdate"] == "plan_removed"
        entries = [] if is_removed else plan_entries(fields)
        if entries is None or (is_removed and not any(isinstance(item, ev.PlanUpdated) for item in self._items)):
            return False
        if self._plan_index < 0:
            self._plan_index = len(self._items)
            self._items.append(ev.PlanUpdated(entries=entries))
        self._items[self._plan_index] = ev.PlanUpdated(entries=entries)
        if fields["sessionUpdate"] != "plan":
            self._raw_bodies.append(message.body)
        return True

    def _mode_update(self, fields: Json, message: Message) -> bool:
        """Collect a mode. Only the last one is valid."""
        mode = fields.get("currentModeId")
        self._mode = mode if isinstance(mode, str) else self._mode
        return isinstance(mode, str)

    def _state_update(self, fields: Json, message: Message) -> bool:
        """Collect the current state, which is applied after the replay."""
        if self.state is not None:
            self._raw_bodies.append(self.state.body)
        self.state = message
        return True

    # Events

    def _event(self, item: Item) -> Event:
        if isinstance(item, ReplayedMessage):
            return self._message_event(item)
        return self._call_event(item) if isinstance(item, ReplayedCall) else item

    def _message_event(self, item: ReplayedMessage) -> Event:
        if self._chunks == "auto" and not self._proofs.get(item.sender):
            replace_if_cumulative(item.text)
        text = item.text.value()
        if item.sender == messages.USER:
            return messages.user_message(text, messages.rich_blocks(item.blocks))
        return messages.agent_delta(item.sender, text, item.id, "delta")

    def _call_event(self, call: ReplayedCall) -> Event:
        """Return the end of a call. One that was open in the replay has ended too: no process continues it."""
        status = update.status_of(call.update, self._version)
        call_id = identifier(call.update.get("toolCallId"))
        merged = {**call.update, **({"content": call.content} if call.content else {})}
        fields = {**_named_by_title(update.call_fields(merged)), **self._result(call_id, call, merged)}
        if status == "completed":
            return ev.CallCompleted(aliases=aliases_of(call_id), **fields)
        reason = "" if status == "failed" else "cancelled" if status == "cancelled" else RESULT_UNKNOWN
        return ev.CallFailed(aliases=aliases_of(call_id), reason=reason, **fields)

    def _result(self, call_id: str, call: ReplayedCall, merged: Json) -> Json:
        """Return the output that the agent reported, else what terminals printed."""
        shown, streamed = self._terminals.show(call_id, call.content), "".join(call.streamed)
        printed = "".join(call.printed) + shown.get("text", "") + self._terminals.flush(call_id)
        result = update.result_fields(merged, printed or update.tool_response(merged))
        exit_status = {"exit_status": shown["exit_status"]} if "exit_status" in shown else {}
        return {**({"output": streamed} if streamed else {}), **exit_status, **result}

    _HANDLERS: ClassVar[dict[str, Callable[[Any, Json, Message], bool]]] = {
        **dict.fromkeys(messages.CHUNKS, _message_chunk),
        **dict.fromkeys(messages.FULL_MESSAGES, _full_message),
        "tool_call": _call_update,
        "tool_call_update": _call_update,
        "tool_call_content_chunk": _call_content,
        "terminal_update": _terminal,
        "terminal_output_chunk": _terminal,
        "plan": _plan,
        "plan_update": _plan,
        "plan_removed": _plan,
        "current_mode_update": _mode_update,
        "state_update": _state_update,
    }


def _is_empty(item: Item) -> bool:
    """Return whether an item is a message of the user without content."""
    return isinstance(item, ReplayedMessage) and item.sender == messages.USER and not item.blocks


def _named_by_title(fields: Json) -> Json:
    """Return the fields of a call. Some agents replay the name of its tool as the title, and nothing else about it."""
    title = fields.get("title")
    is_name = not fields.get("tool_name") and not fields.get("kind") and bool(_PLAIN_NAME.match(title or ""))
    return {**fields, "tool_name": title} if is_name else fields


def _draft(event: Event) -> Draft:
    return Draft(event, witness=True, adds="turns")


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)
