"""Read both directions of one conversation: requests, answers and updates, each by its entry of a table.

Updates may arrive before the session is created, after the answer to the prompt, and without a request. A message
without an entry, or with content that its events do not carry, is stored as `raw`: files read and written, questions to
the user, compactions, subagents, messages between sessions and future extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.acp import messages, permission, update
from callslip.formats.acp.calls import Calls
from callslip.formats.acp.plans import Plans
from callslip.formats.acp.replay import Replay
from callslip.formats.acp.session_info import SessionFacts
from callslip.formats.acp.terminals import TerminalUpdate
from callslip.formats.acp.turns import Turns
from callslip.formats.acp.wire import FORMAT, Message, Wire, raw_message, raw_message_if
from callslip.formats.base import Unfinished, drafts_of
from callslip.formats.json_fields import as_dict, has_other_fields
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event

Events: TypeAlias = list[Event]
Json: TypeAlias = dict[str, Any]


def _of_subagent(draft: Draft, parent: str) -> Draft:
    """Return a draft with its parent, if it can have one. A text of a sub-agent has an id that separates it."""
    event = draft.event
    if isinstance(event, ev.CHUNKS) and not event.message_id:
        event = structs.replace(event, message_id=f"subagent:{parent}")
    return structs.replace(draft, event=event, parent=Alias(FORMAT, parent)) if hasattr(event, "parent") else draft


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
        self._handlers = self._message_handlers()
        self._update_handlers = self._handlers_of_updates()

    def _message_handlers(self) -> dict[tuple[str, str], Callable[[Message], Events]]:
        """Return the reader of each message by its kind and method."""
        turns, facts = self._turns, self._facts
        return {
            ("notification", "session/update"): self._update,
            ("request", "session/prompt"): turns.prompt,
            ("answer", "session/prompt"): turns.answer,
            ("request", "session/request_permission"): self._permission_request,
            ("answer", "session/request_permission"): self._permission_answer,
            ("answer", "terminal/output"): self._terminal_answer,
            ("answer", "terminal/wait_for_exit"): self._terminal_answer,
            ("request", "terminal/release"): self._terminal_release,
            ("request", "session/load"): self._load_session,
            ("request", "session/resume"): self._load_session,
            **dict.fromkeys(
                (("answer", f"session/{verb}") for verb in ("new", "fork", "resume")), facts.session_opened
            ),
            ("answer", "session/set_mode"): facts.mode_set,
            ("answer", "session/set_config_option"): facts.option_set,
            ("answer", "session/set_title"): facts.title_set,
        }

    def _handlers_of_updates(self) -> dict[str, Callable[[Json, Message], Events]]:
        """Return the reader of each kind of update."""
        facts, plans = self._facts, self._plans
        return {
            **dict.fromkeys((*messages.CHUNKS, *messages.FULL_MESSAGES), self._message),
            "message_end": messages.end,
            "tool_call": self._call,
            "tool_call_update": self._call_update,
            "tool_call_content_chunk": self._call_content,
            **dict.fromkeys(("terminal_update", "terminal_output_chunk"), self._terminal_update),
            **dict.fromkeys(("plan", "plan_update"), plans.update),
            "plan_removed": plans.remove,
            "state_update": self._turns.state,
            "available_commands_update": facts.commands,
            "current_mode_update": facts.mode,
            "config_option_update": facts.options,
            "session_info_update": facts.info,
            "usage_update": facts.usage,
            "notice": facts.notice,
        }

    def feed(self, message: Any) -> list[Draft]:
        parsed = message if isinstance(message, Message) else self._wire.read(message)
        drafts = self._drafts(parsed)
        if drafts is None:
            return []
        self._unfinished.follow(drafts)
        drafts, at = drafts or [Draft(raw_message(parsed))], parsed.at
        return [structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft for draft in drafts]

    def close(self, reason: str) -> list[Draft]:
        """End the turn. An unfinished replay is stored raw."""
        abandoned = self._replay.abandon() if self._replay is not None else []
        self._replay = None
        self._turns.close()
        self._calls.close(reason)
        return drafts_of(abandoned) + self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return self._replay is not None or self._calls.terminals.hold_text()

    def _drafts(self, message: Message) -> list[Draft] | None:
        """Return the drafts of a message: [] if it was not understood, None if it is held for later."""
        if message.kind == "eof":
            return self.close("eof")
        if self._replay is not None and message.kind == "answer" and message.key == self._replay.key:
            return self._end_replay(message, self._replay)
        if self._replay is not None:
            # An update about an open call of the current turn is live: a replay contains none.
            is_live = self._calls.concerns_open_call(as_dict(message.params.get("update")))
            if not is_live and self._replay.collect(message):
                return None
        handler = self._handlers.get((message.kind, message.method))
        drafts = drafts_of(handler(message)) if handler else []
        parent = update.parent_of(as_dict(message.params.get("update")))
        return [_of_subagent(draft, parent) for draft in drafts] if parent else drafts

    # Sessions

    def _load_session(self, message: Message) -> Events:
        """Collect a replay until the answer. `session/resume` causes one only if the client requests it."""
        if not message.key or (message.method == "session/resume" and message.params.get("replayFrom") is None):
            return []
        previous, self._replay = self._replay, Replay(message, self._chunks)
        return [*previous.abandon(), raw_message(message)] if previous is not None else []

    def _end_replay(self, message: Message, replay: Replay) -> list[Draft]:
        self._replay = None
        if message.error is not UNSET:
            return drafts_of([*replay.abandon(), raw_message(message)])
        state = replay.state
        state_events = (self._update(state) or [raw_message(state)]) if state is not None else []
        opened = self._facts.session_opened(message) or [raw_message(message)]
        return replay.drafts() + drafts_of([*state_events, *opened])

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

    def _terminal_answer(self, message: Message) -> Events:
        terminals = self._calls.terminals
        read = terminals.output if message.method == "terminal/output" else terminals.exit
        return self._terminal_events(read(message.params, as_dict(message.result)), message)

    def _terminal_release(self, message: Message) -> Events:
        self._calls.terminals.release(message.params)
        return []

    def _terminal_update(self, fields: Json, message: Message) -> Events:
        return self._terminal_events(self._calls.terminals.read(fields), message)

    def _terminal_events(self, terminal: TerminalUpdate | None, message: Message) -> Events:
        events = self._calls.terminal_progress(terminal)
        return events + raw_message_if(events and terminal is not None and terminal.needs_raw, message)

    # Updates

    def _update(self, message: Message) -> Events:
        fields = as_dict(message.params.get("update"))
        kind = fields.get("sessionUpdate")
        handler = self._update_handlers.get(kind) if isinstance(kind, str) else None
        return handler(fields, message) if handler else []

    def _message(self, fields: Json, message: Message) -> Events:
        """Read a message, or a piece of one, unless it is a prompt that the agent only repeats."""
        is_chunk = fields["sessionUpdate"] in messages.CHUNKS
        events = (self._messages.chunk if is_chunk else self._messages.full_message)(fields, message)
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
