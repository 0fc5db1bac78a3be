"""`callslip show`: a session as a timeline; a call, or a request for approval, with everything the log says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from callslip.cli.ids import ID, find
from callslip.cli.place import db_option, json_option, wants_json, with_ledger
from callslip.cli.rows import approval_json, call_json, session_json
from callslip.cli.terminal import tables
from callslip.errors import NotFoundError
from callslip.ledger.call_entry import as_sent, call_entry
from callslip.model.events import ApprovalRequested, CallEvent, decode_event
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger

LINES = 200


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--session", type=ID, help="Look for the call or approval in this session only.")
@click.option("--limit", type=click.IntRange(0), default=200, show_default=True, help="Entries of a session; 0: all.")
@click.option("--full", is_flag=True, help="Cut no text short, and fetch output that is kept beside the log.")
@click.option("--witness", is_flag=True, help="Show only where the agent's own replay tells otherwise than the record.")
@db_option
@json_option
def show(identity: str, session: str | None, limit: int, full: bool, witness: bool) -> None:
    """Show a session, a call or an approval.

    @last is the session that was written last; with --session, the newest call of that session.
    """
    with_ledger(lambda ledger: _show(ledger, identity, session, limit, full, witness))


async def _show(ledger: Ledger, identity: str, session: str | None, limit: int, full: bool, witness: bool) -> None:
    within = (await ledger.find_session(session)).name if session else ""
    row = await find(ledger, identity, within)
    if witness:
        await _show_witness(ledger, row, full)
        return
    if isinstance(row, SessionRecord):
        await _show_session(ledger, row, limit, full)
        return
    call = row
    if isinstance(row, ApprovalRecord):
        call = await ledger.log.store.call(row.call)
    if not isinstance(call, CallRecord):
        raise NotFoundError(f"the call of approval {row.id} was removed by retention")
    await _show_call(ledger, call, row if isinstance(row, ApprovalRecord) else None, full)


async def _show_witness(ledger: Ledger, row: SessionRecord | CallRecord | ApprovalRecord, full: bool) -> None:
    from callslip.cli.commands.replay_diff import show_witness

    if isinstance(row, SessionRecord):
        await show_witness(ledger, row.name, full=full)
    else:
        call = row.call if isinstance(row, ApprovalRecord) else row.id
        await show_witness(ledger, row.session, call, full=full)


async def _show_session(ledger: Ledger, row: SessionRecord, limit: int, full: bool) -> None:
    snapshot = await ledger.snapshot(row.name, **({"limit": limit} if limit else {}))
    entries = await as_sent(ledger.log, snapshot.entries, full=full)
    calls = [call for call in await ledger.log.store.open_calls() if call.session == row.name]
    asks = await ledger.approvals(session=row.name)
    if wants_json():
        facts = session_json(row, len(calls), len(asks))
        tables.write_json({**facts, "info": snapshot.info, "entries": entries})
        return
    from callslip.cli.terminal.pages import session_page

    session_page(row, entries, lines=0 if full else 8, cut=bool(limit) and len(entries) == limit)


async def _show_call(ledger: Ledger, row: CallRecord, asked: ApprovalRecord | None, full: bool) -> None:
    entry = await call_entry(ledger.log, row, full=full)
    events = await _events(ledger, row)
    approval = asked or await _approval(ledger, events)
    if wants_json():
        told = approval_json(approval) if approval else None
        tables.write_json({**call_json(row), "approvalRequest": told, "toolCall": entry, "events": events})
        return
    from callslip.cli.terminal.pages import call_page

    session = await ledger.log.store.session(row.session)
    low = session.pruned_seq if session else 0
    call_page(row, entry, approval, events, lines=0 if full else LINES, low=low)


async def _approval(ledger: Ledger, events: list[CallEvent]) -> ApprovalRecord | None:
    """The newest request for approval of the call."""
    asked = [event.approval for event in events if isinstance(event, ApprovalRequested)]
    return await ledger.log.store.approval(asked[-1]) if asked else None


async def _events(ledger: Ledger, row: CallRecord) -> list[CallEvent]:
    """Every event about the call, whatever it was worth."""
    found: list[CallEvent] = []
    after, name = row.entry - 1, row.id.encode()
    while rows := await ledger.log.store.events(row.session, after, 1000):
        after = rows[-1][0]
        for _, body in rows:
            event = decode_event(body) if name in body else None
            if isinstance(event, CallEvent) and event.call == row.id:
                found.append(event)
    return found
