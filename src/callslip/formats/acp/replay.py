"""An agent's account of a session that it loads again: a second witness, which never overwrites the first (S2.11).

Between the request and its answer everything about messages and calls is gathered here, each of them as one, and
drafted when the answer comes. The ledger takes what is news to it. Messages of the user go without their ids: agents
give them ids only now, so that an id would make news of a message that was recorded when it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from callslip.formats.acp import speech, update
from callslip.formats.acp.calls import alias
from callslip.formats.acp.plans import entries_of
from callslip.formats.acp.terminals import Terminals, shown_in
from callslip.formats.acp.wire import FORMAT, Message
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.rules.replay_diff import RESULT_UNKNOWN
from callslip.rules.streamed_text import Proof, StreamedText, merge_chunk, settle

Json = dict[str, Any]


class ReplayedMessage(msgspec.Struct):
    """One message or thought."""

    who: str
    id: str
    text: StreamedText
    blocks: list[Any]


class Done(msgspec.Struct):
    """One call: all its updates as one, what it shows, what it printed, and the text of it that came in pieces."""

    update: Json
    content: list[Any] = []
    text: list[str] = []
    streamed: list[str] = []


class Replay:
    """What one `session/load` brings. `key` is its request, `state` how the agent says that it stands now."""

    def __init__(self, asked: Message, chunks: ev.Chunks | None) -> None:
        self.key = asked.key
        self.state: Message | None = None
        self._session = asked.session
        self._version = asked.version
        self._chunks: ev.Chunks = speech.policy(chunks, asked.version)
        self._items: list[ReplayedMessage | Done | Event] = []
        self._said: dict[tuple[str, str], ReplayedMessage] = {}
        self._done: dict[str, Done] = {}
        self._terminals = Terminals()
        self._printed: dict[str, list[Any]] = {}
        self._proven: dict[str, Proof] = {}
        self._plan = -1
        self._mode = ""
        self._bodies: list[Any] = []
        self._kept: list[Any] = []

    def take(self, read: Message) -> bool:
        """Gather a message if it is about the past."""
        told = as_dict(read.params.get("update"))
        kind = told.get("sessionUpdate")
        if read.method != "session/update" or read.session != self._session or not isinstance(kind, str):
            return False
        rule = self._GATHERED.get(kind)
        if rule is None or not rule(self, told, read):
            return False
        self._bodies.append(read.body)
        return True

    def drafts(self) -> list[Draft]:
        """All of it, in the order in which each thing was first told of, between two ends of messages."""
        made = [Draft(self._event(item), witness=True) for item in self._items if _is_said(item)]
        edge = [Draft(ev.MessageEnded(), witness=True)] if made else []
        mode = [Draft(ev.SessionMode(mode=self._mode))] if self._mode else []
        return [*edge, *made, *edge, *mode, *map(Draft, map(_raw, [*self._kept, *self._unshown()]))]

    def abandoned(self) -> list[Event]:
        """The load failed: what came of it is kept and shows nowhere."""
        return [_raw(body) for body in self._bodies]

    # Messages

    def _speak(self, told: Json, read: Message) -> bool:
        who, block = speech.CHUNKS[told["sessionUpdate"]], told.get("content")
        text = speech.text_of(block)
        if text is None or speech.leaves(told):
            self._kept.append(read.body)
        if text is None and who != speech.USER:
            return True
        said = self._speech(who, identifier(told.get("messageId")))
        said.blocks.append(block)
        change = merge_chunk(said.text, text or "", self._chunks, self._proven.get(who, ""))
        self._proven[who] = change.proof or self._proven.get(who, "")
        return True

    def _speak_anew(self, told: Json, read: Message) -> bool:
        identity = identifier(told.get("messageId"))
        if not identity or not isinstance(told.get("content", ...), list | None):
            return False
        said = self._speech(speech.WHOLE[told["sessionUpdate"]], identity)
        said.blocks = list(as_list(told["content"]))
        said.text.replace(speech.whole_text(said.blocks))
        if not said.blocks or speech.leaves_whole(told):
            self._kept.append(read.body)
        return True

    def _speech(self, who: str, identity: str) -> ReplayedMessage:
        """The message that a chunk goes on with: the one of its id, or without one the last of all."""
        last = self._items[-1] if self._items else None
        if identity:
            known = self._said.get((who, identity))
        else:
            known = last if isinstance(last, ReplayedMessage) and last.who == who and not last.id else None
        if known is None:
            known = self._said[who, identity] = ReplayedMessage(who, identity, StreamedText(), [])
            self._items.append(known)
        return known

    # Calls

    def _call(self, told: Json, read: Message) -> bool:
        """A call without an id could not be told from one that was recorded: it is kept as it came."""
        identity = identifier(told.get("toolCallId"))
        if not identity or update.leaves(told, self._version):
            self._kept.append(read.body)
        if not identity:
            return True
        done = self._known(identity, anew=told["sessionUpdate"] == "tool_call")
        done.text.append(update.printed(told))
        meta = {**as_dict(done.update.get("_meta")), **as_dict(told.get("_meta"))}
        done.update = {**done.update, **told, "_meta": meta}
        if "content" in told:
            done.content, done.streamed = list(as_list(told["content"])), []
        return True

    def _known(self, identity: str, *, anew: bool = False) -> Done:
        done = self._done.get(identity)
        if done is None or (anew and update.status_of(done.update) in update.ENDING):
            done = self._done[identity] = Done({"toolCallId": identity})
            self._items.append(done)
        return done

    def _call_grown(self, told: Json, read: Message) -> bool:
        identity, item = identifier(told.get("toolCallId")), as_dict(told.get("content"))
        if not identity or not item:
            return False
        done, text = self._known(identity), speech.item_text(item)
        if text is None:
            done.content.append(item)
        done.streamed.append(text or "")
        if speech.leaves_item(item):
            self._kept.append(read.body)
        return True

    def _terminal(self, told: Json, read: Message) -> bool:
        """What a terminal printed waits for the call that shows it."""
        rule = {"terminal_update": self._terminals.updated, "terminal_output_chunk": self._terminals.chunk}
        about = rule[told["sessionUpdate"]](told)
        if about is None:
            return False
        if about.leaves:
            self._kept.append(read.body)
        else:
            self._printed.setdefault(identifier(told["terminalId"]), []).append(read.body)
        return True

    def _unshown(self) -> list[Any]:
        """What was printed in terminals that no call shows."""
        shown = {name for done in self._items if isinstance(done, Done) for name in shown_in(done.content)}
        return [body for name, bodies in self._printed.items() if name not in shown for body in bodies]

    # The rest

    def _planned(self, told: Json, read: Message) -> bool:
        """Plans come whole: the last one stands where the first one stood."""
        removed = told["sessionUpdate"] == "plan_removed"
        entries = [] if removed else entries_of(told)
        if entries is None or (removed and self._plan < 0):
            return False
        if self._plan < 0:
            self._plan = len(self._items)
            self._items.append(ev.PlanUpdated(entries=entries))
        self._items[self._plan] = ev.PlanUpdated(entries=entries)
        if told["sessionUpdate"] != "plan":
            self._kept.append(read.body)
        return True

    def _moded(self, told: Json, read: Message) -> bool:
        """Only the last mode is one that holds."""
        mode = told.get("currentModeId")
        self._mode = mode if isinstance(mode, str) else self._mode
        return isinstance(mode, str)

    def _state(self, told: Json, read: Message) -> bool:
        """How things stand now is told when the past is."""
        if self.state is not None:
            self._kept.append(self.state.body)
        self.state = read
        return True

    # What comes of it

    def _event(self, item: ReplayedMessage | Done | Event) -> Event:
        if isinstance(item, ReplayedMessage):
            return self._message(item)
        return self._call_event(item) if isinstance(item, Done) else item

    def _message(self, said: ReplayedMessage) -> Event:
        if self._chunks == "auto" and not self._proven.get(said.who):
            settle(said.text)
        text = said.text.value()
        if said.who == speech.USER:
            rich = any(speech.text_of(block) is None for block in said.blocks)
            return speech.user_message(text, said.blocks if rich else [])
        return speech.delta(said.who, text, said.id, "delta")

    def _call_event(self, done: Done) -> Event:
        """A call that was still open then is over now: nobody goes on with it."""
        status = update.status_of(done.update, self._version)
        identity = identifier(done.update.get("toolCallId"))
        told = {**done.update, **({"content": done.content} if done.content else {})}
        said = {**update.told(told), **self._came_out(identity, done, told)}
        if status == "completed":
            return ev.CallCompleted(aliases=alias(identity), **said)
        reason = "" if status == "failed" else "cancelled" if status == "cancelled" else RESULT_UNKNOWN
        return ev.CallFailed(aliases=alias(identity), reason=reason, **said)

    def _came_out(self, identity: str, done: Done, told: Json) -> Json:
        """The output is wherever the agent put it, and else what terminals printed."""
        shown, streamed = self._terminals.show(identity, done.content), "".join(done.streamed)
        printed = "".join(done.text) + shown.get("text", "") + self._terminals.ending(identity)
        out = update.came_out(told, printed or update.response(told))
        exit_status = {"exit_status": shown["exit_status"]} if "exit_status" in shown else {}
        return {**({"output": streamed} if streamed else {}), **exit_status, **out}

    _GATHERED: ClassVar[dict[str, Callable[[Any, Json, Message], bool]]] = {
        **dict.fromkeys(speech.CHUNKS, _speak),
        **dict.fromkeys(speech.WHOLE, _speak_anew),
        "tool_call": _call,
        "tool_call_update": _call,
        "tool_call_content_chunk": _call_grown,
        "terminal_update": _terminal,
        "terminal_output_chunk": _terminal,
        "plan": _planned,
        "plan_update": _planned,
        "plan_removed": _planned,
        "current_mode_update": _moded,
        "state_update": _state,
    }


def _is_said(item: ReplayedMessage | Done | Event) -> bool:
    """Whether there is anything to an item: a message may be begun and left empty."""
    return not isinstance(item, ReplayedMessage) or item.who != speech.USER or bool(item.blocks)


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)
