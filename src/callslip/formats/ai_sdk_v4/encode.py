"""Encode a session as messages of the AI SDK 4, newest first. Everything the agent did in a turn is one message.

Outside of turns a message ends at the next user message or turn. The stream of a turn, reduced by the client after any
event, equals its message here, except for `createdAt`, which the client takes from its own clock, for annotations of
what is open or may continue, and for the `content` of a message with an AI_MESSAGE row: the client collects all text.

`format_messages_to_vercel` converts stored rows. This encoder differs from it because pages see its messages grow:

- A message without an AI_MESSAGE row has the id of its turn, the time when it began, and as `content` all of its text,
  as the client collects it. With such a row it has the id, the time and the text of the row.
- There are `step-start` parts: the only chunk that carries the id of the message also adds one.
- The annotations that the stream has sent are first. Those of open calls and of the open message are only in the
  history: the client cannot change an annotation (`calls.py`).
- A stopped call is complete, because nothing more can follow, and so is a stopped turn.
- A call that failed, or was denied, has its error in `result` as `{error: ...}`.

Plans and mode changes are left out, because these messages have no parts for them.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import UNSET

from callslip.formats.ai_sdk_v4.calls import Annotation, invocation, note_of
from callslip.formats.ai_sdk_v4.messages import (
    Attachment,
    Message,
    MessageNote,
    Note,
    Part,
    Reasoning,
    StepStart,
    Text,
    ToolInvocation,
    plain,
)
from callslip.formats.ai_sdk_v4.wire import shown_time
from callslip.formats.assistant_message import agent_message_id, is_text_or_call
from callslip.formats.base import Source, conversation_of
from callslip.formats.json_fields import as_dict, as_list
from callslip.formats.outcome import is_open
from callslip.model.entries import Entry, PermissionRequest, Thought, ToolCall
from callslip.model.entries import Message as Spoken
from callslip.rules.entry_blocks import split_blocks

Shown = Spoken | Thought | ToolCall

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def history(source: Source) -> list[dict[str, Any]]:
    """Return the messages of a session, newest first.

    Plain entries do not tell which turn is open: without an open entry, a turn then counts as ended.
    """
    snapshot = conversation_of(source)
    open_turn = snapshot.info.turn
    messages = [message for block in split_blocks(snapshot.entries) for message in _messages(block, open_turn)]
    return plain(messages[::-1])


def _messages(block: list[Entry], open_turn: str) -> list[Message]:
    """Return the messages of a block in the order in which they began: user messages and one of the agent."""
    parts = [cast(Shown, entry) for entry in block if is_text_or_call(entry)]
    requests = {entry.approval: entry for entry in block if isinstance(entry, PermissionRequest)}
    messages: list[Message] = []
    for entry in block:
        if isinstance(entry, Spoken) and entry.role == "user":
            messages.append(_user_message(entry))
        elif parts and entry is parts[0]:
            messages.append(_agent_message(parts, requests, open_turn))
    return messages


# Messages of the agent


class Steps:
    """Decides where the steps of a message begin, and counts them.

    Within a step the client joins all text in one part, and all reasoning in another. So a step begins with a text
    after calls, which is also when a model reads results, and with a second text or thought. It also begins with a text
    that gives the message its id, because the start of a step carries the id. `name` is that id, "" before.
    """

    def __init__(self) -> None:
        self.number = -1
        self.called = False
        self.name = ""
        self._kinds: set[type[Entry]] = set()

    def begins_with(self, entry: Shown) -> bool:
        """Add the next entry and return whether a step begins before it."""
        is_call = isinstance(entry, ToolCall)
        name = _stored_id(entry) or self.name
        is_next = not is_call and (self.called or type(entry) in self._kinds or name != self.name)
        begins = self.number < 0 or is_next
        self.name = name
        if begins:
            self.number, self.called, self._kinds = self.number + 1, False, set()
        self.called = self.called or is_call
        self._kinds.add(type(entry))
        return begins


def _agent_message(entries: list[Shown], requests: dict[str, PermissionRequest], open_turn: str) -> Message:
    first = entries[0]
    parts: list[Part] = []
    steps = Steps()
    for entry in entries:
        if steps.begins_with(entry):
            parts.append(StepStart())
        parts.append(_part(entry, steps.number))
    identity = steps.name or agent_message_id(first)
    named = [entry for entry in entries if steps.name and _stored_id(entry) == steps.name] or entries
    content = "".join(entry.content for entry in named if isinstance(entry, Spoken))
    notes: list[Note] = [annotation.note for annotation in call_notes(entries, requests)]
    is_open_entry = [is_open(entry) if isinstance(entry, ToolCall) else entry.streaming for entry in entries]
    is_complete = not any(is_open_entry) and not (open_turn and first.turn == open_turn)
    notes.append(MessageNote(identity, is_complete))
    return Message(identity, "assistant", _time(named[0]), content, parts, notes)


def _stored_id(entry: Shown) -> str:
    """Return the id of the stored message that an entry closes, "" if there is none."""
    return entry.message_id if not isinstance(entry, ToolCall) and entry.names_message else ""


def _part(entry: Shown, step: int) -> Part:
    if isinstance(entry, ToolCall):
        return ToolInvocation(invocation(entry, step))
    if isinstance(entry, Thought):
        return Reasoning(entry.content, [Text(entry.content)])
    return Text(entry.content)


def call_notes(entries: Iterable[Entry], requests: dict[str, PermissionRequest]) -> list[Annotation]:
    """Return the annotations of calls: in the order in which the stream sent them, then those that it did not send."""
    calls = [entry for entry in entries if isinstance(entry, ToolCall)]
    notes = [note_of(entry, requests.get(entry.approval)) for entry in calls]
    return sorted(notes, key=lambda note: note.sent_at or sys.maxsize)


# Messages of users


def _user_message(entry: Spoken) -> Message:
    identity = _stored_id(entry) or f"msg-{entry.id}"
    parts: list[Part] = [Text(entry.content)] if entry.content else []
    note = MessageNote(identity, True)
    # Invalid files are left out: the client would refuse all of them.
    files = [file for block in as_list(entry.blocks) if (file := _file(as_dict(block))) is not None]
    return Message(identity, "user", _time(entry), entry.content, parts, [note], files or UNSET)


_MEDIA = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def _file(block: dict[str, Any]) -> Attachment | None:
    media, data = block.get("mimeType"), block.get("data")
    if not isinstance(media, str) or not isinstance(data, str) or not data or not _MEDIA.fullmatch(media):
        return None
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return Attachment(media, f"data:{media};base64,{data}")


def _time(entry: Entry) -> str | None:
    try:
        return shown_time(EPOCH + timedelta(milliseconds=entry.at))
    except OverflowError:
        return None
