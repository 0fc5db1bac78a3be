"""Ids as people write them, and the thing they mean: a session, a call or an approval."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import click

from callslip.errors import AmbiguousIdError, NotFoundError

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger
    from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord


class Id(click.ParamType[str]):
    """Any text that may name something."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Empty text would fit everything, and bytes that are no text fit nothing."""
        text = str(value)
        if not text.strip():
            self.fail("an id is not empty", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("an id is text, and this is not UTF-8", param, ctx)
        return text


ID = Id()


async def find(ledger: Ledger, given: str, session: str = "") -> SessionRecord | CallRecord | ApprovalRecord:
    """What an id means. Whole ids go before beginnings, and a session's name before the ids inside of sessions.

    With `session`, only calls and approvals of that session.
    """

    store = ledger.log.store
    if not session and (given == "@last" or await store.session(given)):
        return await ledger.find_session(given)
    if given == "@last":
        return await ledger.find_call(given, session)
    exact = await store.approval(given)
    if exact is not None and session in ("", exact.session):
        return exact
    searches: list[Awaitable[Any]] = [ledger.find_call(given, session), ledger.find_approval(given, session)]
    if not session:
        searches.append(ledger.find_session(given))
    found = [await _attempt(search) for search in searches]
    return _single(given, [item for item in found if not session or getattr(item, "session", session) == session])


async def _attempt(search: Awaitable[Any]) -> Any:
    """What a search finds: a row, the names that it cannot choose from, or None."""
    try:
        return await search
    except AmbiguousIdError as several:
        return several.winner
    except NotFoundError:
        return None


def _single(given: str, found: list[Any]) -> Any:
    rows = [item for item in found if item is not None]
    if not rows:
        raise NotFoundError(f"no session, call or approval {given!r}")
    if len(rows) == 1 and not isinstance(rows[0], list):
        return rows[0]
    names: list[str] = []
    for item in rows:
        names += item if isinstance(item, list) else [getattr(item, "name", "") or item.id]
    raise AmbiguousIdError(f"{given!r} fits several: {', '.join(names)}", names)


async def find_approval(ledger: Ledger, given: str) -> ApprovalRecord:
    """The request that an id means: its own, or that of the call it names; `@last` is the newest that waits."""

    if given == "@last":
        waiting = await ledger.approvals(limit=10_000)
        if not waiting:
            raise NotFoundError("nothing waits for approval")
        return waiting[-1]
    try:
        return await ledger.find_approval(given)
    except NotFoundError:
        call = await ledger.find_call(given)
    if not call.approval:
        raise NotFoundError(f"call {call.id} never asked for approval; it is {call.state}")
    return await ledger.find_approval(call.approval)


async def find_call(ledger: Ledger, given: str, session: str = "") -> CallRecord:
    """The call that an id means: its own, or that of a request for its approval."""

    try:
        row = await ledger.find_call(given, session)
    except NotFoundError:
        if not given.startswith("appr_"):
            raise
        row = await ledger.find_call((await ledger.find_approval(given, session)).call)
    if session and row.session != session:
        raise NotFoundError(f"no call {given!r} in session {session}")
    return row
