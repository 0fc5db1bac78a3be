"""Compare the stored calls, approvals and aliases with those that the projection derives from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from callslip.errors import CorruptDataError
from callslip.ledger.verify.problems import Report, differences
from callslip.model.entries import Entry, PermissionRequest, ToolCall
from callslip.model.events import CallEvent, CallReported, type_of
from callslip.model.records import OPERATIONAL, AliasRecord, ApprovalRecord, CallRecord, SessionRecord, record_text
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES, next_state
from callslip.rules.projection import LIVE_NAMESPACE, TURN_NAMESPACE, input_mark
from callslip.store.protocol import Store

R = TypeVar("R", CallRecord, ApprovalRecord)
PAGE_ROWS = 1000
# The fields of a call that its entry has by the same name, and those that an open entry does not have.
_ENTRY_FIELDS = ("source", "turn", "iteration", "index", "scope", "attempt", "started_at")
_RECORD_FIELDS = ("idempotent", "opening", "deadline", "client", "timeout")


class Tables:
    """The derived records. Ended calls are in `closed` and answered approvals in `answered` until they are compared."""

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


class RecordCheck:
    """The records of one session."""

    def __init__(self, store: Store, session: SessionRecord, report: Report) -> None:
        self.tables = Tables()
        self._store = store
        self._session = session
        self._report = report
        self._counts = Counter[str]()
        self._base_calls: set[str] = set()

    # Records that were open when retention cut the log

    async def start(self, state: SessionFold) -> None:
        """Derive the calls and approvals of a base."""
        for entry in state.entries.values():
            if isinstance(entry, ToolCall):
                self.tables.calls[entry.call_id] = await self._derive_call(entry)
            elif isinstance(entry, PermissionRequest):
                self.tables.approvals[entry.approval] = await self._derive_approval(entry)
        self._base_calls = set(self.tables.calls)

    async def _derive_call(self, entry: ToolCall) -> CallRecord:
        """Derive a call from its entry. Fields that an entry does not have are taken from the stored record."""
        stored = await self._store.call(entry.call_id) or CallRecord("", "", 0)
        return CallRecord(
            id=entry.call_id,
            session=self._session.name,
            entry=entry.id,
            state=entry.status,
            client_call_id=entry.tool_call_id,
            tool=record_text(entry.tool_name or ""),
            title=record_text(entry.title or ""),
            kind=record_text(entry.kind or ""),
            worker=record_text(entry.worker),
            approval=entry.approval if entry.status == "awaiting_approval" else "",
            input_mark=input_mark(entry.raw_input),
            created_at=entry.at,
            **{name: getattr(entry, name) for name in _ENTRY_FIELDS},
            **{name: getattr(stored, name) for name in _RECORD_FIELDS},
        )

    async def _derive_approval(self, entry: PermissionRequest) -> ApprovalRecord:
        try:
            stored = await self._store.approval(entry.approval)
        except CorruptDataError:  # Reported when it is compared.
            stored = None
        return ApprovalRecord(
            id=entry.approval,
            session=self._session.name,
            call=entry.call_id,
            entry=entry.id,
            input_mark=input_mark(entry.raw_input),
            attempt=stored.attempt if stored else 0,
            description=record_text(entry.description),
            options=entry.options,
            expires_at=entry.expires_at,
            created_at=entry.at,
            answer_at=stored.answer_at if stored else "",
        )

    # While the log is read

    async def find_step_fault(self, event: CallEvent) -> str:
        """Return why an event cannot have been applied to its call: the call had ended, or was in another state."""
        if event.verdict != "applied" or isinstance(event, CallReported):
            return ""
        derived = self.tables.call(event.call)
        if derived is None:
            stored = await self._store.call(event.call)
            has_ended = stored is not None and stored.entry < event.seq
        else:
            has_ended = derived.state in TERMINAL_STATES
        if has_ended:
            return f"event {event.seq} was applied to {event.call}, which was not open"
        state = derived.state if derived else "none"
        if next_state(state, event) is None:
            return f"event {event.seq} was applied, but {type_of(event)} is impossible while {event.call} is {state}"
        return ""

    async def check_ended(self, finished: Iterable[Entry]) -> None:
        """Compare ended calls and answered approvals, and the states in their entries; then drop them."""
        tables = self.tables
        for call in tables.closed.values():
            await self._check("call", call, self._store.call, *OPERATIONAL)
        for approval in tables.answered.values():
            await self._check("approval", approval, self._store.approval)
        for entry in finished:
            if isinstance(entry, ToolCall):
                self._check_state(tables.closed.get(entry.call_id), entry)
        tables.closed, tables.answered = {}, {}

    async def _check(self, what: str, derived: R, read: Callable[[str], Awaitable[R | None]], *ignored: str) -> None:
        try:
            stored = await read(derived.id)
        except CorruptDataError as error:
            self._report.add(what, f"{derived.id}: {error}")
            return
        if stored is None:
            self._report.add(what, f"{derived.id} is not stored")
            return
        self._counts[what] += 1
        if difference := differences(stored, derived, ignored):
            self._report.add(what, f"{derived.id}: {difference}")

    def _check_state(self, derived: CallRecord | None, entry: ToolCall) -> None:
        state = derived.state if derived is not None else "none"
        if state != entry.status:
            self._report.add("call", f"{entry.call_id} is {state} by its record, {entry.status} by its entry")

    # At the end

    async def finish(self, state: SessionFold) -> None:
        """Compare the open records, and check that no others are stored."""
        for call in self.tables.calls.values():
            await self._check("call", call, self._store.call, *OPERATIONAL)
            self._check_state(call, state.calls.get(call.id) or ToolCall(id=0, call_id=call.id, tool_call_id=""))
        for approval in self.tables.approvals.values():
            await self._check("approval", approval, self._store.approval)
        counts = await self._store.row_counts(self._session.name)
        for what, stored in (("call", counts.calls), ("approval", counts.approvals)):
            if stored != self._counts[what]:
                self._report.add(what, f"{stored} are stored, but the log gives {self._counts[what]}")
        await self._check_aliases()

    async def _check_aliases(self) -> None:
        derived, last = self.tables.aliases, None
        while rows := await self._store.aliases(self._session.name, last, PAGE_ROWS):
            last = rows[-1]
            for row in rows:
                self._check_alias(row, derived.pop((row.ns, row.id), None))
        for (ns, alias), call in derived.items():
            # Earlier versions, which may still write the file, do not store them.
            if ns not in (TURN_NAMESPACE, LIVE_NAMESPACE):
                self._report.add("alias", f"{ns} {alias!r}, of {call!r}, is not stored")

    def _check_alias(self, stored: AliasRecord, call: str | None) -> None:
        """Compare an alias with the call that the log gives for it, unless it may be older than the log."""
        is_older = call is None and self._session.pruned_seq > 0
        is_older = is_older and (not stored.call or stored.call in self._base_calls)
        if stored.call != call and not is_older:
            self._report.add("alias", f"{stored.ns} {stored.id!r} refers to {stored.call!r}, should be {call!r}")
