"""An agent's account of a session that it loads again: a second witness, which never overwrites the first (S2.11).

Between the request and its answer everything about messages and calls is gathered here, each of them as one, and
drafted when the answer comes. The ledger takes what is news to it. Messages of the user go without their ids: agents
give them ids only now, so that an id would make news of a message that was recorded when it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from callslip import events as ev
from callslip.events import Draft, Event
from callslip.formats.acp import calls
from callslip.formats.acp.speech import SPEAKS, leaves, text_of, user_message
from callslip.formats.acp.wire import FORMAT, Message, fields, identifier
from callslip.text import Proof, Text, merge, settle

UNTOLD = "the agent's replay does not tell how this call ended"


class Said(msgspec.Struct):
    """One message or thought."""

    kind: str
    id: str
    text: Text
    blocks: list[Any]


class Done(msgspec.Struct):
    """One call: all its updates as one, and what it printed."""

    update: dict[str, Any]
    text: str = ""


class Replay:
    """What one `session/load` brings. `key` is its request."""

    def __init__(self, asked: Message, chunks: ev.Chunks | None) -> None:
        self.key = asked.key
        self._session = asked.session
        self._chunks: ev.Chunks = chunks or "auto"
        self._items: list[Said | Done | Event] = []
        self._said: dict[tuple[str, str], Said] = {}
        self._done: dict[str, Done] = {}
        self._proven: dict[str, Proof] = {}
        self._plan = -1
        self._mode = ""
        self._bodies: list[Any] = []
        self._kept: list[Any] = []

    def take(self, read: Message) -> bool:
        """Gather a message if it is about the past."""
        update = fields(read.params.get("update"))
        kind = update.get("sessionUpdate")
        if read.method != "session/update" or read.session != self._session or not isinstance(kind, str):
            return False
        rule = self._GATHERED.get(kind)
        if rule is None or not rule(self, kind, update, read):
            return False
        self._bodies.append(read.body)
        return True

    def drafts(self) -> list[Draft]:
        """All of it, in the order in which each thing was first told of."""
        made = [Draft(self._event(item), witness=True) for item in self._items]
        ended = [Draft(ev.MessageEnded(), witness=True)] if made else []
        mode = [Draft(ev.SessionMode(mode=self._mode))] if self._mode else []
        return [*made, *ended, *mode, *map(Draft, map(_raw, self._kept))]

    def abandoned(self) -> list[Event]:
        """The load failed: what came of it is kept and shows nowhere."""
        return [_raw(body) for body in self._bodies]

    def _speak(self, kind: str, update: dict[str, Any], read: Message) -> bool:
        block, text = update.get("content"), text_of(update.get("content"))
        if text is None or leaves(update):
            self._kept.append(read.body)
        if text is None and kind != "user_message_chunk":
            return True
        said = self._speech(kind, identifier(update.get("messageId")))
        said.blocks.append(block)
        change = merge(said.text, text or "", self._chunks, self._proven.get(kind, ""))
        self._proven[kind] = change.proof or self._proven.get(kind, "")
        return True

    def _speech(self, kind: str, identity: str) -> Said:
        """The message that a chunk goes on with: the one of its id, or without one the last of all."""
        last = self._items[-1] if self._items else None
        if identity:
            known = self._said.get((kind, identity))
        else:
            known = last if isinstance(last, Said) and last.kind == kind and not last.id else None
        if known is None:
            known = self._said[kind, identity] = Said(kind, identity, Text(), [])
            self._items.append(known)
        return known

    def _call(self, kind: str, update: dict[str, Any], read: Message) -> bool:
        identity = identifier(update.get("toolCallId"))
        if not identity:
            return False
        done = self._done.get(identity)
        if done is None or (kind == "tool_call" and calls.status_of(done.update) in calls.ENDING):
            done = self._done[identity] = Done({})
            self._items.append(done)
        done.text += calls.printed(update)
        meta = {**fields(done.update.get("_meta")), **fields(update.get("_meta"))}
        done.update = {**done.update, **update, "_meta": meta}
        if calls.leaves(update):
            self._kept.append(read.body)
        return True

    def _planned(self, kind: str, update: dict[str, Any], read: Message) -> bool:
        """Plans come whole: the last one stands where the first one stood."""
        if not isinstance(update.get("entries"), list):
            return False
        plan = ev.PlanUpdated(entries=update["entries"])
        if self._plan < 0:
            self._plan = len(self._items)
            self._items.append(plan)
        self._items[self._plan] = plan
        return True

    def _moded(self, kind: str, update: dict[str, Any], read: Message) -> bool:
        """Only the last mode is one that holds."""
        mode = update.get("currentModeId")
        self._mode = mode if isinstance(mode, str) else self._mode
        return isinstance(mode, str)

    def _event(self, item: Said | Done | Event) -> Event:
        if isinstance(item, Said):
            return self._message(item)
        return _call_event(item) if isinstance(item, Done) else item

    def _message(self, said: Said) -> Event:
        if self._chunks == "auto" and not self._proven.get(said.kind):
            settle(said.text)
        text = said.text.value()
        if said.kind == "user_message_chunk":
            rich = any(text_of(block) is None for block in said.blocks)
            return user_message(text, said.blocks if rich else [])
        cls = ev.MessageDelta if said.kind == "agent_message_chunk" else ev.ThoughtDelta
        return cls(text=text, message_id=said.id, chunks="delta")

    _GATHERED: ClassVar[dict[str, Callable[[Any, str, dict[str, Any], Message], bool]]] = {
        **dict.fromkeys(SPEAKS, _speak),
        "tool_call": _call,
        "tool_call_update": _call,
        "plan": _planned,
        "current_mode_update": _moded,
    }


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)


def _call_event(done: Done) -> Event:
    """A call that was still open then is over now: nobody goes on with it."""
    status = calls.status_of(done.update)
    aliases = calls.alias(identifier(done.update.get("toolCallId")))
    otherwise = done.text or calls.response(done.update)
    said = {**calls.told(done.update), **calls.came_out(done.update, otherwise)}
    if status == "completed":
        return ev.CallCompleted(aliases=aliases, **said)
    reason = "" if status == "failed" else "cancelled" if status == "cancelled" else UNTOLD
    return ev.CallFailed(aliases=aliases, reason=reason, **said)
