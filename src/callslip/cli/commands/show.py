"""`callslip show`: a session as a timeline, or a call or an approval with everything in the log about it."""

from __future__ import annotations

import click
import msgspec

from callslip.cli.commands.ls import session_json
from callslip.cli.entry_json import entries_json
from callslip.cli.options import ID, SelectedLedger, db_option, json_option, open_selected, server_options, wants_json
from callslip.cli.terminal import tables
from callslip.errors import NotFoundError
from callslip.model.events import ApprovalRequested, CallEvent
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.model.views import approval_view, call_view

MAX_LINES = 200


@click.command()
@click.argument("id", metavar="ID", type=ID)
@click.option("--session", type=ID, help="Look for the call or approval in this session only.")
@click.option("--limit", type=click.IntRange(0), default=200, show_default=True, help="Entries of a session; 0: all.")
@click.option("--full", is_flag=True, help="Truncate no text, and load output that is stored outside the log.")
@click.option("--replay-diff", is_flag=True, help="Show only where the agent's own replay differs from the record.")
@server_options
@db_option
@json_option
def show(id: str, session: str | None, limit: int, full: bool, replay_diff: bool) -> None:
    """Show a session, call or approval.

    @last is the session that was written last; with --session, the newest call of that session.
    """
    with open_selected() as selected:
        ledger = selected.ledger
        record = ledger.find(id, ledger.find_session(session).name if session else "")
        if replay_diff:
            _show_replay_diff(selected, record, full)
        elif isinstance(record, SessionRecord):
            _show_session(selected, record, limit, full)
        elif isinstance(record, CallRecord):
            _show_call(selected, record, None, full)
        else:
            try:
                call = ledger.find_call(record.call)
            except NotFoundError:
                raise NotFoundError(f"retention removed the call of approval {record.id}") from None
            _show_call(selected, call, record, full)


def _show_replay_diff(
    selected: SelectedLedger, record: SessionRecord | CallRecord | ApprovalRecord, full: bool
) -> None:
    from callslip.cli.commands.replay_diff import show_replay_diff

    if isinstance(record, SessionRecord):
        show_replay_diff(selected, record.name, full=full)
    else:
        call = record.call if isinstance(record, ApprovalRecord) else record.id
        show_replay_diff(selected, record.session, call, full=full)


def _show_session(selected: SelectedLedger, record: SessionRecord, limit: int, full: bool) -> None:
    ledger = selected.ledger
    snapshot = ledger.snapshot(record.name, **({"limit": limit} if limit else {}))
    entries = entries_json(snapshot.entries, ledger.blob if full else None)
    listed = ledger.sessions(name=record.name).items
    if wants_json():
        approvals = [approval for approval in ledger.approvals(session=record.name) if not approval.answer_at]
        facts = session_json(listed[0], len(approvals)) if listed else {}
        tables.write_json({**facts, "info": snapshot.info, "entries": entries})
        return
    from callslip.cli.terminal.pages import print_session

    active_at = listed[0].active_at if listed else record.updated_at
    print_session(
        record, entries, active_at=active_at, lines=0 if full else 8, is_cut=bool(limit) and len(entries) == limit
    )


def _show_call(selected: SelectedLedger, record: CallRecord, approval: ApprovalRecord | None, full: bool) -> None:
    ledger = selected.ledger
    entry = ledger.entry(record.id)
    (value,) = entries_json([entry], ledger.blob if full else None) if entry is not None else ({},)
    events = [
        event
        for event in ledger.events(record.session, record.entry - 1)
        if isinstance(event, CallEvent) and event.call == record.id
    ]
    requests = [event.approval for event in events if isinstance(event, ApprovalRequested)]
    if approval is None and requests:
        approval = ledger.find_approval(requests[-1])
    if wants_json():
        request = approval_view(approval) if approval else None
        call = msgspec.to_builtins(call_view(record))
        tables.write_json({**call, "approvalRequest": request, "toolCall": value, "events": events})
        return
    from callslip.cli.terminal.pages import print_call

    pruned_seq = ledger.find_session(record.session).pruned_seq
    print_call(record, value, approval, events, lines=0 if full else MAX_LINES, pruned_seq=pruned_seq)
