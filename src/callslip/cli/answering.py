"""Commands about one call that is under way: `approve`, `deny`, `wait`."""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exits, output
from callslip.cli.ids import ID, find_approval, find_call
from callslip.cli.place import db_option, json_option, wants_json, with_ledger
from callslip.errors import Conflict
from callslip.rows import ApprovalRow

if TYPE_CHECKING:
    from callslip.ledger import Ledger
    from callslip.rows import CallRow


def user() -> str:
    """Who is at this terminal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # No such user, and no variable that says a name.
        return "cli"


by_option = click.option("--by", metavar="NAME", help="Who answers; your user name unless given.")
option_option = click.option("--option", metavar="OPTION", default="", help="Which of the offered options to choose.")


def _json_value(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    from callslip import codec

    return [codec.parse(value, field="--input")]


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@option_option
@click.option("--input", "edited", metavar="JSON", callback=_json_value, help="Run it with these arguments instead.")
@by_option
@db_option
@json_option
def approve(identity: str, option: str, edited: list[Any] | None, by: str | None) -> None:
    """Let a call run that asks for approval.

    ID is the approval, or the call that asks; @last is the newest request that waits. The first answer counts.
    """
    from msgspec import UNSET

    from callslip import approvals

    given = edited[0] if edited else UNSET

    async def answer(ledger: Ledger, row: ApprovalRow) -> ApprovalRow:
        return await approvals.approve(ledger, row.id, by=by or user(), option=option, input=given)

    with_ledger(lambda ledger: _answer(ledger, identity, answer))


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--reason", default="", help="Why; the model reads it.")
@option_option
@by_option
@db_option
@json_option
def deny(identity: str, reason: str, option: str, by: str | None) -> None:
    """Refuse a call that asks for approval.

    ID is the approval, or the call that asks; @last is the newest request that waits. The first answer counts.
    """
    from callslip import approvals

    who = by or user()

    async def answer(ledger: Ledger, row: ApprovalRow) -> ApprovalRow:
        return await approvals.deny(ledger, row.id, by=who, option=option, reason=reason or f"denied by {who}")

    with_ledger(lambda ledger: _answer(ledger, identity, answer))


async def _answer(
    ledger: Ledger, identity: str, answer: Callable[[Ledger, ApprovalRow], Awaitable[ApprovalRow]]
) -> None:
    row = await find_approval(ledger, identity)
    try:
        done = await answer(ledger, row)
    except Conflict as error:
        winner = error.winner
        if not isinstance(winner, ApprovalRow) or winner.state == "pending":
            raise
        who = f" by {winner.by}" if winner.by else ""
        raise Conflict(f"approval {winner.id} is not pending: it was {winner.state}{who}", winner) from error
    from callslip.cli.rows import approval_json

    if wants_json():
        output.write_json(approval_json(done))
    chosen = f" ({done.option})" if done.option else ""
    output.say(f"{done.state} by {done.by}{chosen}: {done.description or done.id}, call {done.call}")


@click.command()
@click.argument("identity", metavar="ID", type=ID)
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0), help="Give up after this time.")
@click.option("--session", type=ID, help="Look for the call in this session only.")
@db_option
@json_option
def wait(identity: str, timeout: float | None, session: str | None) -> int:
    """Wait until a call has ended.

    ID is the call, or the approval that it waits for; @last is the newest call. Prints what came out. The exit status
    tells how the call ended: 0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet.
    """
    return with_ledger(lambda ledger: _wait(ledger, identity, session, timeout))


async def _wait(ledger: Ledger, identity: str, session: str | None, timeout: float | None) -> int:
    within = (await ledger.find_session(session)).name if session else ""
    found = await find_call(ledger, identity, within)
    try:
        row: CallRow = await ledger.wait(found.id, timeout)
    except TimeoutError as error:
        raise TimeoutError(f"call {found.id} has not ended within {timeout:g} s") from error
    from callslip.cli.showing import call_entry

    entry = await call_entry(ledger, row, full=True)
    if wants_json():
        from callslip.cli.rows import call_json

        output.write_json({**call_json(row), "toolCall": entry})
    else:
        from callslip.cli.timeline import outcome

        output.write_text(outcome(entry))
    output.say(f"call {row.id} {row.state}" + (f": {row.reason}" if row.reason else ""))
    return exits.STATES[row.state]
