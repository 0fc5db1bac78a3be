"""A unit of work: the records that the writes of one transaction change, in memory until they are flushed.

Several writes share a transaction and its unit (group commit). If one of them fails, the unit is discarded and each
write runs again with a unit of its own, or with a nested unit, which is merged if the write succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from callslip.model import ids
from callslip.model.events import Event, MessageUser, encode_event
from callslip.model.records import (
    ApprovalRecord,
    CallRecord,
    ConversationChange,
    ConversationName,
    ConversationRecord,
    KeyRecord,
    OwnerRecord,
    PostRecord,
    RuleRecord,
    SessionRecord,
)
from callslip.rules.lifecycle import OPEN_STATES, PENDING_STATES
from callslip.store.protocol import Reads, StoredEvent


class GeneratedIds:
    """The ids that the work of one caller has generated. If the work runs again, it gets the same ones of each kind."""

    __slots__ = ("_at", "_ids")

    def __init__(self) -> None:
        self._ids: dict[Callable[[], str], list[str]] = {}
        self._at: dict[Callable[[], str], int] = {}

    def rewind(self) -> None:
        """Begin with the first id of each kind again."""
        if self._at:
            self._at.clear()

    def clear(self) -> None:
        """Forget all ids, because a record has one of them."""
        self._ids.clear()
        self._at.clear()

    def next(self, generate: Callable[[], str]) -> str:
        """Return the next id of a kind."""
        found = self._ids.setdefault(generate, [])
        at = self._at.get(generate, 0)
        if at == len(found):
            found.append(generate())
        self._at[generate] = at + 1
        return found[at]


class UnitOfWork:
    """Reads return the stored records, or those put before.

    `generated` are the ids of the work that runs. An engine that runs a work again sets it before each run.
    """

    __slots__ = (
        *("_stored", "change_count", "generated", "now"),
        *("aliases", "approvals", "calls", "conversations", "events", "keys", "owners", "pending_changes", "posts"),
        *("rule_uses", "seals", "sessions"),
    )

    def __init__(self, stored: Reads) -> None:
        self._stored = stored
        self.now = stored.now()
        self.change_count = 0
        self.generated = GeneratedIds()
        self.sessions: dict[str, SessionRecord] = {}
        self.calls: dict[str, CallRecord] = {}
        self.approvals: dict[str, ApprovalRecord] = {}
        self.aliases: dict[tuple[str, str, str], str] = {}
        self.keys: dict[tuple[str, str], KeyRecord] = {}
        self.conversations: dict[
            ConversationName, tuple[ConversationRecord | None, list[tuple[int, ConversationChange]]]
        ] = {}
        self.posts: dict[tuple[str, str], PostRecord] = {}
        self.owners: dict[str, OwnerRecord] = {}
        self.rule_uses: dict[str, int] = {}
        self.seals: dict[str, tuple[str, bytes]] = {}
        self.pending_changes: dict[str, int] = {}
        self.events: list[StoredEvent] = []

    def session(self, name: str) -> SessionRecord | None:
        """Return a session."""
        return self.sessions.get(name) or self._stored.session(name)

    def session_to_write(self, name: str) -> SessionRecord:
        """Return a session to change in place; create it if it does not exist."""
        row = self.sessions.get(name)
        if row is None:
            stored = self._stored.session(name)
            row = self.sessions[name] = replace(stored) if stored else SessionRecord(name=name, created_at=self.now)
        return row

    def call(self, call: str) -> CallRecord | None:
        """Return a call."""
        return self.calls.get(call) or self._stored.call(call)

    def put_call(self, row: CallRecord) -> None:
        """Write a call, and count the pending commands of its client."""
        if row.client:
            before = self.call(row.id)
            more = (row.state in PENDING_STATES) - (before is not None and before.state in PENDING_STATES)
            if more:
                self.pending_changes[row.client] = self.pending_changes.get(row.client, 0) + more
        self.calls[row.id] = row
        self.change_count += 1

    def new_call_id(self) -> str:
        """Return an id that no call has."""
        while (call := self.generated.next(ids.call_id)) in self.calls or self._stored.is_taken(call):
            pass
        return call

    def new_approval_id(self) -> str:
        """Return an id that no approval has."""
        while (approval := self.generated.next(ids.approval_id)) in self.approvals or self._stored.is_taken(approval):
            pass
        return approval

    def has_room(self, client: str, limit: int) -> bool:
        """Return whether fewer commands of a client than `limit` await approval or are queued."""
        return self._stored.has_room(client, self.pending_changes.get(client, 0), limit)

    def oldest_pending(self, client: str) -> CallRecord | None:
        """Return the oldest pending command of a client."""
        return next(iter(self.pending(client, 1)), None)

    def pending(self, client: str, limit: int) -> list[CallRecord]:
        """Return the oldest pending commands of a client, in order."""
        stored = self._stored.oldest_pending(client, len(self.calls) + limit)
        rows = self._merged(stored, lambda row: row.client == client and row.state in PENDING_STATES)
        return sorted(rows, key=lambda row: row.created_at)[:limit]

    def seal(self, row: CallRecord, data: bytes) -> None:
        """Store the unredacted arguments of a command until it ends."""
        self.seals[row.id] = (row.session, data)
        self.change_count += 1

    def sealed(self, call: str) -> bytes | None:
        """Return the unredacted arguments of a command, if they are stored."""
        return self.seals[call][1] if call in self.seals else self._stored.sealed(call)

    def commands(self) -> list[CallRecord]:
        """Return the commands that were written."""
        return [row for row in self.calls.values() if row.client]

    def approval(self, approval: str) -> ApprovalRecord | None:
        """Return an approval."""
        return self.approvals.get(approval) or self._stored.approval(approval)

    def put_approval(self, row: ApprovalRecord) -> None:
        self.approvals[row.id] = row
        self.change_count += 1

    def alias(self, session: str, ns: str, identity: str) -> str | None:
        """Return the newest call with a foreign id, or "" for an id that is not of a call."""
        call = self.aliases.get((session, identity, ns))
        return call if call is not None else self._stored.alias(session, ns, identity)

    def has_alias(self, session: str, identity: str) -> bool:
        """Return whether any call of the session has this foreign id, in any namespace."""
        return bool(self.aliases.get((session, identity, ""))) or self._stored.has_alias(session, identity)

    def put_alias(self, session: str, ns: str, identity: str, call: str) -> None:
        self.aliases[session, identity, ns] = call
        self.change_count += 1
        if call:
            self.aliases[session, identity, ""] = call  # For has_alias; not stored.

    def key(self, session: str, key: str) -> KeyRecord | None:
        return self.keys.get((session, key)) or self._stored.key(session, key)

    def put_key(self, row: KeyRecord) -> None:
        self.keys[row.session, row.key] = row
        self.change_count += 1

    def conversation(self, name: ConversationName) -> ConversationRecord | None:
        """Return a posted conversation without its state; None if it is not stored."""
        return self.conversations[name][0] if name in self.conversations else self._stored.conversation(name)

    def change_conversation(self, name: ConversationName, change: ConversationChange) -> int:
        """Write what a posted body changes, and return the new version of the conversation."""
        before = self.conversation(name)
        version = before.version + 1 if before is not None else ids.first_version()
        after = ConversationRecord(
            version=version, claimed_by=change.claimed_by, claimed_until=change.claimed_until, chunks=change.chunks
        )
        changes = self.conversations[name][1] if name in self.conversations else []
        self.conversations[name] = (None if change.is_ended else after, [*changes, (version, change)])
        self.change_count += 1
        return 0 if change.is_ended else version

    def post(self, session: str, key: str) -> PostRecord | None:
        """Return the key of a posted body."""
        return self.posts.get((session, key)) or self._stored.post(session, key)

    def put_post(self, row: PostRecord) -> None:
        """Write the key of a posted body, with its answer."""
        self.posts[row.session, row.key] = row
        self.change_count += 1

    def put_owner(self, row: OwnerRecord) -> None:
        self.owners[row.id] = row
        self.change_count += 1

    def rule(self, rule: str) -> RuleRecord | None:
        """Return a saved rule, with the uses that this unit adds; None if it was revoked."""
        row, uses = self._stored.rule(rule), self.rule_uses.get(rule, 0)
        if row is None or not uses:
            return row
        return replace(row, uses=row.uses + uses, uses_left=max(row.uses_left - uses, 0 if row.uses_left >= 0 else -1))

    def use_rule(self, rule: str) -> None:
        """Count a use of a saved rule."""
        self.rule_uses[rule] = self.rule_uses.get(rule, 0) + 1
        self.change_count += 1

    def event(self, session: str, seq: int) -> Event | None:
        """Return an event."""
        for stored in self.events:
            if stored.event.seq == seq and stored.session == session:
                return stored.event
        return self._stored.event(session, seq)

    def user_messages(self, session: str) -> list[MessageUser]:
        """Return the messages of the user that are shown, oldest first. The log of the session is read for it."""
        return [event for event in self.all_user_messages(session) if event.verdict == "applied"]

    def all_user_messages(self, session: str) -> list[MessageUser]:
        """Return the messages of the user with those that are only repetitions, oldest first."""
        written = (stored.event for stored in self.events if stored.session == session)
        events = [*self._stored.user_messages(session), *written]
        return [event for event in events if isinstance(event, MessageUser)]

    def add_event(self, session: str, event: Event) -> None:
        """Append an event."""
        self.events.append(StoredEvent(session, event, encode_event(event)))
        self.change_count += 1

    def has_blob(self, identity: str) -> bool:
        """Return whether a blob is stored completely."""
        return self._stored.has_blob(identity)

    def open_calls(self, session: str) -> list[CallRecord]:
        """Return the open calls of a session, oldest first."""
        return self._merged(self._stored.open_calls(session), lambda row: row.session == session)

    def owned_calls(self, owner: str) -> list[CallRecord]:
        """Return the open calls of an owner, oldest first."""
        return self._merged(self._stored.owned_calls(owner), lambda row: row.owner == owner)

    def owned_turns(self, owner: str) -> list[SessionRecord]:
        """Return the sessions whose open turn has this owner."""
        rows = {row.name: row for row in self._stored.owned_turns(owner)} | self.sessions
        return [rows[name] for name in sorted(rows) if rows[name].turn and rows[name].turn_owner == owner]

    def _merged(self, stored: list[CallRecord], matches: Callable[[CallRecord], bool]) -> list[CallRecord]:
        rows = {row.id: row for row in stored}
        rows.update(self.calls)
        return sorted(
            (row for row in rows.values() if row.state in OPEN_STATES and matches(row)),
            key=lambda row: (row.session, row.entry),
        )

    def nested(self) -> UnitOfWork:
        """Return a unit that reads what this one has, and whose changes `merge` adds to this one."""
        return UnitOfWork(cast(Reads, _UnitReads(self, self._stored)))

    def merge(self, nested: UnitOfWork) -> None:
        """Add the changes of a nested unit."""
        self.sessions.update(nested.sessions)
        self.calls.update(nested.calls)
        self.approvals.update(nested.approvals)
        self.aliases.update(nested.aliases)
        self.keys.update(nested.keys)
        self.posts.update(nested.posts)
        self.owners.update(nested.owners)
        self.seals.update(nested.seals)
        self.events.extend(nested.events)
        for name, (record, changes) in nested.conversations.items():
            earlier = self.conversations[name][1] if name in self.conversations else []
            self.conversations[name] = (record, [*earlier, *changes])
        for rule, uses in nested.rule_uses.items():
            self.rule_uses[rule] = self.rule_uses.get(rule, 0) + uses
        for client, change in nested.pending_changes.items():
            self.pending_changes[client] = self.pending_changes.get(client, 0) + change
        self.change_count += nested.change_count


class _UnitReads:
    """The records of a unit of work, as a nested unit reads them."""

    __slots__ = ("_stored", "_unit")

    def __init__(self, unit: UnitOfWork, stored: Reads) -> None:
        self._unit = unit
        self._stored = stored

    def now(self) -> int:
        return self._unit.now

    def is_taken(self, identity: str) -> bool:
        return identity in self._unit.calls or identity in self._unit.approvals or self._stored.is_taken(identity)

    def has_room(self, client: str, added: int, limit: int) -> bool:
        return self._stored.has_room(client, self._unit.pending_changes.get(client, 0) + added, limit)

    def oldest_pending(self, client: str, limit: int) -> list[CallRecord]:
        return self._unit.pending(client, limit)

    def user_messages(self, session: str) -> list[Event]:
        return list(self._unit.all_user_messages(session))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unit, name)
