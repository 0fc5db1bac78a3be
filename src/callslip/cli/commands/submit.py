"""`callslip submit`: queue a command for a worker; and the lists of commands for `callslip ls`."""

from __future__ import annotations

import math
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from callslip.cli import exit_status
from callslip.cli.options import ID, SelectedLedger, db_option, json_option, open_selected, server_options, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import Seconds, format_age
from callslip.commands import Command
from callslip.errors import CallslipError, WaitTimeoutError

DEFAULT_SESSION = "commands"
DEFAULT_QUEUE = "default"
FOREVER = math.inf


def _parse_params(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Parse JSON from the command line, a file or stdin."""
    if value is None:
        return None
    from callslip.model import codec

    text: str | bytes = value
    if value == "-":
        text = sys.stdin.buffer.read(codec.MAX_EVENT_BYTES + 1)
    elif value.startswith("@"):
        with Path(value[1:]).open("rb") as file:
            text = file.read(codec.MAX_EVENT_BYTES + 1)
    return codec.parse_json(text, field="--params")


@click.command()
@click.argument("action", type=ID)
@click.option(
    "--params", metavar="JSON|@FILE|-", callback=_parse_params, help="Arguments of the action; - reads stdin."
)
@click.option("--queue", type=ID, metavar="NAME", help=f"The queue to use. [default: {DEFAULT_QUEUE}]")
@click.option("--session", type=ID, metavar="NAME", help=f"The session of the command. [default: {DEFAULT_SESSION}]")
@click.option(
    "--timeout", metavar="SECONDS", type=Seconds(above_zero=True), help="The timeout of the command. [default: 30]"
)
@click.option("--idempotent", is_flag=True, help="The command may run twice: if its worker dies, another one runs it.")
@click.option("--ask", is_flag=True, help="Require approval; the timeout starts with the answer.")
@click.option(
    "--id",
    "correlation_id",
    type=ID,
    metavar="ID",
    help="The correlation id. Submitting it again returns the existing command.",
)
@click.option(
    "--wait",
    metavar="[SECONDS]",
    type=Seconds(),
    is_flag=False,
    flag_value=FOREVER,
    help="Wait until the command has ended, and print its result. SECONDS limits the wait. [default: no limit]",
)
@server_options
@db_option
@json_option
def submit(
    action: str,
    params: Any,
    queue: str | None,
    session: str | None,
    timeout: float | None,
    idempotent: bool,
    ask: bool,
    correlation_id: str | None,
    wait: float | None,
) -> int:
    """Queue a command for a worker.

    Prints the id of the command, which `wait`, `show` and `cancel` take. With --wait the exit status says how it ended:
    0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet.
    """
    queue, session = queue or DEFAULT_QUEUE, session or DEFAULT_SESSION
    with open_selected(create=True) as selected:
        command = selected.ledger.commands.submit(
            action,
            params,
            queue=queue,
            session=session,
            timeout=timeout,
            idempotent=idempotent,
            approval=ask,
            correlation_id=correlation_id or "",
        )
        state = _find_state(selected, command.correlation_id, session) if ask else "queued"
        if wait is not None:
            tables.print_status(f"submitted as {command.correlation_id}")
            return _wait(selected, command.correlation_id, session, wait)
    if wants_json():
        tables.write_json({"status": "queued", "correlation_id": command.correlation_id})
    else:
        tables.write_text(command.correlation_id)
    approval = f"waiting for approval: callslip approve {command.correlation_id}"
    states = {"awaiting_approval": approval, "denied": "denied by a rule"}
    tables.print_status(states.get(state, f"added to queue {queue}"))
    return exit_status.OK


def _wait(selected: SelectedLedger, id: str, session: str, wait: float) -> int:
    ledger = selected.ledger
    call = ledger.find_call(id, session).id
    try:
        state = ledger.wait(call, None if wait == FOREVER else wait).state
    except WaitTimeoutError:
        if wants_json():
            tables.write_json(ledger.commands.get(call))
        raise WaitTimeoutError(f"command {id} has not ended within {wait:g} s") from None
    command = ledger.commands.get(call)
    if wants_json():
        tables.write_json(command)
    elif command.status == "complete":
        tables.write_text(_to_text(command.result))
    tables.print_status(f"command {id} {state}" + (f": {command.error}" if command.error else ""))
    return exit_status.STATES[state]


def _to_text(value: Any) -> str:
    value = None if value is msgspec.UNSET else value
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# Lists


def list_commands(queue: str, limit: int) -> None:
    """Print the pending, completed and failed commands."""
    with open_selected() as selected:
        commands = selected.ledger.commands
        lists = {
            "pending": commands.pending(queue, limit),
            "completed": commands.completed(queue, limit),
            "failed": commands.failed(queue, limit),
        }
    if wants_json():
        tables.write_json(lists)
    elif any(lists.values()):
        _print_table([command for found in lists.values() for command in found])
    else:
        tables.print_status("no pending commands, and none ended recently")
    tables.print_more_hint(any(len(found) >= limit for found in lists.values()), limit)


def _print_table(commands: list[Command]) -> None:
    cells: list[list[str]] = []
    for command in commands:
        detail = _to_text(command.result) if command.status == "complete" else command.error or ""
        created_ms = int(datetime.fromisoformat(command.created_at).timestamp() * 1000)
        cells.append(
            [command.correlation_id, command.status, format_age(created_ms), command.client, command.action, detail]
        )
    tables.print_table(["COMMAND", "STATUS", "WHEN", "QUEUE", "ACTION", "OUTCOME"], cells)


def _find_state(selected: SelectedLedger, correlation_id: str, session: str) -> str:
    """Return the state of a command that asks; a rule may have answered. A caller that may not read sees none."""
    try:
        return selected.ledger.find_call(correlation_id, session).state
    except CallslipError:
        return "awaiting_approval"
