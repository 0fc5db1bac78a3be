"""Calls, approvals and aliases: derived again by the projection that wrote them, and compared with what is stored."""

from __future__ import annotations

from collections.abc import Iterable

from callslip.errors import CorruptDataError
from callslip.ledger.verify.problems import Report, differences
from callslip.model.entries import Entry, PermissionRequest, ToolCall
from callslip.model.events import CallEvent
from callslip.model.records import OPERATIONAL, AliasRecord, ApprovalRecord, CallRecord, SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.rules.projection import TURN_NAMESPACE, input_mark
from callslip.store.protocol import Store

PAGE = 1000


class Tables:
    """The rows that the log leads to. What has ended is in `closed` and `answered` until it is compared."""

    def __init__(self) -> None:
        self.calls: dict[str, CallRecord] = {}
        self.closed: dict[str, CallRecord] = {}
        self.approvals: dict[str, ApprovalRecord] = {}
        self.answered: dict[str, ApprovalRecord] = {}
        self.aliases: dict[tuple[str, str], str] = {}

    def call(self, call: str) -> CallRecord | None:
        return self.calls.get(call) or self.closed.get(call)

    def put_call(self, row: CallRecord) -> None:
        self.calls.pop(row.id, None)
        (self.closed if row.state in TERMINAL_STATES else self.calls)[row.id] = row

    def approval(self, approval: str) -> ApprovalRecord | None:
        return self.approvals.get(approval) or self.answered.get(approval)

    def put_approval(self, row: ApprovalRecord) -> None:
        self.approvals.pop(row.id, None)
        (self.approvals if row.state == "pending" else self.answered)[row.id] = row

    def put_alias(self, session: str, ns: str, identity: str, call: str) -> None:
        self.aliases[ns, identity] = call


class Rows:
    """The rows of one session."""

    def __init__(self, store: Store, row: SessionRecord, report: Report) -> None:
        self.tables = Tables()
        self._store = store
        self._row = row
        self._report = report
        self._calls = self._approvals = 0
        self._before: set[str] = set()

    # What was open when retention cut the log

    async def begin(self, state: SessionFold) -> None:
        """Take up the calls and requests of a base."""
        for entry in state.entries.values():
            if isinstance(entry, ToolCall):
                self.tables.calls[entry.call_id] = await self._call_of(entry)
            elif isinstance(entry, PermissionRequest):
                self.tables.approvals[entry.request_id] = await self._approval_of(entry)
        self._before = set(self.tables.calls)

    async def _call_of(self, entry: ToolCall) -> CallRecord:
        """An entry does not tell a call's opening, deadline, who runs it or how often: there the row is believed."""
        kept = await self._store.call(entry.call_id) or CallRecord("", "", 0)
        return CallRecord(
            id=entry.call_id,
            session=self._row.name,
            entry=entry.id,
            state=entry.status,
            client_call_id=entry.tool_call_id,
            tool=entry.tool_name or "",
            title=entry.title or "",
            kind=entry.kind or "",
            source=entry.source,
            turn=entry.turn,
            iteration=entry.iteration,
            index=entry.index,
            scope=entry.scope,
            idempotent=kept.idempotent,
            attempt=entry.attempt,
            worker=entry.worker,
            approval=entry.approval if entry.status == "awaiting_approval" else "",
            opening=kept.opening,
            input_mark=input_mark(entry.raw_input),
            deadline=kept.deadline,
            created_at=entry.at,
            started_at=entry.started_at,
            client=kept.client,
            timeout=kept.timeout,
        )

    async def _approval_of(self, entry: PermissionRequest) -> ApprovalRecord:
        try:
            kept = await self._store.approval(entry.request_id)
        except CorruptDataError:  # Told when it is compared.
            kept = None
        return ApprovalRecord(
            id=entry.request_id,
            session=self._row.name,
            call=entry.call_id,
            entry=entry.id,
            input_mark=input_mark(entry.raw_input),
            attempt=kept.attempt if kept else 0,
            description=entry.description,
            options=entry.options,
            expires_at=entry.expires_at,
            created_at=entry.at,
        )

    # While the log is read

    async def is_over(self, event: CallEvent) -> bool:
        """Whether an event was applied to a call that had ended: then it ended twice, or changed after its end."""
        if event.verdict != "applied":
            return False
        known = self.tables.call(event.call)
        if known is not None:
            return known.state in TERMINAL_STATES
        kept = await self._store.call(event.call)
        return kept is not None and kept.entry < event.seq

    async def settle(self, finished: Iterable[Entry]) -> None:
        """Compare what has ended, and its entries; then forget it."""
        tables = self.tables
        for row in tables.closed.values():
            await self._call(row)
        for row in tables.answered.values():
            await self._approval(row)
        for entry in finished:
            if isinstance(entry, ToolCall):
                self._status(tables.closed.get(entry.call_id), entry)
        tables.closed, tables.answered = {}, {}

    async def _call(self, row: CallRecord) -> None:
        kept = await self._store.call(row.id)
        if kept is None:
            self._report.add("call", f"{row.id} is not stored")
            return
        self._calls += 1
        if wrong := differences(kept, row, OPERATIONAL):
            self._report.add("call", f"{row.id}: {wrong}")

    async def _approval(self, row: ApprovalRecord) -> None:
        try:
            kept = await self._store.approval(row.id)
        except CorruptDataError as error:
            self._report.add("approval", f"{row.id}: {error}")
            return
        if kept is None:
            self._report.add("approval", f"{row.id} is not stored")
            return
        self._approvals += 1
        if wrong := differences(kept, row):
            self._report.add("approval", f"{row.id}: {wrong}")

    def _status(self, row: CallRecord | None, entry: ToolCall) -> None:
        state = row.state if row is not None else "none"
        if state != entry.status:
            self._report.add("call", f"{entry.call_id} is {state} by its row, {entry.status} by its entry")

    # At the end

    async def end(self, state: SessionFold) -> None:
        """Compare what is still open, and that nothing else is stored."""
        for row in self.tables.calls.values():
            await self._call(row)
            self._status(row, state.calls.get(row.id) or ToolCall(id=0, call_id=row.id, tool_call_id=""))
        for row in self.tables.approvals.values():
            await self._approval(row)
        tally = await self._store.row_counts(self._row.name)
        for what, stored, seen in (
            ("call", tally.calls, self._calls),
            ("approval", tally.approvals, self._approvals),
        ):
            if stored != seen:
                self._report.add(what, f"{stored} are stored, but the log leads to {seen} of them")
        await self._aliases()

    async def _aliases(self) -> None:
        derived, last = self.tables.aliases, None
        while rows := await self._store.aliases(self._row.name, last, PAGE):
            last = rows[-1]
            for row in rows:
                self._alias(row, derived.pop((row.ns, row.id), None))
        for (ns, identity), call in derived.items():
            # Version 0.1, which may still write the file, does not store the names of turns.
            if ns != TURN_NAMESPACE:
                self._report.add("alias", f"{ns} {identity!r}, of {call!r}, is not stored")

    def _alias(self, row: AliasRecord, told: str | None) -> None:
        """One that the kept log does not tell may be older, if its call is."""
        older = told is None and self._row.pruned_seq > 0 and (not row.call or row.call in self._before)
        if row.call != told and not older:
            self._report.add("alias", f"{row.ns} {row.id!r} leads to {row.call!r}, should lead to {told!r}")
