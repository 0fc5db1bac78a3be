"""Entries as messages of the AI SDK 4, newest first (S4.1). All that the agent did in one turn is one message.

Outside of turns it is one message up to what a person says next. The law: a stream of a turn, reduced by the client
after any event, is its message here, but for `createdAt`, which the client takes from its own clock.

`format_messages_to_vercel` makes the same of stored rows. Where the two differ, it is since a page sees this one grow:

- Ids are those of turns and entries, not of rows, and `createdAt` is when the message began, not when it was stored.
- `content` is all text of the message, as the client gathers it, not the last row's.
- There are `step-start` parts: the only chunk that gives a message its id makes one, too.
- A call that is queued or running has no annotation yet, nor has a message of a turn that goes on (`calls.py`).
- A call that was stopped is complete, since nothing more will come of it (C13), and so is a turn that was.
- A call that failed, or was denied, has its error in `result` as `{error: ...}`.

Plans and changes of mode have no place in these messages and are left out.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from msgspec import UNSET, UnsetType

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
from callslip.formats.base import Source, snapshot_of
from callslip.formats.outcome import is_open
from callslip.formats.turn_scope import message_id
from callslip.model.entries import Entry, PermissionRequest, Thought, ToolCall
from callslip.model.entries import Message as Spoken
from callslip.rules.entry_blocks import split_blocks

Shown = Spoken | Thought | ToolCall

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def history(source: Source) -> list[dict[str, Any]]:
    """A session's messages, newest first, from its state, a snapshot of it, or its rendered entries.

    Entries alone do not tell whether a turn goes on: where nothing in it is open, it then counts as over.
    """
    snapshot = snapshot_of(source)
    going = snapshot.info.turn
    messages = [message for block in split_blocks(snapshot.entries) for message in _messages(block, going)]
    return plain(messages[::-1])


def is_shown(entry: Entry) -> bool:
    """Whether an entry is a part of an assistant message."""
    return isinstance(entry, Thought | ToolCall) or (isinstance(entry, Spoken) and entry.role != "user")


def _messages(block: list[Entry], going: str) -> list[Message]:
    """The messages of a block in the order in which they began: one of the agent, and each that a person sent."""
    shown = [cast(Shown, entry) for entry in block if is_shown(entry)]
    asked = {entry.request_id: entry for entry in block if isinstance(entry, PermissionRequest)}
    made: list[Message] = []
    for entry in block:
        if isinstance(entry, Spoken) and entry.role == "user":
            made.append(_said(entry))
        elif shown and entry is shown[0]:
            made.append(_done(shown, asked, going))
    return made


# What the agent did


class Steps:
    """Where steps begin in one message, and the number of the last.

    Within a step the client gathers all text in one part, and all reasoning in another. So a step begins with a text
    after calls, which is also when a model reads results, and with a second text or thought.
    """

    def __init__(self) -> None:
        self.number = -1
        self.called = False
        self._kinds: set[type[Entry]] = set()

    def begins_with(self, entry: Shown) -> bool:
        """Whether a step begins before this entry, which comes next."""
        call = isinstance(entry, ToolCall)
        begins = self.number < 0 or (not call and (self.called or type(entry) in self._kinds))
        if begins:
            self.number, self.called, self._kinds = self.number + 1, False, set()
        self.called = self.called or call
        self._kinds.add(type(entry))
        return begins


def _done(entries: list[Shown], asked: dict[str, PermissionRequest], going: str) -> Message:
    first = entries[0]
    identity = message_id(first.turn) if first.turn else f"msg-{first.id}"
    parts: list[Part] = []
    steps = Steps()
    for entry in entries:
        if steps.begins_with(entry):
            parts.append(StepStart())
        parts.append(_part(entry, steps.number))
    content = "".join(entry.content for entry in entries if isinstance(entry, Spoken))
    notes: list[Note] = [told.note for told in call_notes(entries, asked)]
    over = _is_over(entries) and not (going and first.turn == going)
    if over or not first.turn:
        notes.append(MessageNote(identity, over))
    return Message(identity, "assistant", _time(first), content, parts, notes)


def _part(entry: Shown, step: int) -> Part:
    if isinstance(entry, ToolCall):
        return ToolInvocation(invocation(entry, step))
    if isinstance(entry, Thought):
        return Reasoning(entry.content, [Text(entry.content)])
    return Text(entry.content)


def call_notes(entries: Iterable[Entry], asked: dict[str, PermissionRequest]) -> list[Annotation]:
    """The annotations of calls, in the order in which a page was told of them."""
    calls = [entry for entry in entries if isinstance(entry, ToolCall)]
    told = [note_of(entry, asked.get(entry.approval)) for entry in calls]
    return sorted((note for note in told if note is not None), key=lambda note: note.at)


def _is_over(entries: list[Shown]) -> bool:
    return not any(is_open(entry) if isinstance(entry, ToolCall) else entry.streaming for entry in entries)


# What a person said


def _said(entry: Spoken) -> Message:
    identity = f"msg-{entry.id}"
    parts: list[Part] = [Text(entry.content)] if entry.content else []
    note = MessageNote(identity, True)
    return Message(identity, "user", _time(entry), entry.content, parts, [note], _attachments(entry.blocks))


def _attachments(blocks: Any) -> list[Attachment] | UnsetType:
    """The files among the blocks. What is no file, or a broken one, is left out: the client would refuse them all."""
    listed = cast("list[Any]", blocks) if isinstance(blocks, list) else []
    return [file for block in listed if (file := _file(block)) is not None] or UNSET


_MEDIA = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)


def _file(block: Any) -> Attachment | None:
    told = cast("dict[str, Any]", block) if isinstance(block, dict) else {}
    media, data = told.get("mimeType"), told.get("data")
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
