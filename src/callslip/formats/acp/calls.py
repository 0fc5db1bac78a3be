"""Tool calls and permission requests of one conversation: what each message about them says, as events.

Which call an id means, and what a message is worth to it, the ledger decides. Decided here is only what a message *is*:
a `tool_call` opens, a `tool_call_update` tells more and never opens a call that has ended.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.acp import permission, speech
from callslip.formats.acp.growing import Growing
from callslip.formats.acp.permission import PendingPermission, Question
from callslip.formats.acp.terminals import Terminals, TerminalUpdate
from callslip.formats.acp.update import ENDING, came_out, meanwhile, response, status_of, told
from callslip.formats.acp.wire import FORMAT, Message
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.lifecycle import TURN_CLOSES

FEW = 64
"""So many items of content are told one by one; the more there are beyond, the more of them come at a time."""


class Known(msgspec.Struct):
    """A call as this conversation told of it. `asked` is the request for it that waits for an answer.

    `content` is what it shows but for `streamed`, the text that came piece by piece; `shown` counts what was passed on.
    """

    turn: int
    opening: str = ""
    started: bool = False
    ended: bool = False
    asked: str = ""
    response: Any = UNSET
    content: list[Any] = []
    shown: int = 0
    streamed: Growing | None = None


class Calls:
    """All calls of one conversation."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._open: set[str] = set()
        self._asked: dict[str, PendingPermission] = {}
        self._turn = self._nameless = 0
        self.terminals = Terminals()

    def turn_started(self) -> None:
        self._turn += 1

    def turn_ended(self, reason: str) -> None:
        """What comes after the end belongs to no turn. The ledger closes what is open when a turn ends badly."""
        self._turn += 1
        if reason in TURN_CLOSES:
            for identity in list(self._open):
                self._end(identity)

    def line_ended(self, reason: str) -> None:
        """No answer will come any more."""
        self._asked.clear()
        self.turn_ended(reason)

    def opened(self, update: dict[str, Any]) -> list[Event]:
        """A `tool_call`: it opens the call, or tells anew of an open one (S2.6)."""
        identity, status = identifier(update.get("toolCallId")), status_of(update)
        if not identity:
            return self._once(update, status)
        mark = codec.digest(codec.encode(update))
        known = self._known.get(identity)
        again = known is not None and known.ended and known.turn == self._turn and known.opening == mark
        if known is None or known.turn != self._turn or (known.ended and not again):
            known = self._begin(identity, mark)
        made: list[Event] = [ev.CallProposed(aliases=alias(identity), **told(update))]
        if status in ENDING or (status == "in_progress" and not again):
            return made + self._stand(identity, known, status, {}, update)
        more = self._meanwhile(identity, known, update)
        return [*made, ev.CallProgress(aliases=alias(identity), **more)] if more else made

    def _once(self, update: dict[str, Any], status: str) -> list[Event]:
        """A call without an id is heard of once: all that is known of it is in one message (C2)."""
        self._nameless += 1
        call, more = f"new:{self._nameless}", meanwhile(update)
        made: list[Event] = [ev.CallProposed(call=call, **told(update))]
        made += [ev.CallStarted(call=call)] if status == "in_progress" else []
        if status in ENDING:
            text: list[Event] = [ev.CallProgress(call=call, text=more["text"])] if "text" in more else []
            return [*made, *text, ENDING[status](call=call, **came_out(update, response(update)))]
        return [*made, ev.CallProgress(call=call, **more)] if more else made

    def updated(self, update: dict[str, Any], version: int) -> list[Event]:
        """A `tool_call_update`. Of an unknown call it is the first that is heard (S2.6)."""
        identity, status = identifier(update.get("toolCallId")), status_of(update, version)
        if not identity:
            return []
        known = self._known.get(identity) or self._begin(identity)
        if status == "in_progress" and (known.ended or known.turn != self._turn):
            status = ""  # A start would open a new call; this only comes late.
        return self._stand(identity, known, status, told(update), update)

    def went_back(self, update: dict[str, Any]) -> bool:
        """Whether an update takes back that its call has started, which no event can say."""
        known = self._known.get(identifier(update.get("toolCallId")))
        return known is not None and known.started and not known.ended and status_of(update) == "pending"

    def goes_on(self, update: dict[str, Any]) -> bool:
        """Whether an update is about a call of this turn that has not ended, or about a terminal that one shows."""
        named = [identifier(update.get("toolCallId")), *self.terminals.of(update.get("terminalId"))]
        return any(call in self._open and self._known[call].turn == self._turn for call in named)

    def grown(self, update: dict[str, Any]) -> list[Event]:
        """Draft 2, `tool_call_content_chunk`: one more item of content. Text is appended, the rest told whole.

        Of many items all are told only when they are some more than the last time, and at the end (C12).
        """
        identity, item = identifier(update.get("toolCallId")), as_dict(update.get("content"))
        if not identity or not item:
            return []
        known = self._known.get(identity) or self._begin(identity)
        text = speech.item_text(item)
        if text is not None:
            known.streamed = known.streamed or Growing()
            known.streamed.add(text)
            return [ev.CallProgress(aliases=alias(identity), text=text)]
        known.content.append(item)
        more = self._show(identity, known, [item])
        if more or len(known.content) - known.shown > max(0, known.shown - FEW) // 8:
            known.shown, more["content"] = len(known.content), known.content[:]
        return [ev.CallProgress(aliases=alias(identity), **more)] if more else []

    def printed(self, about: TerminalUpdate | None) -> list[Event]:
        """What a terminal says, for the calls that show it and go on; if none does, for the last that showed it."""
        if about is None:
            return []
        if not about.said and (about.leaves or not about.going):
            return []
        return [ev.CallProgress(aliases=alias(call), **about.said) for call in about.calls]

    def _stand(
        self, identity: str, known: Known, status: str, said: dict[str, Any], update: dict[str, Any]
    ) -> list[Event]:
        """Where an update says that its call stands; an end is one event with all that is said of it."""
        aliases, more = alias(identity), self._meanwhile(identity, known, update)
        if status in ENDING:
            if known.shown < len(known.content):
                said = {**said, "content": known.content}
            text = more.get("text", "") + self.terminals.ending(identity)
            before: list[Event] = [ev.CallProgress(aliases=aliases, text=text)] if text else []
            exited = {"exit_status": more["exit_status"]} if "exit_status" in more else {}
            out = {**exited, **self._output(identity, known, update)}
            self._end(identity)
            return [*before, ENDING[status](aliases=aliases, **said, **out)]
        if status != "in_progress":
            return [ev.CallProgress(aliases=aliases, **said, **more)]
        known.started = True
        made = [*self._granted(identity, known), ev.CallStarted(aliases=aliases, **said)]
        return [*made, ev.CallProgress(aliases=aliases, **more)] if more else made

    def _meanwhile(self, identity: str, known: Known, update: dict[str, Any]) -> dict[str, Any]:
        """What an update brings beside its own words: what terminals printed, and text that goes on."""
        if response(update) is not UNSET:
            known.response = response(update)
        shown, more = self._show(identity, known, update.get("content")), meanwhile(update)
        text = shown.get("text", "") + more.get("text", "")
        if "content" in update:
            known.content = as_list(update["content"])[:]
            known.shown = len(known.content)
            text += (known.streamed.become(_texts(known.content)) or "") if known.streamed is not None else ""
        return {**shown, **more, **({"text": text} if text else {})}

    def _show(self, identity: str, known: Known, content: Any) -> dict[str, Any]:
        shown = self.terminals.show(identity, content)
        if known.ended:
            self.terminals.ended(identity)
        return shown

    def _output(self, identity: str, known: Known, update: dict[str, Any]) -> dict[str, Any]:
        out = came_out(update, known.response)
        whole = known.streamed.whole if known.streamed is not None else None
        shown = self.terminals.screen(identity) if whole is None else whole
        return out if "output" in out or shown is UNSET else {**out, "output": shown}

    def _granted(self, identity: str, known: Known) -> list[Event]:
        """An agent that starts a call has its answer, whoever gave it."""
        asked, known.asked = known.asked, ""
        return [ev.ApprovalGranted(aliases=alias(identity), by="agent")] if asked else []

    def _begin(self, identity: str, opening: str = "") -> Known:
        self.terminals.forget(identity)
        known = self._known[identity] = Known(turn=self._turn, opening=opening)
        self._open.add(identity)
        return known

    def _end(self, identity: str) -> None:
        known = self._known[identity]
        known.ended, known.asked, known.response = True, "", UNSET
        known.content, known.shown, known.streamed = [], 0, None
        self.terminals.ended(identity)
        self._open.discard(identity)

    # Permission

    def requested(self, message: Message, about: Question) -> list[Event]:
        """A permission request. What it says of the call is an update of the call (S2.6)."""
        shown = self.terminals.of(about.terminal)[-1:]
        identity = identifier(about.update.get("toolCallId")) or "".join(shown) or f"request:{message.key}"
        known, said = self._known.get(identity), told(about.update)
        if known is None or known.ended:
            known, said = self._begin(identity), told({**about.fresh, **about.update})
        known.asked, known.started = message.key, False
        self._asked[message.key] = permission.asked(about, identity)
        more = self._meanwhile(identity, known, about.update)
        aliases = alias(identity)
        made = ev.ApprovalRequested(aliases=aliases, options=about.options, description=about.description, **said)
        return [made, ev.CallProgress(aliases=aliases, **more)] if more else [made]

    def answered(self, message: Message) -> list[Event]:
        """The client's answer, if the request still waits for one."""
        asked = self._asked.pop(message.key, None)
        known = self._known.get(asked.call) if asked else None
        if asked is None or known is None or known.asked != message.key:
            return []
        event = permission.answer(asked, message, alias(asked.call))
        if event is None:
            return []
        known.asked = ""
        granted = isinstance(event, ev.ApprovalGranted)
        if not granted or asked.only:
            self._end(asked.call)
        done = [ev.CallCompleted(aliases=alias(asked.call))] if granted and asked.only else []
        return [event, *done]


def alias(identity: str) -> tuple[Alias, ...]:
    return (Alias(FORMAT, identity),)


def _texts(content: list[Any]) -> str:
    """The text of some content."""
    return "".join(speech.item_text(item) or "" for item in content)
