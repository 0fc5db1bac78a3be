"""A unit of work: what one write reads and will write, kept in memory until the transaction flushes it.

Units stack: one per write on top of one per transaction, so that a write that is refused leaves no trace in the
transaction that it shares with others (group commit).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from callslip.events import Event, encode_event
from callslip.lifecycle import OPEN
from callslip.rows import ApprovalRow, CallRow, KeyRow, OwnerRow, SessionRow
from callslip.store.protocol import Reads, Stored


class Unit:
    """Rows read through it are the underlying ones until put; what was put is what is read next."""

    __slots__ = ("_under", "aliases", "approvals", "calls", "events", "keys", "owners", "sessions")

    def __init__(self, under: Reads) -> None:
        self._under = under
        self.sessions: dict[str, SessionRow] = {}
        self.calls: dict[str, CallRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.aliases: dict[tuple[str, str], dict[str, str]] = {}
        self.keys: dict[tuple[str, str], KeyRow] = {}
        self.owners: dict[str, OwnerRow] = {}
        self.events: list[Stored] = []

    def now(self) -> int:
        return self._under.now()

    def session(self, name: str) -> SessionRow | None:
        return self.sessions.get(name) or self._under.session(name)

    def session_to_write(self, name: str) -> SessionRow:
        """The session's row, made if need be, to be changed in place."""
        row = self.sessions.get(name)
        if row is None:
            known = self._under.session(name)
            row = copy(known) if known else SessionRow(name=name, created_at=self.now())
            self.sessions[name] = row
        return row

    def call(self, call: str) -> CallRow | None:
        return self.calls.get(call) or self._under.call(call)

    def put_call(self, row: CallRow) -> None:
        self.calls[row.id] = row

    def approval(self, approval: str) -> ApprovalRow | None:
        return self.approvals.get(approval) or self._under.approval(approval)

    def put_approval(self, row: ApprovalRow) -> None:
        self.approvals[row.id] = row

    def alias(self, session: str, ns: str, identity: str) -> str | None:
        """The newest call that bears this foreign id ("" for an id that names no call)."""
        call = self.aliases.get((session, identity), {}).get(ns)
        return call if call is not None else self._under.alias(session, ns, identity)

    def alias_known(self, session: str, identity: str) -> bool:
        """Whether any call of the session has borne this foreign id, whatever the namespace."""
        here = any(self.aliases.get((session, identity), {}).values())
        return here or self._under.alias_known(session, identity)

    def put_alias(self, session: str, ns: str, identity: str, call: str) -> None:
        self.aliases.setdefault((session, identity), {})[ns] = call

    def key(self, session: str, key: str) -> KeyRow | None:
        return self.keys.get((session, key)) or self._under.key(session, key)

    def put_key(self, row: KeyRow) -> None:
        self.keys[row.session, row.key] = row

    def put_owner(self, row: OwnerRow) -> None:
        self.owners[row.id] = row

    def event(self, session: str, seq: int) -> Event | None:
        for stored in self.events:
            if stored.event.seq == seq and stored.session == session:
                return stored.event
        return self._under.event(session, seq)

    def add_event(self, session: str, event: Event) -> None:
        self.events.append(Stored(session, event, encode_event(event)))

    def open_calls(self, session: str) -> list[CallRow]:
        """Every open call of the session, oldest first."""
        return self._merged(self._under.open_calls(session), lambda row: row.session == session)

    def owned_calls(self, owner: str) -> list[CallRow]:
        """Every open call that this owner keeps alive, oldest first."""
        return self._merged(self._under.owned_calls(owner), lambda row: row.owner == owner)

    def _merged(self, under: list[CallRow], fits: Callable[[CallRow], bool]) -> list[CallRow]:
        rows = {row.id: row for row in under}
        rows.update(self.calls)
        return sorted(
            (row for row in rows.values() if row.state in OPEN and fits(row)),
            key=lambda row: (row.session, row.entry),
        )

    def absorb(self, above: Unit) -> None:
        """Take over what a write on top of this unit has done."""
        self.sessions.update(above.sessions)
        if above.calls:
            self.calls.update(above.calls)
        if above.approvals:
            self.approvals.update(above.approvals)
        for bearer, calls in above.aliases.items():
            self.aliases.setdefault(bearer, {}).update(calls)
        if above.keys:
            self.keys.update(above.keys)
        if above.owners:
            self.owners.update(above.owners)
        self.events += above.events
