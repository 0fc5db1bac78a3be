"""`callslip import`: import messages from a file, or the history of an agent. Again it adds only what is new."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import click
import msgspec

from callslip.cli import exit_status
from callslip.cli.commands.transcripts import import_transcripts
from callslip.cli.options import ID, db_option, json_option, refuse_agent, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.detection import BOM, Head, detect_format, read_head
from callslip.ingest.importer import Report, import_file, import_lines
from callslip.ingest.stream_parser import MAX_LINE_BYTES
from callslip.model.display import pluralize
from callslip.model.names import MAX_NAME_BYTES, check_session_name
from callslip.transcripts.agents import SOURCES

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.model.events import Chunks

LONG_FILE_BYTES = 2**20
SUFFIXES = (".json", ".jsonl", ".ndjson", ".log", ".txt")


@click.command("import")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, allow_dash=True), metavar="[PATH]...")
@click.option(
    "--format",
    "format_",
    type=click.Choice(registry.readable()),
    help="The format of the messages. [default: detected from the first ones]",
)
@click.option("--session", type=ID, help="The session to write. [default: the name of the file]")
@click.option(
    "--chunks",
    type=click.Choice(["auto", "delta", "cumulative", "dedupe"]),
    help="How streamed texts are split. [default: that of the format]",
)
@click.option(
    "--requires-validation",
    "tools",
    multiple=True,
    metavar="TOOL",
    help="For rows: a user must accept the calls of this tool; one without an answer is pending.",
)
@click.option("--restore", is_flag=True, help="For the history of an agent: also import sessions that were deleted.")
@db_option
@json_option
def import_(
    paths: tuple[str, ...],
    format_: str | None,
    session: str | None,
    chunks: Chunks | None,
    tools: tuple[str, ...],
    restore: bool,
) -> int:
    """Import messages from a file, or the history of an agent.

    PATH has one JSON value per line, or is a document that `callslip export` wrote; - is stdin. What was imported
    before is skipped, so a file that has grown can be imported again. Lines that are not understood are stored as they
    are; if that is most of them, the exit status is 1.

    With the format of an agent, such as claude-code, each PATH is a session file or a folder of them. Without a PATH
    it is the agent's own folder. Each session gets the name of its agent and the agent's own id. What cannot be read
    is skipped and reported, and the exit status is 1.
    """
    refuse_agent("import messages, because they may contain answers")
    if format_ in SOURCES and not session and "-" not in paths:
        if chunks or tools:
            raise click.UsageError(f"--chunks and --requires-validation have no effect on the history of {format_}")
        return import_transcripts(format_, paths, restores=restore)
    if restore:
        raise click.UsageError(f"--restore needs --format with one of {', '.join(SOURCES)}, and no --session")
    if len(paths) != 1 or os.path.isdir(paths[0]):
        raise click.UsageError("pass one file; only the history of an agent has several, with --format")
    file = paths[0]
    if file == "-" and not session:
        raise click.UsageError("stdin has no name; pass --session")
    name = check_session_name(session or session_name(file))
    try:
        options = Options(chunks=chunks, requires_validation=dict.fromkeys(tools, True) if tools else None)
        with open(file, "rb") if file != "-" else nullcontext(sys.stdin.buffer) as opened:
            lines, is_plain = read_messages(opened)
            head = read_head(lines)
            if format_ is None:
                format_ = _detect(file, head, is_plain=is_plain)
                if format_ in SOURCES and not session:
                    return import_transcripts(format_, paths, restores=False)
            source = _Source(file if os.path.isfile(file) and file != "-" else "", is_plain, head.lines)
            report = with_ledger(lambda ledger: _import(ledger, source, name, format_, options), create=True)
    except InvalidInputError as error:
        raise click.ClickException(f"{file}: {error}") from error
    if wants_json():
        tables.write_json(report)
    _print_report(report, name)
    status = _print_not_understood(report, head.messages)
    return exit_status.FAILED if report.missing_values else status


def _detect(file: str, head: Head, *, is_plain: bool) -> str:
    """Return the format of the first messages of a file, and print it. A document without any is one of events."""
    if head.error is not None:
        raise head.error
    try:
        detected = detect_format(head.messages) if head.messages or is_plain else "events"
    except InvalidInputError as error:
        raise click.UsageError(f"{file}: {error}") from error
    tables.print_status(f"detected format: {detected}")
    return detected


class _Source(NamedTuple):
    """Where the lines come from. `path` is that of a file, "" for a pipe; `is_plain` is whether they are its lines."""

    path: str
    is_plain: bool
    lines: Iterable[bytes]


def session_name(path: str) -> str:
    """Return the session name for a file: its name without the suffix and without forbidden characters."""
    name = os.fsencode(os.path.basename(path)).decode("utf-8", "replace")
    stem, suffix = os.path.splitext(name)
    clean = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]", "_", stem if suffix.lower() in SUFFIXES else name)
    return clean.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore") or "imported"


class Options(TypedDict):
    """How the messages of a file are read."""

    chunks: Chunks | None
    requires_validation: dict[str, bool] | None


async def _import(ledger: LocalLedger, source: _Source, session: str, format_: str, options: Options) -> Report:
    with _progress(source.path) if source.path else nullcontext() as progress:
        if source.path and source.is_plain:
            return await import_file(ledger.log, session, format_, source.path, **options, progress=progress)
        return await import_lines(ledger.log, session, format_, source.lines, **options, progress=progress)


# A document contains the same messages in one JSON value.


def read_messages(file: IO[bytes]) -> tuple[Iterable[bytes], bool]:
    """Return the messages of a file, and whether they are simply its lines."""
    first = file.readline(MAX_LINE_BYTES)
    start = first.strip().removeprefix(BOM)
    if start.startswith(b'{"session":') and start.endswith(b":["):
        return _items(file), False
    if start[:1] in (b"{", b"[") and not _is_json(start):
        return _document(first.removeprefix(BOM) + file.read()), False
    return chain([first], file), True


def _items(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the items of a document that `export` wrote, one per line."""
    for line in file:
        item = line.strip().removesuffix(b",")
        if item == b"]}":
            return
        yield item
    raise InvalidInputError("document", "is truncated: the closing bracket is missing")


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _document(text: bytes) -> Iterator[bytes]:
    """Yield the items of a document in any layout: a list, or an object with `events`; else its lines."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        yield from text.splitlines()
        return
    listed: Any = cast("dict[str, Any]", value).get("events") if isinstance(value, dict) else value
    items = cast("list[Any]", listed) if isinstance(listed, list) else [cast(Any, value)]
    for item in items:
        yield msgspec.json.encode(item)


# Progress and report


@contextmanager
def _progress(path: str) -> Generator[Callable[[Report], None] | None]:
    """Show a progress bar on the terminal while a long file is read."""
    if not sys.stderr.isatty() or os.path.getsize(path) < LONG_FILE_BYTES:
        yield None
        return
    from rich.progress import Progress

    with open(path, "rb") as file:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(LONG_FILE_BYTES), b""))
    with Progress(console=tables.console(stderr=True), transient=True) as bar:
        task = bar.add_task("importing", total=total)
        yield lambda report: bar.update(task, completed=report.lines)


def _print_report(report: Report, session: str) -> None:
    sessions = ", ".join(report.sessions) or session
    tables.print_status(f"{pluralize(report.lines, 'line')}, {pluralize(report.events, 'new event')} in {sessions}")
    names = {verdict: "replayed" if verdict == "witness" else verdict for verdict in report.verdicts}
    ineffective = [f"{count} {names[verdict]}" for verdict, count in report.verdicts.items() if verdict != "applied"]
    if ineffective:
        tables.print_status(f"stored without effect: {', '.join(ineffective)}")
    if report.missing_values:
        values = pluralize(report.missing_values, "large value")
        tables.print_status(f"missing: {values}, of which the file has only the beginning")
    if report.seen:
        tables.print_status(f"already imported: {report.seen:,} of {report.drafts:,}")


def _print_not_understood(report: Report, head: list[Any]) -> int:
    """Print how many lines were not understood, and return the exit status: 1 if most, or if the format is another."""
    if not report.not_understood:
        return exit_status.OK
    known = f"as {report.format}; they are stored as they are"
    tables.print_status(f"not understood: {report.not_understood:,} of {pluralize(report.lines, 'line')} {known}")
    try:
        detected = detect_format(head)
    except InvalidInputError:
        detected = ""
    if detected and detected != (registry.find(report.format).read_as or report.format):
        tables.print_status(f"the first lines look like {detected}: pass --format {detected} and another --session")
        return exit_status.FAILED
    return exit_status.FAILED if 2 * report.not_understood > report.lines else exit_status.OK
