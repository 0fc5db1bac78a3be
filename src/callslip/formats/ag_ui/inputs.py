"""The input of a run: the prompt, answers to interrupts, results of the application's tools. The rest is history."""

from __future__ import annotations

from typing import Any

from callslip.formats.ag_ui import calls
from callslip.formats.ag_ui.calls import Calls
from callslip.formats.ag_ui.messages import Message, MessageLists, messages_in, user_message
from callslip.formats.ag_ui.turns import Turns
from callslip.formats.ag_ui.wire import FORMAT
from callslip.formats.base import drafts_of, raw_if
from callslip.formats.json_fields import as_dict, as_list, identifier, value_digest
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft

NAMES = {"threadId", "runId", "messages", "protocolVersion"}
ANSWERS = (CallEnd, ev.ApprovalAnswer)


class Inputs:
    """Reads all inputs of one conversation, by themselves or repeated at the beginning of a run."""

    def __init__(self, turns: Turns, tracked_calls: Calls, lists: MessageLists) -> None:
        self._turns = turns
        self._calls = tracked_calls
        self._lists = lists
        self._runs: set[str] = set()
        self._settings = ""

    def read(self, body: dict[str, Any], *, is_echo: bool = False) -> list[Draft] | None:
        """Return the drafts of what is new in an input; None if it is not an input."""
        run = identifier(body.get("runId"))
        if not run or not isinstance(body.get("messages", body.get("resume")), list):
            return None
        if is_echo and run in self._runs:
            return []
        self._runs.add(run)
        drafts = self._conversation_drafts(body) + self._settings_drafts(body)
        return drafts or _raw_drafts(body)

    def _conversation_drafts(self, body: dict[str, Any]) -> list[Draft]:
        messages = messages_in(body.get("messages"))
        answers = [event for entry in as_list(body.get("resume")) for event in self._calls.resume(as_dict(entry))]
        prompt = [] if answers else [message for message in messages[-1:] if self._is_prompt(message)]
        drafts = self._lists.read(messages[:-1] if prompt else messages)
        if prompt:
            return [*drafts, *self._prompt(prompt[0])]
        new = drafts_of(answers) + [draft for draft in drafts if isinstance(draft.event, ANSWERS)]
        old = [draft for draft in drafts if not isinstance(draft.event, ANSWERS)]
        return [*old, *self._continue_turn(messages, new)]

    def _is_prompt(self, message: Message) -> bool:
        message_id = identifier(message.get("id"))
        return message["role"] == "user" and (not message_id or message_id not in self._lists.known)

    def _prompt(self, message: Message) -> list[Draft]:
        """Begin a turn. If each input is decoded by itself, the ledger detects a known prompt by its id."""
        message_id = identifier(message.get("id"))
        self._lists.known.add(message_id)
        self._calls.start_turn()
        started = self._turns.begin(message_id)
        return [Draft(started), Draft(user_message(message), witness=bool(message_id))]

    def _continue_turn(self, messages: list[Message], drafts: list[Draft]) -> list[Draft]:
        """Return the client's answers, in a turn for the agent to continue."""
        if not drafts or self._turns.phase != "idle":
            return drafts
        prompts = [identifier(message.get("id")) for message in messages if message["role"] == "user"]
        self._calls.start_turn()
        started = self._turns.begin(prompts[-1] if prompts else "")
        return [Draft(started), *drafts]

    def _settings_drafts(self, body: dict[str, Any]) -> list[Draft]:
        """Store the other content of an input raw when it changes: tools, state, context."""
        settings = {name: value for name, value in body.items() if name not in (*NAMES, "resume")}
        previous, self._settings = self._settings, value_digest(settings)
        is_odd = any(calls.answer_needs_raw(as_dict(entry)) for entry in as_list(body.get("resume")))
        is_changed = any(settings.values()) and previous != self._settings
        return _raw_drafts(body) if is_odd or is_changed else []


def _raw_drafts(body: dict[str, Any]) -> list[Draft]:
    """Return an input without its messages, which have drafts of their own."""
    return drafts_of(raw_if(True, FORMAT, {name: value for name, value in body.items() if name != "messages"}))
