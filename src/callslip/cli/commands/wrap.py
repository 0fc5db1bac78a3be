"""`callslip wrap`: an agent or an MCP server, run for its client as if nobody stood between them, and recorded."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, selected_location
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_block

if TYPE_CHECKING:
    from callslip.wrap.permission_filter import PermissionFilter

NO_COMMAND, NOT_RUNNABLE = 127, 126

ALONE = """\
callslip wrap stands between a client and its agent, and there is no client here: this is a terminal.

Where your editor or client starts the agent with
    {agent}
let it run this instead:
    callslip wrap -- {agent}
In a client that asks for a command and its arguments, that is
    "command": "callslip", "args": {args}

Then watch what the agent's tools do:
    callslip ls              the sessions
    callslip show @last      the newest one
"""


ALONE_MCP = """\
callslip wrap --mcp stands between a client and its MCP server, and there is no client here: this is a terminal.

In the configuration of your client, let it run this instead of the server:
{servers}

Then watch what the server's tools do:
    callslip ls              the sessions
    callslip show @last      the newest one
"""


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("agent", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- AGENT...")
@click.option("--mcp", is_flag=True, help="AGENT... is an MCP server.")
@click.option("--session", type=ID, metavar="NAME", help="The session to write, instead of AGENT-ID.")
@click.option("--policy", metavar="FILE", help="A TOML file of rules that answer permission requests.")
@click.option(
    "--approvals",
    type=click.Choice(["client", "callslip"]),
    default="client",
    show_default=True,
    help="Who is asked what no rule decides: the agent's client, or you, by approve and deny.",
)
@click.option("--fail-closed", is_flag=True, help="Let nothing pass that is not recorded; stop the agent if need be.")
@db_option
def wrap(
    agent: tuple[str, ...], mcp: bool, session: str | None, policy: str | None, approvals: str, fail_closed: bool
) -> int:
    """Run an agent for its client, and record what they say.

    AGENT... is the command that the client would run: an agent that speaks the Agent Client Protocol on stdin and
    stdout. Every byte passes unchanged, and the exit status is the agent's (128 and the number of a signal that killed
    it; 127 if there is no such command). Signals go to the agent. If callslip itself is killed, the agent finds its
    stdin closed.

    A session of the agent is recorded as AGENT-ID: the name of its program and its own id of the session. So one that
    it loads again later goes on where it was; one that it makes anew under an old id is AGENT-ID.2. With --session the
    first one is recorded as NAME, and another one, x, as NAME:x.

    If recording fails, the agent goes on, Callslip tries again, and stderr says how many messages were missed. Up to
    64 MB wait for the ledger; when it is so far behind, the agent waits 2 seconds for it before anything is left out.
    With --fail-closed each message is recorded before it passes, and a failure ends the agent with status 1.

    With --mcp it is an MCP server that is run for its client. Every tools/call is recorded as a call, with its
    progress, its result and how it ended; a result that comes after the client gave up is kept as late. All of a run
    is one session, SERVER-TIME, or NAME. Nobody is asked for permission: --policy and --approvals are for agents.

    A policy has rules, of which the first that fits decides; what none fits, the client is asked:

    \b
      [[rule]]
      action = "allow"                        # or "deny" or "ask"
      kind = ["read", "search"]               # of the call; also: tool, title
      path = "~/project/**"                   # every file that it names
    \b
      [[rule]]
      action = "deny"
      input.command = "regex:.*rm -rf.*"      # a member of its input
      reason = "nothing is removed here"

    Patterns fit whole texts; * is any text, in a path up to the next slash, ** beyond it. An answer is the agent's own
    option for this once; with always = true, the one that it remembers. Rules believe what the agent says of its call;
    where it does not say what a rule that denies or asks looks at, you are asked. A tool of an MCP server is allowed
    by its whole name (mcp__files__read) only.

    With --approvals callslip the client is not asked either: a request waits until `callslip approve` or `callslip
    deny` answers it, from any terminal, and the agent gets its own option that says so. Nobody's answer within 5
    minutes is no. It is over when the turn ends or the client cancels it. While nothing can be recorded, the client is
    asked after all.
    """
    command = list(agent)
    if mcp and (policy is not None or approvals != "client"):
        raise click.UsageError("--policy and --approvals are for agents: an MCP server asks nobody for permission")
    if sys.stdin.isatty():
        click.echo(escape_block(_alone_mcp(command) if mcp else _alone(command)), err=True)
        return exit_status.USAGE
    return _run(command, session or "", _desk(policy, approvals == "callslip"), fail_closed, mcp)


def _alone(command: list[str]) -> str:
    import json

    return ALONE.format(agent=shlex.join(command), args=json.dumps(["wrap", "--", *command]))


def _alone_mcp(command: list[str]) -> str:
    import json

    from callslip.wrap.session_names import program_name

    server = {"command": "callslip", "args": ["wrap", "--mcp", "--", *command]}
    servers = json.dumps({"mcpServers": {program_name(command): server}}, indent=2)
    return ALONE_MCP.format(servers="\n".join("    " + line for line in servers.splitlines()))


def _run(command: list[str], session: str, desk: PermissionFilter | None, fail_closed: bool, mcp: bool) -> int:
    from urllib.parse import quote

    from callslip.client.server_file import running_server
    from callslip.wrap.launch import Agent, Recording, run

    where = selected_location()
    recording = Recording(where.url, where.prepare, _checked(session), fail_closed, "mcp" if mcp else "acp")
    try:
        started = Agent(command, "server" if mcp else "agent")
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return NO_COMMAND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    running = running_server(where)
    if running is not None:
        _say(f"watch it at {running.url}/" + (f"s/{quote(session, safe='')}" if session else ""))
    return run(started, recording, desk, _say)


def _say(text: str) -> None:
    """Nothing that happens to stderr may stop the agent."""
    try:
        tables.print_status(f"callslip: {text}")
    except OSError:
        pass


def _checked(session: str) -> str:
    if session:
        from callslip.model.names import check_session_name

        check_session_name(session)
    return session


def _desk(policy: str | None, holds: bool) -> PermissionFilter | None:
    if policy is None and not holds:
        return None
    from callslip.wrap.permission_filter import PermissionFilter
    from callslip.wrap.policy import Policy, load

    return PermissionFilter(load(policy) if policy is not None else Policy(()), holds=holds)
