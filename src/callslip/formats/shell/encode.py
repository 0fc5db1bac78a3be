"""Commands and texts out: stored messages with parts (S0.8), and one turn as the events that make its parts (S0.4).

All that the agent did in a turn is one assistant message, `turn-` and the turn's name; what it did outside of any turn
is one message up to the next user message or turn. A page that reads a turn's events has the parts of that message,
after every event. What no event can say of a card makes a `Restart`.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.base import SSE_HEADERS, Restart, Source, Streaming, snapshot_of, sse_frame
from callslip.formats.outcome import is_open
from callslip.formats.shell.parts import (
    BETWEEN,
    RENDERED_FIELDS,
    Part,
    Spoken,
    has_run,
    is_shown,
    text_kind,
    text_part,
    tool_part,
)
from callslip.formats.turn_scope import Turn, Unsayable, message_id
from callslip.model.entries import Append, Entry, Message, Patch, Put, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.entry_blocks import split_blocks
from callslip.rules.fold import SessionFold

Chunk = dict[str, Any]
Stored = dict[str, Any]

RESTART: Chunk = {"type": "restart"}


# Stored messages


def history(source: Source) -> list[Stored]:
    """A session's messages, oldest first, from its state, a snapshot of it, or its rendered entries."""
    return [message for block in split_blocks(snapshot_of(source).entries) for message in _messages(block)]


def _messages(block: list[Entry]) -> list[Stored]:
    """The messages of a block in the order in which they began: what a person said, and the one of the agent."""
    made: list[Stored] = []
    answer: Stored = {}
    for entry in block:
        if isinstance(entry, Message) and entry.role == "user":
            made.append(_prompt(entry))
        elif is_shown(entry):
            if not answer:
                identity = message_id(entry.turn) if entry.turn else f"msg-{entry.id}"
                answer = {"id": identity, "role": "assistant", "parts": []}
                made.append(answer)
            _add(answer["parts"], entry)
    return [_joined(message) for message in made]


def _prompt(entry: Message) -> Stored:
    """What a person said: as a part, and under the name that readers of plain messages look for."""
    parts = [text_part("text", entry.content)]
    return {"id": f"msg-{entry.id}", "role": "user", "content": entry.content, "parts": parts}


def _add(parts: list[Part], entry: Entry) -> None:
    """A text that follows one of its kind goes on with that part. Its pieces are joined in the end."""
    if isinstance(entry, ToolCall):
        parts.append(tool_part(entry))
    elif isinstance(entry, Message | Thought):
        kind = text_kind(entry)
        if not parts or parts[-1]["type"] != kind:
            parts.append({"type": kind, "content": []})
        parts[-1]["content"].append(entry.content)


def _joined(message: Stored) -> Stored:
    for part in message["parts"]:
        if isinstance(part.get("content"), list):
            part["content"] = BETWEEN.join(part["content"])
    return message


# One turn, live


class ShellEncoder:
    """One turn. With a state, `opening` comes first."""

    def __init__(self, state: SessionFold | None = None, turn: str = "") -> None:
        self._turn = Turn(state, turn)
        self.finished = False
        self._forget()

    def _forget(self) -> None:
        """Nothing was sent yet."""
        self._last = ""
        self._texts: dict[int, Spoken] = {}
        self._cards: dict[int, Part] = {}
        self._open: set[int] = set()

    def opening(self) -> list[Chunk]:
        """The turn as it stands, from its start."""
        self._forget()
        self.finished = self._turn.lost = False
        chunks = [chunk for entry in self._turn.entries() for chunk in self._begin(entry, replay=True)]
        return chunks + self._ending()

    def feed(self, event: Event) -> list[Chunk] | Restart:
        """What an event changes in the parts."""
        try:
            return self._turn.tell(event, self._tell, self.finished) + self._ending()
        except Unsayable as error:
            return Restart(str(error), (RESTART,))

    def close(self, reason: str) -> list[Chunk]:
        """The stream ends before its turn does: that is not `done`."""
        if self.finished:
            return []
        self.finished = True
        return [{"type": "error", "error": reason}]

    def _ending(self) -> list[Chunk]:
        """The one `done`, once the turn has ended and so have its calls."""
        if self.finished or self._open or not self._turn.ended:
            return []
        self.finished = True
        reason = self._turn.reason
        return [{"type": "done", **({"reason": reason} if reason else {})}]

    # Patches

    def _tell(self, patch: Patch) -> list[Chunk]:
        if isinstance(patch, Put):
            if patch.entry.id in self._texts:
                raise Unsayable("a text was repaired")
            entry = self._turn.state.entries[patch.entry.id]
            return self._begin(entry) if self._turn.owns(entry) else []
        if isinstance(patch, Append):
            return self._more(patch)
        if patch.id in self._texts and "streaming" in patch.fields:
            del self._texts[patch.id]
        elif patch.id in self._cards and not RENDERED_FIELDS.isdisjoint(patch.fields):
            return self._update(patch.id)
        return []

    def _more(self, patch: Append) -> list[Chunk]:
        if patch.field != "content" or patch.id not in self._texts:
            return []
        return [text_part(text_kind(self._texts[patch.id]), patch.text)]

    def _begin(self, entry: Entry, replay: bool = False) -> list[Chunk]:
        """A new part. Live, its text comes with the patches that follow."""
        if not is_shown(entry):
            return []
        if isinstance(entry, ToolCall):
            self._last = "tool"
            return self._begin_call(entry)
        assert isinstance(entry, Message | Thought)
        kind = text_kind(entry)
        text = (BETWEEN if self._last == kind else "") + (entry.content if replay else "")
        self._last = kind
        if entry.streaming:
            self._texts[entry.id] = entry
        return [text_part(kind, text)] if text else []

    def _begin_call(self, entry: ToolCall) -> list[Chunk]:
        part = self._keep(entry)
        return [_event("tool-call", part), *_steps(part, started=has_run(entry))]

    def _update(self, identity: int) -> list[Chunk]:
        """How a call stands now, told to a page that saw how it stood."""
        entry = self._turn.state.entries[identity]
        assert isinstance(entry, ToolCall)
        before, now = self._cards[identity], self._keep(entry)
        if before == now:
            return []
        if before["command"] != now["command"]:
            raise Unsayable("a command was changed")
        if before["toolStatus"] == "running" and now["toolStatus"] == "queued":
            raise Unsayable("a command went back to the queue")
        return _steps(now, started=before["toolStatus"] == "queued" and has_run(entry))

    def _keep(self, entry: ToolCall) -> Part:
        part = self._cards[entry.id] = tool_part(entry)
        (self._open.add if is_open(entry) else self._open.discard)(entry.id)
        return part


def _steps(part: Part, *, started: bool) -> list[Chunk]:
    """What takes a queued card to where its command stands. A command that waits again is queued (C13)."""
    if part["toolStatus"] == "queued":
        return []
    chunks = [_event("tool-start", part)] if started else []
    if part["toolStatus"] == "completed":
        chunks.append({**_event("tool-result", part), "result": part["content"], "isError": part["isError"]})
    return chunks


def _event(kind: str, part: Part) -> Chunk:
    return {"type": kind, "command": part["command"], "commandId": part["commandId"]}


STREAM = Streaming(encoder=ShellEncoder, frame=sse_frame, headers=SSE_HEADERS)
