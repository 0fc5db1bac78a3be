"""Read both directions of one conversation: requests, answers and updates, each by its entry of a table.

Updates may arrive before the session is created, after the answer to the prompt, and without a request. A message
without an entry, or with content that its events do not carry, is stored as `raw`: files read and written, questions to
the user, compactions, subagents, messages between sessions and future extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.acp import messages, permission, update
from callslip.formats.acp.calls import Calls
from callslip.formats.acp.plans import Plans
from callslip.formats.acp.replay import Replay
from callslip.formats.acp.session_info import SessionFacts
from callslip.formats.acp.terminals import TerminalUpdate
from callslip.formats.acp.turns import Turns
from callslip.formats.acp.wire import Message, Wire, raw_message, raw_message_if
from callslip.formats.base import Unfinished, drafts_of
from callslip.formats.json_fields import as_dict, has_other_fields
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Json: TypeAlias = dict[str, Any]


class AcpDecoder:
    """One conversation. Fed lines, it treats all as one conversation; fed the output of `Wire.split`, only its own."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._wire = Wire(started=started)
        self._chunks: ev.Chunks | None = chunks
        self._calls = Calls()
        self._turns = Turns(self._calls)
        self._messages = messages.Messages(chunks)
        self._plans = Plans()
        self._facts = SessionFacts()
        self._replay: Replay | None = None
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        parsed = message if isinstance(message, Message) else self._wire.read(message)
        drafts = self._drafts(parsed)
        if drafts is None:
            return []
        self._unfinished.follow(drafts)
        return [_with_time(draft, parsed.at) for draft in drafts or [Draft(raw_message(parsed))]]

    def close(self, reason: str) -> list[Draft]:
        """End the turn. An unfinished replay is stored raw."""
        abandoned = self._replay.abandon() if self._replay is not None else []
        self._replay = None
        self._turns.close()
        self._calls.close(reason)
        return drafts_of(abandoned) + self._unfinished.close(reason)

    def _drafts(self, message: Message) -> list[Draft] | None:
        """Return the drafts of a message: [] if it was not understood, None if it is held for later."""
        if message.kind == "eof":
            return self.close("eof")
        if self._replay is not None and message.kind == "answer" and message.key == self._replay.key:
            return self._end_replay(message, self._replay)
        if self._replay is not None and not self._is_live(message) and self._replay.collect(message):
            return None
        handler = self._HANDLERS.get((message.kind, message.method))
        return drafts_of(handler(self, message)) if handler else []

    # Sessions

    def _session_opened(self, message: Message) -> Events:
        return self._facts.session_opened(message)

    def _load_session(self, message: Message) -> Events:
        """Collect a replay until the answer. `session/resume` causes one only if the client requests it."""
        if not message.key or (message.method == "session/resume" and message.params.get("replayFrom") is None):
            return []
        previous, self._replay = self._replay, Replay(message, self._chunks)
        return [*previous.abandon(), raw_message(message)] if previous is not None else []

    def _is_live(self, message: Message) -> bool:
        """Return whether an update is about an open call of the current turn: a replay contains none."""
        return self._calls.concerns_open_call(as_dict(message.params.get("update")))

    def _end_replay(self, message: Message, replay: Replay) -> list[Draft]:
        self._replay = None
        if message.error is not UNSET:
            return drafts_of([*replay.abandon(), raw_message(message)])
        state = replay.state
        state_events = (self._update(state) or [raw_message(state)]) if state is not None else []
        opened = self._session_opened(message) or [raw_message(message)]
        return replay.drafts() + drafts_of([*state_events, *opened])

    # Turns

    def _prompt(self, message: Message) -> Events:
        return self._turns.prompt(message)

    def _prompt_answer(self, message: Message) -> Events:
        return self._turns.answer(message)

    def _state(self, fields: Json, message: Message) -> Events:
        return self._turns.state(fields, message)

    # Permission

    def _permission_request(self, message: Message) -> Events:
        question = permission.read_question(message)
        if question is None:
            return []
        return self._calls.request_permission(message, question) + raw_message_if(question.needs_raw, message)

    def _permission_answer(self, message: Message) -> Events:
        events, result = self._calls.answer_permission(message), as_dict(message.result)
        needs_raw = has_other_fields(result, {"outcome"}) or has_other_fields(
            as_dict(result.get("outcome")), {"outcome", "optionId"}
        )
        return events + raw_message_if(events and needs_raw, message)

    # Terminals

    def _terminal_output(self, message: Message) -> Events:
        return self._terminal_events(self._calls.terminals.output(message.params, as_dict(message.result)), message)

    def _terminal_exit(self, message: Message) -> Events:
        return self._terminal_events(self._calls.terminals.exit(message.params, as_dict(message.result)), message)

    def _terminal_release(self, message: Message) -> Events:
        self._calls.terminals.release(message.params)
        return []

    def _terminal_update(self, fields: Json, message: Message) -> Events:
        return self._terminal_events(self._calls.terminals.update(fields), message)

    def _terminal_chunk(self, fields: Json, message: Message) -> Events:
        return self._terminal_events(self._calls.terminals.chunk(fields), message)

    def _terminal_events(self, terminal: TerminalUpdate | None, message: Message) -> Events:
        events = self._calls.terminal_progress(terminal)
        return events + raw_message_if(events and terminal is not None and terminal.needs_raw, message)

    # Updates

    def _update(self, message: Message) -> Events:
        fields = as_dict(message.params.get("update"))
        kind = fields.get("sessionUpdate")
        handler = self._UPDATES.get(kind) if isinstance(kind, str) else None
        return handler(self, fields, message) if handler else []

    def _message_chunk(self, fields: Json, message: Message) -> Events:
        return self._without_echo(self._messages.chunk(fields, message))

    def _full_message(self, fields: Json, message: Message) -> Events:
        return self._without_echo(self._messages.full_message(fields, message))

    def _without_echo(self, events: Events) -> Events:
        """Return the events of a message unless it is a prompt that the agent only repeats."""
        first = events[0] if events else None
        return [] if isinstance(first, ev.MessageUser) and self._turns.is_prompt(first.text) else events

    def _call(self, fields: Json, message: Message) -> Events:
        return self._calls.open(fields) + raw_message_if(update.needs_raw(fields), message)

    def _call_update(self, fields: Json, message: Message) -> Events:
        is_unstarted = self._calls.is_unstarted(fields)
        events = self._calls.update(fields, message.version)
        return events + raw_message_if(events and (is_unstarted or update.needs_raw(fields, message.version)), message)

    def _call_content(self, fields: Json, message: Message) -> Events:
        events = self._calls.add_content(fields)
        needs_raw = has_other_fields(fields, {"sessionUpdate", "toolCallId", "content"}) or messages.item_needs_raw(
            fields.get("content")
        )
        return events + raw_message_if(events and needs_raw, message)

    def _plan(self, fields: Json, message: Message) -> Events:
        return self._plans.update(fields, message)

    def _plan_removed(self, fields: Json, message: Message) -> Events:
        return self._plans.remove(fields, message)

    def _fact(self, fields: Json, message: Message) -> Events:
        return self._FACTS[fields["sessionUpdate"]](self._facts, fields, message)

    def _fact_set(self, message: Message) -> Events:
        return self._SETTERS[message.method](self._facts, message)

    _FACTS: ClassVar[dict[str, Callable[[SessionFacts, Json, Message], Events]]] = {
        "available_commands_update": SessionFacts.commands,
        "current_mode_update": SessionFacts.mode,
        "config_option_update": SessionFacts.options,
        "session_info_update": SessionFacts.info,
        "usage_update": SessionFacts.usage,
        "notice": SessionFacts.notice,
    }

    _SETTERS: ClassVar[dict[str, Callable[[SessionFacts, Message], Events]]] = {
        "session/set_mode": SessionFacts.mode_set,
        "session/set_config_option": SessionFacts.option_set,
        "session/set_title": SessionFacts.title_set,
    }

    _HANDLERS: ClassVar[dict[tuple[str, str], Callable[[Any, Message], Events]]] = {
        ("notification", "session/update"): _update,
        ("request", "session/prompt"): _prompt,
        ("answer", "session/prompt"): _prompt_answer,
        ("request", "session/request_permission"): _permission_request,
        ("answer", "session/request_permission"): _permission_answer,
        ("answer", "terminal/output"): _terminal_output,
        ("answer", "terminal/wait_for_exit"): _terminal_exit,
        ("request", "terminal/release"): _terminal_release,
        ("request", "session/load"): _load_session,
        ("request", "session/resume"): _load_session,
        ("answer", "session/new"): _session_opened,
        ("answer", "session/fork"): _session_opened,
        ("answer", "session/resume"): _session_opened,
        **dict.fromkeys((("answer", method) for method in _SETTERS), _fact_set),
    }

    _UPDATES: ClassVar[dict[str, Callable[[Any, Json, Message], Events]]] = {
        **dict.fromkeys(messages.CHUNKS, _message_chunk),
        **dict.fromkeys(messages.FULL_MESSAGES, _full_message),
        **dict.fromkeys(_FACTS, _fact),
        "tool_call": _call,
        "tool_call_update": _call_update,
        "tool_call_content_chunk": _call_content,
        "terminal_update": _terminal_update,
        "terminal_output_chunk": _terminal_chunk,
        "plan": _plan,
        "plan_update": _plan,
        "plan_removed": _plan_removed,
        "state_update": _state,
    }


def _with_time(draft: Draft, at: int) -> Draft:
    return structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft
