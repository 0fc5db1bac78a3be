"""Commands about one call that is under way: `approve`, `deny`, `wait`, `cancel`; on the file, or by a server."""

from __future__ import annotations

import getpass
from typing import Any, cast

import click

from callslip.cli import exit_status
from callslip.cli.ids import ID
from callslip.cli.place import db_option, json_option, wants_json
from callslip.cli.reach import Json, LedgerClient, open_client, server_options
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import Seconds
from callslip.errors import ConflictError


def user() -> str:
    """Who is at this terminal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # No such user, and no variable that says a name.
        return "cli"


by_option = click.option("--by", metavar="NAME", help="Who answers, on a file; your user name unless given.")
option_option = click.option("--option", metavar="OPTION", default="", help="Which of the offered options to choose.")


def _json_value(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    from callslip.model import codec

    return [codec.parse_json(value, field="--input")]


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@option_option
@click.option("--input", "edited", metavar="JSON", callback=_json_value, help="Run it with these arguments instead.")
@by_option
@server_options
@db_option
@json_option
def approve(identity: str, option: str, edited: list[Any] | None, by: str | None) -> None:
    """Let a call run that asks for approval.

    ID is the approval, or the call that asks; @last is the newest request that waits. The first answer counts. While a
    server runs for the ledger it takes the answer, and asks for a token that may approve.
    """
    answer: Json = {"decision": "edit", "input": edited[0]} if edited else {"decision": "approve"}
    _answer(identity, {**answer, "option": option}, by)


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--reason", default="", help="Why; the model reads it.")
@option_option
@by_option
@server_options
@db_option
@json_option
def deny(identity: str, reason: str, option: str, by: str | None) -> None:
    """Refuse a call that asks for approval.

    ID is the approval, or the call that asks; @last is the newest request that waits. The first answer counts. While a
    server runs for the ledger it takes the answer, and asks for a token that may approve.
    """
    _answer(identity, {"decision": "deny", "option": option, "reason": reason}, by)


def _answer(identity: str, answer: Json, by: str | None) -> None:
    with open_client(answers=True) as reach:
        who = _who(reach, by)
        row = reach.approval(identity)
        try:
            done = reach.answer(row, answer, who)
        except ConflictError as error:
            raise _in_words(error) from error
    if wants_json():
        tables.write_json(done)
    chosen = f" ({done['option']})" if done["option"] else ""
    told = done["description"] or done["approval"]
    tables.print_status(f"{done['state']} by {done['by']}{chosen}: {told}, call {done['call']}")


def _who(reach: LedgerClient, by: str | None) -> str:
    if by and not reach.names_answerer:
        raise click.UsageError("--by is for a file; a server knows you by the label of your token")
    return by or user()


def _in_words(error: ConflictError) -> ConflictError:
    """Who was first, if anybody was."""
    winner = cast(Json, error.winner) if isinstance(error.winner, dict) else {}
    if winner.get("state", "pending") == "pending":
        return error
    who = f" by {winner['by']}" if winner["by"] else ""
    return ConflictError(f"approval {winner['approval']} is not pending: it was {winner['state']}{who}", winner)


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--timeout", metavar="SECONDS", type=Seconds(0), help="Give up after this time.")
@click.option("--session", type=ID, help="Look for the call in this session only.")
@server_options
@db_option
@json_option
def wait(identity: str, timeout: float | None, session: str | None) -> int:
    """Wait until a call has ended.

    ID is the call, or the approval that it waits for; @last is the newest call. Prints what came out. The exit status
    tells how the call ended: 0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet.
    """
    with open_client() as reach:
        found = _call(reach, identity, session)
        try:
            row = reach.wait(found, timeout)
        except TimeoutError as error:
            raise TimeoutError(f"call {found} has not ended within {timeout:g} s") from error
        row["toolCall"] = _whole(row["toolCall"] or {}, reach)
    if wants_json():
        tables.write_json(row)
    else:
        from callslip.cli.terminal.timeline import outcome

        tables.write_text(outcome(row["toolCall"]))
    tables.print_status(_ended(row))
    return exit_status.STATES[row["state"]]


def _call(reach: LedgerClient, identity: str, session: str | None) -> str:
    within = reach.session(session).name if session else ""
    return reach.call(identity, within)["call"]


def _whole(entry: Json, reach: LedgerClient) -> Json:
    """The entry with its output in place, also if that is kept beside the log."""
    if entry.get("blob"):
        from callslip.ledger.call_entry import put_output

        put_output(entry, reach.blob(entry["blob"]["hash"]))
    return entry


def _ended(row: Json) -> str:
    return f"call {row['call']} {row['state']}" + (f": {row['reason']}" if row["reason"] else "")


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--reason", default="", help="Why; whoever waits for the call reads it.")
@click.option("--session", type=ID, help="Look for the call in this session only.")
@server_options
@db_option
@json_option
def cancel(identity: str, reason: str, session: str | None) -> int:
    """End a call that is open.

    ID is the call, or the approval that it waits for; @last is the newest call. One that has ended stays as it is; the
    exit status tells how: 0 cancelled, now or before, 1 completed or failed, 4 denied, 5 expired or lost.
    """
    with open_client() as reach:
        row = reach.cancel(_call(reach, identity, session), reason, user())
    if wants_json():
        tables.write_json({name: value for name, value in row.items() if name != "toolCall"})
    if row["state"] == "cancelled":
        tables.print_status(_ended(row))
        return exit_status.OK
    tables.print_status(f"call {row['call']} has ended: it is {row['state']}")
    return exit_status.STATES.get(row["state"], exit_status.FAILED) or exit_status.FAILED
