"""Which call an act or an observe is about, and what it says of it.

Ids decide (C3, S1.3): the execution id, else the id the model gave the call. An execution id is given once and never
opens a second call: an act that comes again after the end is late. Only where neither an act nor an observe has an id
does the tool's name tie them, within a turn, in their order; such a call is named here, `#1`, `#2`, and so on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callslip.formats.act_observe import wire
from callslip.formats.act_observe.wire import Message
from callslip.formats.json_fields import as_dict, identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event

NS = wire.FORMAT
CALL_NS = "act-observe.call"
"""The namespace of the ids that a model gives its calls: what one of them means may change with every turn."""

WAITING = ("pending", "queued", "preparing")
ACT_WORDS = ("running", *WAITING)
GOING_ON = ("running", "pending", "partial")
ENDING: dict[str, type[CallEnd]] = {
    **dict.fromkeys(("completed", "complete", "success", "succeeded", "ok", "done"), ev.CallCompleted),
    **dict.fromkeys(("failed", "failure", "error", "lost"), ev.CallFailed),
    **dict.fromkeys(("denied", "rejected"), ev.CallDenied),
    **dict.fromkeys(("cancelled", "canceled", "aborted"), ev.CallCancelled),
    **dict.fromkeys(("timeout", "timed_out", "expired"), ev.CallExpired),
}
MAX_DURATION_MS = 10**12
MAY_MAKE = (ev.CallCompleted, ev.CallFailed)


class Act(msgspec.Struct, frozen=True):
    """What an act says: of which call, that it runs or only waits, with which tool and arguments."""

    names: tuple[Alias, ...]
    cls: type[ev.CallUpdate]
    told: dict[str, Any]
    at: int = 0

    def event(self, cls: type[ev.CallUpdate]) -> Event:
        return cls(aliases=self.names, **self.told)

    def mark(self) -> str:
        """What a repeated act is known by."""
        return codec.digest(codec.encode(codec.to_json([self.names, self.told, self.cls.__name__])))


class Known(msgspec.Struct):
    """A call that was told of: in which turn, by which act first, and how far it came.

    `opening` is what that act was taken for. Of a call that was first heard of by its observe, an act only tells more.
    """

    turn: int
    opening: type[ev.CallUpdate] = ev.CallProgress
    mark: str = ""
    at: int = 0
    started: bool = False
    ended: bool = False


class Calls:
    """The calls of one conversation."""

    def __init__(self) -> None:
        self._known: dict[Alias, Known] = {}
        self._bound: dict[str, str] = {}
        self._newest: dict[str, str] = {}
        self._nameless: dict[str, deque[Alias]] = {}
        self._turn = self._invented = 0

    def turn_changed(self) -> None:
        """No name ties what is in different turns."""
        self._turn += 1
        self._nameless.clear()

    # Acts

    def act(self, message: Message) -> list[Event]:
        """Something is done, or is about to be."""
        told, names = _told(message), self._names(message, opens=True)
        if not names:
            names = (self._invent(),)
            self._nameless.setdefault(told.get("tool_name", ""), deque()).append(names[0])
        cls = ev.CallProposed if message.text("status") in WAITING else ev.CallStarted
        act = Act(names, cls, told, message.at)
        known = self._find(names)
        if known is None:
            return [self._opened(act, cls)]
        if known.turn == self._turn and known.mark == act.mark():
            return [act.event(known.opening)]  # Word for word: the ledger sees that it comes again.
        return [act.event(self._more(act, known))] if names[0].ns == NS else self._again(act, known)

    def _opened(self, act: Act, opening: type[ev.CallUpdate]) -> Event:
        started = act.cls is ev.CallStarted
        known = Known(self._turn, opening, act.mark(), act.at, started)
        self._known |= dict.fromkeys(act.names, known)
        return act.event(opening)

    def _more(self, act: Act, known: Known) -> type[ev.CallUpdate]:
        """What an act is that comes again with the same execution id and says something else."""
        starts = act.cls is ev.CallStarted and known.turn == self._turn and not (known.started or known.ended)
        known.started = known.started or starts
        return ev.CallStarted if starts else ev.CallProgress

    def _again(self, act: Act, known: Known) -> list[Event]:
        """A model's id comes again: in a later turn, or after the end, for another call (C2)."""
        if known.turn == self._turn and known.opening is ev.CallProgress:
            return [act.event(ev.CallProgress)]
        if known.turn == self._turn and not known.ended:
            return [act.event(act.cls)]
        made = [self._opened(act, ev.CallProposed)]
        return [*made, ev.CallStarted(aliases=act.names)] if act.cls is ev.CallStarted else made

    # Observes

    def observe(self, message: Message) -> list[Event]:
        """What came of it. One that no act was about stands by itself."""
        names = self._names(message)
        if message.text("status") in GOING_ON and not _failed(message):
            output = message.first(wire.OUTPUT)
            return [ev.CallProgress(aliases=names, progress=output, **_named(message))] if names else []
        names = names or self._oldest(message)
        known, cls = self._find(names), _ending(message)
        if known is not None:
            known.ended = True
            return [cls(aliases=names, at=_ended_at(message, known), **_came(message, cls))]
        self._known |= dict.fromkeys(names, Known(self._turn, ended=True))
        if issubclass(cls, MAY_MAKE):
            return [cls(aliases=names, **_named(message), **_came(message, cls))]
        names = names or (self._invent(),)
        return [ev.CallProgress(aliases=names, **_named(message)), cls(aliases=names, **_came(message, cls))]

    def _find(self, names: tuple[Alias, ...]) -> Known | None:
        return next((self._known[name] for name in names if name in self._known), None)

    # Names

    def _names(self, message: Message, *, opens: bool = False) -> tuple[Alias, ...]:
        """The ids of a message. A model's id alone means the newest execution that had it (C2).

        It is a name of the execution that had it first: another one is another call.
        """
        execution, call = _id(message, wire.EXECUTION), _id(message, wire.CALL)
        if opens and not execution and self._over(call):
            self._bound.pop(call, None)
            self._newest.pop(call, None)
        execution = execution or self._newest.get(call, "")
        names = (Alias(NS, execution),) if execution else ()
        if call and self._bound.get(call, "") in ("", execution):
            self._bound[call] = execution
            names += (Alias(CALL_NS, call),)
        if call and execution and (opens or call not in self._newest):
            self._newest[call] = execution
        return names

    def _over(self, call: str) -> bool:
        """Whether what a model's id means has ended, or is of an earlier turn."""
        known = self._find((Alias(NS, self._newest.get(call, "")), Alias(CALL_NS, call)))
        return known is not None and (known.ended or known.turn != self._turn)

    def _oldest(self, message: Message) -> tuple[Alias, ...]:
        """The oldest call without an id whose tool has this name."""
        tool = _named(message).get("tool_name")
        waiting = self._nameless.get(tool) if tool else None
        return (waiting.popleft(),) if waiting else ()

    def _invent(self) -> Alias:
        self._invented += 1
        return Alias(NS, f"#{self._invented}")


# Reading


def odd(message: Message) -> bool:
    """Whether a member is there under a name that is known, and cannot be what it is named."""
    ids = [message.said.get(name) for name in (*wire.EXECUTION, *wire.CALL)]
    texts = [message.said.get(name) for name in (*wire.TOOL, "status", "reason")]
    return (
        any(value not in (None, "") and not identifier(value) for value in ids)
        or any(not isinstance(value, str | None) for value in texts)
        or not isinstance(message.first(wire.FAILED), bool | None | UnsetType)
    )


def _id(message: Message, names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := identifier(message.said.get(name)))), "")


def _named(message: Message) -> dict[str, Any]:
    tool = message.text(*wire.TOOL)
    return {"tool_name": tool} if tool not in ("", wire.UNKNOWN) else {}


def _told(message: Message) -> dict[str, Any]:
    given = message.first(wire.INPUT)
    return {**_named(message), **({"input": given} if given is not UNSET else {})}


def _failed(message: Message) -> bool:
    return message.first(wire.FAILED) is True or bool(message.said.get("error"))


def _ending(message: Message) -> type[CallEnd]:
    """How it ended. A runtime may leave the word at `completed` and say otherwise that it failed."""
    cls = ENDING.get(message.text("status").lower(), ev.CallCompleted)
    return ev.CallFailed if cls is ev.CallCompleted and _failed(message) else cls


def _ended_at(message: Message, known: Known) -> int:
    """Its own time, or that of the act and what it took; 0 if there is nothing to count from."""
    took = message.first(wire.DURATION)
    if not known.at or message.at:
        return message.at if known.at else 0
    return int(known.at + took) if isinstance(took, int | float) and 0 <= took < MAX_DURATION_MS else 0


def _came(message: Message, cls: type[CallEnd]) -> dict[str, Any]:
    """What came out, and if it did not go well, why."""
    output = message.first(wire.OUTPUT)
    if cls is ev.CallCompleted:
        return {"output": output}
    error = message.said.get("error") or as_dict(output).get("error") or UNSET
    reason = message.text("reason") or (error if isinstance(error, str) and cls is not ev.CallFailed else "")
    return {"output": output, "error": error, "reason": reason}
