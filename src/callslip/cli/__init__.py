"""The command line. Only click is loaded here: a command's own module comes in when that command is used.

stdout is data, stderr is everything else; what each exit status means stands in `exits.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option

# In the order of the help: what it is called, where it is, and what it does in one sentence.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("callslip.demo.command:demo", "Watch a small scripted agent at work."),
    "serve": ("callslip.cli.commands.serve:serve", "Serve the page, the API and the streams of a ledger."),
    "run": ("callslip.cli.commands.run:run", "Let a model answer, with a shell at hand."),
    "wrap": ("callslip.cli.commands.wrap:wrap", "Run an agent for its client, and record what they say."),
    "ls": ("callslip.cli.commands.ls:ls", "List sessions, or the calls of one."),
    "show": ("callslip.cli.commands.show:show", "Show a session, a call or an approval."),
    "tail": ("callslip.cli.commands.tail:tail", "Follow a session as it goes on."),
    "submit": ("callslip.cli.commands.submit:submit", "Submit a command for somebody else to run."),
    "wait": ("callslip.cli.commands.answer:wait", "Wait until a call has ended."),
    "approve": ("callslip.cli.commands.answer:approve", "Let a call run that asks for approval."),
    "deny": ("callslip.cli.commands.answer:deny", "Refuse a call that asks for approval."),
    "cancel": ("callslip.cli.commands.answer:cancel", "End a call that is open."),
    "mcp": ("callslip.cli.commands.mcp:mcp", "Serve the ledger to an MCP client, on stdin and stdout."),
    "import": ("callslip.cli.commands.import_:import_", "Take what a file tells into a session."),
    "export": ("callslip.cli.commands.export:export", "Write a session in another format."),
    "verify": ("callslip.cli.commands.verify:verify", "Derive everything again and compare."),
    "doctor": ("callslip.cli.commands.doctor:doctor", "Look for what is wrong, and say what to do."),
    "admin": ("callslip.cli.commands.admin:admin", "Delete sessions, forget what is old, give out tokens."),
}


class Commands(click.Group):
    """A group that knows its commands by name and loads them one at a time."""

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
            raise click.UsageError(f"no command {args[0]!r}{_nearest(args[0])}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make it a failure.
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
        """What a command returns is its exit status; what it raises becomes one line and a status."""
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


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from callslip._version import __version__

        click.echo(f"callslip {__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@db_option
@json_option
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Say the version.")
def main() -> None:
    """One identity, one lifecycle and one durable log for every tool call of an AI agent.

    IDs: a session by its name, a call by its id (exec_...) or the id that its agent gave it, an approval by its id
    (appr_...). A beginning that fits only one thing will do; @last is the newest.
    """
