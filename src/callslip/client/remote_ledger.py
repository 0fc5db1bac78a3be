"""A ledger behind a server, with the same interface as a local one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeVar, Unpack, cast

import msgspec
from msgspec import UNSET

from callslip.api.export import DOCUMENT_END, document_field, document_items, document_start
from callslip.api.find import CALL_STATES, check_states
from callslip.api.follow import Frame
from callslip.api.keywords import check_keywords
from callslip.api.ledger import Ledger
from callslip.api.rule_book import RuleBook
from callslip.api.search import STATES as SEARCHED_STATES
from callslip.api.search import SearchFilters
from callslip.api.session import Session
from callslip.api.session_list import SessionFilters
from callslip.api.usage import UsageFilters, UsageReport
from callslip.client.http import HttpPool
from callslip.client.problems import decode_answer
from callslip.client.remote_commands import RemoteCommands
from callslip.client.remote_log import ALL_ENTRIES, MAX_POLL_S, RemoteLog, path_of
from callslip.client.remote_rules import RemoteRuleBook
from callslip.errors import (
    AmbiguousIdError,
    ConflictError,
    CursorExpiredError,
    InvalidInputError,
    NotFoundError,
    ServerUnavailableError,
    WaitTimeoutError,
)
from callslip.formats import registry
from callslip.model.entries import Snapshot, ToolCall
from callslip.model.events import Event, decode_event
from callslip.model.names import check_session_name
from callslip.model.records import ApprovalRecord, CallRecord, ListedSession, Page, SessionRecord
from callslip.model.search import SearchResults
from callslip.model.views import (
    ApprovalView,
    CallView,
    SessionView,
    approval_record,
    call_record,
    session_record,
)
from callslip.rules.lifecycle import TERMINAL_STATES

T = TypeVar("T", bound=msgspec.Struct)
PAGE_ROWS = 1000
_ID_LINE = re.compile(rb"^id: [0-9]+\n", re.MULTILINE)


class _Sessions(msgspec.Struct):
    sessions: list[SessionView]
    cursor: str
    complete: bool = True


class _Calls(msgspec.Struct):
    calls: list[CallView]
    cursor: str


class _Approvals(msgspec.Struct):
    approvals: list[ApprovalView]


class _Match(msgspec.Struct):
    session: SessionView | None = None
    call: CallView | None = None
    approval: ApprovalView | None = None


class _CallDetail(msgspec.Struct, rename="camel"):
    tool_call: ToolCall | None = None


class _Document(msgspec.Struct):
    session: str
    seq: int
    events: list[msgspec.Raw] = []
    entries: list[msgspec.Raw] = []
    messages: list[msgspec.Raw] = []
    cursor: str = ""


class _Seq(msgspec.Struct):
    seq: int


class RemoteLedger(Ledger):
    """A ledger behind a server. Open it with `callslip.connect`; connecting does no I/O.

    Answers are recorded under the name of the token: `by` may only repeat it. What follows or waits reconnects by
    itself; `report` is called with a line when the connection is lost and when it is back.
    """

    def __init__(self, pool: HttpPool, report: Callable[[str], None] = lambda message: None) -> None:
        self.url = pool.url
        self._pool = pool
        self._log = RemoteLog(pool, report)
        self._commands = RemoteCommands(self._log)

    def __repr__(self) -> str:
        return f"<RemoteLedger {self.url!r}>"

    @property
    def log(self) -> RemoteLog:
        return self._log

    @property
    def commands(self) -> RemoteCommands:
        return self._commands

    @property
    def rules(self) -> RuleBook:
        return RemoteRuleBook(self._pool)

    async def close(self) -> None:
        await self._pool.close()

    def session(self, name: str) -> Session:
        return Session(self, check_session_name(name))

    async def _get(self, path: str, kind: type[T], query: dict[str, Any] | None = None) -> T:
        return decode_answer(self.url, await self._pool.get(path, query), kind)

    # Finding

    async def sessions(
        self, *, limit: int = 100, cursor: str = "", **filters: Unpack[SessionFilters]
    ) -> Page[ListedSession]:
        check_keywords("sessions", filters, SessionFilters)
        fields: dict[str, Any] = {name: value for name, value in filters.items() if name != "states"}
        fields["q"] = fields.pop("query", "")
        query = {
            "limit": min(limit, PAGE_ROWS),
            "cursor": cursor,
            "state": ",".join(filters.get("states", ())),
            **fields,
        }
        page = await self._get("/v1/sessions", _Sessions, query)
        return Page([session_record(view) for view in page.sessions], page.cursor, page.complete)

    async def usage(self, by: str = "", **filters: Unpack[UsageFilters]) -> UsageReport:
        check_keywords("usage", filters, UsageFilters)
        fields: dict[str, Any] = dict(filters)
        fields["utcOffsetMinutes"] = fields.pop("utc_offset_minutes", 0)
        return await self._get("/v1/usage", UsageReport, {"by": by, **fields})

    async def search(
        self, query: str, *, limit: int = 20, cursor: str = "", **filters: Unpack[SearchFilters]
    ) -> SearchResults:
        check_keywords("search", filters, SearchFilters)
        check_states(filters.get("states", ()), SEARCHED_STATES, "state")
        fields: dict[str, Any] = {name: value for name, value in filters.items() if name != "states"}
        fields["state"] = ",".join(filters.get("states", ()))
        return await self._get("/v1/search", SearchResults, {"q": query, "limit": limit, "cursor": cursor, **fields})

    async def calls(
        self, *, session: str = "", states: Sequence[str] = (), limit: int = 100, cursor: str = ""
    ) -> Page[CallRecord]:
        check_states(states, CALL_STATES, "states")
        query = {"session": session, "status": ",".join(states), "limit": min(limit, PAGE_ROWS), "cursor": cursor}
        page = await self._get("/v1/calls", _Calls, query)
        return Page([call_record(view) for view in page.calls], page.cursor)

    async def approvals(self, *, session: str = "", state: str = "pending", limit: int = 100) -> list[ApprovalRecord]:
        query = {"session": session, "state": state, "limit": min(limit, PAGE_ROWS)}
        return [approval_record(view) for view in (await self._get("/v1/approvals", _Approvals, query)).approvals]

    async def find(self, id: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
        match = await self._get("/v1/find", _Match, {"id": id, "session": session})
        if match.session is not None:
            return session_record(match.session)
        if match.call is not None:
            return call_record(match.call)
        return approval_record(cast("ApprovalView", match.approval))

    async def find_session(self, id: str) -> SessionRecord:
        return await self.log.find_session(id)

    async def find_call(self, id: str, session: str = "") -> CallRecord:
        return await self.log.find_call(id, session)

    async def find_approval(self, id: str, session: str = "") -> ApprovalRecord:
        record = approval_record(await self._get(path_of("approvals", id), ApprovalView))
        if session not in ("", record.session):
            raise NotFoundError(f"no approval {id!r}")
        return record

    # Acting

    async def approve(
        self, id: str, *, by: str = "", option: str = "", input: Any = UNSET, reason: str = ""
    ) -> ApprovalRecord:
        edit: dict[str, Any] = {"decision": "approve"} if input is UNSET else {"decision": "edit", "input": input}
        return await self._answer(id, {**edit, "option": option, "reason": reason}, by)

    async def deny(self, id: str, *, by: str = "", option: str = "", reason: str = "") -> ApprovalRecord:
        return await self._answer(id, {"decision": "deny", "option": option, "reason": reason}, by)

    async def _answer(self, id: str, answer: dict[str, Any], by: str) -> ApprovalRecord:
        record = await self.find_approval(id)
        body = {**answer, "by": by} if by else answer
        is_repeated = False

        async def post() -> bytes:
            nonlocal is_repeated
            try:
                return await self._pool.post(path_of("approvals", record.id), body, resend=False)
            except ServerUnavailableError:
                is_repeated = True
                raise

        try:
            answered = await self.log.retry(post)
        except ConflictError as error:
            winner = _record_of(error, ApprovalView, approval_record)
            state = "refused" if answer["decision"] == "deny" else "granted"
            # The answer to the first request was lost: the approval may have been answered by that request.
            if is_repeated and winner is not None and winner.state == state and by in ("", winner.by):
                return winner
            raise ConflictError(str(error), winner or error.current) from error
        return approval_record(decode_answer(self.url, answered, ApprovalView))

    async def cancel(self, id: str, *, by: str = "", reason: str = "") -> CallRecord:
        if by:
            raise InvalidInputError("by", "is set by the token; leave it out")
        try:
            body = await self.log.retry(lambda: self._pool.post(path_of("calls", id, "cancel"), {"reason": reason}))
        except AmbiguousIdError:
            raise
        except ConflictError as error:
            raise ConflictError(str(error), _record_of(error, CallView, call_record) or error.current) from error
        return call_record(decode_answer(self.url, body, CallView))

    async def wait(self, id: str, timeout: float | None = None) -> CallRecord:
        deadline = None if timeout is None else time.monotonic() + timeout
        found = ""
        reconnect = self.log.reconnect()
        while True:
            left = MAX_POLL_S if deadline is None else max(0.0, min(MAX_POLL_S, deadline - time.monotonic()))
            try:
                # The first answer, also of a new server, must come soon.
                wait_s = left if found and not reconnect.is_lost else 0.0
                record = await self.log.find_call(found or id, wait=wait_s)
            except ServerUnavailableError as error:
                if deadline is not None and time.monotonic() >= deadline:
                    raise WaitTimeoutError(f"call {found or id} has not ended within {timeout:g} s") from error
                if not self._pool.has_answered:  # Its address may be wrong.
                    raise
                await reconnect.wait(error)
                continue
            reconnect.connected()
            found = record.id
            if record.state in TERMINAL_STATES:
                return record
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeoutError(f"call {found} has not ended within {timeout:g} s")

    # Reading

    async def entry(self, call: str) -> ToolCall | None:
        return (await self._get(path_of("calls", call), _CallDetail)).tool_call

    async def snapshot(self, session: str, *, limit: int = ALL_ENTRIES, before: int = ALL_ENTRIES) -> Snapshot:
        return await self.log.snapshot(session, limit=limit, before=before)

    async def events(self, session: str, after: int = 0, upto: int | None = None) -> AsyncGenerator[Event]:
        cursor: str | None = str(after) if after else None
        while True:
            query = {"format": "events", "limit": PAGE_ROWS, "cursor": cursor}
            document = await self._get(path_of("sessions", session), _Document, query)
            for body in document.events:
                event = decode_event(bytes(body))
                if upto is not None and event.seq > upto:
                    return
                yield event
            cursor = document.cursor
            if not cursor:
                return

    def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        return self.log.follow(session, after)

    async def frames(self, session: str, format: str = "entries", after: int | None = None) -> AsyncGenerator[Frame]:
        reconnect, path = self.log.reconnect(has_connected=False), path_of("sessions", session, "stream")
        has_started = False
        if after is None and format == "events":
            after = (await self.find_session(session)).pruned_seq
        while True:
            try:
                query = {"format": format, "after": after}
                async with contextlib.aclosing(self._pool.events(path, query)) as events:
                    async for event in events:
                        reconnect.connected()
                        if event.event in ("snapshot", "patches", "event"):
                            has_started, after = True, int(event.id)
                            yield Frame(event.event, after, event.data)
            except ServerUnavailableError as error:
                await reconnect.wait(error)
            except CursorExpiredError:
                if format != "entries" or not has_started:
                    raise
                after = None

    async def export(self, session: str, format: str, *, at: int | None = None) -> bytes:
        return b"".join([chunk async for chunk in self.export_chunks(session, format, at=at)])

    async def export_chunks(self, session: str, format: str, *, at: int | None = None) -> AsyncGenerator[bytes]:
        name = (await self.find_session(session)).name
        field = document_field(format)
        if not field:
            async with contextlib.aclosing(
                self._pool.chunks(path_of("sessions", name), {"format": format, "at": at})
            ) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        query = {"format": format, "at": at} if field != "events" else {"format": "events", "limit": PAGE_ROWS}
        if field == "events" and at is not None:  # The server checks the position, and has no pages of the past.
            await self._pool.get(path_of("sessions", name), {"format": "entries", "at": at})
        document = await self._get(path_of("sessions", name), _Document, query)
        last = document.seq if at is None else at
        yield document_start(document.session, last, field)
        is_first = True
        while bodies := [bytes(body) for body in cast("list[msgspec.Raw]", getattr(document, field))]:
            if field == "events":
                bodies = [body for body in bodies if msgspec.json.decode(body, type=_Seq).seq <= last]
            yield b"".join(document_items(bodies, is_first=is_first))
            is_first = is_first and not bodies
            if field != "events" or not document.cursor or int(document.cursor) >= last:
                break
            document = await self._get(path_of("sessions", name), _Document, {**query, "cursor": document.cursor})
        yield DOCUMENT_END

    async def export_turn(
        self, session: str, format: str, *, turn: str = "", at: int | None = None
    ) -> AsyncGenerator[bytes]:
        if at is not None:
            raise InvalidInputError("at", "a server streams a turn as it is now; leave it out, or open the file")
        name = (await self.find_session(session)).name
        query = {"format": format, "turn": turn, "follow": "false"}
        path = path_of("sessions", name, "stream")
        data = b"".join([chunk async for chunk in self._pool.chunks(path, query)])
        yield _ID_LINE.sub(b"", data) if registry.streaming(format).events else data

    async def blob(self, hash: str) -> bytes:
        return b"".join([chunk async for chunk in self._pool.chunks(path_of("blobs", hash))])


R = TypeVar("R")


def _record_of(error: ConflictError, kind: type[T], convert: Callable[[T], R]) -> R | None:
    """Return the record that a conflict names as its winner, if it is one of this kind."""
    try:
        return convert(msgspec.convert(error.current, kind))
    except msgspec.ValidationError:
        return None
