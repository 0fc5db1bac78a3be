"""Convert rows of PostgreSQL to records and back.

A column `record` has the fields that no query needs as a JSON array. Its layout never changes: a new field of a record
becomes a column, so that servers of two versions can write the same row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from callslip.model import codec
from callslip.model.records import ApprovalRecord, CallRecord, HeldText, SessionRecord
from callslip.store.shared_rows import letter_forms

Row = Sequence[Any]
SESSION_COLUMNS = "s.id, s.name, s.rev, s.head, s.low, s.updated_at, s.turn_owner, s.record"
CALL_COLUMNS = "s.name, c.rev, c.record"
APPROVAL_COLUMNS = "s.name, a.record"
_SESSION = 1
"""The position of the session in the fields of a call and of an approval. Rows have its number instead of its name."""


class _SessionFields(msgspec.Struct, array_like=True, gc=False):
    """What the column `record` of a session has."""

    turn: str
    turns: int
    title: str
    calls: int
    message: str
    carry: dict[str, HeldText]
    created_at: int
    owner: str
    labels: Any


_decode_session: Callable[[bytes], _SessionFields] = codec.stored_decoder(_SessionFields, "a session")
_decode_fields: Callable[[bytes], list[Any]] = codec.stored_decoder(list[Any], "a record")


def session_record(row: Row) -> SessionRecord:
    """Convert a row of SESSION_COLUMNS."""
    identity, name, _, head, low, updated_at, turn_owner, body = row
    fields = _decode_session(body)
    return SessionRecord(
        name=name,
        id=identity,
        last_seq=head,
        pruned_seq=low,
        turn=fields.turn,
        turns=fields.turns,
        title=fields.title,
        calls=fields.calls,
        message=fields.message,
        carry=fields.carry,
        created_at=fields.created_at,
        updated_at=updated_at,
        owner=fields.owner,
        labels=fields.labels,
        turn_owner=turn_owner,
    )


def session_body(record: SessionRecord) -> bytes:
    """Return the column `record` of a session."""
    return msgspec.json.encode(
        _SessionFields(
            record.turn,
            record.turns,
            record.title,
            record.calls,
            record.message,
            record.carry,
            record.created_at,
            record.owner,
            record.labels,
        )
    )


def call_record(row: Row) -> CallRecord:
    """Convert a row of CALL_COLUMNS. The rev of the session orders the records of one call."""
    session, rev, body = row
    fields = _decode_fields(body)
    fields.insert(_SESSION, session)
    return CallRecord(*fields, change=rev)


def call_body(record: CallRecord) -> bytes:
    """Return the column `record` of a call."""
    fields = list(astuple(record)[:-1])
    del fields[_SESSION]
    return msgspec.json.encode(fields)


def approval_record(row: Row) -> ApprovalRecord:
    """Convert a row of APPROVAL_COLUMNS."""
    session, body = row
    fields = _decode_fields(body)
    fields.insert(_SESSION, session)
    return ApprovalRecord(*fields)


def approval_body(record: ApprovalRecord) -> bytes:
    """Return the column `record` of an approval."""
    fields = list(astuple(record))
    del fields[_SESSION]
    return msgspec.json.encode(fields)


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def is_storable(value: Any) -> bool:
    """Return whether a column can have this value: a text must not have NUL or lone surrogates."""
    return not isinstance(value, str) or not _UNSTORABLE.search(value)


def regex_containing(text: str) -> str:
    """Return a regular expression for texts that contain this one in any case. ILIKE depends on the locale."""
    return "".join(map(_any_case, text))


def _any_case(letter: str) -> str:
    forms = letter_forms(letter)
    if len(forms) > 1:
        return f"[{''.join(forms)}]"
    return f"\\{letter}" if letter.isascii() and not letter.isalnum() else letter
