"""`callslip demo`: the script on one side, the screen on the other, and between them nothing but the ledger."""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from callslip.cli import exits, output
from callslip.cli.inert import inert
from callslip.cli.phrases import tally
from callslip.cli.place import DB, Place, place

if TYPE_CHECKING:
    from rich.console import Console

    from callslip.demo.stage import Shown


@click.command()
@click.option("--db", metavar="URL|PATH", help="Record into this ledger instead of one in a temporary folder.")
@click.option("--fast", is_flag=True, help="Without pauses.")
@click.option(
    "--answer",
    type=click.Choice(["ask", "yes", "no"]),
    default="ask",
    show_default=True,
    help="What to say to the call that needs approval; without a terminal, ask means yes.",
)
@click.pass_context
def demo(ctx: click.Context, db: str | None, fast: bool, answer: str) -> int:
    """Watch a small scripted agent at work.

    There is no model, but the commands are real: they run in a folder of their own that is removed afterwards. What you
    see is drawn from the ledger's patches, and at the end compared with a fresh read of the log.
    """
    if db:
        ctx.meta[DB] = db
    if not ctx.meta.get(DB):
        ctx.meta[DB] = str(Path(tempfile.mkdtemp(prefix="callslip-demo-")) / "ledger.db")
    meant = place()
    meant.prepare()
    if not meant.path:
        raise click.UsageError("the demo shows what is kept; name a file with --db")
    import asyncio

    from callslip.demo.stage import perform

    console = output.console()
    try:
        shown = asyncio.run(perform(meant.url, console, fast=fast, answer=answer))
    except KeyboardInterrupt:
        output.say(f"interrupted; what was recorded is in {meant.path}")
        raise
    except asyncio.CancelledError:
        output.say(f"terminated; what was recorded is in {meant.path}")
        return exits.TERMINATED
    _report(console, shown, meant)
    return exits.OK if shown.equal else exits.FAILED


def _report(console: Console, shown: Shown, meant: Place) -> None:
    from rich.text import Text

    from callslip.cli.timeline import styled_state

    def line(text: Text) -> None:
        console.print(text, soft_wrap=True)  # What may be copied stays in one piece.

    line(Text(f"\n{tally(Counter(call.state for call in shown.calls))}", "bold"))
    for call in shown.calls:
        state = styled_state(f"{call.state:<9}")
        line(Text(f"  {call.id}  ").append_text(state).append(f"  {inert(call.title)}"))
    said = Text("\nlive view == after refresh: ", "bold")
    said.append(*(("equal", "bold green") if shown.equal else ("DIFFERENT", "bold red")))
    line(said.append(f"  ({shown.entries} entries made by {shown.events} events)", "dim"))
    where = f" --db {shlex.quote(meant.path)}"
    line(Text(f"\nlook again   callslip show @last{where}"))
    line(Text(f"one call     callslip show {shown.calls[-1].id}{where}"))
    line(Text(f"all calls    callslip ls @last{where}"))
