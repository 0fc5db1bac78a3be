"""The door: every draft is checked, made canonical and freed of secrets here, before it reaches the store.

Refused input names its field and limit and leaves no trace. Values too large to stand in an event are handed back to be
kept as blobs, whole; the event keeps a preview (S2.8).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, structs

from callslip import codec
from callslip import events as ev
from callslip.errors import Refused
from callslip.events import Alias, Blob, Draft, Event, decode_event, encode_event
from callslip.redact import Redactor
from callslip.settings import Settings

NAME_LIMIT = 200
ID_LIMIT = 500

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def session_name(name: object) -> str:
    """A name that works in a URL, a file name and a column, or Refused."""
    checked = identity(name, "session", NAME_LIMIT)
    if "/" in checked or "\\" in checked or checked in (".", ".."):
        raise Refused("session", "a name has no '/' or '\\' in it and is not '.' or '..'")
    return checked


def identity(value: object, field: str, limit: int = ID_LIMIT) -> str:
    """An id or name as others write it, or Refused."""
    if not isinstance(value, str):
        raise Refused(field, f"must be text, not {type(value).__name__}")
    if not value:
        raise Refused(field, "is empty")
    if len(value.encode("utf-8", "surrogatepass")) > limit:
        raise Refused(field, f"{len(value)} characters are too long", limit)
    if _UNPRINTABLE.search(value):
        raise Refused(field, "has control characters in it")
    return value


def read_event(body: Any) -> Event:
    """An event from decoded JSON, or Refused with the field that is wrong."""
    if not isinstance(body, dict):
        raise Refused("event", "must be a JSON object")
    kind = body.get("type")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if kind not in ev.EVENT_TYPES:
        raise Refused("type", f"unknown event type {kind!r}")
    try:
        return msgspec.convert(body, ev.AnyEvent)
    except msgspec.ValidationError as error:
        raise Refused(*_where(str(error))) from error


def _where(message: str) -> tuple[str, str]:
    """msgspec's message as a field and a problem: "Expected `int`, got `str` - at `$.seq`"."""
    problem, _, path = message.partition(" - at `$")
    return path.strip("`.") or "event", problem


class Intake:
    """Checks drafts by one ledger's settings."""

    def __init__(self, settings: Settings, redactor: Redactor) -> None:
        self._settings = settings
        self._redactor = redactor

    def admit(self, given: Event | Draft) -> Draft:
        """A draft that may be stored."""
        draft = given if isinstance(given, Draft) else Draft(given)
        event = draft.event
        kind = type(event)
        if kind is ev.MessageDelta or kind is ev.ThoughtDelta:
            checked = self._chunk(event)  # pyright: ignore[reportArgumentType]
        else:
            checked = self._whole(event)
        if draft.key:
            identity(draft.key, "key")
        return draft if checked is event and given is draft else structs.replace(draft, event=checked)

    def _chunk(self, event: ev.MessageDelta | ev.ThoughtDelta) -> Event:
        """The frequent case, kept short."""
        text = event.text
        if not isinstance(text, str) or not isinstance(event.message_id, str):  # pyright: ignore
            return self._whole(event)
        if len(text) > self._settings.max_event // 4:
            self._check_size(event)
        clean = codec.text(text)
        if event.message_id:
            identity(event.message_id, "messageId")
        return event if clean is text else structs.replace(event, text=clean)

    def _whole(self, event: Event) -> Event:
        cls = type(event)
        if cls.__struct_config__.tag is None:
            raise Refused("event", f"{cls.__name__} is not an event")
        changes: dict[str, Any] = {}
        streamed = isinstance(event, ev.STREAMED)
        for field in cls.__struct_fields__:
            value = getattr(event, field)
            if value is UNSET or value is None or type(value) in (int, bool):
                continue
            new = self._field(field, value, keep=streamed and field == "text")
            if new is not value:
                changes[field] = new
        event = structs.replace(event, **changes) if changes else event
        return self._typed(event)

    def _field(self, field: str, value: Any, *, keep: bool) -> Any:
        if field == "aliases":
            return tuple(self._alias(alias) for alias in value)
        if field == "blob":
            return value
        if field in ("call", "approval", "turn", "message_id") and value:
            return identity(value, field)
        checked = codec.check(value, field, max_bytes=self._settings.max_blob)
        return checked if keep else self._redactor.value(checked)

    def _alias(self, alias: Any) -> Alias:
        if not isinstance(alias, Alias):
            raise Refused("aliases", "must be aliases")
        identity(alias.ns, "aliases.ns")
        return Alias(alias.ns, identity(alias.id, "aliases.id"))

    def _typed(self, event: Event) -> Event:
        """The event as it will read back: wrong field types show here, not when somebody reads the log."""
        try:
            return decode_event(encode_event(event))
        except msgspec.ValidationError as error:
            raise Refused(*_where(str(error))) from error
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise Refused("event", str(error)) from error

    def _check_size(self, event: Event) -> None:
        size = len(encode_event(event))
        if size > self._settings.max_event:
            raise Refused(ev.type_of(event), f"{size} bytes are too many for one event", self._settings.max_event)

    # Large values

    def large(self, event: Event) -> tuple[str, bytes, str] | None:
        """The field to keep as a blob, with its bytes and media type; None when the event is small enough."""
        for field in ("output", "body"):
            value = getattr(event, field, UNSET)
            if value is UNSET or value is None or isinstance(value, int | float):
                continue
            plain = isinstance(value, str)
            data = value.encode() if plain else codec.encode(value)
            if len(data) > self._settings.inline_limit:
                return field, data, "text/plain" if plain else "application/json"
        self._check_size(event)
        return None

    def with_blob(self, event: Event, field: str, data: bytes, blob: Blob) -> Event:
        """The event with a preview in place of a value that is kept as a blob."""
        preview = data[: self._settings.preview].decode("utf-8", "ignore")
        event = structs.replace(event, **{field: preview, "blob": blob})
        self._check_size(event)
        return event
