"""Find sessions, calls and approvals by the ids that people and programs write, and list them.

An id is the whole id, a prefix that matches only one, an id that the producer of a call gave it, or `@last`. Ids that
producers start again in every turn, such as those of commands in a text, are only accepted with their session. Records
that the caller may not read are reported as not found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from callslip.api.access import FULL_ACCESS, Access, Verb, can_see
from callslip.errors import (
    AmbiguousIdError,
    CallslipError,
    CommandNotFoundError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from callslip.ledger.event_log import EventLog
from callslip.model.names import RETURNED_NAMESPACES
from callslip.model.records import ApprovalRecord, CallRecord, Page, SessionRecord
from callslip.rules.lifecycle import ANSWER_STATES, OPEN_STATES, TERMINAL_STATES

Record = SessionRecord | CallRecord | ApprovalRecord
R = TypeVar("R", CallRecord, ApprovalRecord)
M = TypeVar("M", bound=SessionRecord | CallRecord | ApprovalRecord)
CALL_STATES = (*sorted(OPEN_STATES), *sorted(TERMINAL_STATES))
APPROVAL_STATES = ("pending", *ANSWER_STATES.values(), "moot", "superseded")
ANSWERED = "answered"
LAST = "@last"
CALL_PREFIX = "exec_"
APPROVAL_PREFIX = "appr_"
MAX_MATCHES = 10
"""How many matches an ambiguous id lists."""
PAGE_ROWS = 100
"""How many rows are read at once, at the least: the caller may be allowed to see few of them."""


async def find_session(log: EventLog, id_or_prefix: str, *, access: Access = FULL_ACCESS) -> SessionRecord:
    """Find a session by its name, by a prefix that matches only one, or `@last` for the last written."""
    if id_or_prefix == LAST:
        matches = (await list_sessions(log, limit=1, access=access)).items
    else:
        exact = await log.store.session(id_or_prefix)
        if exact is not None and await can_see(access, exact.name, "read"):
            return exact
        matches = (await list_sessions(log, limit=MAX_MATCHES, prefix=id_or_prefix, access=access)).items
    return await _exactly_one(matches, "session", id_or_prefix, access)


async def find_call(
    log: EventLog, id_or_prefix: str, *, session: str = "", access: Access = FULL_ACCESS, verb: Verb = "read"
) -> CallRecord:
    """Find a call by its id, a prefix of it, an id of its producer, its approval, or `@last` for the newest."""
    matches = await _visible(await _calls_named(log, id_or_prefix, session), session, access, verb)
    if not matches and not session:
        await _check_no_alias(log, id_or_prefix, access, verb)
    if not matches and id_or_prefix == LAST:
        matches = (await list_calls(log, session=session, limit=1, access=access, verb=verb)).items
    elif not matches and id_or_prefix.startswith(CALL_PREFIX):
        page = await list_calls(log, session=session, prefix=id_or_prefix, limit=MAX_MATCHES, access=access, verb=verb)
        matches = page.items
    elif not matches and id_or_prefix.startswith(APPROVAL_PREFIX):
        approvals = await _approvals_named(log, id_or_prefix, session, access, verb)
        matches = [call for approval in approvals if (call := await log.store.call(approval.call)) is not None]
    return await _exactly_one(matches, "call", id_or_prefix, access)


async def find_command(
    log: EventLog, id_or_prefix: str, *, session: str = "", access: Access = FULL_ACCESS, verb: Verb = "read"
) -> CallRecord:
    """Find a command by its correlation id, or any other id of its call."""
    try:
        return await find_call(log, id_or_prefix, session=session, access=access, verb=verb)
    except NotFoundError:
        raise CommandNotFoundError(id_or_prefix) from None


async def find_approval(
    log: EventLog, id_or_prefix: str, *, session: str = "", access: Access = FULL_ACCESS, verb: Verb = "read"
) -> ApprovalRecord:
    """Find an approval by its id, a prefix of it, its call, or `@last` for the newest that can be answered here."""
    if id_or_prefix == LAST:
        pending = await list_approvals(log, session=session, limit=0, access=access, verb=verb)
        answerable = [record for record in pending if not record.answer_at]
        if not answerable:
            raise NotFoundError("no pending approvals" + (" that can be answered here" if pending else ""))
        return answerable[-1]
    matches = await _approvals_named(log, id_or_prefix, session, access, verb)
    if matches:
        return await _exactly_one(matches, "approval", id_or_prefix, access)
    try:
        call = await find_call(log, id_or_prefix, session=session, access=access, verb=verb)
    except NotFoundError:
        raise NotFoundError(f"no approval {id_or_prefix!r}") from None
    approval = await log.store.approval(call.approval) if call.approval else None
    if approval is None:
        raise NotFoundError(f"call {call.id} has no pending approval; it is {call.state}")
    return approval


async def find(
    log: EventLog, id_or_prefix: str, *, session: str = "", access: Access = FULL_ACCESS
) -> SessionRecord | CallRecord | ApprovalRecord:
    """Find what an id names. Whole ids win over prefixes, and a session's name over the ids in sessions.

    With `session`, only calls and approvals of that session.
    """
    if id_or_prefix == LAST and not session:
        return await find_session(log, id_or_prefix, access=access)
    if id_or_prefix == LAST:
        return await find_call(log, id_or_prefix, session=session, access=access)
    named = None if session else await log.store.session(id_or_prefix)
    if named is not None and await can_see(access, named.name):
        return named
    exact = await log.store.approval(id_or_prefix)
    if exact is not None and session in ("", exact.session) and await can_see(access, exact.session, "read"):
        return exact
    calls = await _visible(await _calls_named(log, id_or_prefix, session), session, access, "read")
    if not calls and not session:
        await _check_no_alias(log, id_or_prefix, access, "read")
    if not calls and id_or_prefix.startswith(CALL_PREFIX):
        calls = (await list_calls(log, session=session, prefix=id_or_prefix, limit=MAX_MATCHES, access=access)).items
    matches: list[Record] = [*calls, *await _approvals_named(log, id_or_prefix, session, access, "read")]
    if not session:
        matches += (await list_sessions(log, limit=MAX_MATCHES, prefix=id_or_prefix, access=access)).items
    return await _exactly_one(matches, "session, call or approval", id_or_prefix, access)


# Lists


def check_states(states: Sequence[str], known: Sequence[str], field: str) -> None:
    """Raise InvalidInputError for a state that calls or approvals do not have."""
    for state in states:
        if state not in known:
            raise InvalidInputError(field, f"unknown state {state!r}; known states: {', '.join(known)}")


async def list_sessions(
    log: EventLog, *, limit: int = 100, cursor: str = "", prefix: str = "", access: Access = FULL_ACCESS
) -> Page[SessionRecord]:
    """Return the sessions that the caller may read, the last written first."""
    if access is FULL_ACCESS:
        return await log.store.sessions(limit=limit, cursor=cursor, prefix=prefix)
    found: list[SessionRecord] = []
    while True:
        # One row at a time past the limit: the cursor of this list names the last row that was looked at.
        page = await log.store.sessions(limit=limit - len(found), cursor=cursor, prefix=prefix)
        found += [record for record in page.items if await can_see(access, record.name, "read")]
        cursor = page.cursor
        if len(found) >= limit or not cursor:
            return Page(found, cursor)


async def list_calls(
    log: EventLog,
    *,
    session: str = "",
    states: Sequence[str] = (),
    prefix: str = "",
    tool: str = "",
    query: str = "",
    limit: int = 100,
    cursor: str = "",
    access: Access = FULL_ACCESS,
    verb: Verb = "read",
) -> Page[CallRecord]:
    """Return the calls that the caller may see, newest first. The cursor is the id of the last one."""
    check_states(states, CALL_STATES, "states")
    if access is not FULL_ACCESS and cursor:
        last = await log.store.call(cursor)
        if last is None or not await can_see(access, last.session, verb):
            raise InvalidInputError("cursor", "not valid for this list, or retention removed its call")
    found: list[CallRecord] = []
    while True:
        page = await log.store.calls(
            session=session,
            states=states,
            prefix=prefix,
            tool=tool,
            q=query,
            limit=limit if access is FULL_ACCESS else max(limit + 1, PAGE_ROWS),
            cursor=cursor,
        )
        if access is FULL_ACCESS:
            return page
        found += [record for record in page.items if await can_see(access, record.session, verb)]
        if len(found) > limit:
            return Page(found[:limit], found[limit - 1].id)
        cursor = page.cursor
        if not cursor:
            return Page(found)


async def list_approvals(
    log: EventLog,
    *,
    session: str = "",
    state: str = "pending",
    limit: int = 100,
    access: Access = FULL_ACCESS,
    verb: Verb = "read",
) -> list[ApprovalRecord]:
    """Return the approvals that the caller may see, oldest first. A limit of 0 returns all, and state "" any.

    The state "answered" is any but pending, with the newest request first.
    """
    check_states([state] if state not in ("", ANSWERED) else [], APPROVAL_STATES, "state")
    store = log.store
    return await first_visible(
        lambda count: (
            store.answered_approvals(session=session, limit=count)
            if state == ANSWERED
            else store.approvals(session=session, state=state, limit=count)
        ),
        lambda record: can_see(access, record.session, verb),
        limit,
    )


async def first_visible(
    read: Callable[[int], Awaitable[list[R]]], is_visible: Callable[[R], Awaitable[bool]], limit: int
) -> list[R]:
    """Return the first `limit` records that are visible, reading more until there are enough. 0 means all."""
    count = limit or 1000
    while True:
        records = await read(count)
        visible = [record for record in records if await is_visible(record)]
        if len(records) < count or 0 < limit <= len(visible):
            return visible[: limit or None]
        count *= 2


# Matching


async def _calls_named(log: EventLog, name: str, session: str) -> list[CallRecord]:
    """Return the call with this id, or else those to which a producer gave it."""
    exact = await log.store.call(name)
    if exact is not None and session in ("", exact.session):
        return [exact]
    return await log.store.alias(name, session, () if session else RETURNED_NAMESPACES)


async def _check_no_alias(log: EventLog, name: str, access: Access, verb: Verb) -> None:
    """Raise NotFoundError that asks for the session if the id is accepted in a session that the caller may see.

    The id may also be the beginning of the id of another call, which the caller does not mean.
    """
    if await _visible(await log.store.alias(name), "", access, verb):
        raise NotFoundError(f"no call {name!r}. It is an id of its producer: pass the session too.")


async def _approvals_named(
    log: EventLog, id_or_prefix: str, session: str, access: Access, verb: Verb
) -> list[ApprovalRecord]:
    exact = await log.store.approval(id_or_prefix)
    if exact is not None:
        return await _visible([exact], session, access, verb)
    if not id_or_prefix or not (id_or_prefix.startswith(APPROVAL_PREFIX) or APPROVAL_PREFIX.startswith(id_or_prefix)):
        return []
    return await first_visible(
        lambda count: log.store.approvals(session=session, prefix=id_or_prefix, limit=count),
        lambda record: can_see(access, record.session, verb),
        MAX_MATCHES,
    )


async def _visible(records: Sequence[R], session: str, access: Access, verb: Verb) -> list[R]:
    return [
        record for record in records if session in ("", record.session) and await can_see(access, record.session, verb)
    ]


async def _exactly_one(matches: Sequence[M], kind: str, id_or_prefix: str, access: Access) -> M:
    if not matches:
        await access.require_identity()
        raise NotFoundError(f"no {kind} {id_or_prefix!r}")
    if len(matches) > 1:
        readable = [record for record in matches if await access.may(_session_of(record), "read")]
        names = [record.name if isinstance(record, SessionRecord) else record.id for record in readable]
        raise AmbiguousIdError(f"{id_or_prefix!r} is ambiguous: matches {', '.join(names) or 'several'}", readable)
    return matches[0]


def _session_of(record: Record) -> str:
    return record.name if isinstance(record, SessionRecord) else record.session


async def hide_unreadable(error: CallslipError, access: Access) -> None:
    """Remove the record from a conflict if the caller may not read it."""
    if not isinstance(error, ConflictError) or not isinstance(error.current, Record):
        return
    try:
        is_readable = await access.may(_session_of(error.current), "read")
    except CallslipError:  # The caller's token was revoked meanwhile.
        is_readable = False
    if not is_readable:
        error.current = None
