"""The door: every draft is checked, made canonical and freed of secrets here, before it reaches the store.

Refused input names its field and limit and leaves no trace. Values too large to stand in an event are handed back to be
kept as blobs, whole; the event keeps a preview (S2.8).
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast, get_args

import msgspec
from msgspec import UNSET, structs

from callslip.errors import InvalidInputError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Blob, Draft, Event, encode_event, locate_error, parse_event
from callslip.model.names import check_id
from callslip.rules.redaction import Redactor
from callslip.settings import Settings

LABELS_LIMIT = 16 * 2**10
"""Labels stand in the row of their session, which every event writes anew."""
NUMBER_LIMIT = 2**53 - 1
"""The largest integer that SQLite, PostgreSQL and JavaScript all hold exactly."""

_LARGE = ("output", "body")
_NAMES = ("call", "approval", "turn", "message_id", "source", "key", "owner")
_KINDS = frozenset(ev.EVENT_TYPES.values())
_POLICIES = get_args(ev.Chunks)
_OURS: dict[str, Any] = {"seq": 0, "verdict": "applied", "reused": False, "entry": 0}


@cache
def _fields(cls: type[Event]) -> tuple[tuple[str, bool], ...]:
    """Every field of an event, and whether it is a plain number."""
    return tuple((field.name, field.type is int) for field in structs.fields(cls))


def _number(value: object, field: str) -> None:
    """The ledger's own numbers stand in columns: ms since the epoch, counts, or -1 for one that was not given."""
    if type(value) is not int:
        raise InvalidInputError(field, f"must be a whole number, not {type(value).__name__}")
    least = -1 if field in ("iteration", "index") else 0
    if not least <= value <= NUMBER_LIMIT:
        raise InvalidInputError(field, f"{str(value)[:40]} is not between {least} and the limit", NUMBER_LIMIT)


class DraftValidator:
    """Checks drafts by one ledger's settings."""

    def __init__(self, settings: Settings, redactor: Redactor) -> None:
        self._settings = settings
        self._redactor = redactor

    def validate(self, given: Event | Draft) -> Draft:
        """A draft that may be stored."""
        draft, event = (given, given.event) if isinstance(given, Draft) else (None, given)
        checked = self._chunk(event) if isinstance(event, ev.CHUNKS) else self._whole(event)
        if draft is None:
            return Draft(checked)
        if draft.key:
            check_id(draft.key, "key")
        if draft.mark:
            check_id(draft.mark, "mark")
        return draft if checked is event else structs.replace(draft, event=checked)

    def _chunk(self, event: ev.MessageDelta | ev.ThoughtDelta) -> Event:
        """The frequent case, kept short: a text, and an envelope that says nothing or only what is plain."""
        text, source, name = event.text, event.source, event.message_id
        if not (type(text) is type(source) is type(name) is type(event.key) is str and event.chunks in _POLICIES):
            return self._whole(event)
        if event.at:
            _number(event.at, "at")
        if source or name or event.key:
            for value, field in ((source, "source"), (name, "message_id"), (event.key, "key")):
                if value:
                    check_id(value, field)
        if len(text) > self._settings.max_event // 4:
            self._check_size(event)
        clean = codec.text(text)
        return event if clean is text else structs.replace(event, text=clean)

    def _whole(self, event: Event) -> Event:
        cls = type(event)
        if cls not in _KINDS:
            raise InvalidInputError("event", f"{cls.__name__} is not an event")
        changes: dict[str, Any] = {}
        streamed = isinstance(event, ev.STREAMED)
        for field, counts in _fields(cls):
            value = getattr(event, field)
            if field in _OURS:
                if value != _OURS[field]:
                    changes[field] = _OURS[field]
                continue
            if value is UNSET or value is None or type(value) is bool or (type(value) is str and not value):
                continue
            if counts:
                _number(value, field)
                continue
            new = self._field(field, value, keep=streamed and field == "text")
            if new is not value:
                changes[field] = new
        event = structs.replace(event, **changes) if changes else event
        return self._typed(event)

    def _field(self, field: str, value: Any, *, keep: bool) -> Any:
        if field == "aliases":
            return self._aliases(value)
        if field == "blob":
            return value
        if field in _NAMES and value:
            return check_id(value, field)
        checked = codec.validate_json(value, field, max_bytes=self._most(field))
        return checked if keep else self._redactor.value(checked)

    def _most(self, field: str) -> int:
        """How many bytes a field may have."""
        if field == "labels":
            return LABELS_LIMIT
        return self._settings.max_blob if field in _LARGE else self._settings.max_event

    def _aliases(self, aliases: Any) -> tuple[Alias, ...]:
        if not isinstance(aliases, tuple | list) or not all(isinstance(alias, Alias) for alias in aliases):  # pyright: ignore[reportUnknownVariableType]
            raise InvalidInputError("aliases", "must be aliases")
        checked = cast("tuple[Alias, ...]", tuple(aliases))  # pyright: ignore[reportUnknownArgumentType]
        for alias in checked:
            check_id(alias.ns, "aliases.ns")
            check_id(alias.id, "aliases.id")
        return checked

    def _typed(self, event: Event) -> Event:
        """The event as it will read back: wrong field types show here, not when somebody reads the log."""
        try:
            raw = encode_event(event)
            read = parse_event(raw)
        except msgspec.ValidationError as error:
            raise InvalidInputError(*locate_error(error)) from error
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise InvalidInputError("event", str(error)) from error
        if type(event) not in ev.MAY_BE_LARGE:
            self._check_size(event, len(raw))
        return read

    def _check_size(self, event: Event, size: int = 0) -> None:
        size = size or len(encode_event(event))
        if size > self._settings.max_event:
            raise InvalidInputError(
                ev.type_of(event), f"{size} bytes are too many for one event", self._settings.max_event
            )

    # Large values

    def large(self, event: Event) -> tuple[str, bytes, str] | None:
        """The field to keep as a blob, with its bytes and media type; None when the event is small enough."""
        size = len(encode_event(event))
        if size <= self._settings.inline_limit:  # No field of it is larger than the event.
            self._check_size(event, size)
            return None
        for field in _LARGE:
            value = getattr(event, field, UNSET)
            if value is UNSET or value is None or isinstance(value, int | float):
                continue
            plain = isinstance(value, str)
            data = value.encode() if plain else codec.encode(value)
            if len(data) > self._settings.inline_limit:
                return field, data, "text/plain" if plain else "application/json"
        self._check_size(event, size)
        return None

    def with_blob(self, event: Event, field: str, data: bytes, blob: Blob) -> Event:
        """The event with a preview in place of a value that is kept as a blob."""
        preview = data[: self._settings.preview].decode("utf-8", "ignore")
        event = structs.replace(event, **{field: preview, "blob": blob})
        self._check_size(event)
        return event
