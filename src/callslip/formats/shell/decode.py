"""Read the text of a model and a producer's events about its commands: texts, events, or stored messages.

A string is a message: a piece of the model's text. Everything else is an object with a `type`, or a stored message with
a `role`. A round of the model ends when one of its commands starts or with an `iteration-end`, and the next one begins
with the next text. A prompt begins a turn and `done` ends it; a text after `done` without a prompt begins one too,
because command ids start again there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from callslip.formats.base import Unfinished, drafts_of, raw_if
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier
from callslip.formats.shell import results
from callslip.formats.shell.commands import MAX_ROUNDS, Commands
from callslip.formats.shell.parse import Command, Piece, ShellParser
from callslip.formats.usage import read_usage
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.rules.streamed_text import StreamedText, merge_chunk

FORMAT = "shell"
AGENT = "shell.agent"
"""The namespace of calls that are not commands."""

Fields: TypeAlias = dict[str, Any]
Events: TypeAlias = list[Event]
Handler: TypeAlias = Callable[[Any, Fields], Events | None]

TEXT_FIELDS = ("text", "delta", "content", "message")
ENDED: dict[str, type[ev.CallEnd]] = {"completed": ev.CallCompleted, "failed": ev.CallFailed, "error": ev.CallFailed}
STATUSES = ("queued", "running", *ENDED)

# The fields that events carry, by kind of message; a message with other fields is stored raw too.
_NAMED = {"command", "commandId", "callslip_id"}
_ENDING = {*results.OUTPUTS, *results.STREAMS, *results.EXITS, *results.FAILED, "error"}
_OTHER = {"toolCallId", "toolName", "toolArgs"}
KNOWN_FIELDS: dict[str, set[str]] = {
    "tool-call": _NAMED,
    "tool-start": _NAMED,
    "tool-result": _NAMED | _ENDING,
    "tool": {*_NAMED, *_ENDING, "toolStatus"},
    "agent-tool-call": _OTHER,
    "agent-tool-result": _OTHER | _ENDING,
    "iteration-start": {"iteration"},
    "iteration-end": {"hasMoreCommands", "iteration"},
    "done": {"reason"},
    "error": {*TEXT_FIELDS, "error"},
}
_TEXT_MESSAGE = {*TEXT_FIELDS, "id", "parts"}


class ShellDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._parser = ShellParser()
        self._round_text = StreamedText()
        self._commands = Commands()
        self._unfinished = Unfinished()
        self._in_turn = self._had_turn = self._in_text = self._is_round_over = False

    def feed(self, message: Any) -> list[Draft]:
        drafts = drafts_of(self._read_text(message) if isinstance(message, str) else self._read(message))
        self._unfinished.follow(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """Return the text that the parser held back, and end the turn."""
        drafts = drafts_of(self._flush())
        self._unfinished.follow(drafts)
        self._reset_turn()
        return drafts + self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return self._parser.holds_text

    def _read(self, message: Any, *, is_part: bool = False) -> Events:
        """Return the events of a message, or of a part of one, which has no role."""
        fields = as_dict(message)
        kind = as_str(fields.get("type"))
        handler = self._TYPES.get(kind)
        if handler is None and not is_part:
            kind = as_str(fields.get("role"))
            handler = self._ROLES.get(kind)
        events = handler(self, fields) if handler else None
        if events is None:
            return raw_if(True, FORMAT, message)
        return events + raw_if(_needs_raw(kind, fields), FORMAT, message)

    # Text of the model

    def _read_text(self, text: str) -> Events:
        return self._begin_text() + self._piece_events(self._parser.feed(self._new_text(text))) if text else []

    def _new_text(self, text: str) -> str:
        """Return what a text adds to the round, if the producer repeats earlier text."""
        if self._chunks in ("delta", "auto"):
            return text
        change = merge_chunk(self._round_text, text, self._chunks)
        if not change.replaced:
            return change.added
        self._parser.close()  # Its commands are counted from 0 again and get the same ids.
        return self._round_text.value()

    def _piece_events(self, pieces: Iterable[Piece]) -> Events:
        events: Events = []
        for piece in pieces:
            self._in_text = not isinstance(piece, Command)
            if isinstance(piece, Command):
                events.append(self._commands.propose(piece))
            else:
                events.append(ev.MessageDelta(text=piece.text, chunks="delta"))
        return events

    def _text(self, fields: Fields) -> Events | None:
        text = _text_of(fields)
        return None if text is None else self._read_text(text)

    def _thought(self, fields: Fields) -> Events | None:
        text = _text_of(fields)
        return None if text is None else [*self._begin_text(), ev.ThoughtDelta(text=text, chunks="delta")]

    # Rounds and turns

    def _begin_text(self) -> Events:
        """Begin the next round if the last one is over."""
        if self._is_round_over:
            self._next_round()
        return self._begin_turn()

    def _begin_turn(self) -> Events:
        """Begin a turn after the last one. The first turn without a prompt may have been begun by the caller."""
        if self._in_turn or not self._had_turn:
            return []
        self._commands.next_turn()
        self._in_turn, self._had_turn = True, False
        return [ev.TurnStarted()]

    def _next_round(self, iteration: int | None = None) -> None:
        self._is_round_over = False
        self._round_text = StreamedText()
        self._commands.next_round(iteration)

    def _flush(self) -> Events:
        """Return the rest of the text of a round."""
        events = self._piece_events(self._parser.close())
        ended: Events = [ev.MessageEnded()] if self._in_text else []
        self._in_text = False
        return events + ended

    def _end_round(self, fields: Fields) -> Events:
        self._is_round_over = True
        return self._flush()

    def _start_round(self, fields: Fields) -> Events:
        events, number = self._flush(), fields.get("iteration")
        if type(number) is int and 0 <= number < MAX_ROUNDS:
            self._next_round(number)
        elif self._is_round_over:
            self._next_round()
        return events

    def _prompt(self, fields: Fields) -> Events | None:
        text = _text_of(fields)
        if text is None:
            return None
        events = self._end_turn("end_turn") + self._begin_turn()
        return [*events, ev.MessageUser(text=text, message_id=identifier(fields.get("id")))]

    def _done(self, fields: Fields) -> Events:
        return self._end_turn(as_str(fields.get("reason")) or "end_turn")

    def _error(self, fields: Fields) -> Events:
        """Read that the producer failed."""
        was_in_turn, text = self._in_turn, _text_of(fields)
        ended = self._end_turn("error", as_str(fields.get("error")) if text is None else text)
        return ended + raw_if(not was_in_turn and not _needs_raw("error", fields), FORMAT, fields)

    def _end_turn(self, reason: str, detail: str = "") -> Events:
        events, was_in_turn = self._flush(), self._in_turn
        self._reset_turn()
        return [*events, ev.TurnEnded(reason=reason, detail=detail)] if was_in_turn else events

    def _reset_turn(self) -> None:
        """Leave the turn; later events about its commands are late."""
        self._in_turn, self._had_turn, self._is_round_over = False, True, False
        self._round_text = StreamedText()

    # Commands

    def _call(self, fields: Fields) -> Events | None:
        command, name = _command_of(fields)
        return [*self._begin_turn(), self._commands.call(command, name)] if command or name else None

    def _start(self, fields: Fields) -> Events | None:
        command, name = _command_of(fields)
        if not command and not name:
            return None
        return [*self._end_round(fields), self._commands.start(command, name)]

    def _result(self, fields: Fields) -> Events:
        end_type, result = _end_of(fields)
        return [*self._end_round(fields), self._commands.end(end_type, *_command_of(fields), **result)]

    def _agent_call(self, fields: Fields) -> Events:
        """Read a call that is not a command."""
        tool = as_str(fields.get("toolName"))
        call: Fields = {"tool_name": tool} if tool else {}
        call |= {"input": fields["toolArgs"]} if "toolArgs" in fields else {}
        started = self._begin_text()
        return [*started, ev.CallProposed(aliases=_agent_alias(fields), iteration=self._commands.iteration, **call)]

    def _agent_result(self, fields: Fields) -> Events:
        end_type, result = _end_of(fields)
        return [end_type(aliases=_agent_alias(fields), **result)]

    def _usage(self, fields: Fields) -> Events:
        usage = {name: value for name, value in fields.items() if name != "type"}
        return [ev.SessionInfo(usage=usage), *read_usage(usage, model=usage.get("model"))]

    # Stored messages

    def _assistant(self, fields: Fields) -> Events | None:
        """Read a full round, or all rounds of a turn as parts."""
        parts = as_list(fields.get("parts"))
        if parts:
            return [event for part in parts for event in self._read(part, is_part=True)] + self._end_round(fields)
        text = _text_of(fields)
        return None if text is None else self._read_text(text) + self._end_round(fields)

    def _part(self, part: Fields) -> Events | None:
        """Read a command with its status."""
        status = part.get("toolStatus", "queued")
        events = self._call(part) if isinstance(status, str) and status in STATUSES else None
        if events is None or status == "queued":
            return events
        events += self._end_round(part)
        if status == "running":
            return [*events, self._commands.start(*_command_of(part))]
        end_type, result = _end_of(part)
        end_type = ENDED[status] if end_type is ev.CallCompleted else end_type
        return [*events, self._commands.end(end_type, *_command_of(part), **result)]

    def _tool_results(self, fields: Fields) -> Events | None:
        """Read the results that were sent to the model: a block for each command of the round."""
        blocks = results.split_tool_results(_text_of(fields) or "")
        return [*self._commands.answer(blocks or [])] or None

    _TYPES: ClassVar[dict[str, Handler]] = {
        "text": _text,
        "text-delta": _text,
        "reasoning": _thought,
        "reasoning-delta": _thought,
        "tool-call": _call,
        "tool-start": _start,
        "tool-result": _result,
        "tool": _part,
        "agent-tool-call": _agent_call,
        "agent-tool-result": _agent_result,
        "iteration-start": _start_round,
        "iteration-end": _end_round,
        "usage": _usage,
        "done": _done,
        "error": _error,
        **dict.fromkeys(("user", "user-message", "user_message", "prompt"), _prompt),
    }
    _ROLES: ClassVar[dict[str, Handler]] = {"user": _prompt, "assistant": _assistant, "tool": _tool_results}


def _text_of(fields: Fields) -> str | None:
    """Return the text of a message; None if it has none."""
    return next((fields[name] for name in TEXT_FIELDS if isinstance(fields.get(name), str)), None)


def _command_of(fields: Fields) -> tuple[str, str]:
    """Return the command of an event and its id, "" for none."""
    return as_str(fields.get("command")).strip(), identifier(fields.get("commandId"))


def _end_of(fields: Fields) -> tuple[type[ev.CallEnd], dict[str, Any]]:
    """Return the end of a call. An exit status alone is no failure: the producer must report that."""
    end = results.outcome(fields)
    result = {"output": end.output, "exit_status": end.exit_status, "error": end.error}
    return ev.CallFailed if end.failed else ev.CallCompleted, result


def _agent_alias(fields: Fields) -> tuple[Alias, ...]:
    name = identifier(fields.get("toolCallId"))
    return (Alias(AGENT, name),) if name else ()


def _needs_raw(kind: str, fields: Fields) -> bool:
    """Return whether a message has more than its events carry."""
    return kind != "usage" and has_other_fields(fields, {"type", "role", *KNOWN_FIELDS.get(kind, _TEXT_MESSAGE)})
