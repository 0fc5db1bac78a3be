"""`callslip mcp`: serve a ledger over MCP, on stdin and stdout, to the client that starts the process."""

from __future__ import annotations

import signal
import sys

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, with_ledger
from callslip.errors import StoreError
from callslip.mcp import SDK_MISSING

TERMINAL_HINT = """\
stdin is a terminal. callslip mcp must be started by an MCP client.

In the client's configuration:
    {"mcpServers": {"callslip": {"command": "callslip", "args": ["mcp"]}}}

Over HTTP, use /mcp of `callslip serve` with a bearer token.
"""


@click.command()
@click.option("--session", type=ID, metavar="NAME", help="The session of commands that name none.")
@db_option
def mcp(session: str | None) -> int:
    """Start an MCP server on stdio.

    The client's model can submit commands (interact), get their results (observe), and list, read, wait for and cancel
    calls. Calls are also resources, and commands are tasks for clients that support tasks. No tool can approve a call.

    Ends when the client closes stdin. Commands keep their state: workers may be running them.
    """
    if sys.stdin.isatty():
        click.echo(TERMINAL_HINT, err=True, nl=False)
        return exit_status.USAGE
    try:
        import mcp as _sdk  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError:
        raise StoreError(SDK_MISSING) from None
    from callslip.mcp import serve_stdio
    from callslip.model.names import check_session_name

    # The SDK reads stdin in a thread that exceptions do not reach. This process owns no calls, so it may be killed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.unraisablehook = _ignore_broken_pipe
    name = check_session_name(session) if session else ""
    with_ledger(lambda ledger: serve_stdio(ledger, name), create=True)
    return exit_status.OK


def _ignore_broken_pipe(error: sys.UnraisableHookArgs) -> None:
    """Ignore output that a gone client cannot receive: since Python 3.13 the last flush of stdout reports it."""
    if not isinstance(error.exc_value, BrokenPipeError):
        sys.__unraisablehook__(error)
