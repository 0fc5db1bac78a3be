"""`callslip approve`, `deny`, `wait` and `cancel`."""

from __future__ import annotations

import getpass
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.options import (
    ID,
    SelectedLedger,
    db_option,
    json_option,
    open_selected,
    refuse_agent,
    server_options,
    wants_json,
)
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import Seconds
from callslip.errors import ConflictError
from callslip.model.display import approval_state_name
from callslip.model.records import ApprovalRecord, CallRecord


def user_name() -> str:
    """Return the name of the user at this terminal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # The user has no entry, and no variable has a name.
        return "cli"


by_option = click.option("--by", metavar="NAME", help="Who answers, on a file. [default: your user name]")
option_option = click.option("--option", metavar="OPTION", default="", help="Which of the offered options to choose.")


def _parse_json(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    from callslip.model import codec

    return [codec.parse_json(value, field="--input")]


@click.command()
@click.argument("id", metavar="ID", type=ID)
@option_option
@click.option("--input", "edited", metavar="JSON", callback=_parse_json, help="Run the call with these arguments.")
@by_option
@server_options
@db_option
@json_option
def approve(id: str, option: str, edited: list[Any] | None, by: str | None) -> None:
    """Approve a pending call.

    ID is the approval or its call; @last is the newest pending approval. The first answer counts. If a server runs for
    the ledger, it takes the answer and requires a token that may approve. A request of an agent that only reports its
    calls must be answered in the agent's own client, which the message names.
    """
    _answer(id, by, approves=True, option=option, **({"input": edited[0]} if edited else {}))


@click.command()
@click.argument("id", metavar="ID", type=ID)
@click.option("--reason", default="", help="The reason, sent to the agent.")
@option_option
@by_option
@server_options
@db_option
@json_option
def deny(id: str, reason: str, option: str, by: str | None) -> None:
    """Deny a pending call.

    ID is the approval or its call; @last is the newest pending approval. The first answer counts. If a server runs for
    the ledger, it takes the answer and requires a token that may approve. A request of an agent that only reports its
    calls must be answered in the agent's own client, which the message names.
    """
    _answer(id, by, approves=False, option=option, reason=reason)


def _answer(id: str, by: str | None, *, approves: bool, **fields: Any) -> None:
    from callslip.model.views import approval_view

    refuse_agent("answer requests")
    with open_selected(for_answer=True) as selected:
        if by and selected.is_remote:
            raise click.UsageError("--by is for a file; a server uses the label of your token")
        ledger = selected.ledger
        name = "" if selected.is_remote else by or user_name()
        try:
            record = (ledger.approve if approves else ledger.deny)(id, by=name, **fields)
        except ConflictError as error:
            raise _describe_conflict(error) from error
    if wants_json():
        tables.write_json(approval_view(record))
    option = f" ({record.option})" if record.option else ""
    title = record.description or record.id
    tables.print_status(f"{approval_state_name(record.state)} by {record.by}{option}: {title}, call {record.call}")


def _describe_conflict(error: ConflictError) -> ConflictError:
    """Name the answer that was first, if there is one."""
    winner = error.current
    if not isinstance(winner, ApprovalRecord) or winner.state == "pending":
        return error
    by = f" by {winner.by}" if winner.by else ""
    return ConflictError(f"approval {winner.id} is not pending: it was {approval_state_name(winner.state)}{by}", winner)


@click.command()
@click.argument("id", metavar="ID", type=ID)
@click.option("--timeout", metavar="SECONDS", type=Seconds(), help="Give up after this time.")
@click.option("--session", type=ID, help="Look for the call in this session only.")
@server_options
@db_option
@json_option
def wait(id: str, timeout: float | None, session: str | None) -> int:
    """Wait for a call to finish.

    ID is the call or its approval; @last is the newest call. Prints the output. The exit status says how the call
    ended: 0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet.
    """
    from callslip.cli.entry_json import entries_json

    with open_selected() as selected:
        ledger = selected.ledger
        record = ledger.wait(_find_call(selected, id, session).id if session else id, timeout)
        entry = ledger.entry(record.id)
        (value,) = entries_json([entry], ledger.blob) if entry is not None else ({},)
    if wants_json():
        tables.write_json({**_call_json(record), "toolCall": value})
    else:
        from callslip.cli.terminal.timeline import outcome_text

        tables.write_text(outcome_text(value))
    tables.print_status(_describe_end(record))
    return exit_status.STATES[record.state]


def _find_call(selected: SelectedLedger, id: str, session: str | None) -> CallRecord:
    ledger = selected.ledger
    return ledger.find_call(id, ledger.find_session(session).name if session else "")


def _call_json(record: CallRecord) -> dict[str, Any]:
    import msgspec

    from callslip.model.views import call_view

    return msgspec.to_builtins(call_view(record))


def _describe_end(record: CallRecord) -> str:
    return f"call {record.id} {record.state}" + (f": {record.reason}" if record.reason else "")


@click.command()
@click.argument("id", metavar="ID", type=ID)
@click.option("--reason", default="", help="The reason, shown to the program that waits for the call.")
@click.option("--session", type=ID, help="Look for the call in this session only.")
@server_options
@db_option
@json_option
def cancel(id: str, reason: str, session: str | None) -> int:
    """Cancel a call.

    ID is the call or its approval; @last is the newest call. A call that has ended stays as it is; the exit status says
    how it ended: 0 cancelled, now or before, 1 completed or failed, 4 denied, 5 expired or lost.
    """
    with open_selected() as selected:
        call = _find_call(selected, id, session).id
        by = "" if selected.is_remote else user_name()
        try:
            record = selected.ledger.cancel(call, by=by, reason=reason)
        except ConflictError as error:
            if not isinstance(error.current, CallRecord):
                raise
            record = error.current
    if wants_json():
        tables.write_json(_call_json(record))
    if record.state == "cancelled":
        tables.print_status(_describe_end(record))
        return exit_status.OK
    tables.print_status(f"call {record.id} has already ended: it is {record.state}")
    return exit_status.STATES.get(record.state, exit_status.FAILED) or exit_status.FAILED
