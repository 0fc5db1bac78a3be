"""The log of a ledger behind a server: append to its sessions and read them over HTTP.

Every append carries an idempotency key, so a request whose answer was lost is sent again without writing twice. A call
that this process runs lives by a lease on the server, which is renewed while the call's block runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import structs

from callslip.client.http import HttpPool
from callslip.client.problems import decode_answer
from callslip.errors import ConflictError, InvalidTransitionError, NotFoundError, ServerUnavailableError
from callslip.model import codec, ids
from callslip.model.entries import AnyEntry, Info, Snapshot
from callslip.model.events import CallEvent, Draft, Event, decode_event, encode_event
from callslip.model.names import NEW_CALL_PREFIX
from callslip.model.records import CallRecord, SessionRecord
from callslip.model.views import CallView, SessionView, call_record, session_record
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings

T = TypeVar("T")
ALL_ENTRIES = 2**62
CALL_LEASE_S = 60.0
"""A call whose process stops renewing it ends after this time."""
MAX_POLL_S = 30.0
"""How long one request waits for the end of a call."""
RETRY_TIMEOUT_S = 30.0
"""How long a write is retried while the server cannot be reached."""
MIN_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.2, 5.0


class _Appended(msgspec.Struct):
    seq: int
    events: list[msgspec.Raw] = []


class _Entries(msgspec.Struct):
    session: str
    seq: int
    info: Info
    entries: list[AnyEntry]


class _Sessions(msgspec.Struct):
    sessions: list[SessionView]


def path_of(kind: str, name: str, action: str = "") -> str:
    """Return the path of a session, call, approval or blob, or of an action on it."""
    return f"/v1/{kind}/{quote(name, safe='')}" + (f"/{action}" if action else "")


class Reconnect:
    """Delays between attempts to reach a server, and what is reported about them."""

    def __init__(self, url: str, report: Callable[[str], None], *, has_connected: bool = True) -> None:
        self.is_lost = False
        self._url = url
        self._report = report
        self._has_connected = has_connected
        self._delay_s = MIN_RETRY_DELAY_S

    def connected(self) -> None:
        """Note that the server answers."""
        if self.is_lost:
            self._report(f"Reconnected to {self._url}")
        self._has_connected, self.is_lost, self._delay_s = True, False, MIN_RETRY_DELAY_S

    async def wait(self, error: ServerUnavailableError, deadline: float | None = None) -> None:
        """Wait before the next attempt, longer each time; raise `error` at the deadline or after a first attempt."""
        if not self._has_connected or (deadline is not None and time.monotonic() + self._delay_s >= deadline):
            raise error
        if not self.is_lost:
            self._report(f"{error}; retrying")
        self.is_lost = True
        await asyncio.sleep(self._delay_s)
        self._delay_s = min(MAX_RETRY_DELAY_S, self._delay_s * 2)


class RemoteLog:
    """Implements `SessionLog` over HTTP."""

    owner = ""
    required_tools: tuple[str, ...] = ()

    def __init__(self, pool: HttpPool, report: Callable[[str], None] = lambda message: None) -> None:
        self.pool = pool
        self._report = report
        self._redactor = make_redactor(True, ())

    def reconnect(self, *, has_connected: bool = True) -> Reconnect:
        """Return the delays for one operation that survives a lost connection."""
        return Reconnect(self.pool.url, self._report, has_connected=has_connected)

    async def retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request that may be repeated until it is answered, for `RETRY_TIMEOUT_S` at most."""
        reconnect, deadline = self.reconnect(), time.monotonic() + RETRY_TIMEOUT_S
        while True:
            try:
                answer = await request()
            except ServerUnavailableError as error:
                await reconnect.wait(error, deadline)
            else:
                reconnect.connected()
                return answer

    # Writing

    async def append(
        self, session: str, drafts: Sequence[Event | Draft], *, source: str = "", owner: str = "", strict: bool = False
    ) -> list[Event]:
        """Append drafts to a session, all or none, and return their events once they are durable."""
        names: dict[str, str] = {}
        bodies = [msgspec.Raw(encode_event(_prepare(draft, source, names))) for draft in drafts]
        keys = [draft.key for draft in drafts if isinstance(draft, Draft) and draft.key]
        headers = {"idempotency-key": codec.digest("\n".join(keys).encode()) if keys else uuid4().hex}
        path = path_of("sessions", session, "events")
        body = await self.retry(lambda: self.pool.post(path, {"events": bodies}, {"return": "events"}, headers=headers))
        events = [decode_event(bytes(event)) for event in decode_answer(self.pool.url, body, _Appended).events]
        if strict and any(event.verdict == "illegal" for event in events):
            raise InvalidTransitionError(f"session {session}: this step is not possible in the call's state")
        return events

    @contextlib.asynccontextmanager
    async def keep_alive(self, call: str) -> AsyncGenerator[None]:
        """Renew the lease of a call while the block runs."""
        task = asyncio.create_task(self._renew(call))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self, call: str) -> None:
        path = path_of("calls", call, "heartbeat")
        with contextlib.suppress(ConflictError, NotFoundError):  # The call has ended.
            while True:
                with contextlib.suppress(ServerUnavailableError):
                    await self.pool.post(path, {"lease": CALL_LEASE_S}, timeout=CALL_LEASE_S / 3)
                await asyncio.sleep(CALL_LEASE_S / 3)

    # Reading

    async def follow(self, session: str, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the events of a session after a cursor, then new ones as they are written. Reconnect as needed."""
        # A call that waits continues after its own event. Its server may be away for a moment before the stream opens.
        has_connected = after > 0 and self.pool.has_answered
        reconnect, path = self.reconnect(has_connected=has_connected), path_of("sessions", session, "stream")
        while True:
            try:
                query = {"format": "events", "after": after}
                async with contextlib.aclosing(self.pool.events(path, query)) as frames:
                    async for frame in frames:
                        reconnect.connected()
                        if frame.event == "event":
                            event = decode_event(frame.data)
                            after = event.seq
                            yield event
            except ServerUnavailableError as error:
                await reconnect.wait(error)

    async def snapshot(self, session: str, *, limit: int = ALL_ENTRIES, before: int = ALL_ENTRIES) -> Snapshot:
        """Return a session's newest entries."""
        query = {
            "format": "entries",
            "limit": limit if limit < ALL_ENTRIES else None,
            "cursor": before if before < ALL_ENTRIES else None,
        }
        body = await self.pool.get(path_of("sessions", session), query)
        document = decode_answer(self.pool.url, body, _Entries)
        return Snapshot(document.session, document.seq, document.info, list(document.entries))

    async def get_session(self, session: str) -> SessionRecord | None:
        """Return a session by its whole name."""
        try:
            record = await self.find_session(session)
        except (NotFoundError, ConflictError):
            return None
        return record if record.name == session else None

    async def find_session(self, id_or_prefix: str) -> SessionRecord:
        """Find a session by its name, by a prefix that matches only one, or `@last` for the last written."""
        body = await self.pool.get("/v1/sessions", {"id": id_or_prefix})
        return session_record(decode_answer(self.pool.url, body, _Sessions).sessions[0])

    async def get_call(self, call: str) -> CallRecord | None:
        """Return a call by its whole id."""
        try:
            return await self.find_call(call)
        except (NotFoundError, ConflictError):
            return None

    async def find_call(self, id_or_prefix: str, session: str = "", wait: float = 0.0) -> CallRecord:
        """Find a call; with `wait`, answer when it has ended, or after so many seconds."""
        query = {"session": session, "wait": f"{wait:.3f}" if wait else None}
        body = await self.pool.get(path_of("calls", id_or_prefix), query, wait=wait)
        return call_record(decode_answer(self.pool.url, body, CallView))

    async def wait_ended(self, session: str, call: str) -> None:
        """Wait until a call has ended."""
        reconnect = self.reconnect()
        while True:
            try:
                record = await self.find_call(call, session, 0.0 if reconnect.is_lost else MAX_POLL_S)
            except ServerUnavailableError as error:
                await reconnect.wait(error)
                continue
            reconnect.connected()
            if record.state in TERMINAL_STATES:
                return

    async def approval_deadline(self) -> int:
        """Return when an approval requested now expires, in ms since the epoch, by the server's clock."""
        if not self.pool.server_time:
            await self.pool.get("/healthz")
        now = self.pool.server_time or time.time()
        return int((now + Settings().approval_expiry) * 1000)

    def restore_secrets(self, edited: Any, original: Any) -> Any:
        """Put the original values back in place of redacted ones in edited arguments."""
        return self._redactor.restore_secrets(edited, original)


def _prepare(draft: Event | Draft, source: str, names: dict[str, str]) -> Event:
    """Return an event to be sent: with its source, and with an execution id in place of a name like `new:1`."""
    event = draft.event if isinstance(draft, Draft) else draft
    if isinstance(event, CallEvent) and event.call.startswith(NEW_CALL_PREFIX):
        event = structs.replace(event, call=names.setdefault(event.call, ids.call_id()))
    return event if event.source else structs.replace(event, source=source)
