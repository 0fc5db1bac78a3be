"""`callslip demo`: a scripted demo agent, in the web UI or in a terminal."""

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
from callslip.cli.options import has_selected_location, json_option, refuse_agent, select_location, selected_location
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_counts
from callslip.client.location import LedgerLocation, data_folder
from callslip.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from callslip.demo.session import Summary


@click.command()
@click.option("--terminal", is_flag=True, help="Show the agent in this terminal instead of in the web UI.")
@click.option("--keep", "--db", "keep", metavar="FILE", help="Keep the ledger in this file.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port of the web UI. [default: 7890 if free, else any]")
@click.option(
    "--browser/--no-browser", default=None, help="Open the web UI in a browser. [default: if a display is found]"
)
@click.option(
    "--model", metavar="PROVIDER:NAME", envvar="CALLSLIP_MODEL", show_envvar=True, help="Let a model answer prompts."
)
@click.option("--fast", is_flag=True, help="Run without pauses.")
@click.option(
    "--answer",
    type=click.Choice(["ask", "yes", "no"]),
    default="ask",
    show_default=True,
    help="With --terminal: answer to the approval. Without a terminal, ask means yes.",
)
@json_option
@click.pass_context
def demo(ctx: click.Context, terminal: bool, keep: str | None, fast: bool, answer: str, **page: Any) -> int:
    """Run a scripted demo agent.

    It uses no model, but its commands are real. They run in a scratch folder that is removed at the end. The web UI
    shows the agent live, answers a few prompts and has a lab that injects faults. Its token is stored in a file that
    only you can read, so that an open page reconnects to the next demo. With --terminal the live view is compared with
    the stored session at the end.
    """
    if keep:
        select_location(keep)
    pace = 0.0 if fast else 1.0
    return _run_in_terminal(answer, fast=fast) if terminal else _run_page(pace=pace, **page)


def _prepare_location() -> LedgerLocation:
    location = selected_location()
    location.prepare()
    if location.is_in_memory:
        raise click.UsageError("--db: the demo needs a database file. Pass its path.")
    return location


# In the web UI


def _run_page(*, port: int | None, browser: bool | None, model: str | None, pace: float) -> int:
    from callslip.agent.models import find_model
    from callslip.demo import browser as browsers
    from callslip.demo import server

    is_kept = has_selected_location()
    if is_kept:
        refuse_agent("serve a ledger, because the token of the server may answer requests")
    with _temporary_folders() as (own, scratch):
        if not is_kept:
            select_location(str(own / "ledger.db"))
        location = _prepare_location()
        opens_browser = browsers.is_available() if browser is None else browser
        found_model = find_model(model) if model else None
        token = _demo_token()
        status = server.run(
            location, token, scratch, own, port=port, opens_browser=opens_browser, model=found_model, pace=pace
        )
    if is_kept:
        tables.print_status(f"View again: callslip serve --db {shlex.quote(location.display_name)}")
    return status


def _demo_token() -> str:
    """Return the token of the demo: the same for every start, so that a page that is still open reconnects."""
    from callslip.client.token_file import mint_token, stored_token

    try:
        return stored_token(data_folder() / "demo-token")
    except StoreError as error:  # The demo also runs where nothing can be stored.
        tables.print_status(f"warning: {error}. The token is valid only until the demo stops.")
        return mint_token()


@contextmanager
def _temporary_folders() -> Generator[tuple[Path, Path]]:
    """Yield a folder for the demo's own files, which commands do not see, and one in which commands run."""
    with (
        tempfile.TemporaryDirectory(prefix="callslip-demo-", ignore_cleanup_errors=True) as own,
        tempfile.TemporaryDirectory(prefix="callslip-work-", ignore_cleanup_errors=True) as scratch,
    ):
        yield Path(own), Path(scratch)


# In a terminal


def _run_in_terminal(answer: str, *, fast: bool) -> int:
    import asyncio

    from callslip.demo.session import play

    if not has_selected_location():
        select_location(str(Path(tempfile.mkdtemp(prefix="callslip-demo-")) / "ledger.db"))
    location = _prepare_location()
    console = tables.console()
    try:
        summary = asyncio.run(play(location.url, console, fast=fast, answer=answer))
    except KeyboardInterrupt:
        tables.print_status(f"interrupted; the session is stored in {location.display_name}")
        raise
    except asyncio.CancelledError:
        tables.print_status(f"terminated; the session is stored in {location.display_name}")
        return exit_status.TERMINATED
    _print_summary(console, summary, location)
    return exit_status.OK if summary.is_same else exit_status.FAILED


def _print_summary(console: Console, summary: Summary, location: LedgerLocation) -> None:
    from rich.text import Text

    from callslip.cli.terminal.timeline import styled_state

    def print_line(line: Text) -> None:
        console.print(line, soft_wrap=True)  # Commands to copy must not be wrapped.

    print_line(Text(f"\n{format_counts(Counter(call.state for call in summary.calls))}", "bold"))
    for call in summary.calls:
        state = styled_state(f"{call.state:<9}")
        print_line(Text(f"  {call.id}  ").append_text(state).append(f"  {escape_controls(call.title)}"))
    comparison = ("same", "bold green") if summary.is_same else ("DIFFERENT", "bold red")
    line = Text("\nLive view and stored session: ", "bold").append(*comparison)
    print_line(line.append(f"  ({summary.entries} entries, {summary.events} events)", "dim"))
    database = f" --db {shlex.quote(location.display_name)}"
    print_line(Text(f"\nView again   callslip show @last{database}"))
    print_line(Text(f"One call     callslip show {summary.calls[-1].id}{database}"))
    print_line(Text(f"All calls    callslip ls @last{database}"))
