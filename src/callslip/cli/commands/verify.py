"""`callslip verify`: every stored projection against what the log says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, json_option, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import pluralize

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger


@click.command()
@click.argument("session", type=ID, required=False)
@db_option
@json_option
def verify(session: str | None) -> int:
    """Derive everything again and compare.

    Each problem is a line on stdout (with --json a JSON object), and the exit status is then 1.
    """
    return with_ledger(lambda ledger: _verify(ledger, session))


async def _verify(ledger: LocalLedger, given: str | None) -> int:
    from callslip.ledger.verify import verify as derive

    session = (await ledger.find_session(given)).name if given else None
    problems = await derive(ledger.log, session)
    if wants_json():
        tables.write_json(*problems)
    else:
        for problem in problems:
            click.echo(escape_controls(str(problem)))
    whole = f"session {session}" if session else "the ledger"
    tables.print_status(
        f"{whole} agrees with its log" if not problems else f"{pluralize(len(problems), 'problem')} in {whole}"
    )
    return exit_status.FAILED if problems else exit_status.OK
