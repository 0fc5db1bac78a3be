"""`callslip verify`: every stored projection against what the log says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from callslip.cli import exits, output
from callslip.cli.ids import ID
from callslip.cli.inert import inert
from callslip.cli.phrases import counted
from callslip.cli.place import db_option, json_option, wants_json, with_ledger

if TYPE_CHECKING:
    from callslip.ledger import Ledger


@click.command()
@click.argument("session", type=ID, required=False)
@db_option
@json_option
def verify(session: str | None) -> int:
    """Derive everything again and compare.

    Each problem is a line on stdout (with --json a JSON object), and the exit status is then 1.
    """
    return with_ledger(lambda ledger: _verify(ledger, session))


async def _verify(ledger: Ledger, given: str | None) -> int:
    from callslip.verify import verify as derive

    session = (await ledger.find_session(given)).name if given else None
    problems = await derive(ledger, session)
    if wants_json():
        output.write_json(*problems)
    else:
        for problem in problems:
            click.echo(inert(str(problem)))
    whole = f"session {session}" if session else "the ledger"
    output.say(f"{whole} agrees with its log" if not problems else f"{counted(len(problems), 'problem')} in {whole}")
    return exits.FAILED if problems else exits.OK
