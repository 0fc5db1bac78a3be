"""Reads both directions of one conversation: requests, answers and updates, each by its own row of a table.

Updates may come before the session is answered for, after the prompt's answer, and while nothing was asked. What has no
row, and what is not taken over whole, is kept as `raw`: files read and written, questions to the person, compactions,
subagents, messages between sessions, and whatever comes to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.acp import permission, speech, update
from callslip.formats.acp.calls import Calls
from callslip.formats.acp.facts import Facts
from callslip.formats.acp.plans import Plans
from callslip.formats.acp.replay import Replay
from callslip.formats.acp.terminals import TerminalUpdate
from callslip.formats.acp.turns import Turns
from callslip.formats.acp.wire import Message, Wire, kept, leaves, raw
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Json: TypeAlias = dict[str, Any]


class AcpDecoder:
    """One conversation. Fed lines, it takes all for one; fed what `Wire.split` gives, it gets only its own."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._wire = Wire(started=started)
        self._chunks: ev.Chunks | None = chunks
        self._calls = Calls()
        self._turns = Turns(self._calls)
        self._speech = speech.Speech(chunks)
        self._plans = Plans()
        self._facts = Facts()
        self._replay: Replay | None = None
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        read = message if isinstance(message, Message) else self._wire.read(message)
        made = self._drafts(read)
        if made is None:
            return []
        self._unfinished.see(made)
        return [_timed(draft, read.at) for draft in made or [Draft(raw(read))]]

    def close(self, reason: str) -> list[Draft]:
        """The line ended: so does the turn, and a replay that was not finished is none."""
        abandoned = self._replay.abandoned() if self._replay is not None else []
        self._replay = None
        self._turns.close()
        self._calls.line_ended(reason)
        return [Draft(event) for event in [*abandoned, *self._unfinished.end(reason)]]

    def _drafts(self, read: Message) -> list[Draft] | None:
        """What a message says: nothing if it was not understood, None if it is held for later."""
        if read.kind == "eof":
            return self.close("eof")
        if self._replay is not None and read.kind == "answer" and read.key == self._replay.key:
            return self._replayed(read, self._replay)
        if self._replay is not None and not self._goes_on(read) and self._replay.take(read):
            return None
        rule = self._RULES.get((read.kind, read.method))
        return [Draft(event) for event in rule(self, read)] if rule else []

    # Sessions

    def _opened(self, read: Message) -> Events:
        return self._facts.opened(read)

    def _load(self, read: Message) -> Events:
        """What comes before the answer is a replay. `session/resume` brings one only where that is asked for."""
        if not read.key or (read.method == "session/resume" and read.params.get("replayFrom") is None):
            return []
        before, self._replay = self._replay, Replay(read, self._chunks)
        return [*before.abandoned(), raw(read)] if before is not None else []

    def _goes_on(self, read: Message) -> bool:
        """Whether an update is about a call of the turn that is still going on: no replay tells of that."""
        return self._calls.goes_on(as_dict(read.params.get("update")))

    def _replayed(self, read: Message, replay: Replay) -> list[Draft]:
        self._replay = None
        if read.error is not UNSET:
            return [Draft(event) for event in [*replay.abandoned(), raw(read)]]
        state = replay.state
        now = (self._update(state) or [raw(state)]) if state is not None else []
        return replay.drafts() + [Draft(event) for event in [*now, *(self._opened(read) or [raw(read)])]]

    # Turns

    def _prompt(self, read: Message) -> Events:
        return self._turns.prompted(read)

    def _prompt_answered(self, read: Message) -> Events:
        return self._turns.answered(read)

    def _state(self, told: Json, read: Message) -> Events:
        return self._turns.state(told, read)

    # Permission

    def _asked(self, read: Message) -> Events:
        about = permission.question(read)
        return self._calls.requested(read, about) + kept(about.leaves, read) if about is not None else []

    def _answered(self, read: Message) -> Events:
        made, result = self._calls.answered(read), as_dict(read.result)
        more = leaves(result, {"outcome"}) or leaves(as_dict(result.get("outcome")), {"outcome", "optionId"})
        return made + kept(made and more, read)

    # Terminals

    def _output(self, read: Message) -> Events:
        return self._printed(self._calls.terminals.output(read.params, as_dict(read.result)), read)

    def _exited(self, read: Message) -> Events:
        return self._printed(self._calls.terminals.exit(read.params, as_dict(read.result)), read)

    def _released(self, read: Message) -> Events:
        self._calls.terminals.released(read.params)
        return []

    def _terminal(self, told: Json, read: Message) -> Events:
        return self._printed(self._calls.terminals.updated(told), read)

    def _terminal_chunk(self, told: Json, read: Message) -> Events:
        return self._printed(self._calls.terminals.chunk(told), read)

    def _printed(self, about: TerminalUpdate | None, read: Message) -> Events:
        made = self._calls.printed(about)
        return made + kept(made and about is not None and about.leaves, read)

    # Updates

    def _update(self, read: Message) -> Events:
        told = as_dict(read.params.get("update"))
        kind = told.get("sessionUpdate")
        rule = self._UPDATES.get(kind) if isinstance(kind, str) else None
        return rule(self, told, read) if rule else []

    def _chunk(self, told: Json, read: Message) -> Events:
        return self._heard(self._speech.chunk(told, read))

    def _message(self, told: Json, read: Message) -> Events:
        return self._heard(self._speech.whole(told, read))

    def _heard(self, made: Events) -> Events:
        """What was said, but for a prompt that the agent only repeats."""
        said = made[0] if made else None
        return [] if isinstance(said, ev.MessageUser) and self._turns.repeats(said.text) else made

    def _call(self, told: Json, read: Message) -> Events:
        return self._calls.opened(told) + kept(update.leaves(told), read)

    def _call_updated(self, told: Json, read: Message) -> Events:
        back = self._calls.went_back(told)
        made = self._calls.updated(told, read.version)
        return made + kept(made and (back or update.leaves(told, read.version)), read)

    def _call_grown(self, told: Json, read: Message) -> Events:
        made = self._calls.grown(told)
        more = leaves(told, {"sessionUpdate", "toolCallId", "content"}) or speech.leaves_item(told.get("content"))
        return made + kept(made and more, read)

    def _plan(self, told: Json, read: Message) -> Events:
        return self._plans.updated(told, read)

    def _plan_removed(self, told: Json, read: Message) -> Events:
        return self._plans.removed(told, read)

    def _fact(self, told: Json, read: Message) -> Events:
        return self._FACTS[told["sessionUpdate"]](self._facts, told, read)

    def _settled(self, read: Message) -> Events:
        return self._SETTLED[read.method](self._facts, read)

    _FACTS: ClassVar[dict[str, Callable[[Facts, Json, Message], Events]]] = {
        "available_commands_update": Facts.commands,
        "current_mode_update": Facts.mode,
        "config_option_update": Facts.options,
        "session_info_update": Facts.info,
        "usage_update": Facts.usage,
        "notice": Facts.notice,
    }

    _SETTLED: ClassVar[dict[str, Callable[[Facts, Message], Events]]] = {
        "session/set_mode": Facts.mode_set,
        "session/set_config_option": Facts.option_set,
        "session/set_title": Facts.retitled,
    }

    _RULES: ClassVar[dict[tuple[str, str], Callable[[Any, Message], Events]]] = {
        ("notification", "session/update"): _update,
        ("request", "session/prompt"): _prompt,
        ("answer", "session/prompt"): _prompt_answered,
        ("request", "session/request_permission"): _asked,
        ("answer", "session/request_permission"): _answered,
        ("answer", "terminal/output"): _output,
        ("answer", "terminal/wait_for_exit"): _exited,
        ("request", "terminal/release"): _released,
        ("request", "session/load"): _load,
        ("request", "session/resume"): _load,
        ("answer", "session/new"): _opened,
        ("answer", "session/fork"): _opened,
        ("answer", "session/resume"): _opened,
        **dict.fromkeys((("answer", method) for method in _SETTLED), _settled),
    }

    _UPDATES: ClassVar[dict[str, Callable[[Any, Json, Message], Events]]] = {
        **dict.fromkeys(speech.CHUNKS, _chunk),
        **dict.fromkeys(speech.WHOLE, _message),
        **dict.fromkeys(_FACTS, _fact),
        "tool_call": _call,
        "tool_call_update": _call_updated,
        "tool_call_content_chunk": _call_grown,
        "terminal_update": _terminal,
        "terminal_output_chunk": _terminal_chunk,
        "plan": _plan,
        "plan_update": _plan,
        "plan_removed": _plan_removed,
        "state_update": _state,
    }


def _timed(draft: Draft, at: int) -> Draft:
    return structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft
