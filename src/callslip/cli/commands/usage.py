"""`callslip usage`: the tokens and costs that agents reported."""

from __future__ import annotations

import time
from datetime import datetime

import click

from callslip.cli.options import ID, db_option, json_option, open_selected, server_options, wants_json
from callslip.cli.terminal import tables

GROUPS = ("day", "model", "project", "agent", "session", "turn", "call")


@click.command()
@click.option("--by", type=click.Choice(GROUPS), default="day", show_default=True, help="One line for each of these.")
@click.option("--session", type=ID, metavar="ID", help="Only this session. Required for turns and calls.")
@click.option("--project", metavar="FOLDER", default="", help="Only sessions in this folder.")
@click.option("--agent", metavar="NAME", default="", help="Only sessions of this agent.")
@click.option("--model", metavar="NAME", default="", help="Only responses of this model.")
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), help="Only from this day on.")
@click.option("--until", type=click.DateTime(["%Y-%m-%d"]), help="Only before this day.")
@server_options
@db_option
@json_option
def usage(
    by: str,
    session: str | None,
    project: str,
    agent: str,
    model: str,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Show the tokens and costs that agents reported.

    Days are those of this computer's time zone. INPUT includes what was read from the cache, CACHED. The cost is what
    the agents state; without it the column is empty. Numbers with a * are not final: a response was interrupted.
    """
    with open_selected() as selected:
        name = selected.ledger.find_session(session).name if session else ""
        report = selected.ledger.usage(
            by,
            session=name,
            project=project,
            agent=agent,
            model=model,
            since=_to_ms(since),
            until=_to_ms(until),
            utc_offset_minutes=(time.localtime().tm_gmtoff or 0) // 60,
        )
    if not report.complete:
        tables.print_status("some sessions were not added up yet: run this again")
    if wants_json():
        tables.write_json(*report.groups)
        return
    if not report.groups:
        tables.print_status("no usage was reported")
        return
    cells = [
        [
            group.group or "(none)",
            f"{group.responses:,}",
            f"{group.input_tokens:,}",
            f"{group.cached_tokens:,}",
            f"{group.output_tokens:,}{'*' if group.incomplete else ''}",
            " + ".join(f"{cost:,.2f} {currency}".strip() for currency, cost in sorted(group.costs.items())),
        ]
        for group in report.groups
    ]
    numbers = ("RESPONSES", "INPUT", "CACHED", "OUTPUT", "COST")
    tables.print_table([by.upper(), *numbers], cells, right=numbers)


def _to_ms(day: datetime | None) -> int:
    return int(day.timestamp() * 1000) if day is not None else 0
