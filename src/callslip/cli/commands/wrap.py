"""`callslip wrap`: run an agent or an MCP server for its client, pass all messages through, and record them."""

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
    from callslip.model.events import Chunks
    from callslip.wrap.permission_filter import PermissionFilter

NO_COMMAND, NOT_RUNNABLE = 127, 126

TERMINAL_HINT = """\
stdin is a terminal. callslip wrap must be started by the client of an agent.

Where your editor or client starts the agent with
    {agent}
configure this instead:
    callslip wrap -- {agent}
In a client with separate fields for command and arguments:
    "command": "callslip", "args": {args}

Then see its tool calls:
    callslip ls              list sessions
    callslip show @last      show the newest
"""


TERMINAL_HINT_MCP = """\
stdin is a terminal. callslip wrap --mcp must be started by an MCP client.

In the configuration of your client, replace the server with:
{servers}

Then see its tool calls:
    callslip ls              list sessions
    callslip show @last      show the newest
"""


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("agent", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- AGENT...")
@click.option("--mcp", is_flag=True, help="AGENT... is an MCP server.")
@click.option("--session", type=ID, metavar="NAME", help="The session to write. [default: AGENT-ID]")
@click.option("--policy", metavar="FILE", help="A TOML file with rules that answer permission requests.")
@click.option(
    "--approvals",
    type=click.Choice(["client", "callslip"]),
    default="client",
    show_default=True,
    help="Who answers requests that no rule matches: the agent's client, or you with approve and deny.",
)
@click.option(
    "--chunks",
    type=click.Choice(["auto", "delta", "cumulative", "dedupe"]),
    help="How the agent splits streamed texts. [default: detected]",
)
@click.option("--fail-closed", is_flag=True, help="Pass only recorded messages; stop the agent if recording fails.")
@db_option
def wrap(
    agent: tuple[str, ...],
    mcp: bool,
    session: str | None,
    policy: str | None,
    approvals: str,
    chunks: Chunks | None,
    fail_closed: bool,
) -> int:
    """Run an ACP agent and record its tool calls.

    AGENT... is the command that the client would run: an agent that speaks the Agent Client Protocol on stdin and
    stdout. All bytes pass unchanged. The exit status is that of the agent (128 plus the number of a signal that killed
    it; 127 if the command does not exist). Signals are forwarded to the agent. If callslip is killed, the agent's stdin
    is closed.

    A session of the agent is recorded as AGENT-ID: the name of its program and its own session id. A session that is
    loaded again continues there; a new session with an old id is recorded as AGENT-ID.2. With --session the first
    session is recorded as NAME, and another session x as NAME:x.

    Streamed texts are joined as --chunks says: each chunk is new (delta), is the full text so far (cumulative), or may
    repeat the end of the text (dedupe). Without it that is detected.

    If recording fails, the agent keeps running, callslip retries, and stderr reports how many messages are missing. Up
    to 64 MB are buffered; when the buffer is full, the agent is blocked for up to 2 seconds before messages are
    dropped. With --fail-closed each message is recorded before it passes, and a failure stops the agent with status 1.

    With --mcp the command is an MCP server. Each tools/call is recorded as a call, with its progress, its result and
    its state; a result that arrives after the client gave up is recorded as late. A run is one session, SERVER-TIME or
    NAME. --policy and --approvals are for agents only.

    A policy has rules. The first rule that matches decides; if none matches, the client is asked:

    \b
      [[rule]]
      action = "allow"                        # or "deny" or "ask"
      kind = ["read", "search"]               # of the call; also: tool, title
      path = "~/project/**"                   # all files of the call
    \b
      [[rule]]
      action = "deny"
      input.command = "regex:.*rm -rf.*"      # a field of its input
      reason = "deleting files is not allowed"

    Patterns match full texts; * matches any text, in a path up to the next slash, ** also slashes. The answer is the
    agent's option for this one call; with always = true, the option that the agent remembers. Rules trust what the
    agent reports about a call; if it does not report what a deny or ask rule checks, you are asked. A tool of an MCP
    server is allowed only by its full name (mcp__files__read).

    A pattern with wildcards allows a shell command only if it is one simple command that starts no other program: for
    "git *", you are asked about `git log; rm x` and `git -c alias.x=!rm x`. A pattern without wildcards allows exactly
    its own text.

    With --approvals callslip the client is not asked: a request waits until `callslip approve` or `callslip deny`
    answers it from any terminal, and the agent receives the matching option. Without an answer it is denied after 5
    minutes. It ends with the turn, or when the client cancels it. While recording fails, the client is asked.
    """
    command = list(agent)
    if mcp and (policy is not None or approvals != "client"):
        raise click.UsageError("--policy and --approvals are for agents: an MCP server sends no permission requests")
    if mcp and chunks is not None:
        raise click.UsageError("--chunks is for agents: an MCP server sends no streamed texts")
    if sys.stdin.isatty():
        click.echo(escape_block(_terminal_hint(command, mcp=mcp)), err=True)
        return exit_status.USAGE
    permissions = _create_filter(policy, approvals == "callslip")
    return _run(command, session or "", permissions, chunks, fail_closed=fail_closed, mcp=mcp)


def _terminal_hint(command: list[str], *, mcp: bool) -> str:
    import json

    if not mcp:
        return TERMINAL_HINT.format(agent=shlex.join(command), args=json.dumps(["wrap", "--", *command]))
    from callslip.wrap.session_names import program_name

    server = {"command": "callslip", "args": ["wrap", "--mcp", "--", *command]}
    servers = json.dumps({"mcpServers": {program_name(command): server}}, indent=2)
    return TERMINAL_HINT_MCP.format(servers="\n".join("    " + line for line in servers.splitlines()))


def _run(
    command: list[str],
    session: str,
    permissions: PermissionFilter | None,
    chunks: Chunks | None,
    *,
    fail_closed: bool,
    mcp: bool,
) -> int:
    from urllib.parse import quote

    from callslip.client.server_file import running_server
    from callslip.model.names import check_session_name
    from callslip.wrap.launch import Agent, Recording, run

    if session:
        check_session_name(session)
    location = selected_location()
    recording = Recording(location.url, location.prepare, session, fail_closed, "mcp" if mcp else "acp", chunks)
    try:
        started = Agent(command, "server" if mcp else "agent")
    except OSError as error:
        _print_message(f"{command[0]}: {error.strerror}")
        return NO_COMMAND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
    running = running_server(location)
    if running is not None:
        _print_message(f"Web UI: {running.url}/" + (f"s/{quote(session, safe='')}" if session else ""))
    return run(started, recording, permissions, _print_message)


def _print_message(text: str) -> None:
    """Print on stderr; an error there must not stop the agent."""
    try:
        tables.print_status(f"callslip: {text}")
    except OSError:
        pass


def _create_filter(policy: str | None, holds: bool) -> PermissionFilter | None:
    if policy is None and not holds:
        return None
    from callslip.api.policy_file import read_policy
    from callslip.api.protected_places import protected_places
    from callslip.rules.policy import Policy
    from callslip.wrap.permission_filter import PermissionFilter

    rules = read_policy(policy) if policy is not None else Policy(())
    return PermissionFilter(rules, holds=holds, places=protected_places(selected_location().url, rules.path))
