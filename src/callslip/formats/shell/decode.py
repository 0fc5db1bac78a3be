"""Reads what a model writes and what a producer tells of its commands: texts, events, or stored messages.

A text alone is a message: some more of what the model writes. Everything else is an object with a `type`, or a stored
message with a `role`. A round of the model ends when a command of it begins to run or an `iteration-end` says so, and
the next one begins with the next text. A prompt begins a turn and `done` ends it; a text after `done` without a prompt
begins one as well, since command ids are counted anew there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias, cast

from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, identifier
from callslip.formats.shell import results
from callslip.formats.shell.commands import ROUNDS, Commands
from callslip.formats.shell.parse import Command, Piece, ShellParser
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.rules.streamed_text import StreamedText, merge_chunk

FORMAT = "shell"
AGENT = "shell.agent"
"""The namespace of what else a model may call beside commands."""

Said: TypeAlias = dict[str, Any]
Events: TypeAlias = list[Event]
Rule: TypeAlias = Callable[[Any, Said], Events | None]

WORDS = ("text", "delta", "content", "message")
ENDED: dict[str, type[ev.CallEnd]] = {"completed": ev.CallCompleted, "failed": ev.CallFailed, "error": ev.CallFailed}
STATUSES = ("queued", "running", *ENDED)

# What the rules take over of a message; what else it says is kept with all of it.
_NAMED = {"command", "commandId"}
_ENDING = {*results.PRINTED, *results.STREAMS, *results.EXITS, *results.FAILED, "error"}
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
    "error": {*WORDS, "error"},
}
_SPOKEN = {*WORDS, "id", "parts"}


class ShellDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._chunks: ev.Chunks = chunks or "delta"
        self._parser = ShellParser()
        self._written = StreamedText()
        self._commands = Commands()
        self._unfinished = Unfinished()
        self._turn = self._over = self._speaking = self._round_over = False

    def feed(self, message: Any) -> list[Draft]:
        made = self._text(message) if isinstance(message, str) else self._message(message)
        drafts = [Draft(event) for event in made]
        self._unfinished.see(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """The line ended: what was held back is shown, and the turn ends."""
        drafts = [Draft(event) for event in self._flushed()]
        self._unfinished.see(drafts)
        self._rest()
        return drafts + [Draft(event) for event in self._unfinished.end(reason)]

    def _message(self, message: Any, *, part: bool = False) -> Events:
        """What an object says, or a part of one, which has no parts. What was not taken over is kept whole."""
        said = as_dict(message)
        kind = said.get("type")
        rule = self._TYPES.get(kind) if isinstance(kind, str) else None
        if rule is None and not part:
            kind = said.get("role")
            rule = self._ROLES.get(kind) if isinstance(kind, str) else None
        made = rule(self, said) if rule else None
        if made is None:
            return [ev.Raw(format=FORMAT, body=message)]
        return [*made, ev.Raw(format=FORMAT, body=message)] if _leaves(str(kind), said) else made

    # What the model writes

    def _text(self, text: str) -> Events:
        return self._begun() + self._drafted(self._parser.feed(self._added(text))) if text else []

    def _added(self, text: str) -> str:
        """What a text adds to those before it, where a producer repeats them."""
        if self._chunks in ("delta", "auto"):
            return text
        change = merge_chunk(self._written, text, self._chunks)
        if not change.replaced:
            return change.added
        self._parser.close()  # Its commands are counted anew, so that they have the ids that they had.
        return self._written.value()

    def _drafted(self, pieces: Iterable[Piece]) -> Events:
        made: Events = []
        for piece in pieces:
            self._speaking = not isinstance(piece, Command)
            if isinstance(piece, Command):
                made.append(self._commands.found(piece))
            else:
                made.append(ev.MessageDelta(text=piece.text, chunks="delta"))
        return made

    def _spoken(self, said: Said) -> Events | None:
        text = _words(said)
        return None if text is None else self._text(text)

    def _thought(self, said: Said) -> Events | None:
        text = _words(said)
        return None if text is None else [*self._begun(), ev.ThoughtDelta(text=text, chunks="delta")]

    # Rounds and turns

    def _begun(self) -> Events:
        """The model has its say: in the next round if the last one is over."""
        if self._round_over:
            self._next_round()
        return self._turn_begun()

    def _turn_begun(self) -> Events:
        """A turn after the last one; the first without a prompt may have been begun by somebody else."""
        if self._turn or not self._over:
            return []
        self._commands.next_turn()
        self._turn, self._over = True, False
        return [ev.TurnStarted()]

    def _next_round(self, iteration: int | None = None) -> None:
        self._round_over = False
        self._written = StreamedText()
        self._commands.next_round(iteration)

    def _flushed(self) -> Events:
        """The text of the round is whole."""
        made = self._drafted(self._parser.close())
        ended: Events = [ev.MessageEnded()] if self._speaking else []
        self._speaking = False
        return made + ended

    def _round_ended(self, said: Said) -> Events:
        self._round_over = True
        return self._flushed()

    def _round_started(self, said: Said) -> Events:
        made, number = self._flushed(), said.get("iteration")
        if type(number) is int and 0 <= number < ROUNDS:
            self._next_round(number)
        elif self._round_over:
            self._next_round()
        return made

    def _prompted(self, said: Said) -> Events | None:
        text = _words(said)
        if text is None:
            return None
        made = self._ended("end_turn") + self._turn_begun()
        return [*made, ev.MessageUser(text=text, message_id=identifier(said.get("id")))]

    def _done(self, said: Said) -> Events:
        reason = said.get("reason")
        return self._ended(reason if reason and isinstance(reason, str) else "end_turn")

    def _failed(self, said: Said) -> Events:
        """The producer gave up."""
        ours, why = self._turn, said.get("error") if _words(said) is None else _words(said)
        ended = self._ended("error", why if isinstance(why, str) else "")
        kept = ours or _leaves("error", said)
        return ended if kept else [*ended, ev.Raw(format=FORMAT, body=said)]

    def _ended(self, reason: str, detail: str = "") -> Events:
        made, ours = self._flushed(), self._turn
        self._rest()
        return [*made, ev.TurnEnded(reason=reason, detail=detail)] if ours else made

    def _rest(self) -> None:
        """Nothing goes on; what may still come of the commands comes late."""
        self._turn, self._over, self._round_over = False, True, False
        self._written = StreamedText()

    # Commands

    def _called(self, said: Said) -> Events | None:
        command, name = _command(said), identifier(said.get("commandId"))
        return [*self._turn_begun(), self._commands.called(command, name)] if command or name else None

    def _started(self, said: Said) -> Events | None:
        command, name = _command(said), identifier(said.get("commandId"))
        if not command and not name:
            return None
        return [*self._round_ended(said), self._commands.started(command, name)]

    def _result(self, said: Said) -> Events:
        command, name = _command(said), identifier(said.get("commandId"))
        cls, came = _outcome(said)
        return [*self._round_ended(said), self._commands.ended(cls, command, name, **came)]

    def _other_call(self, said: Said) -> Events:
        """What the model calls otherwise than by a command."""
        tool, told = said.get("toolName"), {"input": said["toolArgs"]} if "toolArgs" in said else {}
        named = {"tool_name": tool} if isinstance(tool, str) and tool else {}
        begun, iteration = self._begun(), self._commands.iteration
        return [*begun, ev.CallProposed(aliases=_other(said), iteration=iteration, **named, **told)]

    def _other_result(self, said: Said) -> Events:
        cls, came = _outcome(said)
        return [cls(aliases=_other(said), **came)]

    def _usage(self, said: Said) -> Events:
        return [ev.SessionInfo(usage={name: value for name, value in said.items() if name != "type"})]

    # Stored messages (S0.8)

    def _assistant(self, said: Said) -> Events | None:
        """A whole round, or all rounds of a turn as parts."""
        parts = said.get("parts")
        if isinstance(parts, list) and parts:
            made = [event for part in cast("list[Any]", parts) for event in self._message(part, part=True)]
            return made + self._round_ended(said)
        text = _words(said)
        return None if text is None else self._text(text) + self._round_ended(said)

    def _part(self, part: Said) -> Events | None:
        """A command and how it stands."""
        status, name = part.get("toolStatus", "queued"), identifier(part.get("commandId"))
        made = self._called(part) if isinstance(status, str) and status in STATUSES else None
        if made is None or status == "queued":
            return made
        command, made = _command(part), made + self._round_ended(part)
        if status == "running":
            return [*made, self._commands.started(command, name)]
        cls, came = _outcome(part)
        return [*made, self._commands.ended(ENDED[status] if cls is ev.CallCompleted else cls, command, name, **came)]

    def _told(self, said: Said) -> Events | None:
        """The results as the model was told them: a block for each command of the round."""
        blocks = results.split_tool_results(_words(said) or "")
        return [*self._commands.answered(blocks or [])] or None

    _TYPES: ClassVar[dict[str, Rule]] = {
        "text": _spoken,
        "text-delta": _spoken,
        "reasoning": _thought,
        "reasoning-delta": _thought,
        "tool-call": _called,
        "tool-start": _started,
        "tool-result": _result,
        "tool": _part,
        "agent-tool-call": _other_call,
        "agent-tool-result": _other_result,
        "iteration-start": _round_started,
        "iteration-end": _round_ended,
        "usage": _usage,
        "done": _done,
        "error": _failed,
        **dict.fromkeys(("user", "user-message", "user_message", "prompt"), _prompted),
    }
    _ROLES: ClassVar[dict[str, Rule]] = {"user": _prompted, "assistant": _assistant, "tool": _told}


def _words(said: Said) -> str | None:
    """What is said; None if nothing is."""
    return next((said[name] for name in WORDS if isinstance(said.get(name), str)), None)


def _command(said: Said) -> str:
    command = said.get("command")
    return command.strip() if isinstance(command, str) else ""


def _outcome(said: Said) -> tuple[type[ev.CallEnd], dict[str, Any]]:
    """How a result says that its call ended: an exit status alone is no failure, that is for the producer to say."""
    end = results.outcome(said)
    came = {"output": end.output, "exit_status": end.exit_status, "error": end.error}
    return ev.CallFailed if end.failed else ev.CallCompleted, came


def _other(said: Said) -> tuple[Alias, ...]:
    name = identifier(said.get("toolCallId"))
    return (Alias(AGENT, name),) if name else ()


def _leaves(kind: str, said: Said) -> bool:
    """Whether there is more to a message than was taken over."""
    taken = KNOWN_FIELDS.get(kind, _SPOKEN)
    more = [name for name, value in said.items() if value is not None and name not in taken]
    return kind != "usage" and not {"type", "role"} >= set(more)
