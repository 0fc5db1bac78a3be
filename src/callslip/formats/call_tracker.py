"""Track the calls that a decoder has seen.

A decoder must know what earlier messages stated about a call to know what the next message adds: whether the call is
open, how far it has come, its arguments so far and its pending approval request. Facts that only one format has are
fields of a subclass of `TrackedCall`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd

ENDED = "ended"
RESULT_UNKNOWN = "the history does not tell how this call ended"

# The ends of calls without a result of their tool, by the state of the call.
ENDS_WITHOUT_RESULT: dict[str, type[CallEnd]] = {
    "denied": ev.CallDenied,
    "cancelled": ev.CallCancelled,
    "expired": ev.CallExpired,
    "lost": ev.CallLost,
}


class TrackedCall(msgspec.Struct, kw_only=True):
    """The state of a call.

    `turn` counts the turns up to the one that opened it. `end` identifies its end and is "" while it is open.
    `is_served` is true if the provider of the model runs it.
    """

    aliases: tuple[Alias, ...] = ()
    turn: int = 0
    is_proposed: bool = False
    is_started: bool = False
    is_served: bool = False
    is_refused: bool = False
    end: str = ""
    input_pieces: list[str] = []
    input: Any = UNSET
    is_input_complete: bool = False
    pending_request: str = ""
    closed_requests: set[str] = set()

    @property
    def input_text(self) -> str:
        """Return the arguments as far as they were streamed."""
        return "".join(self.input_pieces)

    @property
    def awaits_client(self) -> bool:
        """Return whether the client must act next: approve the call, or run it."""
        return not self.end and bool(self.pending_request or (self.is_input_complete and not self.is_served))

    def has_answer(self, request: str) -> bool:
        """Return whether an approval request needs no answer any more."""
        return bool(self.end) or request in self.closed_requests

    def close_request(self) -> None:
        """Mark the pending approval request as answered."""
        self.closed_requests.add(self.pending_request)
        self.pending_request = ""


KeyT = TypeVar("KeyT", bound=Hashable)
CallT = TypeVar("CallT", bound=TrackedCall)


class CallTracker(Generic[KeyT, CallT]):
    """The calls of one conversation by the keys that its messages use. A key names the newest call opened under it.

    `turn_calls` are the calls opened in the current turn.
    """

    def __init__(self, call_type: type[CallT]) -> None:
        self.turn = 0
        self.turn_calls: list[CallT] = []
        self._call_type = call_type
        self._calls: dict[KeyT, CallT] = {}
        self._openings: dict[KeyT, int] = {}
        self._requests: dict[str, KeyT] = {}
        self._invented = 0

    def start_turn(self) -> None:
        """Count a turn: calls opened before belong to an earlier one."""
        self.turn += 1
        self.turn_calls = []

    def is_of_turn(self, call: TrackedCall) -> bool:
        """Return whether a call was opened in the current turn."""
        return call.turn == self.turn

    def find(self, *keys: KeyT) -> CallT | None:
        """Return the call of the first key that names one."""
        return next((self._calls[key] for key in keys if key in self._calls), None)

    def open(self, *keys: KeyT, **fields: Any) -> CallT:
        """Open a new call under some keys."""
        call = self._call_type(turn=self.turn, **fields)
        self.turn_calls.append(call)
        return self.add(call, *keys)

    def find_or_open(self, key: KeyT) -> CallT:
        """Return the call of a key, opening one that no message has opened."""
        return self.find(key) or self.open(key)

    def add(self, call: CallT, *keys: KeyT) -> CallT:
        """Let some keys name a call from now on."""
        self._calls.update(dict.fromkeys(keys, call))
        return call

    def count_opening(self, key: KeyT) -> int:
        """Count the use of a key by one more call and return how many used it."""
        self._openings[key] = self._openings.get(key, 0) + 1
        return self._openings[key]

    def calls(self) -> list[tuple[KeyT, CallT]]:
        """Return the newest call of each key."""
        return list(self._calls.items())

    def open_calls(self) -> list[tuple[KeyT, CallT]]:
        """Return the calls that have not ended."""
        return [(key, call) for key, call in self._calls.items() if not call.end]

    def invent_id(self) -> str:
        """Return an id for a call whose messages have none."""
        self._invented += 1
        return f"#{self._invented}"

    def forget(self) -> None:
        """Drop all calls. Invented ids stay unique."""
        self._calls.clear()

    def add_request(self, request: str, key: KeyT, call: CallT) -> bool:
        """Make an approval request the pending one of a call. Return False if the call had this request before."""
        if request == call.pending_request or request in call.closed_requests:
            return False
        call.closed_requests.add(call.pending_request)
        call.pending_request, self._requests[request] = request, key
        return True

    def find_request(self, request: str) -> KeyT | None:
        """Return the key of the call that an approval request is about."""
        return self._requests.get(request)
