"""The command line. Only click is loaded here; the module of a command is loaded when the command is used.

stdout has data, stderr everything else. `exit_status.py` defines the exit statuses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option

# In the order of the help: the name, the place and the first sentence of the help of each command.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("callslip.demo.command:demo", "Run a scripted demo agent."),
    "serve": ("callslip.cli.commands.serve:serve", "Start the web UI and API server."),
    "up": ("callslip.cli.commands.transcripts:up", "Follow the session files of agents, and show them in the web UI."),
    "watch": ("callslip.cli.commands.transcripts:watch", "Follow the session files of agents."),
    "hook": ("callslip.cli.commands.hook:hook", "Install hooks into agents, so that they record while they run."),
    "run": ("callslip.cli.commands.run:run", "Run an agent with a shell tool."),
    "wrap": ("callslip.cli.commands.wrap:wrap", "Run an ACP agent and record its tool calls."),
    "ls": ("callslip.cli.commands.ls:ls", "List sessions or calls."),
    "show": ("callslip.cli.commands.show:show", "Show a session, call or approval."),
    "tail": ("callslip.cli.commands.tail:tail", "Follow a session live."),
    "submit": ("callslip.cli.commands.submit:submit", "Queue a command for a worker."),
    "wait": ("callslip.cli.commands.answer:wait", "Wait for a call to finish."),
    "approve": ("callslip.cli.commands.answer:approve", "Approve a pending call."),
    "deny": ("callslip.cli.commands.answer:deny", "Deny a pending call."),
    "rules": ("callslip.cli.commands.rules:rules", "List, add, test and revoke saved rules."),
    "cancel": ("callslip.cli.commands.answer:cancel", "Cancel a call."),
    "mcp": ("callslip.cli.commands.mcp:mcp", "Start an MCP server on stdio."),
    "import": ("callslip.cli.commands.import_:import_", "Import messages from a file, or the history of an agent."),
    "export": ("callslip.cli.commands.export:export", "Export a session."),
    "search": ("callslip.cli.commands.search:search", "Search messages, calls and titles."),
    "usage": ("callslip.cli.commands.usage:usage", "Show the tokens and costs that agents reported."),
    "verify": ("callslip.cli.commands.verify:verify", "Check stored data against the log."),
    "notify": ("callslip.cli.commands.notify:notify", "Try notifications."),
    "doctor": ("callslip.cli.commands.doctor:doctor", "Diagnose problems."),
    "admin": ("callslip.cli.commands.admin:admin", "Manage sessions, retention, databases and tokens."),
}


class Commands(click.Group):
    """A group that loads a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        return getattr(import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            similar = "".join(f"; similar: {name!r}" for name in get_close_matches(args[0], COMMANDS, 1))
            raise click.UsageError(f"no command {args[0]!r}{similar}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would report it as a failure.
            return exit_status.report(error)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its status. An error becomes one line on stderr and a status."""
        settings = (args, "callslip", complete_var)
        if not standalone_mode:
            return super().main(*settings, standalone_mode=False, **extra)
        exit_status.keep_text_printable()
        try:
            status = super().main(*settings, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BaseException as error:
            status = exit_status.report(error)
        sys.exit(status if isinstance(status, int) else 0)


def _print_version(ctx: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        from callslip._version import __version__

        click.echo(f"callslip {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@db_option
@json_option
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def main() -> None:
    """A durable log for AI agent tool calls.

    IDs: the name of a session, the id of a call (exec_...) or the id that its agent uses, the id of an approval
    (appr_...). A prefix that matches only one is enough; @last is the newest.
    """
