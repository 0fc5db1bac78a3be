"""A conversation with a model: its turns and rounds, the calls without a result, and the messages seen so far.

A response of the model is a round; rounds count from 0 in every turn. A turn begins with a message of the user and ends
with an answer without calls. A turn that the caller began is also ended by the caller. Providers may give a call no id,
or one that is already in use: here every call gets a unique alias, and a result finds its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from callslip.formats.base import Unfinished, drafts_of
from callslip.formats.call_tracker import TrackedCall
from callslip.formats.json_fields import identifier
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.rules.lifecycle import TURN_CLOSES

MAX_COMPARED_MESSAGES = 50
ARGUMENTS_CUT = "the model's answer broke off before the arguments were whole"


class ModelCall(TrackedCall, kw_only=True):
    """A call of a response. `id` is its id in the API, `name` its tool."""

    id: str = ""
    name: str = ""


def interrupt_with(reason: str, message: str, cause: str = "") -> Callable[[TrackedCall], Event]:
    """Return a function that ends a call of a response that was interrupted."""
    end_type = TURN_CLOSES.get(reason, ev.CallLost)
    detail = f"{message}: {cause}" if cause else message
    return lambda call: end_type(aliases=call.aliases, reason=detail)


class PendingResult(msgspec.Struct):
    """A call of the last round without a result. `is_served`: the provider runs it."""

    id: str
    name: str
    alias: Alias
    is_served: bool


class ModelConversation:
    """One conversation."""

    def __init__(self, ns: str) -> None:
        self.round = -1
        self.seen = SeenMessages()
        self._ns = ns
        self._in_turn = False
        self._unfinished = Unfinished()
        self._invented = 0
        self._used: set[str] = set()
        self._pending: list[PendingResult] = []

    def drafts(self, events: Iterable[Event], at: int = 0) -> list[Draft]:
        """Return the events of a message as drafts."""
        drafts = drafts_of(events, at)
        self._unfinished.follow(drafts)
        return drafts

    def close(self, events: Iterable[Event], reason: str, turn_reason: str = "") -> list[Draft]:
        """Return the drafts of the end of the input: events that interrupt a response, and the end of the turn."""
        drafts = self.drafts(events)
        self.end(reason)
        return drafts + self._unfinished.close(turn_reason or reason)

    # Turns and rounds

    def prompt(self) -> list[Event]:
        """Begin a turn with a user's message. Messages before the first answer belong to the same turn."""
        if self._in_turn and self.round < 0:
            return []
        self._in_turn, self.round = True, -1
        self._forget_calls()
        return [ev.TurnStarted()]

    def add_to_turn(self) -> list[Event]:
        """Read a user's message with results: it belongs to the open turn, if there is one."""
        return [] if self._in_turn else self.prompt()

    def begin_round(self) -> None:
        """Begin a response of the model."""
        self.round += 1
        self._forget_calls()

    def end(self, reason: str, detail: str = "") -> list[Event]:
        """End the turn if this conversation began it."""
        if not self._in_turn:
            return []
        self._in_turn = False
        return [ev.TurnEnded(reason=reason, detail=detail)]

    def _forget_calls(self) -> None:
        self._used.clear()
        self._pending.clear()

    # Calls

    @property
    def awaits_result(self) -> bool:
        """Return whether a call of the last response needs a result from the client."""
        return any(not call.is_served for call in self._pending)

    def new_alias(self, call_id: str, response: str) -> Alias:
        """Return the alias of a new call: its id, or an invented one if it has none or the round has it already."""
        name = call_id
        while not name or name in self._used:
            self._invented += 1
            name = identifier(f"{call_id or response}#{self._invented}")
        self._used.add(name)
        return Alias(self._ns, name)

    def await_result(self, call_id: str, name: str, alias: Alias, *, is_served: bool = False) -> None:
        """Expect the result of a call; the response itself contains it if the provider runs the call."""
        self._pending.append(PendingResult(call_id, name, alias, is_served))

    def result_target(self, call_id: str, name: str = "", *, is_served: bool = False) -> dict[str, Any]:
        """Return the fields that name the call of a result: by its id, else by its tool, else the first one.

        Each call gets one result. A result without a call may name the tool.
        """
        for call in self._pending:
            if call.is_served == is_served and (call.id == call_id if call_id else name in ("", call.name)):
                self._pending.remove(call)
                return {"aliases": (call.alias,)}
        return {"aliases": (Alias(self._ns, call_id),) if call_id else (), **({"tool_name": name} if name else {})}


class SeenMessages:
    """The messages of a conversation in their order, each by its digest. A request repeats them."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._newest: dict[str, int] = {}  # The count of messages up to the last one with a digest, inclusive.
        self._rewritten: set[str] = set()

    @property
    def last(self) -> str:
        return self._digests[-1] if self._digests else ""

    def add(self, digest: str) -> None:
        self._digests.append(digest)
        self._newest[digest] = len(self._digests)

    def count_known(self, digests: list[str]) -> int:
        """Return how many messages of a request are known: those up to the last one that was seen.

        Clients shorten and change older messages, so the search starts at the end. Of several positions of a message,
        the one with the most equal messages before it counts.
        """
        if digests[: len(self._digests)] == self._digests:
            return len(self._digests)
        last = max((self._newest.get(digest, 0) for digest in digests), default=0)
        if not last:
            return 0
        positions = [number for number, digest in enumerate(digests, 1) if digest == self._digests[last - 1]]

        def count_equal(position: int) -> int:
            limit = min(position, last, MAX_COMPARED_MESSAGES)
            return next((n for n in range(limit) if digests[position - 1 - n] != self._digests[last - 1 - n]), limit)

        return max(positions, key=lambda position: (count_equal(position), position))

    def is_rewritten(self, digests: list[str]) -> bool:
        """Return whether a message was never seen. A client repeats it, so it counts only once."""
        new = {digest for digest in digests if digest not in self._newest and digest not in self._rewritten}
        self._rewritten |= new
        return bool(new)
