"""Decode `responses`: a conversation over OpenAI's Responses API in any recorded shape.

A message is a streamed event, a full response, an item of the conversation, or the body of a request, of which only
new items count. Single items do not show where a response ends: it lasts until a result or a user's message, and a turn
is over if its last item needs nothing from the client and the user sends another message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET

from callslip.formats.base import DeltaType, Events
from callslip.formats.json_fields import (
    Fields,
    as_dict,
    as_index,
    as_list,
    as_str,
    error_text,
    has_other_content,
    identifier,
    seconds_to_ms,
)
from callslip.formats.openai import responses_items as items
from callslip.formats.openai.responses_items import FORMAT, kind_of, needs_raw
from callslip.formats.openai.responses_output import Output
from callslip.formats.providers.decoder import ModelDecoder, usage_events
from callslip.model import events as ev
from callslip.model.events import Draft

# Events about texts: the delta type, the field of the item, the name of the index in it, the name of the full text.
TEXTS: dict[str, tuple[DeltaType, str, str, str]] = {
    "response.output_text": (ev.MessageDelta, "content", "content_index", "text"),
    "response.refusal": (ev.MessageDelta, "content", "content_index", "refusal"),
    "response.reasoning_text": (ev.ThoughtDelta, "content", "content_index", "text"),
    "response.reasoning_summary_text": (ev.ThoughtDelta, "summary", "summary_index", "text"),
}
INPUT_PIECES = {
    "response.function_call_arguments",
    "response.custom_tool_call_input",
    "response.mcp_call_arguments",
    "response.code_interpreter_call_code",
    "response.shell_call_command",
}
# Events whose content the items repeat.
REDUNDANT = {"response.content_part", "response.reasoning_summary_part", "response.shell_call_output_content"}
FAILURES = {"failed": "error", "cancelled": "cancelled"}
END_STATES = {"completed", "incomplete", *FAILURES}
REQUEST_FIELDS = {"type", "input", "previous_response_id", "event_id"}


class ResponsesDecoder(ModelDecoder):
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(FORMAT, items.item_digest, chunks, REQUEST_FIELDS)
        self._output = Output(self._conversation, self._chunks)
        self._response = ""
        self._is_open = False
        self._is_model_active = False
        self._is_from_response = False
        self._last_sequence = -1
        self._has_sequence = False

    def feed(self, message: Any) -> list[Draft]:
        response = as_dict(as_dict(message).get("response")) or as_dict(message)
        return self._conversation.drafts(self._read(message), seconds_to_ms(response.get("completed_at")))

    def close(self, reason: str) -> list[Draft]:
        """End the conversation. One of single items ends normally if it needs nothing from the client."""
        is_complete = self._is_model_active and not self._is_open and not self._output.awaits_client
        turn_reason = "end_turn" if reason == "eof" and is_complete else reason
        return self._conversation.close(self._interrupt(reason), reason, turn_reason)

    def holds_input(self) -> bool:
        return self._is_open

    def _read(self, message: Any) -> Events:
        fields: Fields = {"input": as_list(message)} if isinstance(message, list) else as_dict(message)
        kind = as_str(fields.get("type"))
        if kind == "response.create":
            return self._request({**fields, **as_dict(fields.get("response"))})
        if kind.startswith("response."):
            return self._event(kind, fields)
        if kind == "error" or (not kind and isinstance(fields.get("error"), dict) and "output" not in fields):
            return self._fail(error_text(fields.get("error") or fields), fields)
        for name, value_type, handler in self._SHAPES:
            if isinstance(fields.get(name), value_type):
                return handler(self, fields)
        return self._raw_if(True, message)

    # Streams

    def _event(self, kind: str, fields: Fields) -> Events:
        subject, _, verb = kind.rpartition(".")
        response = as_dict(fields.get("response"))
        if subject == "response" and (verb in END_STATES or verb in ("created", "queued", "in_progress")):
            return self._state(fields, response, verb)
        if self._is_repeated(fields):
            return []
        started = self._begin("") if not self._is_open else []
        events = self._item_part(subject, verb, fields)
        return started + (self._raw_if(True, fields) if events is None else events)

    def _is_repeated(self, fields: Fields) -> bool:
        """Return whether an event is sent again after a reconnection. Some servers send no numbers or one for all."""
        sequence = as_index(fields.get("sequence_number"))
        if 0 <= sequence < self._last_sequence or (sequence == self._last_sequence and self._has_sequence):
            return True
        self._has_sequence = self._has_sequence or 0 <= self._last_sequence < sequence
        self._last_sequence = max(self._last_sequence, sequence)
        return False

    def _item_part(self, subject: str, verb: str, fields: Fields) -> Events | None:
        """Return the events of an event about an item; None if it is not understood."""
        output = self._output
        if subject == "response.output_item":
            return self._item_event(verb, fields)
        if subject in TEXTS and verb in ("delta", "done"):
            delta_type, field, index, full_text = TEXTS[subject]
            text = as_str(fields.get("delta" if verb == "delta" else full_text))
            return output.add_text(fields, delta_type, field, as_index(fields.get(index)), text, verb == "done")
        if subject in INPUT_PIECES and verb == "delta":
            return output.add_input(fields)
        if subject in INPUT_PIECES:
            is_full_input = subject.endswith(("_arguments", "_input")) and verb == "done"
            return output.end_input(fields) if is_full_input else []
        if subject.removeprefix("response.") in items.CALLS:
            return output.set_running(fields, verb) if "partial_image_b64" not in fields else None
        if subject == "response.shell_call_output_content" and verb == "delta":
            return output.add_printed(fields)
        return [] if subject in REDUNDANT else None

    def _item_event(self, verb: str, fields: Fields) -> Events | None:
        item = as_dict(fields.get("item"))
        if verb == "added":
            return self._output.add(item, fields.get("output_index"))
        events = self._output.complete(item, fields.get("output_index"))
        return None if events is None else events + self._raw_if(needs_raw(item), fields)

    def _state(self, fields: Fields, response: Fields, state: str) -> Events:
        """Read the state of a response: it begins, continues, or ends."""
        response_id = identifier(response.get("id"))
        if response_id and response_id == self._response and not self._is_open:
            return []  # It has ended before.
        is_current = self._is_open and self._response in ("", response_id)
        started = [] if is_current else self._begin(response_id)
        self._response = response_id
        self._is_repeated(fields)
        return started + self._end(response, state, fields) if state in END_STATES else started

    def _begin(self, response_id: str) -> Events:
        interrupted = self._interrupt("error")
        self._output.begin(response_id)
        self._is_open = self._is_model_active = self._is_from_response = True
        self._response, self._last_sequence, self._has_sequence = response_id, -1, False
        return interrupted

    def _end(self, response: Fields, state: str, fields: Fields) -> Events:
        """Read the items that the stream did not contain and the usage; end the turn if the client need not act."""
        events: Events = []
        for index, item in enumerate(as_list(response.get("output"))):
            item_events = self._output.complete(as_dict(item), index)
            is_raw = item_events is None or (item_events and needs_raw(as_dict(item)))
            events += [*(item_events or []), *self._raw_if(is_raw, item)]
        incomplete_reason = as_str(as_dict(response.get("incomplete_details")).get("reason"))
        cause = error_text(response.get("error")) or incomplete_reason
        failure = FAILURES.get(state, "")
        events += self._output.interrupt(failure, cause) if failure else self._output.finish()
        events += usage_events(response.get("usage"), identifier(response.get("id")), response.get("model"))
        self._is_open = False
        reason = failure or items.REASONS.get(cause, "refusal" if self._output.is_refused else "end_turn")
        if failure or not self._output.awaits_client:
            events += self._conversation.end(reason, cause if failure else "")
        return events + self._raw_if(state == "failed", fields)

    def _interrupt(self, reason: str, cause: str = "") -> Events:
        if not self._is_open:
            return []
        self._is_open = False
        return self._output.interrupt(reason, cause)

    def _full_response(self, fields: Fields) -> Events:
        """Read a full response, unless it is the one that was streamed."""
        return self._state(fields, fields, as_str(fields.get("status")) or "completed") or self._raw_if(True, fields)

    # Single items

    def _settle(self) -> Events:
        if not self._is_open:
            return []
        self._is_open = False
        return self._output.finish() + ([] if self._output.awaits_client else self._conversation.end("end_turn"))

    def _is_item(self, value: Any) -> bool:
        return bool(kind_of(as_dict(value)))

    def _read_item(self, item: Fields) -> Events:
        events = self._settle()
        kind, role = kind_of(item), as_str(item.get("role"))
        if kind == "message" and role != "assistant":
            self._conversation.seen.add(items.item_digest(item))
            return events + (self._prompt(item) if role == "user" else self._raw_if(True, item))
        is_models = kind in ("message", "reasoning", items.REQUEST) or kind in items.CALLS
        if is_models and self._is_model_active and self._is_from_response and self._output.has(item):
            return events + self._raw_if(True, item)  # A part of the response, sent again.
        if is_models and not self._is_model_active:
            self._output.begin("")
            self._is_from_response = False
        self._is_model_active = is_models
        item_events = self._output.complete(item)
        return events + (item_events or []) + self._raw_if(item_events is None or needs_raw(item), item)

    def _prompt(self, item: Fields) -> Events:
        is_turn_over = self._is_model_active and not self._output.awaits_client
        ended = self._conversation.end("end_turn") if is_turn_over else []
        self._is_model_active = False
        content = UNSET if items.is_plain(item) else item.get("content")
        message_id = identifier(item.get("id"))
        message = ev.MessageUser(text=items.join_texts(item), message_id=message_id, content=content)
        raw = self._raw_if(has_other_content(item, items.MESSAGE_FIELDS), item)
        return [*ended, *self._conversation.prompt(), message, *raw]

    def _request(self, fields: Fields) -> Events:
        content = fields.get("input")
        all_items = [{"role": "user", "content": content}] if isinstance(content, str) else as_list(content)
        has_past_elsewhere = bool(fields.get("previous_response_id") or fields.get("conversation"))
        return self._read_request(fields, all_items, all_new=has_past_elsewhere)

    _SHAPES: ClassVar[tuple[tuple[str, Any, Callable[[Any, Fields], Events]], ...]] = (
        ("type", str, _read_item),
        ("output", list, _full_response),
        ("input", (str, list), _request),
        ("role", str, _read_item),
    )
