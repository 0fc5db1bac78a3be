"""Tool calls, and the interrupts that ask for them: what each event about them says.

A call and its answer may stand in two runs: a run that needs an approval ends, and the next one brings the result. So
does one that calls a tool of the application: its result comes with the messages of the next input.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, structs

from callslip.formats.ag_ui.wire import ENDED, FORMAT, OPTIONS, leaves, mark, parsed
from callslip.formats.json_fields import as_dict, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event

Events: TypeAlias = list[Event]
INTERRUPT = f"{FORMAT}-interrupt"
PAYLOAD = {"approved", "reason", "editedArgs"}
ENTRY = {"interruptId", "status", "payload"}


class Call(msgspec.Struct):
    """A call as its events told of it. `pieces` are its arguments so far, `seen` of which were read this time.

    `asked` is the interrupt that waits for an answer, `closed` holds those that wait no more, `ended` marks its end.
    """

    turn: int
    proposed: bool = False
    pieces: list[str] = []
    told: int = 0
    seen: int = 0
    whole: bool = False
    asked: str = ""
    closed: set[str] = set()
    refused: bool = False
    ended: str = ""

    def waits(self) -> bool:
        """Whether the next word about it is the client's."""
        return not self.ended and bool(self.asked or self.whole)

    def begin_anew(self) -> None:
        """Its id comes again although nobody answered: other arguments follow."""
        self.pieces, self.told, self.seen, self.whole = [], 0, 0, False

    def news(self, piece: str) -> str:
        """What of a piece of its arguments was not told yet."""
        begin, self.seen = self.seen, self.seen + len(piece)
        fresh = piece[max(0, self.told - begin) :]
        self.told = max(self.told, self.seen)
        self.pieces += [fresh] if fresh else []
        return fresh


class Calls:
    """All calls of one conversation. `again` while a run is read another time."""

    def __init__(self) -> None:
        self.again = False
        self._turn = 0
        self._known: dict[str, Call] = {}
        self._opened: dict[tuple[str, str, str], Call] = {}
        self._of_turn: list[Call] = []
        self._run = ""
        self._interrupts: dict[str, str] = {}
        self._rounds: dict[str, int] = {}
        self._indexes: dict[str, int] = {}

    def turn_started(self) -> None:
        for call in self._of_turn:
            call.pieces = [] if call.whole else call.pieces  # Nobody asks for them again.
        self._turn += 1
        self._of_turn = []
        self._rounds.clear()
        self._indexes.clear()

    def run_started(self, run: str, again: bool) -> None:
        self._run, self.again = run, again
        for call in (*self._known.values(), *self._opened.values()) if again else ():
            call.seen = 0

    def knows(self, identity: str) -> bool:
        return identity in self._known

    def wait(self) -> bool:
        """Whether the client is to say how a call of this turn goes on."""
        return any(call.waits() for call in self._of_turn)

    def _heard_of(self, identity: str) -> Call:
        return self._known.get(identity) or self._new(identity)

    def _new(self, identity: str) -> Call:
        call = self._known[identity] = Call(turn=self._turn)
        self._of_turn.append(call)
        return call

    # Arguments

    def started(self, identity: str, name: str, parent: str) -> Events:
        """A call. The message that holds it is the answer of one model round."""
        place = (self._run, parent, identity)
        if self.again and place in self._opened:
            self._known[identity] = self._opened[place]
            return []
        known = self._known.get(identity)
        said: dict[str, Any] = {"tool_name": name} if name else {}
        if known is not None and known.ended and not known.proposed and known.turn == self._turn:
            known.proposed = True
            return [ev.CallInput(aliases=alias(identity), **said)]  # Its result came first: this is late.
        if known is None or known.ended or known.turn != self._turn:
            known = self._new(identity)
        elif known.whole:
            known.begin_anew()
        known.proposed = True
        self._opened[place] = known
        round_ = self._rounds.setdefault(parent, len(self._rounds)) if parent else -1
        index = self._indexes[parent] = self._indexes.get(parent, -1) + 1
        return [ev.CallProposed(aliases=alias(identity), **said, iteration=round_, index=index if parent else -1)]

    def written(self, identity: str, piece: str) -> Events:
        fresh = self._heard_of(identity).news(piece)
        return [ev.CallInputDelta(aliases=alias(identity), text=fresh)] if fresh else []

    def whole(self, identity: str) -> Events | None:
        """The arguments are complete."""
        call = self._known.get(identity)
        if call is not None and call.whole and self.again:
            return []
        if call is None or (call.whole and call.turn != self._turn):
            return None
        call.whole = True
        return [ev.CallInput(aliases=alias(identity), input=parsed("".join(call.pieces)))]

    def listed(self, identity: str, function: dict[str, Any]) -> Event:
        """A call as a message holds it, whole."""
        call = self._new(identity)
        call.proposed = call.whole = True
        return ev.CallProposed(aliases=alias(identity), **told(function))

    def over(self, identity: str, function: dict[str, Any], end: CallEnd) -> Event:
        """A call of the past, all of it in one event."""
        self._new(identity).ended = type(end).__name__
        kind = ev.CallCompleted if isinstance(end, ev.CallCompleted) else ev.CallFailed
        said: dict[str, Any] = {"output": end.output, "error": end.error, "reason": end.reason}
        return kind(aliases=alias(identity), **told(function), **said)

    # Results

    def result(self, identity: str, message: dict[str, Any]) -> Events:
        """What a tool returned, in an event or in a message."""
        end = ended(message)
        if not identity:
            return [end]  # C2: heard of once
        call, said = self._heard_of(identity), mark(end)
        if call.ended == said and self.again:
            return []
        if call.refused:
            end = ev.CallFailed(output=end.output, error=end.error)  # The agent's own words for the refusal.
        granted = self._close(identity, call, ev.ApprovalGranted, by="agent") if call.asked else []
        call.ended = said
        return [*granted, structs.replace(end, aliases=alias(identity))]

    def news(self, identity: str, message: dict[str, Any]) -> Events:
        """What a message that holds a result tells of a call that is known."""
        return [] if self._known[identity].ended else self.result(identity, message)

    # Interrupts

    def interrupted(self, interrupt: dict[str, Any]) -> Events:
        """A request for approval; an interrupt that is about no call asks for something else."""
        identity, asked = identifier(interrupt.get("toolCallId")), identifier(interrupt.get("id"))
        if not identity or not asked:
            return []
        call = self._heard_of(identity)
        if asked == call.asked or asked in call.closed:
            return []
        call.closed.add(call.asked)
        call.asked, self._interrupts[asked] = asked, identity
        reason = as_str(interrupt.get("reason"))
        description = as_str(interrupt.get("message")) or ("" if reason == "tool_call" else reason)
        aliases = (*alias(identity), Alias(INTERRUPT, asked))
        return [ev.ApprovalRequested(aliases=aliases, description=description, options=OPTIONS)]

    def resumed(self, entry: dict[str, Any]) -> Events:
        """An answer. A refusal stands in the payload; `cancelled` says that nobody answers."""
        asked, payload = identifier(entry.get("interruptId")), entry.get("payload")
        kind: type[ev.ApprovalAnswer] = ev.ApprovalGranted
        if entry.get("status") == "cancelled":
            kind = ev.ApprovalWithdrawn
        elif payload is False or as_dict(payload).get("approved") is False:
            kind = ev.ApprovalRefused
        if not asked or entry.get("status") not in ("resolved", "cancelled"):
            return []
        identity = self._interrupts.get(asked, "")
        call = self._known.get(identity)
        if call is not None and (call.ended or asked in call.closed):
            return []
        return self._close(identity, call, kind, by="client", asked=asked, payload=as_dict(payload))

    def _close(
        self,
        identity: str,
        call: Call | None,
        kind: type[ev.ApprovalAnswer],
        *,
        by: str,
        asked: str = "",
        payload: dict[str, Any] | None = None,
    ) -> Events:
        if call is not None:
            call.closed.add(call.asked)
            call.asked, call.refused = "", kind is not ev.ApprovalGranted
            call.ended = kind.__name__ if call.refused else ""
        told = payload or {}
        aliases = alias(identity) if identity else (Alias(INTERRUPT, asked),)
        option = _OPTION.get(kind, "") if by == "client" else ""
        edited = {"input": told["editedArgs"]} if kind is ev.ApprovalGranted and "editedArgs" in told else {}
        return [kind(aliases=aliases, option=option, by=by, reason=as_str(told.get("reason")), **edited)]


_OPTION: dict[type[ev.ApprovalAnswer], str] = {ev.ApprovalGranted: "approve", ev.ApprovalRefused: "deny"}


def alias(identity: str) -> tuple[Alias, ...]:
    return (Alias(FORMAT, identity),)


def told(function: dict[str, Any]) -> dict[str, Any]:
    """The name and arguments of a call in a message."""
    name, arguments = as_str(function.get("name")), function.get("arguments")
    said: dict[str, Any] = {"tool_name": name} if name else {}
    return {**said, "input": parsed(arguments) if isinstance(arguments, str) else arguments}


def ended(message: dict[str, Any]) -> CallEnd:
    """How a call ended: a message may say that it failed, an event only under `metadata.callslip`."""
    output, error = message.get("content", UNSET), as_str(message.get("error"))
    ours = as_dict(as_dict(message.get("metadata")).get("callslip"))
    kind = ENDED.get(as_str(ours.get("state")))
    if kind is not None:
        return kind(output=output, reason=as_str(ours.get("reason")))
    return ev.CallFailed(output=output, error=error) if error else ev.CallCompleted(output=output)


def says_more(entry: dict[str, Any]) -> bool:
    """Whether there is more to an answer than was taken over."""
    payload = entry.get("payload")
    odd = not isinstance(payload, bool | dict | None) or leaves(as_dict(payload), PAYLOAD)
    return odd or leaves(entry, ENTRY)
