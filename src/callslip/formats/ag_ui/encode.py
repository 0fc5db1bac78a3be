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

from collections.abc import Iterator

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
    name_of,
    result_message,
    role_of,
    standing,
)
from callslip.formats.ag_ui.conversation import Rounds, history
from callslip.formats.ag_ui.outgoing import CALL, Chunk
from callslip.formats.base import SSE_HEADERS, Restart, Streaming, sse_frame
from callslip.formats.turn_scope import Turn, Unsayable
from callslip.model import events as ev
from callslip.model.entries import Append, Entry, Message, ModeChange, Patch, Plan, Put, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.fold import SessionFold

__all__ = ["STREAM", "AgUiEncoder", "history"]

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


class AgUiEncoder:
    """One turn: the named one, or the open one, or the last one, or the first that begins.

    `state` is where the session stands now, with every entry of the turn. With a state, `opening` comes first.
    """

    def __init__(self, state: SessionFold | None = None, turn: str = "") -> None:
        self.turn = Turn(state, turn)
        self.finished = False
        self._detail = ""
        self._forget()

    def _forget(self) -> None:
        """Nothing was sent yet."""
        self._started = self.finished = False
        self._rounds = Rounds()
        self._texts: dict[int, tuple[str, str]] = {}
        self._calls: dict[int, _Sent] = {}
        self._open: set[int] = set()
        self._waiting: dict[int, ToolCall] = {}

    def opening(self) -> list[Chunk]:
        """The turn as it stands, from its start."""
        self._forget()
        self.turn.lost = False
        chunks = self._start()
        for entry, again in _in_order(self.turn.entries()):
            chunks += self._answer(entry) if again and isinstance(entry, ToolCall) else self._begin(entry, replay=True)
        return chunks + self._ending()

    def feed(self, event: Event) -> list[Chunk] | Restart:
        """What an event changes in the messages; nothing for most events of other turns."""
        lost = self.turn.lost
        try:
            chunks = self.turn.tell(event, self._tell, self.finished)
        except Unsayable as error:
            told = lost or not self._started or self.finished
            return Restart(str(error), () if told else (outgoing.failed(f"Begin again: {error}.", "restart"),))
        finally:
            if isinstance(event, ev.TurnEnded) and event.verdict == "applied" and event.turn == self.turn.name:
                self._detail = event.detail
        return self._start() + chunks + self._ending()

    def close(self, reason: str) -> list[Chunk]:
        """The stream ends before its turn does."""
        if self.finished:
            return []
        self.finished = True
        return [outgoing.failed(reason, "closed")]

    # The run

    def _start(self) -> list[Chunk]:
        turn = self.turn
        if self._started or not turn.name or not (turn.ended or turn.state.info.turn == turn.name):
            return []
        self._started = True
        return [outgoing.started(turn.state.session, turn.name)]

    def _ending(self) -> list[Chunk]:
        """The last event, once the turn has ended and so have its calls, or once they all wait for somebody."""
        if self.finished or not self._started or len(self._waiting) < len(self._open):
            return []
        if not self._open and not self.turn.ended:
            return []
        self.finished = True
        # Few agents say that a text is over: one that waits for an answer may never write on (C5).
        texts = [chunk for text in self._texts.values() for chunk in outgoing.text_ended(*text)]
        return [*texts, self._interrupt() if self._open else self._end()]

    def _interrupt(self) -> Chunk:
        turn, requests = self.turn, self.turn.state.requests
        asked = [interrupt(entry, requests.get(entry.approval)) for entry in self._waiting.values()]
        return outgoing.finished(turn.state.session, turn.name, {"type": "interrupt", "interrupts": asked})

    def _end(self) -> Chunk:
        turn, reason = self.turn, self.turn.reason
        if reason in FAILURES:
            return outgoing.failed(self._detail or FAILURES[reason], reason)
        outcome = OUTCOMES.get(reason, SUCCESS)
        return outgoing.finished(turn.state.session, turn.name, outcome, reason)

    # Patches

    def _tell(self, patch: Patch) -> list[Chunk]:
        if isinstance(patch, Put):
            return self._put(patch)
        if isinstance(patch, Append):
            return self._append(patch)
        if patch.id in self._texts and "streaming" in patch.fields:
            return outgoing.text_ended(*self._texts.pop(patch.id))
        if patch.id in self._calls and not RENDERED_FIELDS.isdisjoint(patch.fields):
            return self._update(patch.id, again="rawInput" in patch.fields)
        return []

    def _put(self, patch: Put) -> list[Chunk]:
        if patch.entry.id in self._texts:
            raise Unsayable("a text was repaired")
        if not self.turn.owns(patch.entry):
            return []
        entry = self.turn.state.entries[patch.entry.id]
        chunks = self._begin(entry)
        return chunks + (self._answer(entry) if isinstance(entry, ToolCall) and is_answered(entry) else [])

    def _append(self, patch: Append) -> list[Chunk]:
        if patch.field == "content" and patch.id in self._texts:
            return [outgoing.text_more(*self._texts[patch.id], piece) for piece in outgoing.pieces(patch.text)]
        if patch.field != "inputText" or patch.id not in self._calls:
            return []
        entry, sent = self._call(patch.id), self._calls[patch.id]
        if sent.whole and entry.raw_input:
            return []  # They are what the arguments are, whatever comes behind them.
        if sent.fixed:
            return self._update(patch.id, again=True)
        sent.pieces.append(patch.text)
        return [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.pieces(patch.text)]

    # Entries

    def _begin(self, entry: Entry, replay: bool = False) -> list[Chunk]:
        """What a new entry says. Live, its text comes with the patches that follow."""
        if not is_told(entry):
            if isinstance(entry, Message):
                self._rounds.end()
            return []
        message = self._rounds.message_of(entry)
        if isinstance(entry, ToolCall):
            return self._begin_call(entry, message, replay)
        if isinstance(entry, Message | Thought):
            return self._begin_text(entry, message, replay)
        assert isinstance(entry, Plan | ModeChange)
        return [outgoing.activity(activity_message(entry), entry.at)]

    def _begin_text(self, entry: Message | Thought, message: str, replay: bool) -> list[Chunk]:
        role = role_of(entry)
        chunks = outgoing.text_started(role, message, entry.at)
        if replay:
            chunks += [outgoing.text_more(role, message, piece) for piece in outgoing.pieces(entry.content)]
        if not entry.streaming:
            return chunks + outgoing.text_ended(role, message)
        self._texts[entry.id] = role, message
        return chunks

    # Calls

    def _call(self, identity: int) -> ToolCall:
        entry = self.turn.state.entries[identity]
        assert isinstance(entry, ToolCall)
        return entry

    def _begin_call(self, entry: ToolCall, message: str, replay: bool) -> list[Chunk]:
        sent = self._calls[entry.id] = _Sent(name_of(entry))
        began = outgoing.call_started(listed_call(entry, ""), message, entry.at)
        return [began, *self._arguments(entry, sent, replay), *self._stand(entry, sent)]

    def _update(self, identity: int, *, again: bool) -> list[Chunk]:
        """How a call stands now, told to a client that saw how it stood; `again` if its arguments may be others."""
        entry, sent = self._call(identity), self._calls[identity]
        if sent.name != name_of(entry):
            raise Unsayable("a call got another name")
        chunks = self._arguments(entry, sent) if again or not sent.whole else []
        answer = self._answer(entry) if is_answered(entry) and not sent.answered else []
        return chunks + self._stand(entry, sent) + answer

    def _arguments(self, entry: ToolCall, sent: _Sent, replay: bool = True) -> list[Chunk]:
        """What is left to say of a call's arguments."""
        text, whole = arguments_of(entry, self._input_text(entry))
        if not whole and not replay:
            return []
        before = "".join(sent.pieces)
        more = text[len(before) :] if text.startswith(before) and not sent.whole else ""
        if not mean_the_same(before + more, text):
            raise Unsayable("the arguments of a call were replaced")
        ends = whole and not sent.whole
        sent.whole = sent.whole or whole
        sent.fixed = sent.whole or before + more != text
        sent.pieces = [before, more]
        told = [outgoing.call_more(entry.tool_call_id, piece) for piece in outgoing.pieces(more)]
        return [*told, *([outgoing.call_whole(entry.tool_call_id)] if ends else [])]

    def _input_text(self, entry: ToolCall) -> str:
        text = self.turn.state.texts.get((entry.id, "input_text"))
        return text.value() if text else entry.input_text

    def _stand(self, entry: ToolCall, sent: _Sent) -> list[Chunk]:
        """Where an open call stands, if that is news."""
        self._keep(entry)
        now = {} if is_answered(entry) else standing(entry)
        before, sent.standing = sent.standing, now
        return [outgoing.custom(CALL, now)] if now and now != before else []

    def _keep(self, entry: ToolCall) -> None:
        """Whether the run waits for a call, and the call for somebody."""
        self._open.discard(entry.id)
        self._waiting.pop(entry.id, None)
        if not is_answered(entry):
            self._open.add(entry.id)
            if is_waiting(entry):
                self._waiting[entry.id] = entry

    def _answer(self, entry: ToolCall) -> list[Chunk]:
        if entry.scope == "detached":
            self._calls[entry.id].answered = True  # It may still be told more.
            return [outgoing.call_result(result_message(entry), entry.at)]
        del self._calls[entry.id]
        return [outgoing.call_result(result_message(entry), entry.ended_at)]


def _in_order(entries: list[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Entries where they began, and calls again where their results came."""
    ended = [entry for entry in entries if isinstance(entry, ToolCall) and is_answered(entry)]
    moments = [(entry.id, False, entry) for entry in entries] + [(answered(entry), True, entry) for entry in ended]
    moments.sort(key=lambda moment: moment[:2])
    for _, again, entry in moments:
        yield entry, again


STREAM = Streaming(encoder=AgUiEncoder, frame=sse_frame, headers=SSE_HEADERS)
