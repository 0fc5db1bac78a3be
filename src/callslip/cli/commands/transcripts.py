"""The histories of agents: import them, and follow them with `callslip watch` and `callslip up`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.commands import serve as serving
from callslip.cli.commands.reach import Reach, reach_options
from callslip.cli.options import db_option, json_option, refuse_agent, selected_location, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.model.display import pluralize
from callslip.settings import Settings
from callslip.transcripts.agents import SOURCES
from callslip.transcripts.follow import Follower, Target
from callslip.transcripts.importer import Report, TranscriptImporter
from callslip.transcripts.source import Source, Transcript

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger

LONG_BYTES = 2**20
SHOWN_PROBLEMS = 5


def find_targets(names: Sequence[str], paths: Sequence[str] = ()) -> list[Target]:
    """Return what to read for some agents: the paths, or the folders of the agents themselves."""
    sources = [SOURCES[name] for name in dict.fromkeys(names)] or list(SOURCES.values())
    home = os.path.expanduser("~")
    return [(source, path) for source in sources for path in paths or source.folders(os.environ, home)]


def import_transcripts(name: str, paths: Sequence[str], *, restores: bool) -> int:
    """Import the history of an agent, and print what is new."""
    targets = find_targets([name], paths)
    report = with_ledger(lambda ledger: _import(ledger, targets, restores), create=True)
    if wants_json():
        tables.write_json(report)
    if not report.transcripts and not any(os.path.exists(path) for _, path in targets):
        folders = ", ".join(path for _, path in targets)
        tables.print_status(f"nothing to import: {folders} does not exist")
    print_report(report)
    return exit_status.FAILED if report.problems else exit_status.OK


async def _import(ledger: LocalLedger, targets: Sequence[Target], restores: bool) -> Report:
    total = Report()
    for source, path in targets:
        importer = TranscriptImporter(ledger.log, restores=restores)
        await importer.load()
        found = list(source.find(path))
        changed = [transcript for transcript in found if not importer.is_unchanged(source, transcript)]
        with _progress(sum(transcript.size for transcript in changed)) as importer.progress:
            total.add(await importer.run(source, changed))
    return total


@contextmanager
def _progress(size: int) -> Generator[Callable[[Transcript, int], None] | None]:
    """Show a progress bar on the terminal while much is read."""
    if not sys.stderr.isatty() or size < LONG_BYTES:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=tables.console(stderr=True), transient=True) as bar:
        task = bar.add_task("importing", total=size)
        yield lambda _, read: bar.update(task, advance=read)


def print_report(report: Report) -> None:
    """Print what was imported, and what could not be read."""
    sessions = pluralize(len(report.sessions), "session")
    messages, events = pluralize(report.messages, "message"), pluralize(report.events, "new event")
    tables.print_status(f"{messages}, {events} in {sessions}")
    if report.deleted:
        kept = f"left out: {pluralize(report.deleted, 'transcript')} of deleted sessions"
        tables.print_status(f"{kept}; --restore imports them again")
    print_problems(report)


def print_problems(report: Report) -> None:
    """Print what could not be read."""
    for problem in report.problems[:SHOWN_PROBLEMS]:
        path = escape_controls(problem.path)
        if problem.count:
            first = f"line {problem.line}: {problem.reason}" if problem.line else problem.reason
            tables.print_status(f"skipped {problem.count:,} of {path}, the first one {first}")
        else:
            tables.print_status(f"cannot read {path}: {problem.reason}")
    if len(report.problems) > SHOWN_PROBLEMS:
        tables.print_status(f"and in {pluralize(len(report.problems) - SHOWN_PROBLEMS, 'more file')}")


# Following


def _print_news(source: Source, report: Report) -> None:
    if wants_json():
        tables.write_json({"agent": source.name, **_fields(report)})
        return
    if report.events:
        tables.print_status(f"{source.name}: {pluralize(report.events, 'new event')} in {', '.join(report.sessions)}")
    print_problems(report)


def _print_trouble(problem: str) -> None:
    tables.print_status(f"importing fails, and is tried again: {problem}" if problem else "importing works again")


def _fields(report: Report) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(report)
    return fields


async def follow(ledger: LocalLedger, targets: Sequence[Target]) -> None:
    """Follow the histories of agents until this task is cancelled."""
    importer = TranscriptImporter(ledger.log, is_live=True)
    await Follower(importer, targets, _print_news, _print_trouble).run()


def _print_targets(targets: Sequence[Target]) -> None:
    for source, path in targets:
        missing = "" if os.path.exists(path) else " (it does not exist yet)"
        tables.print_status(f"watching {source.name}: {escape_controls(path)}{missing}")


agents_argument = click.argument("agents", nargs=-1, type=click.Choice(list(SOURCES)), metavar="[AGENT]...")


@click.command()
@agents_argument
@db_option
@json_option
def watch(agents: tuple[str, ...]) -> int:
    """Follow the session files of agents.

    What agents write is imported within a second, as `callslip import` does it, until Ctrl-C. AGENT is a format such
    as claude-code; without one, all agents are followed whose formats are known. A folder that does not exist yet is
    followed from when it does. Nothing is installed into the agents.
    """
    from callslip.hooks.server import serving_hooks

    targets, location = find_targets(agents), selected_location()
    _print_targets(targets)

    async def follow_all(ledger: LocalLedger) -> None:
        async with serving_hooks(ledger, location, tables.print_status):
            await follow(ledger, targets)

    return with_ledger(lambda ledger: _until_signal(follow_all(ledger)), create=True)


async def _until_signal(work: Any) -> int:
    """Run until a signal stops the program, and return the exit status for it."""
    loop = asyncio.get_running_loop()
    task, received = asyncio.ensure_future(work), list[signal.Signals]()

    def stop(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in serving.STATUS:
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        for number in serving.STATUS:
            loop.remove_signal_handler(number)
    return serving.STATUS[received[0]] if received else exit_status.OK


@click.command()
@agents_argument
@reach_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=serving.PORT,
    show_default=True,
    help="The port; 0 is any free one.",
)
@click.option(
    "--token",
    default="",
    help="The token with full access, at least 16 characters. [env: CALLSLIP_TOKEN; default: a stored one]",
)
@click.option(
    "--open/--no-browser", "opens_browser", default=False, help="Open the web UI in a browser. [default: --no-browser]"
)
@serving.rule_options
@db_option
@json_option
def up(
    agents: tuple[str, ...],
    reach: Reach,
    port: int,
    token: str,
    opens_browser: bool,
    policy_file: str,
    rules_allow_chains: bool,
) -> int:
    """Follow the session files of agents, and show them in the web UI.

    This is `callslip watch` and `callslip serve` in one process. The options are those of `callslip serve`, which has
    more of them.
    """
    refuse_agent("serve a ledger, because the token of the server may answer requests")
    targets = find_targets(agents)
    _print_targets(targets)

    @contextlib.asynccontextmanager
    async def following(ledger: LocalLedger) -> AsyncGenerator[None]:
        task = asyncio.ensure_future(follow(ledger, targets))
        task.add_done_callback(_report_failure)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    settings = Settings(policy_file=policy_file, rules_allow_chains=rules_allow_chains)
    return serving.run_server(reach, port, token, opens_browser=opens_browser, settings=settings, beside=following)


def _report_failure(task: asyncio.Task[None]) -> None:
    """Report that nothing is followed any more, while the server still runs."""
    if not task.cancelled() and (error := task.exception()) is not None:
        tables.print_status(f"watching stopped: {error}")
