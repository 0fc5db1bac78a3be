"""`responses`: reads a conversation over OpenAI's Responses, in whatever shape it was kept.

A message is a streamed event, a whole response, an item of the conversation, or the body of a request, of which only
what is news counts. Items that come by themselves do not say where a response ends: the model has the word until a
result or a person's message comes, and a turn is over once its last item asks for nothing and a person speaks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, as_index, as_list, as_str, complaint, identifier, leaves, milliseconds
from callslip.formats.openai import items as read
from callslip.formats.openai.items import FORMAT, kind_of
from callslip.formats.openai.output import Output, Speech
from callslip.formats.providers.conversation import ModelConversation
from callslip.formats.providers.requests import Requests
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Events: TypeAlias = list[Event]
Said: TypeAlias = dict[str, Any]

# What is said where: the class, the field of the item, the name of the place in it, the text when it is whole.
SPEECH: dict[str, tuple[Speech, str, str, str]] = {
    "response.output_text": (ev.MessageDelta, "content", "content_index", "text"),
    "response.refusal": (ev.MessageDelta, "content", "content_index", "refusal"),
    "response.reasoning_text": (ev.ThoughtDelta, "content", "content_index", "text"),
    "response.reasoning_summary_text": (ev.ThoughtDelta, "summary", "summary_index", "text"),
}
PIECES = {
    "response.function_call_arguments",
    "response.custom_tool_call_input",
    "response.mcp_call_arguments",
    "response.code_interpreter_call_code",
    "response.shell_call_command",
}
# Told better by the items themselves.
QUIET = {"response.content_part", "response.reasoning_summary_part", "response.shell_call_output_content"}
BROKEN = {"failed": "error", "cancelled": "cancelled"}
STATES = {"completed", "incomplete", *BROKEN}
REQUEST = {"type", "input", "previous_response_id", "event_id"}


class ResponsesDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._talk = ModelConversation(FORMAT)
        self._output = Output(self._talk, chunks or "delta")
        self._response = ""
        self._open = False
        self._model_speaks = False
        self._from_response = False
        self._heard = -1
        self._counts = False
        self._requests = Requests(FORMAT, self._talk.told, REQUEST)
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        response = as_dict(as_dict(message).get("response")) or as_dict(message)
        at = milliseconds(response.get("completed_at"))
        made = self._read(message)
        drafts = [Draft(structs.replace(event, at=at) if at else event) for event in made]
        self._unfinished.see(drafts)
        return drafts

    def close(self, reason: str) -> list[Draft]:
        """The line ended. A conversation told by its items is then over as it should be, if nothing is asked for."""
        over = reason == "eof" and self._model_speaks and not self._open and not self._output.asks
        drafts = [Draft(event) for event in self._break_off(reason)]
        self._unfinished.see(drafts)
        self._talk.ended(reason)
        return drafts + [Draft(event) for event in self._unfinished.end("end_turn" if over else reason)]

    def _read(self, message: Any) -> Events:
        said: Said = {"input": as_list(message)} if isinstance(message, list) else as_dict(message)
        kind = as_str(said.get("type"))
        if kind == "response.create":
            return self._request({**said, **as_dict(said.get("response"))})
        if kind.startswith("response."):
            return self._event(kind, said)
        if kind == "error" or (not kind and isinstance(said.get("error"), dict) and "output" not in said):
            return self._error(said)
        for name, shape, rule in self._SHAPES:
            if isinstance(said.get(name), shape):
                return rule(self, said)
        return [_raw(message)]

    # Streams

    def _event(self, kind: str, said: Said) -> Events:
        subject, _, verb = kind.rpartition(".")
        response = as_dict(said.get("response"))
        if subject == "response" and (verb in STATES or verb in ("created", "queued", "in_progress")):
            return self._stands(said, response, verb)
        if self._was_heard(said):
            return []
        made = self._begin("") if not self._open else []
        found = self._part(subject, verb, said)
        return made + ([_raw(said)] if found is None else found)

    def _was_heard(self, said: Said) -> bool:
        """Whether an event is sent again after a reconnection. Some servers number none, or give all one number."""
        count = as_index(said.get("sequence_number"))
        if 0 <= count < self._heard or (count == self._heard and self._counts):
            return True
        self._counts = self._counts or 0 <= self._heard < count
        self._heard = max(self._heard, count)
        return False

    def _part(self, subject: str, verb: str, said: Said) -> Events | None:
        """What an event tells of an item; None if that is not understood."""
        output = self._output
        if subject == "response.output_item":
            return self._item_event(verb, said)
        if subject in SPEECH and verb in ("delta", "done"):
            cls, field, place, whole = SPEECH[subject]
            piece = as_str(said.get("delta" if verb == "delta" else whole))
            return output.speech(said, cls, field, as_index(said.get(place)), piece, verb == "done")
        if subject in PIECES and verb == "delta":
            return output.piece(said)
        if subject in PIECES:
            return output.pieces_done(said) if subject.endswith(("_arguments", "_input")) and verb == "done" else []
        if subject.removeprefix("response.") in read.CALLS:
            return output.running(said, verb) if "partial_image_b64" not in said else None
        if subject == "response.shell_call_output_content" and verb == "delta":
            return output.printed(said)
        return [] if subject in QUIET else None

    def _item_event(self, verb: str, said: Said) -> Events | None:
        item = as_dict(said.get("item"))
        if verb == "added":
            return self._output.added(item, said.get("output_index"))
        made = self._output.done(item, said.get("output_index"))
        return None if made is None else made + _kept(said, _leaves(item))

    def _stands(self, said: Said, response: Said, verb: str) -> Events:
        """A response begins, goes on, or is over."""
        identity = identifier(response.get("id"))
        if identity and identity == self._response and not self._open:
            return []  # It was over already.
        goes_on = self._open and self._response in ("", identity)
        made = [] if goes_on else self._begin(identity)
        self._response = identity
        self._was_heard(said)
        return made + self._over(response, verb, said) if verb in STATES else made

    def _begin(self, identity: str) -> Events:
        made = self._break_off("error")
        self._output.begin(identity)
        self._open = self._model_speaks = self._from_response = True
        self._response, self._heard, self._counts = identity, -1, False
        return made

    def _over(self, response: Said, verb: str, said: Said) -> Events:
        """All items that the stream did not bring, what was used, and the end of the turn if nothing is asked for."""
        made: Events = []
        for place, item in enumerate(as_list(response.get("output"))):
            found = self._output.done(as_dict(item), place)
            made += [_raw(item)] if found is None else found + _kept(item, found and _leaves(as_dict(item)))
        why = complaint(response.get("error")) or as_str(as_dict(response.get("incomplete_details")).get("reason"))
        made += self._output.break_off(BROKEN[verb], why) if verb in BROKEN else self._output.finish()
        made += [ev.SessionInfo(usage=response["usage"])] if response.get("usage") else []
        self._open = False
        reason = "refusal" if self._output.refused else "end_turn"
        reason = BROKEN.get(verb) or read.REASONS.get(why, reason)
        ends = verb in BROKEN or not self._output.asks
        ended = self._talk.ended(reason, why if verb in BROKEN else "") if ends else []
        return made + ended + _kept(said, verb == "failed")

    def _break_off(self, reason: str, why: str = "") -> Events:
        if not self._open:
            return []
        self._open = False
        return self._output.break_off(reason, why)

    def _error(self, said: Said) -> Events:
        why = complaint(said.get("error") or said)
        return [*self._break_off("error", why), *self._talk.ended("error", why), _raw(said)]

    def _whole(self, said: Said) -> Events:
        """A whole response, unless it is the one that was streamed."""
        return self._stands(said, said, as_str(said.get("status")) or "completed") or [_raw(said)]

    # Items that come by themselves

    def _settle(self) -> Events:
        """Something else comes, so the response is over even if it did not say so."""
        if not self._open:
            return []
        self._open = False
        return self._output.finish() + ([] if self._output.asks else self._talk.ended("end_turn"))

    def _item(self, item: Said) -> Events:
        made = self._settle()
        kind, role = kind_of(item), as_str(item.get("role"))
        if kind == "message" and role != "assistant":
            self._talk.told.add(read.item_mark(item))
            return made + (self._prompt(item) if role == "user" else [_raw(item)])
        theirs = kind in ("message", "reasoning", read.ASKS) or kind in read.CALLS
        if theirs and self._model_speaks and self._from_response and self._output.has(item):
            return [*made, _raw(item)]  # A part of the response, told once more.
        if theirs and not self._model_speaks:
            self._output.begin("")
            self._from_response = False
        self._model_speaks = theirs
        found = self._output.done(item)
        return made + ([_raw(item)] if found is None else found + _kept(item, _leaves(item)))

    def _prompt(self, item: Said) -> Events:
        over = self._talk.ended("end_turn") if self._model_speaks and not self._output.asks else []
        self._model_speaks = False
        content = UNSET if read.is_plain(item) else item.get("content")
        said = ev.MessageUser(text=read.said_in(item), message_id=identifier(item.get("id")), content=content)
        return [*over, *self._talk.prompted(), said, *_kept(item, leaves(item, read.MESSAGE))]

    def _request(self, said: Said) -> Events:
        given = said.get("input")
        listed = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given)
        made = self._settle()
        goes_on = bool(said.get("previous_response_id") or said.get("conversation"))  # The server keeps the past.
        known, kept = self._requests.read(said, [read.item_mark(item) for item in listed], is_news=goes_on)
        for item in listed[known:]:
            told = as_dict(item)
            made += self._item(told) if kind_of(told) else [_raw(item)]
        return made + kept

    _SHAPES: ClassVar[tuple[tuple[str, Any, Callable[[Any, Said], Events]], ...]] = (
        ("type", str, _item),
        ("output", list, _whole),
        ("input", (str, list), _request),
        ("role", str, _item),
    )


def _leaves(item: Said) -> bool:
    """Whether an item says more than is taken of it."""
    kind = kind_of(item)
    if kind in read.CALLS:
        return read.call_leaves(item)
    if kind in read.RESULTS:
        return read.result_leaves(item)
    return read.speech_leaves(item) if kind == "message" else kind == "reasoning" and leaves(item, read.REASONING)


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)


def _kept(body: Any, more: object) -> Events:
    """The message, whole, beside what was made of it."""
    return [_raw(body)] if more else []
