"""The input of a run: the prompt, answers to interrupts, results of the application's tools. The rest is history."""

from __future__ import annotations

from typing import Any

from callslip.formats.ag_ui import calls
from callslip.formats.ag_ui.calls import Calls
from callslip.formats.ag_ui.messages import Listing, Message, messages_in, user_message
from callslip.formats.ag_ui.turns import Turns
from callslip.formats.ag_ui.wire import FORMAT, mark
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft, Event

NAMES = {"threadId", "runId", "messages", "protocolVersion"}
NEWS = (CallEnd, ev.ApprovalAnswer)


class Inputs:
    """All inputs of one conversation, read by themselves or where the beginning of a run repeats them."""

    def __init__(self, turns: Turns, tools: Calls, listing: Listing) -> None:
        self._turns = turns
        self._calls = tools
        self._listing = listing
        self._runs: set[str] = set()
        self._rest = ""

    def read(self, body: dict[str, Any], *, echo: bool = False) -> list[Draft] | None:
        """What is new in an input; None if it is none. An echo tells nothing of an input that was seen."""
        run = identifier(body.get("runId"))
        if not run or not isinstance(body.get("messages", body.get("resume")), list):
            return None
        if echo and run in self._runs:
            return []
        self._runs.add(run)
        made, kept = self._news(body), self._kept(body)
        return made + kept if made or kept else [Draft(_raw(body))]

    def _news(self, body: dict[str, Any]) -> list[Draft]:
        messages = messages_in(body.get("messages"))
        answers = [event for entry in as_list(body.get("resume")) for event in self._calls.resumed(as_dict(entry))]
        prompt = [] if answers else [one for one in messages[-1:] if self._is_prompt(one)]
        told = self._listing.read(messages[:-1] if prompt else messages)
        if prompt:
            return [*told, *self._prompted(prompt[0])]
        news = [Draft(event) for event in answers] + [draft for draft in told if isinstance(draft.event, NEWS)]
        old = [draft for draft in told if not isinstance(draft.event, NEWS)]
        return [*old, *self._gone_on(messages, news)]

    def _is_prompt(self, message: Message) -> bool:
        identity = identifier(message.get("id"))
        return message["role"] == "user" and (not identity or identity not in self._listing.known)

    def _prompted(self, message: Message) -> list[Draft]:
        """The prompt. Whoever reads each input by itself may have seen it: by its id the ledger knows."""
        identity = identifier(message.get("id"))
        self._listing.known.add(identity)
        self._calls.turn_started()
        begun = self._turns.begin(identity)
        return [Draft(begun), Draft(user_message(message), witness=bool(identity))]

    def _gone_on(self, messages: list[Message], news: list[Draft]) -> list[Draft]:
        """The client's answers, for the agent to go on with the turn they belong to."""
        if not news or self._turns.phase != "idle":
            return news
        prompts = [identifier(one.get("id")) for one in messages if one["role"] == "user"]
        self._calls.turn_started()
        begun = self._turns.begin(prompts[-1] if prompts else "")
        return [Draft(begun), *news]

    def _kept(self, body: dict[str, Any]) -> list[Draft]:
        """What else the run is given, the first time and whenever it is another: tools, state, context."""
        rest = {name: value for name, value in body.items() if name not in (*NAMES, "resume")}
        before, self._rest = self._rest, mark(rest)
        odd = any(calls.says_more(as_dict(entry)) for entry in as_list(body.get("resume")))
        new = any(rest.values()) and before != self._rest
        return [Draft(_raw(body))] if odd or new else []


def _raw(body: dict[str, Any]) -> Event:
    """An input without the conversation, which was told."""
    return ev.Raw(format=FORMAT, body={name: value for name, value in body.items() if name != "messages"})
