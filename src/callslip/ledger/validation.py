"""Validate drafts: every draft is checked, normalized and redacted here before it reaches the store.

A refusal names the field and the limit, and nothing is written. A value too large for an event is returned to be stored
as a blob; the event has a preview of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, cast, get_args

import msgspec
from msgspec import UNSET, structs

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Blob, Draft, Event, encode_event, locate_error, parse_event
from callslip.model.names import check_id
from callslip.rules.call_content import content_text, preview_content
from callslip.rules.redaction import Redactor
from callslip.settings import Settings

MAX_LABELS_BYTES = 16 * 2**10
"""Labels are in the row of their session, which every event rewrites."""
NUMBER_LIMIT = 2**53 - 1
"""The largest integer that SQLite, PostgreSQL and JavaScript all hold exactly."""

_BLOB_FIELDS = ("output", "content", "body")
_ID_FIELDS = (
    *("call", "approval", "turn", "message_id", "source", "key", "owner"),
    *("id", "parent", "foreign_id", "continues"),
)
_NAME_FIELDS = ("client", "worker")
"""Names are checked as ids are; unlike ids, they are redacted."""
_EVENT_CLASSES = frozenset(ev.EVENT_TYPES.values())
_CHUNK_POLICIES = get_args(ev.Chunks)
_JSON_FIELDS = {
    cls: tuple(field.name for field in structs.fields(cls) if field.type in (Any, list[Any])) for cls in _EVENT_CLASSES
}
_LEDGER_FIELDS: dict[str, Any] = {"seq": 0, "verdict": "applied", "reused": False, "entry": 0}
"""Fields that the ledger sets, with the value they have in a draft."""


@cache
def _fields(cls: type[Event]) -> tuple[tuple[str, bool, Any], ...]:
    """Return the fields of an event, whether each is an integer, and its default, which is valid."""
    return tuple((field.name, field.type is int, field.default) for field in structs.fields(cls))


def _check_number(value: object, field: str) -> None:
    """Check a number that is stored in a column: ms since the epoch, a count, or -1 for unknown."""
    if type(value) is not int:
        raise InvalidInputError(field, f"must be a whole number, got {type(value).__name__}")
    minimum = -1 if field in ("iteration", "index") else 0
    if not minimum <= value <= NUMBER_LIMIT:
        raise InvalidInputError(field, f"must be from {minimum} to the limit, got {str(value)[:40]}", NUMBER_LIMIT)


def has_many_values(drafts: Iterable[Event | Draft]) -> bool:
    """Return whether drafts have so many values in their JSON that validating them takes long."""
    events = (draft.event if isinstance(draft, Draft) else draft for draft in drafts)
    values = [getattr(event, field, None) for event in events for field in _JSON_FIELDS.get(type(event), ())]
    return codec.is_large([value for value in values if isinstance(value, dict | list)])


class LargeValue(NamedTuple):
    """The values of one or several fields of an event, to be stored as a blob."""

    fields: tuple[str, ...]
    data: bytes
    media_type: str


class DraftValidator:
    """Validate drafts by the settings of one ledger."""

    def __init__(self, settings: Settings, redactor: Redactor) -> None:
        self._settings = settings
        self._redactor = redactor

    def validate(self, value: Event | Draft) -> Draft:
        """Return a draft as it may be stored, or raise InvalidInputError."""
        draft, event = (value, value.event) if isinstance(value, Draft) else (None, value)
        checked = self._validate_chunk(event) if isinstance(event, ev.CHUNKS) else self._validate_event(event)
        if draft is None:
            return Draft(checked)
        if draft.key:
            check_id(draft.key, "key")
        if draft.mark:
            check_id(draft.mark, "mark")
        return draft if checked is event else structs.replace(draft, event=checked)

    def _validate_chunk(self, event: ev.MessageDelta | ev.ThoughtDelta) -> Event:
        """Validate a chunk of text quickly, because chunks are the most frequent events."""
        text, source, message_id, key, parent = event.text, event.source, event.message_id, event.key, event.parent
        if not type(text) is type(source) is type(message_id) is type(key) is type(parent) is str:
            return self._validate_event(event)
        if event.chunks not in _CHUNK_POLICIES:
            return self._validate_event(event)
        if not type(event.partial) is type(event.rest) is type(event.names_message) is bool:
            return self._validate_event(event)
        if not (type(event.at) is type(event.seq) is int and event.verdict == "applied"):
            return self._validate_event(event)
        if event.at:
            _check_number(event.at, "at")
        if parent:
            check_id(message_id, "message_id")  # Else it would continue a text of another agent.
        if source or message_id or key or parent:
            for value, field in ((source, "source"), (message_id, "message_id"), (key, "key"), (parent, "parent")):
                if value:
                    check_id(value, field)
        if len(text) > self._settings.max_event // 4:
            self._check_size(event)
        clean = codec.clean_text(text)
        return event if clean is text else structs.replace(event, text=clean)

    def _validate_event(self, event: Event) -> Event:
        cls = type(event)
        if cls not in _EVENT_CLASSES:
            raise InvalidInputError("event", f"{cls.__name__} is not an event")
        changes: dict[str, Any] = {}
        is_streamed, is_large = isinstance(event, ev.STREAMED), ev.may_be_large(event)
        for field, is_number, default in _fields(cls):
            value = getattr(event, field)
            if value is default:
                continue
            if field in _LEDGER_FIELDS:
                if value != _LEDGER_FIELDS[field]:
                    changes[field] = _LEDGER_FIELDS[field]
                continue
            if value is UNSET or value is None or type(value) is bool or (type(value) is str and not value):
                continue
            if is_number:
                _check_number(value, field)
                continue
            max_bytes = self._settings.max_blob if is_large and field in _BLOB_FIELDS else self._max_event_bytes(field)
            new = self._validate_field(field, value, max_bytes, redact=not (is_streamed and field == "text"))
            if new is not value:
                changes[field] = new
        event = structs.replace(event, **changes) if changes else event
        return self._check_types(event)

    def _max_event_bytes(self, field: str) -> int:
        return MAX_LABELS_BYTES if field == "labels" else self._settings.max_event

    def _validate_field(self, field: str, value: Any, max_bytes: int, *, redact: bool) -> Any:
        if field == "aliases":
            return self._check_aliases(value)
        if field == "blob":
            return value
        if field in _ID_FIELDS and value:
            return check_id(value, field)
        if field in _NAME_FIELDS:
            check_id(value, field)
        checked = codec.validate_json(value, field, max_bytes=max_bytes)
        return self._redactor.value(checked) if redact else checked

    def _check_aliases(self, aliases: Any) -> tuple[Alias, ...]:
        if not isinstance(aliases, tuple | list) or not all(isinstance(alias, Alias) for alias in aliases):  # pyright: ignore[reportUnknownVariableType]
            raise InvalidInputError("aliases", "must be a list of Alias")
        checked = cast("tuple[Alias, ...]", tuple(aliases))  # pyright: ignore[reportUnknownArgumentType]
        for alias in checked:
            check_id(alias.ns, "aliases.ns")
            check_id(alias.id, "aliases.id")
        return checked

    def _check_types(self, event: Event) -> Event:
        """Return the event as it will be read, so that wrong field types are found now."""
        try:
            body = encode_event(event)
            parsed = parse_event(body)
        except msgspec.ValidationError as error:
            raise InvalidInputError(*locate_error(error)) from error
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise InvalidInputError("event", str(error)) from error
        if not ev.may_be_large(event):
            self._check_size(event, len(body))
        return parsed

    def _check_size(self, event: Event, size: int = 0) -> None:
        size = size or len(encode_event(event))
        if size > self._settings.max_event:
            limit = self._settings.max_event
            raise InvalidInputError(ev.type_of(event), f"must be at most {limit} bytes, got {size}", limit)

    # Large values

    def large_value(self, event: Event) -> LargeValue | None:
        """Return what to store as a blob; None if the event is small enough."""
        size = len(encode_event(event))
        if size <= self._settings.inline_limit:  # No field is larger than the event.
            self._check_size(event, size)
            return None
        values: dict[str, Any] = {}
        for field in _BLOB_FIELDS:
            value = getattr(event, field, UNSET)
            if value is UNSET or value is None or isinstance(value, int | float):
                continue
            data = value.encode() if isinstance(value, str) else codec.encode(value)
            if len(data) > self._settings.inline_limit:
                values[field] = value
        if not values:
            self._check_size(event, size)
            return None
        if values.get("output") and values["output"] == content_text(values.get("content")):
            del values["output"]  # It is stored once, with the content.
        if len(values) > 1:
            return LargeValue(tuple(values), codec.encode(values), "application/json")
        ((field, value),) = values.items()
        if isinstance(value, str):
            return LargeValue((field,), value.encode(), "text/plain")
        return LargeValue((field,), codec.encode(value), "application/json")

    def with_blob(self, event: Event, large: LargeValue, hash: str) -> Event:
        """Replace values that are stored as a blob by their previews."""
        fields = () if large.fields in (("output",), ("body",)) else large.fields
        blob = Blob(hash, len(large.data), large.media_type, fields)
        previews = {field: self._preview(field, getattr(event, field)) for field in large.fields}
        if isinstance(event, ev.CallEnd) and "content" in previews and event.output == content_text(event.content):
            previews["output"] = content_text(previews["content"])
        event = structs.replace(event, **previews, blob=blob)
        self._check_size(event)
        return event

    def _preview(self, field: str, value: Any) -> Any:
        max_bytes = self._settings.preview
        if field == "content":
            return preview_content(value, max_bytes)
        data = value.encode() if isinstance(value, str) else codec.encode(value)
        return data[:max_bytes].decode("utf-8", "ignore")
