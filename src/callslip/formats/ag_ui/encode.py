"""The AG-UI stream of one turn, made from the fold: each event's patches become the events that say the same.

A turn is a run. It ends with the turn and its last call; and it ends, with the outcome `interrupt`, when every open
call waits for an approval, also within a text. That is the only way in which the client is told of a request:
it keeps the interrupts of a finished run, refuses to go on before each has an answer, and knows no event that asks in
the middle of a run. So a request does end the connection. Whoever comes back after the answer gets the turn from its
start, and it goes on. While another call still runs, `callslip.call` says which one waits.

What the client cannot take back makes a `Restart`: a run that ends with the error `restart`, to be had again. A
snapshot of the messages would mend it on the spot, but it takes every message away that it leaves out: those of other
turns, and those that the client has of the person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import msgspec

from callslip.formats.ag_ui import outgoing
from callslip.formats.ag_ui.account import (
    RENDERED_FIELDS,
    activity_message,
    answered,
    arguments_of,
    interrupt,
    is_answered,
    is_told,
    is_waiting,
    listed_call,
    mean_the_same,
    message_id,
    name_of,
    result_message,
    role_of,
    standing,
)
from callslip.formats.ag_ui.conversation import Rounds, history
from callslip.formats.ag_ui.outgoing import CALL, Chunk
from callslip.formats.base import SSE_HEADERS, Streaming, sse_frame
from callslip.formats.turn_stream import RestartNeeded, TurnStream
from callslip.model.entries import Append, Entry, Message, ModeChange, Plan, Set, Thought, ToolCall

__all__ = ["STREAM", "history", "open_stream"]

# How a turn ended, where that was no success. A reason that is not known says nothing of the outcome.
SUCCESS, CANCELLED = {"type": "success"}, {"type": "cancelled"}
OUTCOMES = {"": None, "cancelled": CANCELLED, "superseded": CANCELLED}
FAILURES = {"error": "The turn ended with an error.", "eof": "The line to the agent was lost."}


class _Sent(msgspec.Struct):
    """A call as the client was told of it, until its end. Arguments that are `fixed` cannot be added to.

    `whole` when they were said to be. What a client is told next may not depend on when it came, so all that decides
    it can be derived from the entry.
    """

    name: str
    pieces: list[str] = []
    whole: bool = False
    fixed: bool = False
    answered: bool = False
    standing: Chunk = {}


class AgUiRenderer:
    """Render a turn as one run."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._started = False
        self._rounds = Rounds()
        self._waiting: dict[int, ToolCall] = {}

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        chunks = self._start()
        for entry, again in _in_order(entries):
            if again and isinstance(entry, ToolCall):
                chunks += self._answer(entry, self._stream.calls[entry.id])
                if entry.scope != "detached":
                    del self._stream.calls[entry.id]
            else:
                chunks += self._stream.begin(entry)
        return chunks

    # The run

    def _start(self) -> list[Chunk]:
        turn = self._stream.turn
        if self._started or not turn.name or not (turn.ended or turn.state.info.turn == turn.name):
            return []
        self._started = True
        return [outgoing.started(turn.state.session, turn.name)]

    def finish(self, is_over: bool) -> list[Chunk]:
        """The last event, once the turn has ended and so have its calls, or once they all wait for somebody."""
        open_calls = self._stream.open_calls
        if not self._started or not (is_over or (open_calls and len(self._waiting) == len(open_calls))):
            return []
        # Few agents say that a text is over: one that waits for an answer may never write on (C5).
        texts = [chunk for text in self._stream.texts.values() for chunk in self.end_text(text)]
        return [*texts, self._end() if is_over else self._interrupt()]

    def _interrupt(self) -> Chunk:
        turn = self._stream.turn
        requests = turn.state.requests
        asked = [interrupt(entry, requests.get(entry.approval)) for entry in self._waiting.values()]
        return outgoing.finished(turn.state.session, turn.name, {"type": "interrupt", "interrupts": asked})

    def _end(self) -> Chunk:
        turn, reason = self._stream.turn, self._stream.turn.reason
        if reason in FAILURES:
            return outgoing.failed(turn.detail or FAILURES[reason], reason)
        return outgoing.finished(turn.state.session, turn.name, OUTCOMES.get(reason, SUCCESS), reason)

    def close(self, reason: str) -> list[Chunk]:
        return [outgoing.failed(reason, "closed")]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        is_running, self._started = self._started and not self._stream.finished, False
        return (outgoing.failed(f"Begin again: {reason}.", "restart"),) if is_running else ()

    # Entries

    def begin(self, entry: Entry) -> list[Chunk]:
        if isinstance(entry, ToolCall):
            return []
        if not is_told(entry):
            if isinstance(entry, Message):
                self._rounds.end()
            return []
        message = self._rounds.message_of(entry)
        if isinstance(entry, Plan | ModeChange):
            return [outgoing.activity(activity_message(entry), entry.at)]
        assert isinstance(entry, Message | Thought)
        chunks = outgoing.text_started(role_of(entry), message, entry.at)
        if self._stream.is_replay:
            chunks += self.append_text(entry, entry.content)
        return chunks if entry.streaming else chunks + self.end_text(entry)

    def append_text(self, entry: Message | Thought, text: str) -> list[Chunk]:
        role, message = role_of(entry), message_id(entry)
        return [outgoing.text_more(role, message, piece) for piece in outgoing.pieces(text)]

    def end_text(self, entry: Message | Thought) -> list[Chunk]:
        return outgoing.text_ended(role_of(entry), message_id(entry))

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        if isinstance(patch, Set):
            return self._start() if patch.id == 0 else []
        if patch.field != "inputText" or patch.id not in self._stream.calls:
            return []
        entry, sent = self._stream.call(patch.id), self._stream.calls[patch.id]
        if sent.whole and entry.raw_input:
            return []  # They are what the arguments are, whatever comes behind them.
        if sent.fixed:
            return self._stream.update_call(patch.id, ("rawInput",))
        sent.pieces.append(patch.text)
        return [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.pieces(patch.text)]

    # Calls

    def render_call(
        self, entry: ToolCall, sent: _Sent | None, changed: Collection[str]
    ) -> tuple[_Sent | None, list[Chunk]]:
        if sent is None:
            sent = _Sent(name_of(entry))
            began = outgoing.call_started(listed_call(entry, ""), self._rounds.message_of(entry), entry.at)
            chunks = [began, *self._arguments(entry, sent, is_new=not self._stream.is_replay)]
        elif sent.name != name_of(entry):
            raise RestartNeeded("a call got another name")
        else:
            chunks = self._arguments(entry, sent) if "rawInput" in changed or not sent.whole else []
        chunks += self._stand(entry, sent)
        if self._stream.is_replay or not is_answered(entry):
            return sent, chunks
        if not sent.answered:
            chunks += self._answer(entry, sent)
        return sent if entry.scope == "detached" else None, chunks

    def _arguments(self, entry: ToolCall, sent: _Sent, *, is_new: bool = False) -> list[Chunk]:
        """What is left to say of a call's arguments."""
        text, whole = arguments_of(entry, self._stream.input_text(entry))
        if not whole and is_new:
            return []
        before = "".join(sent.pieces)
        more = text[len(before) :] if text.startswith(before) and not sent.whole else ""
        if not mean_the_same(before + more, text):
            raise RestartNeeded("the arguments of a call were replaced")
        ends = whole and not sent.whole
        sent.whole = sent.whole or whole
        sent.fixed = sent.whole or before + more != text
        sent.pieces = [before, more]
        told = [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.pieces(more)]
        return [*told, *([outgoing.call_whole(entry.tool_call_id)] if ends else [])]

    def _stand(self, entry: ToolCall, sent: _Sent) -> list[Chunk]:
        """Where an open call stands, if that is news."""
        self._waiting.pop(entry.id, None)
        if is_waiting(entry) and not is_answered(entry):
            self._waiting[entry.id] = entry
        now = {} if is_answered(entry) else standing(entry)
        before, sent.standing = sent.standing, now
        return [outgoing.custom(CALL, now)] if now and now != before else []

    def _answer(self, entry: ToolCall, sent: _Sent) -> list[Chunk]:
        sent.answered = True
        at = entry.at if entry.scope == "detached" else entry.ended_at
        return [outgoing.call_result(result_message(entry), at)]


def _in_order(entries: list[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Entries where they began, and calls again where their results came."""
    ended = [entry for entry in entries if isinstance(entry, ToolCall) and is_answered(entry)]
    moments = [(entry.id, False, entry) for entry in entries] + [(answered(entry), True, entry) for entry in ended]
    moments.sort(key=lambda moment: moment[:2])
    for _, again, entry in moments:
        yield entry, again


open_stream = partial(TurnStream, AgUiRenderer)
STREAM = Streaming(encoder=open_stream, frame=sse_frame, headers=SSE_HEADERS)
