"""`callslip ls`: sessions or calls, newest first, or the lists of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import click
import msgspec

from callslip.api.session_list import SORTS, SessionFilters, Sort
from callslip.cli.options import (
    ID,
    SelectedLedger,
    db_option,
    json_option,
    open_selected,
    selected_location,
    server_options,
    wants_json,
)
from callslip.cli.terminal import tables
from callslip.model.records import CallRecord, ListedSession
from callslip.model.summaries import SessionState
from callslip.model.views import call_view, session_view
from callslip.rules.lifecycle import OPEN_STATES, TRANSITIONS

SESSION_STATES: tuple[str, ...] = get_args(SessionState)
STATES = [state for state in TRANSITIONS if state != "none"]
MAX_COUNTED = 10_000
"""The maximum number of pending approvals that are counted."""


@click.command()
@click.argument("session", type=ID, required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", *STATES]),
    help="Only calls in this state; may be repeated. Without a session: calls of all sessions.",
)
@click.option("--activity", multiple=True, type=click.Choice(SESSION_STATES), help="Only sessions that do this now.")
@click.option("--agent", metavar="NAME", default="", help="Only sessions of this agent.")
@click.option("--project", metavar="FOLDER", default="", help="Only sessions in this folder.")
@click.option("--branch", metavar="NAME", default="", help="Only sessions on this branch.")
@click.option("--model", metavar="NAME", default="", help="Only sessions that used this model last.")
@click.option("--label", metavar="NAME[=VALUE]", default="", help="Only sessions with this label.")
@click.option("--title", metavar="TEXT", default="", help="Only sessions with this text in their title.")
@click.option("--sort", type=click.Choice(SORTS), default="active", show_default=True, help="The order of sessions.")
@click.option("--reverse", is_flag=True, help="The smallest value first.")
@click.option("--commands", is_flag=True, help="List commands: pending, completed in the last minute, failed.")
@click.option("--queue", type=ID, metavar="NAME", help="With --commands: only those of this queue.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The maximum number of rows.")
@server_options
@db_option
@json_option
def ls(
    session: str | None,
    states: Sequence[str],
    commands: bool,
    queue: str | None,
    limit: int,
    activity: tuple[str, ...],
    sort: Sort,
    reverse: bool,
    title: str,
    **filters: str,
) -> None:
    """List sessions or calls.

    The last active sessions and the newest calls come first. With --json each line is one JSON object; for commands it
    is one object with three lists, pending, completed and failed.
    """
    if commands:
        if session or states:
            raise click.UsageError("--commands lists all sessions and states")
        from callslip.cli.commands.submit import list_commands

        return list_commands(queue or "", limit)
    if queue:
        raise click.UsageError("--queue needs --commands")
    wanted = [state for choice in states for state in (sorted(OPEN_STATES) if choice == "open" else (choice,))]
    with open_selected() as selected:
        if session or wanted:
            _list_calls(selected, session or "", wanted, limit)
        else:
            wanted_sessions = SessionFilters(
                states=activity,
                query=title,
                sort=sort,
                descending=not reverse,
                agent=filters["agent"],
                project=filters["project"],
                branch=filters["branch"],
                model=filters["model"],
                label=filters["label"],
            )
            _list_sessions(selected, wanted_sessions, limit)


def _list_sessions(selected: SelectedLedger, filters: SessionFilters, limit: int) -> None:
    page = selected.ledger.sessions(limit=limit, **filters)
    pending = selected.ledger.approvals(limit=MAX_COUNTED)
    approvals = Counter(record.session for record in pending if not record.answer_at)
    if wants_json():
        tables.write_json(*(session_json(record, approvals[record.name]) for record in page.items))
    elif page.items:
        _print_sessions(page.items, approvals)
    else:
        where = "" if selected.is_remote else f" in {selected_location().display_name}"
        has_filters = any(value for name, value in filters.items() if name not in ("sort", "descending"))
        tables.print_status(f"no {'such ' if has_filters else ''}sessions{where}")
    tables.print_more_hint(bool(page.cursor), limit)
    if not page.is_complete:
        tables.print_status("some sessions are not up to date in this list: run this again")


def session_json(record: ListedSession, pending_approvals: int) -> dict[str, Any]:
    """Return a session as JSON, with the number of the approvals that can be answered here."""
    return {**msgspec.to_builtins(session_view(record)), "pendingApprovals": pending_approvals}


def _print_sessions(records: Sequence[ListedSession], approvals: Counter[str]) -> None:
    from rich.text import Text

    from callslip.cli.terminal.formatting import format_age, format_number

    cells: list[list[str | Text]] = []
    for record in records:
        pending = approvals[record.name]
        label = f"{record.open_calls:,}" + (f" ({pending} to approve)" if pending else "")
        open_calls = Text(label, "yellow" if pending else "cyan") if record.open_calls else "0"
        failed = Text(f"{record.failed:,}", "red") if record.failed else "0"
        tokens = format_number(record.usage.input_tokens + record.usage.output_tokens)
        project = record.project.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
        title = record.title or record.prompt
        about = [record.state, record.agent, project, f"{record.calls:,}", open_calls, failed, tokens]
        cells.append([record.name, *about, format_age(record.active_at), title])
    head = ["SESSION", "STATE", "AGENT", "PROJECT", "CALLS", "OPEN", "FAILED", "TOKENS", "LAST", "TITLE"]
    tables.print_table(head, cells, right=("CALLS", "FAILED", "TOKENS"))


def _list_calls(selected: SelectedLedger, id: str, states: list[str], limit: int) -> None:
    session = selected.ledger.find_session(id).name if id else ""
    page = selected.ledger.calls(session=session, states=states, limit=limit)
    records: list[CallRecord] = page.items
    if session:
        records = sorted(records, key=lambda record: -record.entry)  # The sequence is the order, not the clock.
    if wants_json():
        tables.write_json(*(call_view(record) for record in records))
    elif records:
        _print_calls(records, with_session=not session)
    else:
        tables.print_status(
            "no " + ("such " if states else "") + "calls" + (f" in session {session}" if session else "")
        )
    tables.print_more_hint(bool(page.cursor), limit)


def _print_calls(records: list[CallRecord], *, with_session: bool) -> None:
    from callslip.cli.terminal.formatting import format_age
    from callslip.cli.terminal.timeline import styled_state
    from callslip.model.display import format_call_duration

    head = ["CALL", "STATE", "TOOK", "WHEN", *(["SESSION"] if with_session else []), "TOOL", "TITLE"]
    cells: list[list[Any]] = []
    for record in records:
        session = [record.session] if with_session else []
        title = record.title or (record.client_call_id if record.client_call_id != record.id else "")
        duration = format_call_duration(record.started_at, record.ended_at)
        age = format_age(record.created_at)
        cells.append([record.id, styled_state(record.state), duration, age, *session, record.tool, title])
    tables.print_table(head, cells, right=("TOOK",))
