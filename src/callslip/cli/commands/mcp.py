"""`callslip mcp`: the ledger as an MCP server on stdin and stdout, for the client that starts it."""

from __future__ import annotations

import signal
import sys
from functools import partial

import click

from callslip.api.ledger import Ledger
from callslip.cli import exit_status
from callslip.cli.ids import ID
from callslip.cli.place import db_option, with_ledger
from callslip.errors import StoreError
from callslip.mcp import MISSING

ALONE = """\
callslip mcp is started by an MCP client, and there is none here: this is a terminal.

In the client's configuration:
    {"mcpServers": {"callslip": {"command": "callslip", "args": ["mcp"]}}}

Over HTTP the same is at /mcp of `callslip serve`, with the token as bearer.
"""


@click.command()
@click.option("--session", type=ID, metavar="NAME", help="Where commands go that name no session.")
@db_option
def mcp(session: str | None) -> int:
    """Serve the ledger to an MCP client, on stdin and stdout.

    The client's model can submit commands (interact), see what became of them (observe), and list, read, wait for and
    cancel calls. Calls are resources, too, and commands are tasks for clients that know tasks. Nothing here approves.

    Ends when the client closes stdin. Commands stay as they are: others may be running them.
    """
    if sys.stdin.isatty():
        click.echo(ALONE, err=True, nl=False)
        return exit_status.USAGE
    try:
        import mcp as _sdk  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError:
        raise StoreError(MISSING) from None
    from callslip.model.names import check_session_name

    # The SDK reads stdin in a thread that no exception reaches. Nothing lives by this process, so it may just die.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.unraisablehook = _not_flushed
    with_ledger(partial(_serve, check_session_name(session) if session else ""), create=True)
    return exit_status.OK


async def _serve(session: str, ledger: Ledger) -> None:
    from callslip.mcp import serve_stdio

    await serve_stdio(ledger, session)


def _not_flushed(told: sys.UnraisableHookArgs) -> None:
    """From Python 3.13 on it is told what could not be written to a client that has gone, when all is over."""
    if not isinstance(told.exc_value, BrokenPipeError):
        sys.__unraisablehook__(told)
