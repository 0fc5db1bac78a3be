"""`callslip submit`: a command for whoever runs them; and the lists of commands for `callslip ls`."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.ids import ID
from callslip.cli.place import db_option, json_option, wants_json
from callslip.cli.reach import Json, LedgerClient, open_client, server_options
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import Seconds, format_age

SESSION = "commands"
FOREVER = -1.0
LISTS = ("pending", "completed", "failed")


def _params(ctx: click.Context, parameter: click.Parameter, given: str | None) -> Any:
    """JSON as it stands there, in a file, or on stdin; None if nothing was said."""
    if given is None:
        return None
    from callslip.model import codec

    text: str | bytes = given
    if given == "-":
        text = sys.stdin.buffer.read(codec.MAX_EVENT_BYTES + 1)
    elif given.startswith("@"):
        with Path(given[1:]).open("rb") as file:
            text = file.read(codec.MAX_EVENT_BYTES + 1)
    return codec.parse_json(text, field="--params")


@click.command()
@click.argument("action", type=ID)
@click.option("--params", metavar="JSON|@FILE|-", callback=_params, help="What the action is given; - reads stdin.")
@click.option("--client", type=ID, metavar="NAME", help="Whose executors are to run it; `default` unless given.")
@click.option("--session", type=ID, metavar="NAME", help="The session it belongs to; `commands` unless given.")
@click.option("--timeout", metavar="SECONDS", type=Seconds(0, min_open=True), help="When it expires; 30 unless given.")
@click.option("--idempotent", is_flag=True, help="It may run twice: if its worker dies, another one is given it.")
@click.option("--ask", is_flag=True, help="Somebody must approve it first; its time begins then.")
@click.option(
    "--id", "correlation_id", type=ID, metavar="ID", help="An id of your own. Under it, it is submitted once."
)
@click.option(
    "--wait",
    metavar="[SECONDS]",
    type=Seconds(-1),
    is_flag=False,
    flag_value=FOREVER,
    help="Wait until it has ended, for so long at most, and print what came out.",
)
@server_options
@db_option
@json_option
def submit(action: str, params: Any, ask: bool, wait: float | None, **given: Any) -> int:
    """Submit a command for somebody else to run.

    Prints the id of the command, which `wait`, `show` and `cancel` take. With --wait the exit status tells how it
    ended: 0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet.
    """
    order: Json = {name: value for name, value in given.items() if value}
    order |= {"action": action, "params": params, "approve": "ask" if ask else ""}
    with open_client(create=True) as reach:
        made = reach.submit(order)
        if wait is None:
            return _queued(made, order)
        tables.print_status(f"submitted as {made['correlation_id']}")
        return _waited(reach, made["correlation_id"], order.get("session", SESSION), wait)


def _queued(made: Json, order: Json) -> int:
    if wants_json():
        tables.write_json(made)
    else:
        tables.write_text(made["correlation_id"])
    asked = f"waits for: callslip approve {made['correlation_id']}"
    tables.print_status(asked if order.get("approve") else f"queued for client {order.get('client', 'default')}")
    return exit_status.OK


def _waited(reach: LedgerClient, given: str, session: str, wait: float) -> int:
    call = reach.call(given, session)["call"]
    try:
        state = reach.wait(call, None if wait == FOREVER else wait)["state"]
    except TimeoutError:
        if wants_json():
            tables.write_json(reach.command(call))
        raise TimeoutError(f"command {given} has not ended within {wait:g} s") from None
    made = reach.command(call)
    if wants_json():
        tables.write_json(made)
    elif made["status"] == "complete":
        tables.write_text(_text(made.get("result")))
    tables.print_status(f"command {given} {state}" + (f": {made['error']}" if made.get("error") else ""))
    return exit_status.STATES[state]


def _text(value: Any) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# The lists


def list_commands(client: str, limit: int) -> None:
    """The three lists."""
    with open_client() as reach:
        found = reach.commands(client, limit)
    if wants_json():
        tables.write_json({name: found[name] for name in LISTS})
    elif any(found[name] for name in LISTS):
        _table([row for name in LISTS for row in found[name]])
    else:
        tables.print_status("no commands wait, and none has ended lately")
    tables.print_status_more(any(len(found[name]) >= limit for name in LISTS), limit)


def _table(rows: list[Json]) -> None:
    cells: list[list[str]] = []
    for row in rows:
        about = _text(row["result"]) if row["status"] == "complete" else row.get("error", "")
        when = format_age(int(datetime.fromisoformat(row["created_at"]).timestamp() * 1000))
        cells.append([row["correlation_id"], row["status"], when, row["client"], row["action"], about])
    tables.columns(["COMMAND", "STATUS", "WHEN", "CLIENT", "ACTION", "OUTCOME"], cells)
