"""Find the call of an act or an observe, and turn the message into events.

Ids decide: the execution id, else the id that the model gave the call. An execution id is used once and never opens a
second call: an act that is repeated after the end is late. Only if neither an act nor an observe has an id, the tool
name connects them within a turn, in their order; such a call gets an invented id, `#1`, `#2` and so on.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from callslip.formats.act_observe import wire
from callslip.formats.act_observe.wire import Message
from callslip.formats.call_tracker import ENDED, CallTracker, TrackedCall
from callslip.formats.json_fields import as_dict, identifier
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event
from callslip.model.names import EXECUTION_NAMESPACE as NS
from callslip.model.names import MODEL_CALL_NAMESPACE as CALL_NS

WAITING = ("pending", "queued", "preparing")
ACT_STATUSES = ("running", *WAITING)
OPEN_STATUSES = ("running", "pending", "partial")
ENDING: dict[str, type[CallEnd]] = {
    **dict.fromkeys(("completed", "complete", "success", "succeeded", "ok", "done"), ev.CallCompleted),
    **dict.fromkeys(("failed", "failure", "error", "lost"), ev.CallFailed),
    **dict.fromkeys(("denied", "rejected"), ev.CallDenied),
    **dict.fromkeys(("cancelled", "canceled", "aborted"), ev.CallCancelled),
    **dict.fromkeys(("timeout", "timed_out", "expired"), ev.CallExpired),
}
MAX_DURATION_MS = 10**12
SHARED = "\0"
"""Instead of an execution: several executions had the id of the model. No id has this character."""
OPENING_ENDS = (ev.CallCompleted, ev.CallFailed)
"""The ends that the ledger accepts as the first event of a call."""


class Act(msgspec.Struct, frozen=True):
    """An act: the names of its call, whether the call starts or only waits, its tool and its arguments."""

    names: tuple[Alias, ...]
    event_type: type[ev.CallUpdate]
    fields: dict[str, Any]
    at: int = 0

    def event(self, event_type: type[ev.CallUpdate]) -> Event:
        return event_type(aliases=self.names, **self.fields)

    def digest(self) -> str:
        """Return a digest by which a repeated act is recognized."""
        return codec.digest(codec.encode(codec.to_json([self.names, self.fields, self.event_type.__name__])))


class ActCall(TrackedCall, kw_only=True):
    """A call. `opening` is the event type and `act` the digest of its first act, `at` its time.

    An act only adds to a call that was opened by its observe.
    """

    opening: type[ev.CallUpdate] = ev.CallProgress
    act: str = ""
    at: int = 0


class Calls:
    """The calls of one conversation."""

    def __init__(self) -> None:
        self._calls: CallTracker[Alias, ActCall] = CallTracker(ActCall)
        self._first_executions: dict[str, str] = {}
        self._newest_executions: dict[str, str] = {}
        self._unnamed: dict[str, deque[Alias]] = {}

    def change_turn(self) -> None:
        """Begin or end a turn: tool names do not connect messages of different turns."""
        self._calls.start_turn()
        self._unnamed.clear()

    # Acts

    def act(self, message: Message) -> list[Event]:
        """Read an act: a call runs or will run."""
        arguments, names = message.first(wire.INPUT), self._names(message, opens=True)
        fields = {**_tool_field(message), **({"input": arguments} if arguments is not UNSET else {})}
        if not names:
            names = (self._invent_name(),)
            self._unnamed.setdefault(fields.get("tool_name", ""), deque()).append(names[0])
        event_type = ev.CallProposed if message.text("status") in WAITING else ev.CallStarted
        act = Act(names, event_type, fields, message.at)
        call = self._calls.find(*names)
        if call is None:
            return self._open_shared(act, message) or [self._open(act, event_type)]
        if self._calls.is_of_turn(call) and call.act == act.digest():
            return [act.event(call.opening)]  # An exact repetition: the ledger detects it.
        return [act.event(self._repeated_type(act, call))] if names[0].ns == NS else self._reuse(act, call)

    def _open(self, act: Act, opening: type[ev.CallUpdate]) -> Event:
        is_started = act.event_type is ev.CallStarted
        self._calls.open(*act.names, opening=opening, act=act.digest(), at=act.at, is_started=is_started)
        return act.event(opening)

    def _open_shared(self, act: Act, message: Message) -> list[Event]:
        """Open a call whose model id another execution had; [] for any other call.

        The model's id follows when the call exists: in its first event it would name the other call.
        """
        call_id, execution = _first_id(message, wire.CALL), act.names[0]
        if not call_id or execution.ns != NS or Alias(CALL_NS, call_id) in act.names:
            return []
        self._first_executions[call_id] = SHARED
        next_type = ev.CallStarted if act.event_type is ev.CallStarted else ev.CallProgress
        return [self._open(act, ev.CallProposed), next_type(aliases=(execution, Alias(CALL_NS, call_id)))]

    def _repeated_type(self, act: Act, call: ActCall) -> type[ev.CallUpdate]:
        """Return the event type of another act with the same execution id and different content."""
        can_start = self._calls.is_of_turn(call) and not (call.is_started or call.end)
        starts = act.event_type is ev.CallStarted and can_start
        call.is_started = call.is_started or starts
        return ev.CallStarted if starts else ev.CallProgress

    def _reuse(self, act: Act, call: ActCall) -> list[Event]:
        """Read an act whose model id is known: in a later turn, or after the end, it opens another call."""
        if self._calls.is_of_turn(call) and call.opening is ev.CallProgress:
            return [act.event(ev.CallProgress)]
        if self._calls.is_of_turn(call) and not call.end:
            return [act.event(act.event_type)]
        opened = self._open(act, ev.CallProposed)
        return [opened, ev.CallStarted(aliases=act.names)] if act.event_type is ev.CallStarted else [opened]

    # Observes

    def observe(self, message: Message) -> list[Event]:
        """Read the result of a call. A result without an act is a call of its own."""
        names = self._names(message)
        if message.text("status") in OPEN_STATUSES and not _is_failed(message):
            output = message.first(wire.OUTPUT)
            return [ev.CallProgress(aliases=names, progress=output, **_tool_field(message))] if names else []
        names = names or self._oldest_unnamed(message)
        call, end_type = self._calls.find(*names), _end_type(message)
        if call is not None:
            call.end = ENDED
            return [end_type(aliases=names, at=_end_time(message, call), **_result_fields(message, end_type))]
        self._calls.open(*names, end=ENDED)
        if issubclass(end_type, OPENING_ENDS):
            return [end_type(aliases=names, **_tool_field(message), **_result_fields(message, end_type))]
        names = names or (self._invent_name(),)
        opened = ev.CallProgress(aliases=names, **_tool_field(message))
        return [opened, end_type(aliases=names, **_result_fields(message, end_type))]

    # Names

    def _names(self, message: Message, *, opens: bool = False) -> tuple[Alias, ...]:
        """Return the ids of a message. A model's id alone names the newest execution that had it.

        It is an alias only of the first execution that had it: another execution is another call.
        """
        execution, call_id = _first_id(message, wire.EXECUTION), _first_id(message, wire.CALL)
        if opens and not execution and self._is_over(call_id):
            self._first_executions.pop(call_id, None)
            self._newest_executions.pop(call_id, None)
        execution = execution or self._newest_executions.get(call_id, "")
        names = (Alias(NS, execution),) if execution else ()
        if call_id and self._first_executions.get(call_id, "") in ("", execution):
            self._first_executions[call_id] = execution
            names += (Alias(CALL_NS, call_id),)
        if call_id and execution and (opens or call_id not in self._newest_executions):
            self._newest_executions[call_id] = execution
        return names

    def _is_over(self, call_id: str) -> bool:
        """Return whether the call of a model's id has ended or belongs to an earlier turn."""
        call = self._calls.find(Alias(NS, self._newest_executions.get(call_id, "")), Alias(CALL_NS, call_id))
        return call is not None and (bool(call.end) or not self._calls.is_of_turn(call))

    def _oldest_unnamed(self, message: Message) -> tuple[Alias, ...]:
        """Return the name of the oldest call without an id whose tool has this name."""
        tool = _tool_field(message).get("tool_name")
        waiting = self._unnamed.get(tool) if tool else None
        return (waiting.popleft(),) if waiting else ()

    def _invent_name(self) -> Alias:
        return Alias(NS, self._calls.invent_id())


# Fields


def has_odd_fields(message: Message) -> bool:
    """Return whether a known field has a value of another type than it should have."""
    ids = [message.fields.get(name) for name in (*wire.EXECUTION, *wire.CALL)]
    texts = [message.fields.get(name) for name in (*wire.TOOL, "status", "reason")]
    return (
        any(value not in (None, "") and not identifier(value) for value in ids)
        or any(not isinstance(value, str | None) for value in texts)
        or not isinstance(message.first(wire.FAILED), bool | None | UnsetType)
        or (message.first(wire.DURATION) not in (None, UNSET) and _duration_ms(message) is UNSET)
    )


def _first_id(message: Message, names: tuple[str, ...]) -> str:
    return next(filter(None, (identifier(message.fields.get(name)) for name in names)), "")


def _tool_field(message: Message) -> dict[str, Any]:
    tool = message.text(*wire.TOOL)
    return {"tool_name": tool} if tool not in ("", wire.UNKNOWN) else {}


def _is_failed(message: Message) -> bool:
    return message.first(wire.FAILED) is True or bool(message.fields.get("error"))


def _end_type(message: Message) -> type[CallEnd]:
    """Return how the call ended. A runtime may set the status to `completed` and report a failure in another field."""
    end_type = ENDING.get(message.text("status").lower(), ev.CallCompleted)
    return ev.CallFailed if end_type is ev.CallCompleted and _is_failed(message) else end_type


def _end_time(message: Message, call: ActCall) -> int:
    """Return the time of the end: its own, or that of the act plus the duration; 0 if unknown."""
    if not call.at or message.at:
        return message.at if call.at else 0
    duration = _duration_ms(message)
    return 0 if duration is UNSET else int(call.at + duration)


def _duration_ms(message: Message) -> int | float | UnsetType:
    """Return how long the call took; UNSET if the message has no valid duration."""
    duration = message.first(wire.DURATION)
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    return duration if is_number and 0 <= duration < MAX_DURATION_MS else UNSET


def _result_fields(message: Message, end_type: type[CallEnd]) -> dict[str, Any]:
    """Return the output, the duration and, after a failure, the reason."""
    output, duration = message.first(wire.OUTPUT), _duration_ms(message)
    if end_type is ev.CallCompleted:
        return {"output": output, "duration_ms": duration}
    error = message.fields.get("error") or as_dict(output).get("error") or UNSET
    reason = message.text("reason") or (error if isinstance(error, str) and end_type is not ev.CallFailed else "")
    return {"output": output, "error": error, "reason": reason, "duration_ms": duration}
