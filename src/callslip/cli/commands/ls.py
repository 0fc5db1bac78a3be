"""`callslip ls`: sessions, or calls, the newest first; or the lists of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from callslip.cli.ids import ID
from callslip.cli.place import db_option, json_option, place, wants_json, with_ledger
from callslip.cli.reach import SERVER, server_options
from callslip.cli.rows import call_json, session_json
from callslip.cli.terminal import tables
from callslip.rules.lifecycle import OPEN_STATES, TRANSITIONS

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger
    from callslip.model.records import CallRecord, SessionRecord

STATES = [state for state in TRANSITIONS if state != "none"]


@click.command()
@click.argument("session", type=ID, required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["open", *STATES]),
    help="Only calls in this state; may be given several times. Without a session: calls of all sessions.",
)
@click.option("--commands", is_flag=True, help="Commands instead: pending, completed in the last minute, failed.")
@click.option("--client", type=ID, metavar="NAME", help="With --commands: only those for this client.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@server_options
@db_option
@json_option
def ls(session: str | None, states: Sequence[str], commands: bool, client: str | None, limit: int) -> None:
    """List sessions, or the calls of one.

    The newest come first. With --json each line is one JSON object; of commands it is one with three lists, pending,
    completed and failed. Only commands can be asked of a server.
    """
    if commands:
        if session or states:
            raise click.UsageError("--commands are of all sessions and states")
        from callslip.cli.commands.submit import list_commands

        return list_commands(client or "", limit)
    if client or SERVER in click.get_current_context().meta:
        raise click.UsageError("--client and --server are for --commands")
    wanted = [state for given in states for state in (sorted(OPEN_STATES) if given == "open" else (given,))]
    if session or wanted:
        with_ledger(lambda ledger: _calls(ledger, session or "", wanted, limit))
    else:
        with_ledger(lambda ledger: _sessions(ledger, limit))


async def _sessions(ledger: Ledger, limit: int) -> None:
    page = await ledger.sessions(limit=limit)
    opened = Counter(row.session for row in await ledger.log.store.open_calls())
    asks = Counter(row.session for row in await ledger.approvals(limit=10_000))
    if wants_json():
        tables.write_json(*(session_json(row, opened[row.name], asks[row.name]) for row in page.items))
    elif page.items:
        _session_table(page.items, opened, asks)
    else:
        tables.print_status(f"no sessions in {place().path}")
    tables.print_status_more(bool(page.cursor), limit)


def _session_table(rows: list[SessionRecord], opened: Counter[str], asks: Counter[str]) -> None:
    from rich.text import Text

    from callslip.cli.terminal.formatting import format_age

    head = ["SESSION", "CALLS", "OPEN", "EVENTS", "LAST", "TITLE"]
    cells: list[list[str | Text]] = []
    for row in rows:
        waiting = f"{opened[row.name]}" + (f" ({asks[row.name]} to approve)" if asks[row.name] else "")
        busy = Text(waiting, "yellow" if asks[row.name] else "cyan") if opened[row.name] else "0"
        cells.append([row.name, f"{row.calls:,}", busy, f"{row.last_seq:,}", format_age(row.updated_at), row.title])
    tables.columns(head, cells, right=("CALLS", "EVENTS"))


async def _calls(ledger: Ledger, given: str, states: list[str], limit: int) -> None:
    session = (await ledger.find_session(given)).name if given else ""
    page = await ledger.calls(session=session, states=states, limit=limit)
    rows: list[CallRecord] = page.items
    if session:
        rows = sorted(rows, key=lambda row: -row.entry)  # C8: order is the sequence, not the clock.
    if wants_json():
        tables.write_json(*(call_json(row) for row in rows))
    elif rows:
        _call_table(rows, with_session=not session)
    else:
        tables.print_status(
            "no " + ("such " if states else "") + "calls" + (f" in session {session}" if session else "")
        )
    tables.print_status_more(bool(page.cursor), limit)


def _call_table(rows: list[CallRecord], *, with_session: bool) -> None:
    from callslip.cli.terminal.formatting import format_age, format_duration
    from callslip.cli.terminal.timeline import styled_state

    head = ["CALL", "STATE", "TOOK", "WHEN", *(["SESSION"] if with_session else []), "TOOL", "TITLE"]
    cells: list[list[Any]] = []
    for row in rows:
        own = [row.session] if with_session else []
        foreign = row.title or (row.client_call_id if row.client_call_id != row.id else "")
        duration = format_duration(row.started_at, row.ended_at)
        cells.append([row.id, styled_state(row.state), duration, format_age(row.created_at), *own, row.tool, foreign])
    tables.columns(head, cells, right=("TOOK",))
