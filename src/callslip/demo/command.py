"""`callslip demo`: a page with an agent at work on it, or the same on a terminal."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.options import has_selected_location, json_option, select_location, selected_location
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import tally
from callslip.client.location import LedgerLocation

if TYPE_CHECKING:
    from rich.console import Console

    from callslip.demo.session import Shown


@click.command()
@click.option("--terminal", is_flag=True, help="On this terminal, or in a pipe as plain lines, instead of on a page.")
@click.option("--keep", "--db", "keep", metavar="FILE", help="Keep the ledger in this file.")
@click.option("--port", type=click.IntRange(0, 65535), help="Of the page. Else 7890 if that is free, else any.")
@click.option(
    "--browser/--no-browser", default=None, help="Open the page in a browser. Else where there seems to be one."
)
@click.option(
    "--model", metavar="MAKER:NAME", envvar="CALLSLIP_MODEL", show_envvar=True, help="Let a model answer what you ask."
)
@click.option("--fast", is_flag=True, help="Without pauses.")
@click.option(
    "--answer",
    type=click.Choice(["ask", "yes", "no"]),
    default="ask",
    show_default=True,
    help="With --terminal: what to say to the call that needs approval. Without a terminal, ask means yes.",
)
@json_option
@click.pass_context
def demo(ctx: click.Context, terminal: bool, keep: str | None, fast: bool, answer: str, **page: Any) -> int:
    """Watch a small scripted agent at work.

    There is no model, but the commands are real: they run in a folder of their own that is removed afterwards. Prints
    the address of a page that shows the agent live, answers a few prompts, and lets you break things. With --terminal
    what you see is drawn from the ledger's patches, and at the end compared with a fresh read of the log.
    """
    if keep:
        select_location(keep)
    pace = 0.0 if fast else 1.0
    return _on_terminal(ctx, answer, fast=fast) if terminal else _on_page(ctx, pace=pace, **page)


def _meant() -> LedgerLocation:
    meant = selected_location()
    meant.prepare()
    if not meant.path:
        raise click.UsageError("the demo shows what is kept; name a file with --keep")
    return meant


# On a page


def _on_page(ctx: click.Context, *, port: int | None, browser: bool | None, model: str | None, pace: float) -> int:
    import secrets

    from callslip.agent.models import find_model
    from callslip.demo import browser as browsers
    from callslip.demo import server

    kept = has_selected_location()
    with _folders() as (own, scratch):
        if not kept:
            select_location(str(own / "ledger.db"))
        meant = _meant()
        browse = browsers.is_there() if browser is None else browser
        found = find_model(model) if model else None
        token = secrets.token_urlsafe(24)
        status = server.run(meant, token, scratch, own, port=port, browse=browse, model=found, pace=pace)
    if kept:
        tables.print_status(f"look again: callslip serve --db {shlex.quote(meant.path)}")
    return status


@contextmanager
def _folders() -> Generator[tuple[Path, Path]]:
    """What is ours, and where commands run: they see nothing of the other, and both are removed in the end."""
    with (
        tempfile.TemporaryDirectory(prefix="callslip-demo-", ignore_cleanup_errors=True) as own,
        tempfile.TemporaryDirectory(prefix="callslip-work-", ignore_cleanup_errors=True) as scratch,
    ):
        yield Path(own), Path(scratch)


# On a terminal


def _on_terminal(ctx: click.Context, answer: str, *, fast: bool) -> int:
    import asyncio

    from callslip.demo.session import perform

    if not has_selected_location():
        select_location(str(Path(tempfile.mkdtemp(prefix="callslip-demo-")) / "ledger.db"))
    meant = _meant()
    console = tables.console()
    try:
        shown = asyncio.run(perform(meant.url, console, fast=fast, answer=answer))
    except KeyboardInterrupt:
        tables.print_status(f"interrupted; what was recorded is in {meant.path}")
        raise
    except asyncio.CancelledError:
        tables.print_status(f"terminated; what was recorded is in {meant.path}")
        return exit_status.TERMINATED
    _report(console, shown, meant)
    return exit_status.OK if shown.equal else exit_status.FAILED


def _report(console: Console, shown: Shown, meant: LedgerLocation) -> None:
    from rich.text import Text

    from callslip.cli.terminal.timeline import styled_state

    def line(text: Text) -> None:
        console.print(text, soft_wrap=True)  # What may be copied stays in one piece.

    line(Text(f"\n{tally(Counter(call.state for call in shown.calls))}", "bold"))
    for call in shown.calls:
        state = styled_state(f"{call.state:<9}")
        line(Text(f"  {call.id}  ").append_text(state).append(f"  {escape_controls(call.title)}"))
    said = Text("\nlive view == after refresh: ", "bold")
    said.append(*(("equal", "bold green") if shown.equal else ("DIFFERENT", "bold red")))
    line(said.append(f"  ({shown.entries} entries made by {shown.events} events)", "dim"))
    where = f" --db {shlex.quote(meant.path)}"
    line(Text(f"\nlook again   callslip show @last{where}"))
    line(Text(f"one call     callslip show {shown.calls[-1].id}{where}"))
    line(Text(f"all calls    callslip ls @last{where}"))
