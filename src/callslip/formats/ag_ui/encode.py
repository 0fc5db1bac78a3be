"""Render one turn as an AG-UI run.

A run ends with the turn and its last call. It also ends, with the outcome `interrupt`, when every open call waits for
approval, even within a text. A client receives requests in no other way: it keeps the interrupts of a finished run,
continues when each has an answer, and has no event for a request within a run. So a request ends the connection. A
client that reconnects after the answer gets the turn from its start. While another call still runs, the custom event
`callslip.call` names the call that waits.

What the client cannot take back makes a `Restart`: the run ends with the error `restart`, and the client has to
reconnect. A snapshot of the messages would not need that, but it removes every message that it leaves out: those of
other turns, and the user messages that only the client has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import msgspec

from callslip.formats.ag_ui import outgoing
from callslip.formats.ag_ui.entry_messages import (
    RENDERED_FIELDS,
    activity_message,
    answer_seq,
    arguments_of,
    call_status,
    interrupt,
    is_answered,
    is_same_input,
    is_shown,
    is_waiting,
    listed_call,
    message_id,
    name_of,
    result_message,
    role_of,
)
from callslip.formats.ag_ui.history import Rounds, history
from callslip.formats.ag_ui.outgoing import CALL_EVENT, Chunk
from callslip.formats.base import SSE_HEADERS, Streaming, sse_frame
from callslip.formats.turn_stream import RestartNeededError, TurnStream
from callslip.model.entries import Append, Entry, Message, ModeChange, Plan, Set, Thought, ToolCall

__all__ = ["STREAM", "history", "open_stream"]

# Outcomes by the reason that the turn ended; success for any other reason. An unknown reason ("") has no outcome.
SUCCESS, CANCELLED = {"type": "success"}, {"type": "cancelled"}
OUTCOMES = {"": None, "cancelled": CANCELLED, "superseded": CANCELLED}
FAILURES = {"error": "The turn ended with an error.", "eof": "The line to the agent was lost."}


class _SentCall(msgspec.Struct):
    """What the client has of a call that may still change.

    `pieces` are its arguments, `has_all_input` is set when they were sent as complete, `is_input_fixed` when they
    cannot be extended. All of it follows from the entry, so that every client gets the same updates.
    """

    name: str
    pieces: list[str] = []
    has_all_input: bool = False
    is_input_fixed: bool = False
    is_answered: bool = False
    status: Chunk = {}


class AgUiRenderer:
    """Render a turn as one run."""

    call_fields = RENDERED_FIELDS
    has_full_text_at_end = False

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._is_started = False
        self._rounds = Rounds()
        self._waiting: dict[int, ToolCall] = {}

    def replay(self, entries: list[Entry]) -> list[Chunk]:
        chunks = self._start()
        for entry, is_answer in _in_order(entries):
            if is_answer and isinstance(entry, ToolCall):
                chunks += self._answer(entry, self._stream.calls[entry.id])
                if entry.scope != "detached":
                    del self._stream.calls[entry.id]
            else:
                chunks += self._stream.begin(entry)
        return chunks

    # The run

    def _start(self) -> list[Chunk]:
        turn = self._stream.turn
        if self._is_started or not turn.has_begun:
            return []
        self._is_started = True
        return [outgoing.started(turn.state.session, turn.name)]

    def finish(self, is_over: bool) -> list[Chunk]:
        """Return the last events, if the turn and its calls have ended, or if all open calls wait for approval."""
        open_calls = self._stream.open_calls
        if not self._is_started or not (is_over or (open_calls and len(self._waiting) == len(open_calls))):
            return []
        # Few agents mark the end of a text, and one that waits for approval may never continue it.
        texts = [chunk for text in self._stream.texts.values() for chunk in self.end_text(text)]
        return [*texts, self._end() if is_over else self._interrupt()]

    def _interrupt(self) -> Chunk:
        turn = self._stream.turn
        requests = turn.state.requests
        interrupts = [interrupt(entry, requests.get(entry.approval)) for entry in self._waiting.values()]
        return outgoing.finished(turn.state.session, turn.name, {"type": "interrupt", "interrupts": interrupts})

    def _end(self) -> Chunk:
        turn, reason = self._stream.turn, self._stream.turn.reason
        if reason in FAILURES:
            return outgoing.failed(turn.detail or FAILURES[reason], reason)
        return outgoing.finished(turn.state.session, turn.name, OUTCOMES.get(reason, SUCCESS), reason)

    def close(self, reason: str) -> list[Chunk]:
        return [outgoing.failed(reason, "closed")]

    def restart(self, reason: str) -> tuple[Chunk, ...]:
        is_running, self._is_started = self._is_started and not self._stream.finished, False
        return (outgoing.failed(f"Begin again: {reason}.", "restart"),) if is_running else ()

    # Entries

    def begin(self, entry: Entry) -> list[Chunk]:
        chunks = self._start()  # Outside of turns the first entry begins the run.
        if isinstance(entry, ToolCall):
            return chunks
        if not is_shown(entry):
            if isinstance(entry, Message):
                self._rounds.end()
            return chunks
        message = self._rounds.message_of(entry)
        if isinstance(entry, Plan | ModeChange):
            return [*chunks, outgoing.activity(activity_message(entry), entry.at)]
        assert isinstance(entry, Message | Thought)
        chunks += outgoing.text_started(role_of(entry), message, entry.at)
        if self._stream.is_replay:
            chunks += self.append_text(entry, entry.content)
        return chunks if entry.streaming else chunks + self.end_text(entry)

    def append_text(self, entry: Message | Thought, text: str) -> list[Chunk]:
        role, message = role_of(entry), message_id(entry)
        return [outgoing.text_more(role, message, piece) for piece in outgoing.split_text(text)]

    def end_text(self, entry: Message | Thought) -> list[Chunk]:
        return outgoing.text_ended(role_of(entry), message_id(entry))

    def render_other(self, patch: Set | Append) -> list[Chunk]:
        if isinstance(patch, Set):
            return self._start() if patch.id == 0 else []
        if patch.field != "inputText" or patch.id not in self._stream.calls:
            return []
        entry, sent = self._stream.call(patch.id), self._stream.calls[patch.id]
        if sent.has_all_input and entry.raw_input:
            return []  # The complete arguments win over streamed ones.
        if sent.is_input_fixed:
            return self._stream.update_call(patch.id, ("rawInput",))
        sent.pieces.append(patch.text)
        return [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.split_text(patch.text)]

    # Calls

    def render_call(
        self, entry: ToolCall, sent: _SentCall | None, changed: Collection[str]
    ) -> tuple[_SentCall | None, list[Chunk]]:
        if sent is None:
            sent = _SentCall(name_of(entry))
            began = outgoing.call_started(listed_call(entry, ""), self._rounds.message_of(entry), entry.at)
            chunks = [began, *self._arguments(entry, sent, is_new=not self._stream.is_replay)]
        elif sent.name != name_of(entry):
            raise RestartNeededError("a call got another name")
        else:
            chunks = self._arguments(entry, sent) if "rawInput" in changed or not sent.has_all_input else []
        chunks += self._status(entry, sent)
        if self._stream.is_replay or not is_answered(entry):
            return sent, chunks
        if not sent.is_answered:
            chunks += self._answer(entry, sent)
        return sent if entry.scope == "detached" else None, chunks

    def _arguments(self, entry: ToolCall, sent: _SentCall, *, is_new: bool = False) -> list[Chunk]:
        """Return the chunks for the arguments that the client does not have yet."""
        text, is_complete = arguments_of(entry, self._stream.input_text(entry))
        if not is_complete and is_new:
            return []
        before = "".join(sent.pieces)
        more = text[len(before) :] if text.startswith(before) and not sent.has_all_input else ""
        if not is_same_input(before + more, text):
            raise RestartNeededError("the arguments of a call were replaced")
        is_end = is_complete and not sent.has_all_input
        sent.has_all_input = sent.has_all_input or is_complete
        sent.is_input_fixed = sent.has_all_input or before + more != text
        sent.pieces = [before, more]
        chunks = [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.split_text(more)]
        return [*chunks, *([outgoing.call_whole(entry.tool_call_id)] if is_end else [])]

    def _status(self, entry: ToolCall, sent: _SentCall) -> list[Chunk]:
        """Return the status of an open call, if it changed."""
        self._waiting.pop(entry.id, None)
        request = self._stream.turn.state.requests.get(entry.approval)
        answer_at = request.answer_at if request is not None else ""
        if is_waiting(entry) and not is_answered(entry) and not answer_at:
            self._waiting[entry.id] = entry
        now = {} if is_answered(entry) else call_status(entry, answer_at)
        before, sent.status = sent.status, now
        return [outgoing.custom(CALL_EVENT, now)] if now and now != before else []

    def _answer(self, entry: ToolCall, sent: _SentCall) -> list[Chunk]:
        sent.is_answered = True
        at = entry.at if entry.scope == "detached" else entry.ended_at
        return [outgoing.call_result(result_message(entry), at)]


def _in_order(entries: list[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Yield entries where they began, and calls again, with True, where their results came."""
    ended = [entry for entry in entries if isinstance(entry, ToolCall) and is_answered(entry)]
    moments = [(entry.id, False, entry) for entry in entries] + [(answer_seq(entry), True, entry) for entry in ended]
    moments.sort(key=lambda moment: moment[:2])
    for _, is_answer, entry in moments:
        yield entry, is_answer


open_stream = partial(TurnStream, AgUiRenderer)
STREAM = Streaming(encoder=open_stream, frame=sse_frame, headers=SSE_HEADERS)
