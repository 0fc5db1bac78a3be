"""`callslip verify`: check stored data against the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, json_option, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.model.display import pluralize

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger


@click.command()
@click.argument("session", type=ID, required=False)
@db_option
@json_option
def verify(session: str | None) -> int:
    """Check stored data against the log.

    Derives the stored records of each session again from its events. Each problem is a line on stdout (with --json a
    JSON object), and the exit status is then 1.
    """
    return with_ledger(lambda ledger: _verify(ledger, session))


async def _verify(ledger: LocalLedger, id: str | None) -> int:
    from callslip.ledger.verify import verify as find_problems

    session = (await ledger.find_session(id)).name if id else None
    problems = await find_problems(ledger.log, session)
    if wants_json():
        tables.write_json(*problems)
    else:
        for problem in problems:
            click.echo(escape_controls(str(problem)))
    scope = f"session {session}" if session else "the ledger"
    count = pluralize(len(problems), "problem")
    tables.print_status(f"{count} in {scope}" if problems else "OK: no problems found")
    return exit_status.FAILED if problems else exit_status.OK
