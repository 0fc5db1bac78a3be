"""Reads both directions of one conversation: requests, answers and updates, each by its own row of a table.

A prompt is a turn: it begins with the request and ends with the answer, not with `session/cancel`, since results may
still come. Prompts that wait behind another begin their turns when that one ends. Updates may come before the session
is answered for, after the prompt's answer, and while nothing was asked. What is not taken over whole is kept as `raw`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip import events as ev
from callslip.events import Draft, Event
from callslip.formats import Unfinished
from callslip.formats.acp import calls, offers, speech
from callslip.formats.acp.replay import Replay
from callslip.formats.acp.wire import FORMAT, Message, Wire, fields, items

Events: TypeAlias = list[Event]


class AcpDecoder:
    """One conversation. Fed lines, it takes all for one; fed what `Wire.split` gives, it gets only its own."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._wire = Wire(started=started)
        self._chunks: ev.Chunks | None = chunks
        self._calls = calls.Calls()
        self._prompts: dict[str, str] = {}
        self._offered: Events = []
        self._replay: Replay | None = None
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        read = message if isinstance(message, Message) else self._wire.read(message)
        made = self._drafts(read)
        if made is None:
            return []
        self._unfinished.see(made)
        return [_timed(draft, read.at) for draft in made or [Draft(_raw(read))]]

    def close(self, reason: str) -> list[Draft]:
        """The line ended: so does the turn, and a replay that was not finished is none."""
        kept = self._replay.abandoned() if self._replay is not None else []
        self._replay = None
        self._prompts.clear()
        self._calls.line_ended(reason)
        return [Draft(event) for event in [*kept, *self._unfinished.end(reason)]]

    def _drafts(self, read: Message) -> list[Draft] | None:
        """What a message says: nothing if it was not understood, None if it is held for later."""
        if read.kind == "eof":
            return self.close("eof")
        if self._replay is not None and read.kind == "answer" and read.key == self._replay.key:
            return self._replayed(read, self._replay)
        if self._replay is not None and self._replay.take(read):
            return None
        rule = self._RULES.get((read.kind, read.method))
        return [Draft(event) for event in rule(self, read)] if rule else []

    # Sessions

    def _opened(self, read: Message) -> Events:
        """A session was begun, or taken up again: what the agent offers for it. RULE 7"""
        result = fields(read.result)
        told = offers.offered(result)
        if told == self._offered:
            return []  # Taken up again on the same line, with the same offers: nothing new.
        self._offered = told or self._offered
        return told + _if(told and _leaves(result, offers.TAKEN), read)

    def _load(self, read: Message) -> Events:
        """What comes before the answer is a replay. `session/resume` brings one only where that is asked for."""
        if not read.key or (read.method == "session/resume" and read.params.get("replayFrom") is None):
            return []
        before, self._replay = self._replay, Replay(read, self._chunks)
        return [*before.abandoned(), _raw(read)] if before is not None else []

    def _replayed(self, read: Message, replay: Replay) -> list[Draft]:
        self._replay = None
        if read.error is not UNSET:
            return [Draft(event) for event in [*replay.abandoned(), _raw(read)]]
        return replay.drafts() + [Draft(event) for event in self._opened(read) or [_raw(read)]]

    def _mode_set(self, read: Message) -> Events:
        mode = read.params.get("modeId")
        told = isinstance(mode, str) and mode and read.error is UNSET
        return [ev.SessionMode(mode=mode)] if told and isinstance(mode, str) else []

    def _option_set(self, read: Message) -> Events:
        return offers.reconfigured(fields(read.result).get("configOptions"))

    # Turns

    def _prompt(self, read: Message) -> Events:
        if not read.key or not isinstance(read.params.get("prompt"), list):
            return []
        said = speech.prompted(read.params)
        begun = [] if self._prompts else self._begin()
        self._prompts[read.key] = said.text if isinstance(said, ev.MessageUser) else ""
        return [*begun, said, *_if(_leaves(read.params, {"sessionId", "prompt", "messageId"}), read)]

    def _prompt_answered(self, read: Message) -> Events:
        if read.key not in self._prompts:
            return []
        result, error = fields(read.result), fields(read.error)
        if read.error is not UNSET:
            detail = error.get("message")
            ended = self._end("error", detail if isinstance(detail, str) else "")
            return self._next(read.key, ended, _if(_leaves(error, {"message"}), read))
        reason = result.get("stopReason")
        if reason is None and read.version >= 2:
            return []  # There an answer only says that the prompt was taken; `state_update` tells the end.
        ended = self._end(reason if reason and isinstance(reason, str) else "end_turn")
        return self._next(read.key, ended, _if(_leaves(result, {"stopReason"}), read))

    def _state(self, update: dict[str, Any], read: Message) -> Events:
        """Draft 2: the agent is idle, so that every prompt is done with."""
        if update.get("state") != "idle" or not self._prompts:
            return []
        reason = update.get("stopReason")
        self._prompts.clear()
        ended = self._end(reason if reason and isinstance(reason, str) else "end_turn")
        return ended + _if(_leaves(update, {"sessionUpdate", "state", "stopReason"}), read)

    def _begin(self) -> Events:
        self._calls.turn_started()
        return [ev.TurnStarted()]

    def _end(self, reason: str, detail: str = "") -> Events:
        self._calls.turn_ended(reason)
        return [ev.TurnEnded(reason=reason, detail=detail)]

    def _next(self, key: str, ended: Events, kept: Events) -> Events:
        """A prompt is done with; if others waited, the next one has its turn now."""
        del self._prompts[key]
        return [*ended, *kept, *(self._begin() if self._prompts else [])]

    # Permission

    def _asked(self, read: Message) -> Events:
        made = self._calls.requested(read)
        update = fields(read.params.get("toolCall"))
        more = calls.leaves(update) or _leaves(read.params, {"sessionId", "toolCall", "options"})
        return made + _if(made and more, read)

    def _answered(self, read: Message) -> Events:
        return self._calls.answered(read)

    # Updates

    def _update(self, read: Message) -> Events:
        update = fields(read.params.get("update"))
        kind = update.get("sessionUpdate")
        rule = self._UPDATES.get(kind) if isinstance(kind, str) else None
        return rule(self, update, read) if rule else []

    def _chunk(self, update: dict[str, Any], read: Message) -> Events:
        said = speech.spoken(update["sessionUpdate"], update, self._chunks or "auto")
        if said is None or (isinstance(said, ev.MessageUser) and self._is_echo(said)):
            return []
        return [said, *_if(speech.leaves(update), read)]

    def _is_echo(self, said: ev.MessageUser) -> bool:
        """Whether an agent repeats the prompt that it works on."""
        return any(said.text in prompt for prompt in self._prompts.values())

    def _tool_call(self, update: dict[str, Any], read: Message) -> Events:
        return self._calls.opened(update) + _if(calls.leaves(update), read)

    def _tool_call_update(self, update: dict[str, Any], read: Message) -> Events:
        made = self._calls.updated(update)
        return made + _if(made and calls.leaves(update), read)

    def _plan(self, update: dict[str, Any], read: Message) -> Events:
        entries = update.get("entries")
        if not isinstance(entries, list):
            return []
        return [ev.PlanUpdated(entries=items(entries)), *_if(_leaves(update, {"sessionUpdate", "entries"}), read)]

    def _commands(self, update: dict[str, Any], read: Message) -> Events:
        commands = update.get("availableCommands")
        return [ev.SessionCommands(commands=items(commands))] if isinstance(commands, list) else []

    def _mode(self, update: dict[str, Any], read: Message) -> Events:
        mode = update.get("currentModeId")
        return [ev.SessionMode(mode=mode)] if isinstance(mode, str) else []

    def _options(self, update: dict[str, Any], read: Message) -> Events:
        return offers.reconfigured(update.get("configOptions"))

    def _info(self, update: dict[str, Any], read: Message) -> Events:
        if "title" not in update or not isinstance(update["title"], str | None):
            return []
        return [ev.SessionInfo(title=update["title"]), *_if(_leaves(update, {"sessionUpdate", "title"}), read)]

    def _usage(self, update: dict[str, Any], read: Message) -> Events:
        return [ev.SessionInfo(usage=_bare(update))]

    def _notice(self, update: dict[str, Any], read: Message) -> Events:
        return [ev.SessionInfo(notice=_bare(update))]

    _RULES: ClassVar[dict[tuple[str, str], Callable[[Any, Message], Events]]] = {
        ("notification", "session/update"): _update,
        ("request", "session/prompt"): _prompt,
        ("answer", "session/prompt"): _prompt_answered,
        ("request", "session/request_permission"): _asked,
        ("answer", "session/request_permission"): _answered,
        ("request", "session/load"): _load,
        ("request", "session/resume"): _load,
        ("answer", "session/new"): _opened,
        ("answer", "session/fork"): _opened,
        ("answer", "session/resume"): _opened,
        ("answer", "session/set_mode"): _mode_set,
        ("answer", "session/set_config_option"): _option_set,
    }

    _UPDATES: ClassVar[dict[str, Callable[[Any, dict[str, Any], Message], Events]]] = {
        **dict.fromkeys(speech.SPEAKS, _chunk),
        "tool_call": _tool_call,
        "tool_call_update": _tool_call_update,
        "plan": _plan,
        "available_commands_update": _commands,
        "current_mode_update": _mode,
        "config_option_update": _options,
        "session_info_update": _info,
        "usage_update": _usage,
        "notice": _notice,
        "state_update": _state,
    }


def _timed(draft: Draft, at: int) -> Draft:
    return structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft


def _raw(read: Message) -> Event:
    return ev.Raw(format=FORMAT, body=read.body)


def _if(kept: object, read: Message) -> Events:
    """The message, whole, beside what was made of it."""
    return [_raw(read)] if kept else []


def _leaves(said: dict[str, Any], taken: set[str]) -> bool:
    """Whether there is more to a message than was taken over."""
    return any(value is not None for name, value in said.items() if name not in taken)


def _bare(update: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if name != "sessionUpdate"}
