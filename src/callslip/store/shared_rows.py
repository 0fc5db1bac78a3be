"""What the engines share when they read rows: conversions of columns that all of them store alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from callslip.model import codec
from callslip.model.records import ConversationRecord, RuleRecord, TokenRecord

T = TypeVar("T")
CHUNK_BYTES = 2**20
"""The size of the pieces of a blob."""
DAY_MS = 24 * 60 * 60 * 1000
MONTH_MS = 30 * DAY_MS
LAST = "\U0010ffff" * 200
"""A prefix plus this sorts after all names with that prefix."""


def first(rows: Sequence[Sequence[Any]], convert: Callable[[Any], T]) -> T | None:
    """Convert the first row; None if there is none."""
    return convert(rows[0]) if rows else None


def first_value(rows: Sequence[Sequence[Any]], default: Any = None) -> Any:
    """Return the first column of the first row, or the default."""
    return rows[0][0] if rows else default


def conversation_row(row: Sequence[Any]) -> ConversationRecord:
    """Convert a row to a posted conversation."""
    chunks, version, claimed_by, claimed_until, *state = row
    record = ConversationRecord(chunks=chunks, version=version, claimed_by=claimed_by, claimed_until=claimed_until)
    return replace(record, state_version=state[0], state=state[1]) if state else record


def replace_meta_statement(name: str, before: str, after: str) -> tuple[str, tuple[str, ...]]:
    """Return the statement that replaces a value, and what it is bound to. "" is a value that is not stored."""
    if not before:
        return "add_meta", (name, after)
    return ("change_meta", (after, name, before)) if after else ("drop_meta", (name, before))


def token_row(row: Sequence[Any]) -> TokenRecord:
    """Convert a row to a token."""
    return replace(TokenRecord(*row), verbs=tuple(row[4].split(",")))


def token_values(row: TokenRecord) -> tuple[Any, ...]:
    """Convert a token to a row."""
    return (row.id, row.hash, row.label, row.session, ",".join(row.verbs), row.created_at, row.expires_at)


_decode_filters: Callable[[bytes], dict[str, Any]] = codec.stored_decoder(dict[str, Any], "the filters of a rule")


def rule_row(row: Sequence[Any]) -> RuleRecord:
    """Convert a row to a saved rule."""
    return RuleRecord(row[0], row[1], _decode_filters(row[2]), *row[3:])


def rule_values(row: RuleRecord) -> tuple[Any, ...]:
    """Convert a saved rule to a row."""
    return (
        *(row.id, row.action, codec.encode(row.filters), row.reason, row.scope, row.scope_value, row.expires_at),
        *(row.uses_left, row.created_at, row.created_by, row.used_at, row.uses),
    )


def letter_forms(letter: str) -> list[str]:
    """Return a letter in its upper and lower case, as far as each is one letter."""
    return sorted({form for form in (letter, letter.lower(), letter.upper()) if len(form) == 1})
