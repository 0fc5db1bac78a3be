"""A response of Chat Completions while it is streamed.

Pieces of a call are known by their index, and only the first has the id and the name. Not every server keeps to that:
some send no id, one id for all, no index, index 0 for all, or the name again with every piece. Arguments are whole when
the response says why it stopped, not when they happen to be JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import arguments, as_dict, as_index, as_list, as_str, identifier, is_whole
from callslip.formats.openai.chat_words import answer_mark, spoken
from callslip.formats.providers.conversation import ModelConversation
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.rules.lifecycle import TURN_CLOSES

CUT = "the model's answer broke off before the arguments were whole"


class StreamedCall(msgspec.Struct):
    """A call as far as it has come. `last` is the last letter of its arguments, `value` are such as came as JSON."""

    aliases: tuple[Alias, ...]
    given: str
    index: int
    place: int
    name: str = ""
    pieces: list[str] = []
    last: str = ""
    value: Any = UNSET
    custom: bool = False

    @property
    def said(self) -> str:
        return "".join(self.pieces)

    @property
    def input(self) -> Any:
        """The arguments, once they are whole. Those of a custom tool are any text."""
        if self.value is not UNSET:
            return self.value
        return self.said if self.custom else arguments(self.said)


class Reply:
    """One response. `refused` says that the model declined."""

    def __init__(self, talk: ModelConversation, identity: str, chunks: ev.Chunks) -> None:
        self.identity = identity
        self.finished = False
        self.refused = False
        self.usage: Any = None
        self.calls: list[StreamedCall] = []
        self._newest: dict[int | str, StreamedCall] = {}  # By their place and by their id.
        self._talk = talk
        self._chunks: ev.Chunks = chunks
        self._said: list[str] = []
        self._speaks = False

    def delta(self, said: dict[str, Any]) -> list[Event]:
        """What a delta adds: thoughts, text, calls."""
        made: list[Event] = []
        for cls, piece in spoken(said):
            made.append(cls(text=piece, message_id=self.identity, chunks=self._chunks))
            self._speaks = True
            self._said += [piece] if cls is ev.MessageDelta else []
        self.refused = self.refused or bool(as_str(said.get("refusal")))
        for fragment in as_list(said.get("tool_calls")):
            made += self._fragment(as_dict(fragment)) if isinstance(fragment, dict) else []
        if isinstance(said.get("function_call"), dict):
            made += self._fragment({"index": 0, "function": said["function_call"]})
        return made

    # Calls

    def _fragment(self, fragment: dict[str, Any]) -> list[Event]:
        custom = as_dict(fragment.get("custom"))
        inner = custom or as_dict(fragment.get("function"))
        given, name, place = identifier(fragment.get("id")), as_str(inner.get("name")), as_index(fragment.get("index"))
        call = self._meant(place, given, name)
        begins = call is None
        call = call or self._begin(place, given)
        call.custom = call.custom or bool(custom)
        if given and not call.given:
            self._identify(call, given)
        more = _name_goes_on(call, name)
        call.name += name if more else ""
        made = [self._proposal(call)] if begins or more else []
        return made + self._more(call, inner.get("input" if custom else "arguments"))

    def _meant(self, place: int, given: str, name: str) -> StreamedCall | None:
        """The call that a piece goes on with; None if it begins one."""
        key = place if place >= 0 else given
        found = self._newest.get(key) if key != "" else self.calls[-1] if self.calls else None
        if found is None or (given and found.given and given != found.given):
            return None
        begins_anew = name and not given and found.last == "}" and is_whole(found.said)
        return None if begins_anew else found

    def _begin(self, place: int, given: str) -> StreamedCall:
        alias = self._talk.alias(given, self.identity)
        call = StreamedCall((alias,), given, len(self.calls), place)
        self.calls.append(call)
        self._newest |= {key: call for key in (place, given) if key not in (-1, "")}
        self._speaks = False  # A new entry ends the text.
        return call

    def _identify(self, call: StreamedCall, given: str) -> None:
        """An id that comes after the call was told of."""
        call.given, self._newest[given] = given, call
        call.aliases = (*call.aliases, self._talk.alias(given, self.identity))

    def _proposal(self, call: StreamedCall) -> Event:
        name = call.name or UNSET
        return ev.CallProposed(aliases=call.aliases, tool_name=name, iteration=self._talk.round, index=call.index)

    def _more(self, call: StreamedCall, more: Any) -> list[Event]:
        if isinstance(more, str) and more:
            call.pieces.append(more)
            call.last = more.rstrip()[-1:] or call.last
            return [ev.CallInputDelta(aliases=call.aliases, text=more)]
        if isinstance(more, dict | list):
            call.value = more
        return []

    # Ends

    def finish(self) -> list[Event]:
        """The response is whole, and so are the arguments of its calls."""
        made: list[Event] = [ev.CallInput(aliases=call.aliases, input=call.input) for call in self.calls]
        return self._over() + made

    def break_off(self, reason: str, why: str = "") -> list[Event]:
        """The response stops in the middle: a call whose arguments are not whole can be run by nobody."""
        closing = TURN_CLOSES.get(reason, ev.CallLost)
        detail = f"{CUT}: {why}" if why else CUT
        made: list[Event] = []
        for call in self.calls:
            whole = call.value is not UNSET or (not call.custom and is_whole(call.said))
            made.append(
                ev.CallInput(aliases=call.aliases, input=call.input)
                if whole
                else closing(aliases=call.aliases, reason=detail)
            )
        return self._over() + made

    def _over(self) -> list[Event]:
        self.finished = True
        for call in self.calls:
            self._talk.wait(call.given, call.name, call.aliases[0])
        self._talk.told.add(answer_mark([(call.given, call.name) for call in self.calls], "".join(self._said)))
        return [ev.MessageEnded()] if self._speaks else []


def _name_goes_on(call: StreamedCall, name: str) -> bool:
    """Whether a name is the next piece of one, not the same once more: names come before arguments."""
    return bool(name) and name != call.name and not call.pieces
