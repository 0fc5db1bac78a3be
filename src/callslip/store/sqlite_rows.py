"""Rows of a SQLite file as structs, and structs as rows. Used inside the writer's transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from callslip.events import Event, decode_event
from callslip.rows import ApprovalRow, CallRow, Carry, KeyRow, SessionRow
from callslip.store.sql import statements
from callslip.store.unit import Unit

SQL = statements("sqlite.sql")
_carry = msgspec.json.Decoder(Carry)


def session_row(row: tuple[Any, ...]) -> SessionRow:
    *fields, carry, created, updated = row
    return SessionRow(*fields, _carry.decode(carry) if carry else None, created, updated)


def call_row(row: tuple[Any, ...]) -> CallRow:
    made = CallRow(*row)
    made.idempotent = bool(made.idempotent)
    return made


def approval_row(row: tuple[Any, ...]) -> ApprovalRow:
    made = ApprovalRow(*row)
    made.options = msgspec.json.decode(row[8])
    return made


class Rows:
    """Reads of one transaction. Remembers what it read, since nobody else can change it meanwhile."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._run = connection.execute
        self._sessions: dict[str, SessionRow | None] = {}
        self._now = int(time.time() * 1000)

    def _one(self, name: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._run(SQL[name], values).fetchall()
        return rows[0] if rows else None

    def now(self) -> int:
        return self._now

    def session(self, name: str) -> SessionRow | None:
        if name not in self._sessions:
            row = self._one("session", name)
            self._sessions[name] = session_row(row) if row else None
        return self._sessions[name]

    def call(self, call: str) -> CallRow | None:
        row = self._one("call", call)
        return call_row(row) if row else None

    def approval(self, approval: str) -> ApprovalRow | None:
        row = self._one("approval", approval)
        return approval_row(row) if row else None

    def alias(self, session: str, ns: str, identity: str) -> str | None:
        row = self._one("alias", session, identity, ns)
        return row[0] if row else None

    def alias_known(self, session: str, identity: str) -> bool:
        return self._one("alias_known", session, identity) is not None

    def key(self, session: str, key: str) -> KeyRow | None:
        row = self._one("key", session, key)
        return KeyRow(session, key, row[1], row[0]) if row else None

    def event(self, session: str, seq: int) -> Event | None:
        row = self._one("event", session, seq)
        return decode_event(row[0]) if row else None

    def open_calls(self, session: str) -> list[CallRow]:
        return [call_row(row) for row in self._run(SQL["open_calls"], (session,))]

    def owned_calls(self, owner: str) -> list[CallRow]:
        return [made for row in self._run(SQL["all_open_calls"]) if (made := call_row(row)).owner == owner]


def flush(connection: apsw.Connection, unit: Unit) -> None:
    """Write what a unit of work holds."""
    numbers = {name: _put_session(connection, row) for name, row in unit.sessions.items() if row.head}

    def number(name: str) -> int:
        if name not in numbers:
            numbers[name] = connection.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchall()[0][0]
        return numbers[name]

    def many(name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        connection.executemany(SQL[name], rows)

    many("add_event", [(number(stored.session), stored.event.seq, stored.body) for stored in unit.events])
    if unit.calls:
        many("put_call", [_numbered(row, number(row.session)) for row in unit.calls.values()])
    if unit.approvals:
        many("put_approval", [_approval_values(row, number(row.session)) for row in unit.approvals.values()])
    if unit.aliases:
        many(
            "put_alias",
            [
                (number(session), identity, ns, call)
                for (session, identity), calls in unit.aliases.items()
                for ns, call in calls.items()
            ],
        )
    if unit.keys:
        many("put_key", [(number(row.session), row.key, row.mark, row.seq) for row in unit.keys.values()])
    if unit.owners:
        many("put_owner", [(row.id, row.until) for row in unit.owners.values()])


def _put_session(connection: apsw.Connection, row: SessionRow) -> int:
    carry = msgspec.json.encode(row.carry) if row.carry else None
    facts = (row.head, row.low, row.turn, row.turns, row.title, row.calls, row.message, carry)
    if row.id:
        connection.execute(SQL["put_session"], (*facts, row.updated_at, row.id))
        return row.id
    values = (row.name, *facts, row.created_at, row.updated_at)
    return connection.execute(SQL["add_session"], values).fetchall()[0][0]


def _numbered(row: CallRow, session: int) -> tuple[Any, ...]:
    identity, _, *rest = msgspec.structs.astuple(row)
    return (identity, session, *rest)


def _approval_values(row: ApprovalRow, session: int) -> tuple[Any, ...]:
    identity, _, *rest = msgspec.structs.astuple(row)
    values = [identity, session, *rest]
    values[8] = msgspec.json.encode(row.options)
    return tuple(values)
